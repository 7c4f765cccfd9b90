/* Durable state. See state.h for the contract.
 *
 * DESIGN. Two connections to one database: `db` writes and belongs to the one commit that is under way (in the pool) or,
 * at start and end, to the loop thread; `reader` serves state_read_* in the pool, one at a time under `reader_lock`. WAL
 * lets them work side by side. The loop thread builds units; a prepare handle, active only while there are units, starts a
 * commit when none is under way, so that all that happened in one turn of the loop shares one fsync.
 */
#include "daemon/state.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "base/crc32c.h"
#include "base/mem.h"
#include "base/vec.h"

#define STATE_FILE     "state.db"
#define FULL_RETRY_MS  1000
#define SCHEMA_VERSION 1

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS jobs(id INTEGER PRIMARY KEY, key TEXT UNIQUE, body TEXT NOT NULL, spec TEXT "
    "NOT NULL,"
    "  crc INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS status(id INTEGER PRIMARY KEY, body TEXT NOT NULL, crc INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS events(seq INTEGER PRIMARY KEY, job INTEGER NOT NULL, body TEXT NOT NULL,"
    "  crc INTEGER NOT NULL);"
    "CREATE INDEX IF NOT EXISTS events_by_job ON events(job, seq);";

enum write_kind { WRITE_JOB, WRITE_STATUS, WRITE_EVENT, WRITE_SEQ, WRITE_COUNT };

static const char *const write_sql[WRITE_COUNT] = {
    [WRITE_JOB] = "INSERT INTO jobs(id, key, body, spec, crc) VALUES(?1, ?2, ?3, ?4, ?5)",
    [WRITE_STATUS] = "INSERT OR REPLACE INTO status(id, body, crc) VALUES(?1, ?3, ?5)",
    [WRITE_EVENT] = "INSERT INTO events(seq, job, body, crc) VALUES(?1, ?6, ?3, ?5)",
    [WRITE_SEQ] = "INSERT OR REPLACE INTO meta(key, value) VALUES('seq', ?1), ('seq_crc', ?5)",
};

struct write {
    enum write_kind kind;
    uint64_t id, job;
    char *key, *body, *spec;
};

struct state_unit {
    struct state *state;
    VEC(struct write) writes;
    bool failed; /* a text could not be copied */
    bool optional;
    void (*done)(void *ctx, int status);
    void *ctx;
    struct state_unit *next;
};

struct unit_list {
    struct state_unit *first, **end;
};

struct state {
    struct state_config config;
    char *path;
    sqlite3 *db;     /* the commit under way, or the loop thread when there is none */
    sqlite3 *reader; /* guarded by reader_lock */
    uv_mutex_t reader_lock;
    sqlite3_stmt *write[WRITE_COUNT]; /* with db */
    struct unit_list waiting;         /* loop thread only */
    struct unit_list committing;      /* the commit under way */
    bool busy;                        /* a commit is under way; loop thread only */
    int commit_status;                /* of the commit under way: an SQLite code */
    uint32_t reads;                   /* under way; loop thread only */
    uv_work_t work;
    uv_prepare_t prepare;
    uv_timer_t retry;
    int open_handles; /* at the end */
};

/* ---- small things ---- */

static void list_init(struct unit_list *l)
{
    l->first = NULL;
    l->end = &l->first;
}

static void list_add(struct unit_list *l, struct state_unit *u)
{
    u->next = NULL;
    *l->end = u;
    l->end = &u->next;
}

static void unit_free(struct state_unit *u)
{
    for (size_t i = 0; i < u->writes.n; i++) {
        free(u->writes.at[i].key);
        free(u->writes.at[i].body);
        free(u->writes.at[i].spec);
    }
    vec_free(&u->writes);
    free(u);
}

static char *copy(struct state_unit *u, const char *s)
{
    char *text = s != NULL ? mem_strdup(s) : NULL;
    u->failed |= s != NULL && text == NULL;
    return text;
}

/* Over every column, each with its end, so that content cannot wander from one to the next. `job`: of an event, else 0. */
static uint32_t row_crc(uint64_t id, uint64_t job, const char *key, const char *body, const char *spec)
{
    uint32_t crc = crc32c(0, &id, sizeof id);
    if (job != 0)
        crc = crc32c(crc, &job, sizeof job);
    const char *const parts[] = {key, body, spec};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i] != NULL)
            crc = crc32c(crc, parts[i], strlen(parts[i]) + 1);
    return crc;
}

