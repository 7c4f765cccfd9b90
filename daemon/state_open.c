/* Opens the state: first the guard (state_guard.c), then the schema, the checks, and the jobs that have not
 * ended. Called only at start. Blocks.
 *
 * A small database is checked completely before anything is served, with SQLite's integrity_check and the
 * checksum of every row. That would take seconds for a long history. So in a large database only the rows of
 * live jobs are checked here. The other rows are checked in the pool while the daemon serves
 * (state_upkeep.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/state_internal.h"

/* The largest database, in bytes, that is checked completely when the daemon starts. A check of 8 MiB takes
 * well under a second. */
#define SMALL_BYTES (8u << 20)

int db_open(const char *path, bool writer, sqlite3 **ret, struct err *err)
{
    int flags = writer ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY;
    if (sqlite3_open_v2(path, ret, flags | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        return db_fail(path, *ret, "open the state", err);
    sqlite3_busy_timeout(*ret, 10000);
    return 0;
}

/* ---- opening ---- */

static int check_structure(struct state *s, struct err *err)
{
    char text[200];
    int r = db_first_text(s->path, s->db, "PRAGMA integrity_check(1)", text, err);
    if (r < 0 || strcmp(text, "ok") == 0)
        return r;
    return err_set_at(
        err, -EBADMSG, s->path,
        "the file is damaged: %s; restore it from a backup, or recover what is left with `sqlite3 state.db "
        ".recover`",
        text);
}

static bool is_large(const struct state *s)
{
    struct stat st;
    return stat(s->path, &st) == 0 && st.st_size > SMALL_BYTES;
}

/* Prepares the tables. Creates them only in a new file. Creating a missing table in an old file would hide
 * the fact that data was lost. */
static int prepare_schema(struct state *s, struct err *err)
{
    int version = 0, r = schema_version(s->path, s->db, &version, err);
    s->large = is_large(s);
    if (r == 0 && (!s->large || (version > 0 && version < SCHEMA_VERSION)))
        r = check_structure(s, err);
    if (r == 0 && version == 0)
        r = schema_make(s->path, s->db, err);
    else if (r == 0 && version < SCHEMA_VERSION)
        r = schema_migrate(s->path, s->db, version, err);
    return r == 0 ? schema_check(s->path, s->db, err) : r;
}

static int prepare_statements(struct state *s, struct err *err)
{
    for (int k = 0; k < WRITE_COUNT; k++)
        if (sqlite3_prepare_v3(s->db, row_put_sql[k], -1, SQLITE_PREPARE_PERSISTENT, &s->write[k], NULL) !=
            SQLITE_OK)
            return db_fail(s->path, s->db, "open the state", err);
    if (sqlite3_prepare_v3(s->db, "SELECT 1 FROM jobs WHERE key=?1", -1, SQLITE_PREPARE_PERSISTENT,
                           &s->find_key, NULL) != SQLITE_OK)
        return db_fail(s->path, s->db, "open the state", err);
    return 0;
}

/* Makes job ids, event numbers and transaction numbers continue above the highest numbers in the database and
 * in the mark. Then moves the log into the database, so that state.db is complete without its log. */
static int continue_numbers(struct state *s, struct err *err)
{
    uint64_t commits, id, seq;
    int r = row_read_number(s->path, s->db, "commits", &commits, err);
    if (r == 0)
        r = row_read_last_numbers(s->path, s->db, SCHEMA_VERSION, &id, &seq, err);
    if (r < 0)
        return r;
    s->mark.commits = commits > s->mark.commits ? commits : s->mark.commits;
    s->mark.id = id > s->mark.id ? id : s->mark.id;
    s->mark.seq = seq > s->mark.seq ? seq : s->mark.seq;
    if (state_commit_changes(s, NULL, NULL) != SQLITE_OK)
        return db_fail(s->path, s->db, "write the state", err);
    if (s->failure[0] == '\0')
        state_fold(s, true);
    return s->failure[0] != '\0' ? err_set(err, -EIO, "%s", s->failure) : 0;
}

static int on_wal(void *ctx, sqlite3 *db, const char *name, int pages)
{
    (void)db;
    (void)name;
    ((struct state *)ctx)->wal_pages = pages;
    return SQLITE_OK;
}

static bool has_log(const struct state *s)
{
    struct stat st;
    return stat(s->wal_path, &st) == 0 && st.st_size > 0;
}

static int open_database(struct state *s, struct err *err)
{
    int r = state_guard(&s->config, &s->mark, &s->mark_fd, err);
    bool log = has_log(s);
    if (r == 0)
        r = db_open(s->path, true, &s->db, err);
    if (r == 0) {
        /* The steps below may refuse to open the state. In that case the files must stay unchanged. So SQLite
         * must not move an existing log into the database when it closes the database. */
        sqlite3_db_config(s->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, (int)log, NULL);
        r = db_exec(s->path, s->db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL", "open the state",
                    err);
    }
    if (r == 0)
        r = prepare_schema(s, err);
    if (r == 0)
        r = prepare_statements(s, err);
    if (r == 0) {
        /* Switch off SQLite's automatic checkpoints, which move the log into the database. Each such move
         * must be recorded in state.mark, so state_upkeep.c makes the checkpoints instead. */
        sqlite3_wal_autocheckpoint(s->db, 0);
        sqlite3_wal_hook(s->db, on_wal, s);
        r = continue_numbers(s, err);
    }
    if (r == 0)
        r = db_open(s->path, false, &s->reader, err);
    if (r == 0) {
        char text[200];
        sqlite3_db_config(s->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL);
        /* A first query makes SQLite open all files that this connection needs. Run a query now, because
         * later there may be no free file descriptor. */
        r = db_first_text(s->path, s->reader, "PRAGMA temp_store=MEMORY; SELECT count(*) FROM meta", text,
                          err);
    }
    /* Sync the directory here, so that new files survive a power cut. SQLite syncs the directory only when it
     * creates its log. */
    return r == 0 ? state_sync_dir(s->config.dir, err) : r;
}

static void init_handles(struct state *s)
{
    uv_prepare_init(s->config.loop, &s->prepare);
    uv_timer_init(s->config.loop, &s->retry);
    uv_timer_init(s->config.loop, &s->quiet);
    uv_timer_init(s->config.loop, &s->hour);
    uv_unref((uv_handle_t *)&s->quiet);
    uv_unref((uv_handle_t *)&s->hour);
    s->prepare.data = s->retry.data = s->quiet.data = s->hour.data = s->work.data = s;
}

int state_open(const struct state_config *config, struct state **ret, struct err *err)
{
    struct state *s = xcalloc(1, sizeof *s);
    s->config = *config;
    s->path = state_join_path(config->dir, STATE_FILE);
    s->wal_path = state_join_path(config->dir, STATE_WAL);
    s->mark_path = state_join_path(config->dir, STATE_MARK);
    s->mark_fd = -1;
    s->waiting.end = &s->waiting.first;
    s->committing.end = &s->committing.first;
    uv_mutex_init(&s->reader_lock);
    init_handles(s);
    int r = open_database(s, err);
    if (r < 0) {
        state_close(s);
        return r;
    }
    *ret = s;
    return 0;
}

/* ---- checking rows ---- */

/* The last column of this query is true if the row is also found through the indexes of the table. If the
 * column is false, an index is damaged. */
#define JOB_CHECK                                                                                            \
    "SELECT j.id, j.key, j.body, j.spec, j.crc, s.body, s.crc, s.ended_ms, s.uid, s.bytes,"                  \
    " EXISTS(SELECT 1 FROM status i INDEXED BY status_by_end WHERE i.ended_ms = s.ended_ms AND i.id = j.id)" \
    " AND (j.key IS NULL OR EXISTS(SELECT 1 FROM jobs i WHERE i.key = j.key AND i.id = j.id))"               \
    " FROM jobs j LEFT JOIN status s ON s.id = j.id WHERE j.id > ?1 ORDER BY j.id LIMIT ?2"
#define EVENT_CHECK                                                                                          \
    "SELECT seq, job, body, crc,"                                                                            \
    " EXISTS(SELECT 1 FROM events i INDEXED BY events_by_job WHERE i.job = e.job AND i.seq = e.seq)"         \
    " FROM events e WHERE seq > ?1 ORDER BY seq LIMIT ?2"

static int check_index(const char *path, sqlite3_stmt *q, int column, const char *table, uint64_t row,
                       struct err *err)
{
    if (sqlite3_column_int64(q, column) != 0)
        return 0;
    return err_set_at(
        err, -EBADMSG, path,
        "row %" PRIu64
        " of table %s is missing in an index: the file is damaged; restore it from a backup, or "
        "rebuild the indexes with `sqlite3 state.db REINDEX`",
        row, table);
}

static int check_job_row(const char *path, sqlite3_stmt *q, struct check_at *at, struct err *err)
{
    struct state_job job;
    int r = row_take_job(path, q, &job, err);
    at->after = job.id;
    return r == 0 ? check_index(path, q, 10, "jobs", job.id, err) : r;
}

static int check_event_row(const char *path, sqlite3_stmt *q, struct check_at *at, struct err *err)
{
    struct state_event e;
    int r = row_take_event(path, q, &e, err);
    at->after = e.seq;
    return r == 0 ? check_index(path, q, 4, "events", e.seq, err) : r;
}

int state_check_rows(const char *path, sqlite3 *db, struct check_at *at, uint32_t rows, struct err *err)
{
    static const struct {
        const char *sql;
        int (*row)(const char *path, sqlite3_stmt *q, struct check_at *at, struct err *err);
    } tables[CHECK_TABLES] = {{JOB_CHECK, check_job_row}, {EVENT_CHECK, check_event_row}};
    sqlite3_stmt *q = NULL;
    int r = 0, step = SQLITE_ERROR;
    uint32_t n = 0;
    if (sqlite3_prepare_v2(db, tables[at->table].sql, -1, &q, NULL) == SQLITE_OK) {
        sqlite3_bind_int64(q, 1, (sqlite3_int64)at->after);
        sqlite3_bind_int64(q, 2, rows);
        for (; r == 0 && (step = sqlite3_step(q)) == SQLITE_ROW; n++)
            r = tables[at->table].row(path, q, at, err);
    }
    if (r == 0 && step != SQLITE_DONE)
        r = db_fail(path, db, "check the state", err);
    if (r == 0 && n < rows)
        *at = (struct check_at){at->table + 1, 0};
    sqlite3_finalize(q);
    return r;
}

/* ---- loading ---- */

static int load_live(struct state *s, int (*each)(void *ctx, const struct state_job *job, struct err *err),
                     void *ctx, struct err *err)
{
    sqlite3_stmt *q = NULL;
    int r = 0, step = SQLITE_ERROR;
    if (sqlite3_prepare_v2(
            s->db,
            "SELECT s.id, j.key, j.body, j.spec, j.crc, s.body, s.crc, s.ended_ms, s.uid, s.bytes"
            " FROM status s INDEXED BY status_by_end LEFT JOIN jobs j ON j.id = s.id"
            " WHERE s.ended_ms = 0 ORDER BY s.id",
            -1, &q, NULL) == SQLITE_OK)
        while (r == 0 && (step = sqlite3_step(q)) == SQLITE_ROW) {
            struct state_job job;
            r = row_take_job(s->path, q, &job, err);
            if (r == 0)
                r = each(ctx, &job, err);
        }
    if (r == 0 && step != SQLITE_DONE)
        r = db_fail(s->path, s->db, "read the jobs", err);
    sqlite3_finalize(q);
    return r;
}

int state_load(struct state *s, int (*each)(void *ctx, const struct state_job *job, struct err *err),
               void *ctx, struct err *err)
{
    int r = load_live(s, each, ctx, err);
    while (r == 0 && !s->large && s->check.table < CHECK_TABLES)
        r = state_check_rows(s->path, s->db, &s->check, 1000, err);
    if (r == 0)
        upkeep_begin(s);
    return r;
}

uint64_t state_last_id(const struct state *s)
{
    return s->mark.id;
}

int state_reserve_seq(struct state *s, uint64_t ahead, uint64_t *ret_first, struct err *err)
{
    *ret_first = s->mark.seq > 0 ? s->mark.seq : 1;
    s->mark.seq = *ret_first + ahead;
    if (state_commit_changes(s, NULL, NULL) != SQLITE_OK)
        return db_fail(s->path, s->db, "write the state", err);
    return s->failure[0] != '\0' ? err_set(err, -EIO, "%s", s->failure) : 0;
}