static int fail_db(const struct state *s, sqlite3 *db, const char *what, struct err *err)
{
    int code = sqlite3_errcode(db) & 0xff;
    bool damaged = code == SQLITE_CORRUPT || code == SQLITE_NOTADB;
    return err_set_at(
        err, damaged ? -EBADMSG : -EIO, s->path, "cannot %s: %s%s", what, sqlite3_errmsg(db),
        damaged ? "; restore the file from a backup, or recover what is left with `sqlite3 state.db .recover`"
                : "");
}

/* ---- opening ---- */

static int exec(const struct state *s, sqlite3 *db, const char *sql, const char *what, struct err *err)
{
    return sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : fail_db(s, db, what, err);
}

static int open_connection(const struct state *s, bool writer, sqlite3 **ret, struct err *err)
{
    int flags = writer ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY;
    if (sqlite3_open_v2(s->path, ret, flags | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        return fail_db(s, *ret, "open the state", err);
    sqlite3_busy_timeout(*ret, 10000);
    return 0;
}

static int first_text(void *ctx, int n, char **values, char **names)
{
    (void)names;
    char *text = ctx;
    if (n > 0 && values[0] != NULL && text[0] == '\0')
        snprintf(text, 200, "%s", values[0]);
    return 0;
}

static int check_whole(struct state *s, struct err *err)
{
    char text[200] = "";
    if (sqlite3_exec(s->db, "PRAGMA integrity_check(1)", first_text, text, NULL) != SQLITE_OK)
        return fail_db(s, s->db, "check the state", err);
    if (strcmp(text, "ok") == 0)
        return 0;
    return err_set_at(
        err, -EBADMSG, s->path,
        "the file is damaged: %s; restore it from a backup, or recover what is left with `sqlite3 state.db "
        ".recover`",
        text);
}

/* The schema's version; 0: a new file. */
static int read_version(struct state *s, int *ret, struct err *err)
{
    char text[200] = "";
    if (sqlite3_exec(s->db, "PRAGMA user_version", first_text, text, NULL) != SQLITE_OK)
        return fail_db(s, s->db, "read the state", err);
    if (atoi(text) > SCHEMA_VERSION)
        return err_set_at(err, -EINVAL, s->path,
                          "was written by a newer tuttid (schema %s, this one knows %d)", text,
                          SCHEMA_VERSION);
    *ret = atoi(text);
    return 0;
}

static int make_tables(struct state *s, struct err *err)
{
    char sql[64];
    snprintf(sql, sizeof sql, "PRAGMA user_version=%d", SCHEMA_VERSION);
    int r = exec(s, s->db, "BEGIN IMMEDIATE", "write the state", err);
    if (r == 0)
        r = exec(s, s->db, schema, "make the tables", err);
    if (r == 0)
        r = exec(s, s->db, sql, "write the state", err);
    return r == 0 ? exec(s, s->db, "COMMIT", "write the state", err) : r;
}

/* SQLite takes a file of a few bytes for a new one, and would write over what is left of ours. */
static int check_length(const struct state *s, struct err *err)
{
    struct stat st;
    if (stat(s->path, &st) < 0 || st.st_size == 0 || st.st_size >= 512)
        return 0;
    return err_set_at(
        err, -EBADMSG, s->path,
        "the file is damaged: it has only %lld bytes; restore it from a backup, or remove it to begin "
        "without jobs",
        (long long)st.st_size);
}

static int open_database(struct state *s, struct err *err)
{
    int version = 0, r = check_length(s, err);
    if (r == 0)
        r = open_connection(s, true, &s->db, err);
    if (r == 0)
        r = exec(s, s->db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL", "open the state", err);
    if (r == 0)
        r = read_version(s, &version, err);
    if (r == 0)
        r = check_whole(s, err);
    if (r == 0 &&
        version == 0) /* otherwise they must be there: making them again would hide that one is lost */
        r = make_tables(s, err);
    for (int k = 0; r == 0 && k < WRITE_COUNT; k++)
        if (sqlite3_prepare_v3(s->db, write_sql[k], -1, SQLITE_PREPARE_PERSISTENT, &s->write[k], NULL) !=
            SQLITE_OK)
            r = fail_db(s, s->db, "open the state", err);
    if (r == 0)
        r = open_connection(s, false, &s->reader, err);
    return r;
}

/* SQLite syncs the directory for its log; that the database itself is in it, once, is ours. */
static int sync_dir(const struct state *s, struct err *err)
{
    int fd = open(s->config.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = fd < 0 || fsync(fd) < 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return r < 0 ? err_set_at(err, r, s->config.dir, "cannot sync the directory: %s", strerror(-r)) : 0;
}

static void on_prepare(uv_prepare_t *handle);

int state_open(const struct state_config *config, struct state **ret, struct err *err)
{
    struct state *s = xcalloc(1, sizeof *s);
    size_t n = strlen(config->dir) + sizeof "/" STATE_FILE;
    s->config = *config;
    s->path = xmalloc(n);
    snprintf(s->path, n, "%s/%s", config->dir, STATE_FILE);
    list_init(&s->waiting);
    list_init(&s->committing);
    uv_mutex_init(&s->reader_lock);
    uv_prepare_init(config->loop, &s->prepare);
    uv_timer_init(config->loop, &s->retry);
    s->prepare.data = s->retry.data = s->work.data = s;
    int r = open_database(s, err);
    if (r == 0)
        r = sync_dir(s, err);
    if (r < 0) {
        state_close(s);
        return r;
    }
    *ret = s;
    return 0;
}

/* ---- loading ---- */

static int refuse_row(const struct state *s, const char *table, uint64_t id, struct err *err)
{
    return err_set_at(err, -EBADMSG, s->path,
                      "row %" PRIu64
                      " of table %s does not match its checksum; restore the file from a backup, or remove "
                      "that row with `sqlite3 state.db 'DELETE FROM %s WHERE rowid=%" PRIu64 "'`",
                      id, table, table, id);
}

static const char *column(sqlite3_stmt *q, int i)
{
    return (const char *)sqlite3_column_text(q, i);
}

/* Columns: id, key, body, spec, crc, status, crc of the status. */
#define JOB_COLUMNS                                                                                          \
    "SELECT j.id, j.key, j.body, j.spec, j.crc, s.body, s.crc FROM jobs j LEFT JOIN status s ON s.id = "     \
    "j.id "

static int take_job(const struct state *s, sqlite3_stmt *q, struct state_job *ret, struct err *err)
{
    *ret = (struct state_job){(uint64_t)sqlite3_column_int64(q, 0), column(q, 1), column(q, 2), column(q, 3),
                              column(q, 5)};
    if (row_crc(ret->id, 0, ret->key, ret->body, ret->spec) != (uint32_t)sqlite3_column_int64(q, 4))
        return refuse_row(s, "jobs", ret->id, err);
    if (ret->status == NULL ||
        row_crc(ret->id, 0, NULL, ret->status, NULL) != (uint32_t)sqlite3_column_int64(q, 6))
        return refuse_row(s, "status", ret->id, err);
    return 0;
}

/* Columns: seq, job, body, crc. */
static bool take_event(sqlite3_stmt *q, struct state_event *ret)
{
    *ret = (struct state_event){(uint64_t)sqlite3_column_int64(q, 0), (uint64_t)sqlite3_column_int64(q, 1),
                                column(q, 2)};
    return row_crc(ret->seq, ret->job, NULL, ret->body, NULL) == (uint32_t)sqlite3_column_int64(q, 3);
}

static int check_events(struct state *s, struct err *err)
{
    sqlite3_stmt *q = NULL;
    struct state_event e;
    int r = 0, step = SQLITE_ERROR;
    if (sqlite3_prepare_v2(s->db, "SELECT seq, job, body, crc FROM events", -1, &q, NULL) == SQLITE_OK)
        while (r == 0 && (step = sqlite3_step(q)) == SQLITE_ROW)
            if (!take_event(q, &e))
                r = refuse_row(s, "events", e.seq, err);
    if (r == 0 && step != SQLITE_DONE)
        r = fail_db(s, s->db, "read the events", err);
    sqlite3_finalize(q);
    return r;
}

int state_load(struct state *s, int (*each)(void *ctx, const struct state_job *job, struct err *err),
               void *ctx, struct err *err)
{
    sqlite3_stmt *q = NULL;
    int r = 0, step;
    if (sqlite3_prepare_v2(s->db, JOB_COLUMNS "ORDER BY j.id", -1, &q, NULL) != SQLITE_OK)
        return fail_db(s, s->db, "read the jobs", err);
    while (r == 0 && (step = sqlite3_step(q)) != SQLITE_DONE) {
        struct state_job job;
        if (step != SQLITE_ROW) {
            r = fail_db(s, s->db, "read the jobs", err);
            break;
        }
        r = take_job(s, q, &job, err);
        if (r == 0)
            r = each(ctx, &job, err);
    }
    sqlite3_finalize(q);
    return r == 0 ? check_events(s, err) : r;
}

static int write_row(struct state *s, const struct write *w);

int state_reserve_seq(struct state *s, uint64_t ahead, uint64_t *ret_first, struct err *err)
{
    static const char get[] =
        "SELECT (SELECT value FROM meta WHERE key='seq'),"
        " (SELECT value FROM meta WHERE key='seq_crc'), (SELECT max(seq) + 1 FROM events)";
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(s->db, get, -1, &q, NULL) != SQLITE_OK || sqlite3_step(q) != SQLITE_ROW) {
        int r = fail_db(s, s->db, "read the state", err);
        sqlite3_finalize(q);
        return r;
    }
    bool is_new = sqlite3_column_type(q, 0) == SQLITE_NULL && sqlite3_column_type(q, 1) == SQLITE_NULL;
    uint64_t limit = (uint64_t)sqlite3_column_int64(q, 0), next = (uint64_t)sqlite3_column_int64(q, 2);
    bool good = is_new || row_crc(limit, 0, NULL, NULL, NULL) == (uint32_t)sqlite3_column_int64(q, 1);
    sqlite3_finalize(q);
    if (!good)
        return err_set_at(
            err, -EBADMSG, s->path,
            "row seq of table meta does not match its checksum; restore the file from a backup, or "
            "remove that row with `sqlite3 state.db 'DELETE FROM meta'`");
    *ret_first = limit > next ? limit : next > 0 ? next : 1;
    return write_row(s, &(struct write){WRITE_SEQ, *ret_first + ahead, 0, NULL, NULL, NULL}) == SQLITE_OK
               ? 0
               : fail_db(s, s->db, "write the state", err);
}

/* ---- writing ---- */

struct state_unit *state_begin(struct state *s)
{
    struct state_unit *u = xcalloc(1, sizeof *u);
    u->state = s;
    return u;
}

void state_put_job(struct state_unit *u, const struct state_job *job)
{
    vec_push(&u->writes,
             (struct write){WRITE_JOB, job->id, 0, copy(u, job->key), copy(u, job->body), copy(u, job->spec)});
    state_put_status(u, job->id, job->status);
}

void state_put_status(struct state_unit *u, uint64_t id, const char *status)
{
    vec_push(&u->writes, (struct write){WRITE_STATUS, id, 0, NULL, copy(u, status), NULL});
}

void state_put_event(struct state_unit *u, const struct state_event *e)
{
    vec_push(&u->writes, (struct write){WRITE_EVENT, e->seq, e->job, NULL, copy(u, e->body), NULL});
}

void state_put_seq(struct state_unit *u, uint64_t limit)
{
    vec_push(&u->writes, (struct write){WRITE_SEQ, limit, 0, NULL, NULL, NULL});
}

void state_fail(struct state_unit *u)
{
    u->failed = true;
}

bool state_failed(const struct state_unit *u)
{
    return u->failed;
}

void state_discard(struct state_unit *u)
{
    unit_free(u);
}

void state_commit(struct state_unit *u, bool optional, void (*done)(void *ctx, int status), void *ctx)
{
    struct state *s = u->state;
    assert(!u->failed);
    u->optional = optional;
    u->done = done;
    u->ctx = ctx;
    list_add(&s->waiting, u);
    if (!s->busy && !uv_is_active((uv_handle_t *)&s->retry))
        uv_prepare_start(&s->prepare, on_prepare);
}

bool state_idle(const struct state *s)
{
    return !s->busy && s->waiting.first == NULL && s->reads == 0;
}

static int write_row(struct state *s, const struct write *w)
{
    sqlite3_stmt *q = s->write[w->kind];
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    /* Parameters that a statement does not have are refused; that is no failure. */
    sqlite3_bind_int64(q, 1, (sqlite3_int64)w->id);
    if (w->key != NULL)
        sqlite3_bind_text(q, 2, w->key, -1, SQLITE_STATIC);
    if (w->body != NULL)
        sqlite3_bind_text(q, 3, w->body, -1, SQLITE_STATIC);
    if (w->spec != NULL)
        sqlite3_bind_text(q, 4, w->spec, -1, SQLITE_STATIC);
    sqlite3_bind_int64(q, 5, row_crc(w->id, w->job, w->key, w->body, w->spec));
    sqlite3_bind_int64(q, 6, (sqlite3_int64)w->job);
    int r = sqlite3_step(q);
    sqlite3_reset(q);
    return r == SQLITE_DONE ? SQLITE_OK : r;
}

/* In the pool (or, at the end, on the loop thread): one transaction for all units. */
static void commit_all(struct state *s)
{
    int r = sqlite3_exec(s->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    for (struct state_unit *u = s->committing.first; r == SQLITE_OK && u != NULL; u = u->next)
        for (size_t i = 0; r == SQLITE_OK && i < u->writes.n; i++)
            r = write_row(s, &u->writes.at[i]);
    if (r == SQLITE_OK)
        r = sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL);
    if (r != SQLITE_OK && !sqlite3_get_autocommit(s->db))
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    s->commit_status = r;
}

static void finish_unit(struct state_unit *u, int status)
{
    if (u->done != NULL)
        u->done(u->ctx, status);
    unit_free(u);
}

static void on_retry(uv_timer_t *timer)
{
    struct state *s = timer->data;
    if (!s->busy)
        uv_prepare_start(&s->prepare, on_prepare);
}

/* No room on the disk, or no memory: optional units are refused with `code`; the rest goes first when there is room again. */
static void no_room(struct state *s, struct state_unit *units, int code)
{
    struct unit_list keep;
    list_init(&keep);
    for (struct state_unit *u = units, *next; u != NULL; u = next) {
        next = u->next;
        if (u->optional)
            finish_unit(u, code);
        else
            list_add(&keep, u);
    }
    if (keep.first == NULL)
        return;
    if (s->waiting.first != NULL) {
        *keep.end = s->waiting.first;
        keep.end = s->waiting.end;
    }
    s->waiting = keep;
    uv_timer_start(&s->retry, on_retry, FULL_RETRY_MS, 0);
}

/* SQLite rolls the transaction back when its own memory runs out: nothing of it is on disk. */
static bool is_no_memory(int code)
{
    return (code & 0xff) == SQLITE_NOMEM || code == SQLITE_IOERR_NOMEM;
}

static void after_commit(struct state *s)
{
    struct state_unit *units = s->committing.first;
    int r = s->commit_status;
    list_init(&s->committing);
    s->busy = false;
    if ((r & 0xff) == SQLITE_FULL) {
        no_room(s, units, -ENOSPC);
    } else if (is_no_memory(r)) {
        no_room(s, units, -ENOMEM);
    } else if (r != SQLITE_OK) {
        char why[512];
        snprintf(why, sizeof why, "cannot write %s: %s", s->path, sqlite3_errmsg(s->db));
        s->config.die(s->config.ctx, why);
    } else {
        for (struct state_unit *u = units, *next; u != NULL; u = next) {
            next = u->next;
            finish_unit(u, 0);
        }
    }
    if (s->waiting.first != NULL && !uv_is_active((uv_handle_t *)&s->retry))
        uv_prepare_start(&s->prepare, on_prepare);
}

static void commit_work(uv_work_t *work)
{
    commit_all(work->data);
}

static void commit_done(uv_work_t *work, int status)
{
    (void)status; /* never cancelled */
    after_commit(work->data);
}

static void take_waiting(struct state *s)
{
    s->committing = s->waiting;
    if (s->committing.end == &s->waiting.first)
        s->committing.end = &s->committing.first;
    list_init(&s->waiting);
}

static void on_prepare(uv_prepare_t *handle)
{
    struct state *s = handle->data;
    uv_prepare_stop(handle);
    if (s->busy || s->waiting.first == NULL)
        return;
    take_waiting(s);
    s->busy = true;
    uv_queue_work(s->config.loop, &s->work, commit_work, commit_done);
}

/* ---- reading ---- */

struct read {
    uv_work_t work;
    struct state *state;
    uint64_t id, first, end;
    uint32_t limit;
    int status;
    struct arena *arena; /* what was read */
    struct state_job job;
    VEC(struct state_event) events;
    void (*job_done)(void *ctx, int status, const struct state_job *job);
    void (*events_done)(void *ctx, int status, const struct state_event *events, size_t n);
    void *ctx;
};

static const char *keep(struct read *r, const char *s)
{
    return s != NULL ? arena_strdup(r->arena, s) : NULL;
}

static int read_job_row(struct read *r, sqlite3_stmt *q)
{
    struct state_job job;
    struct err err;
    sqlite3_bind_int64(q, 1, (sqlite3_int64)r->id);
    int step = sqlite3_step(q);
    if (step != SQLITE_ROW)
        return step == SQLITE_DONE ? -ENOENT : is_no_memory(step) ? -ENOMEM : -EIO;
    if (take_job(r->state, q, &job, &err) < 0)
        return -EBADMSG;
    r->job = (struct state_job){job.id, keep(r, job.key), keep(r, job.body), keep(r, job.spec),
                                keep(r, job.status)};
    return 0;
}

static int read_event_rows(struct read *r, sqlite3_stmt *q)
{
    int step;
    sqlite3_bind_int64(q, 1, (sqlite3_int64)r->id);
    sqlite3_bind_int64(q, 2, (sqlite3_int64)r->first);
    sqlite3_bind_int64(q, 3, (sqlite3_int64)r->end);
    sqlite3_bind_int64(q, 4, r->limit);
    while ((step = sqlite3_step(q)) == SQLITE_ROW) {
        struct state_event e;
        if (!take_event(q, &e))
            return -EBADMSG;
        vec_push(&r->events, (struct state_event){e.seq, e.job, keep(r, e.body)});
    }
    return step == SQLITE_DONE ? 0 : is_no_memory(step) ? -ENOMEM : -EIO;
}

struct reading {
    struct read *read;
    sqlite3_stmt *query;
};

static int read_rows(void *arg)
{
    struct reading *x = arg;
    x->read->arena = arena_create();
    return x->read->job_done != NULL ? read_job_row(x->read, x->query) : read_event_rows(x->read, x->query);
}

/* A user sized the rows: when there is no memory for copies of them, the reading ends with -ENOMEM and leaves nothing. */
static int read_in_scope(struct read *r, sqlite3_stmt *q)
{
    struct reading x = {r, q};
    struct bounded scope = {0};
    int status = bounded_run(&scope, read_rows, &x);
    if (scope.ended_early) {
        r->arena = NULL;
        r->events.at = NULL;
        r->events.n = r->events.cap = 0;
    }
    return status;
}

static void read_work(uv_work_t *work)
{
    struct read *r = work->data;
    struct state *s = r->state;
    const char *sql = r->job_done != NULL ? JOB_COLUMNS "WHERE j.id=?1"
                      : r->id != 0
                          ? "SELECT seq, job, body, crc FROM events WHERE job=?1 AND seq>=?2 AND seq<?3 "
                            "ORDER BY seq LIMIT ?4"
                          : "SELECT seq, job, body, crc FROM events WHERE seq>=?2 AND seq<?3 AND ?1=0 "
                            "ORDER BY seq LIMIT ?4";
    sqlite3_stmt *q = NULL;
    uv_mutex_lock(&s->reader_lock);
    int prepared = sqlite3_prepare_v2(s->reader, sql, -1, &q, NULL);
    r->status = prepared == SQLITE_OK ? read_in_scope(r, q) : is_no_memory(prepared) ? -ENOMEM : -EIO;
    sqlite3_finalize(q);
    uv_mutex_unlock(&s->reader_lock);
}

static void read_done(uv_work_t *work, int status)
{
    (void)status; /* never cancelled */
    struct read *r = work->data;
    r->state->reads--;
    if (r->job_done != NULL)
        r->job_done(r->ctx, r->status, &r->job);
    else
        r->events_done(r->ctx, r->status, r->events.at, r->events.n);
    arena_destroy(r->arena);
    vec_free(&r->events);
    free(r);
}

static void queue_read(struct state *s, const struct read *with)
{
    struct read *r = xcalloc(1, sizeof *r);
    *r = *with;
    r->state = s;
    r->work.data = r;
    s->reads++;
    uv_queue_work(s->config.loop, &r->work, read_work, read_done);
}

void state_read_job(struct state *s, uint64_t id,
                    void (*done)(void *ctx, int status, const struct state_job *job), void *ctx)
{
    queue_read(s, &(struct read){.id = id, .job_done = done, .ctx = ctx});
}

void state_read_events(struct state *s, uint64_t job, uint64_t first, uint64_t end, uint32_t limit,
                       void (*done)(void *ctx, int status, const struct state_event *events, size_t n),
                       void *ctx)
{
    queue_read(s,
               &(struct read){
                   .id = job, .first = first, .end = end, .limit = limit, .events_done = done, .ctx = ctx});
}

/* ---- the end ---- */

static void on_closed(uv_handle_t *h)
{
    struct state *s = h->data;
    if (--s->open_handles > 0)
        return;
    free(s->path);
    free(s);
}

/* The loop has ended, so nothing is under way in the pool. */
void state_close(struct state *s)
{
    if (s == NULL)
        return;
    while (s->db != NULL && s->waiting.first != NULL && !uv_is_active((uv_handle_t *)&s->retry)) {
        take_waiting(s);
        commit_all(s);
        after_commit(s);
    }
    for (int k = 0; k < WRITE_COUNT; k++)
        sqlite3_finalize(s->write[k]);
    sqlite3_close(s->reader);
    sqlite3_close(s->db);
    uv_mutex_destroy(&s->reader_lock);
    s->open_handles = 2;
    uv_close((uv_handle_t *)&s->prepare, on_closed);
    uv_close((uv_handle_t *)&s->retry, on_closed);
}
