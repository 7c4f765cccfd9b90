/* Rows of the database and their checksums, and helpers around SQLite and files.
 *
 * The checksum of a row covers every column. It includes the terminating zero of each text, so that a shift
 * of content from one column to the next is noticed. Jobs and events still have the checksums of schema
 * version 1. The checksum of a status also covers the columns that version 2 added.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "daemon/state_internal.h"

const char *const row_put_sql[WRITE_COUNT] = {
    [WRITE_EVENT] = "INSERT INTO events(seq, job, body, crc) VALUES(?1, ?6, ?3, ?5)",
    [WRITE_JOB] = "INSERT INTO jobs(id, key, body, spec, crc) VALUES(?1, ?2, ?3, ?4, ?5)",
    [WRITE_META] = "INSERT OR REPLACE INTO meta(key, value, crc) VALUES(?2, ?1, ?5)",
    [WRITE_STATUS] =
        "INSERT OR REPLACE INTO status(id, body, crc, ended_ms, uid, bytes) VALUES(?1, ?3, ?5, ?7, ?8, ?9)",
};

uint32_t row_crc(uint64_t id, uint64_t job, const char *key, const char *body, const char *spec)
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

static uint32_t status_crc(uint64_t id, uint64_t ended_ms, uint64_t uid, uint64_t bytes, const char *body)
{
    const uint64_t numbers[] = {id, ended_ms, uid, bytes};
    uint32_t crc = crc32c(0, numbers, sizeof numbers);
    return crc32c(crc, body, strlen(body) + 1);
}

static uint32_t crc_of(const struct row_write *w)
{
    return w->kind == WRITE_STATUS ? status_crc(w->id, w->ended_ms, w->uid, w->bytes, w->body)
                                   : row_crc(w->id, w->job, w->key, w->body, w->spec);
}

int row_put(sqlite3_stmt *q, const struct row_write *w)
{
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    /* Bind all nine parameters, although some statements have fewer. SQLite reports an error for a parameter
     * that the statement does not have, and this error is ignored. */
    sqlite3_bind_int64(q, 1, (sqlite3_int64)w->id);
    if (w->key != NULL)
        sqlite3_bind_text(q, 2, w->key, -1, SQLITE_STATIC);
    if (w->body != NULL)
        sqlite3_bind_text(q, 3, w->body, -1, SQLITE_STATIC);
    if (w->spec != NULL)
        sqlite3_bind_text(q, 4, w->spec, -1, SQLITE_STATIC);
    sqlite3_bind_int64(q, 5, crc_of(w));
    sqlite3_bind_int64(q, 6, (sqlite3_int64)w->job);
    sqlite3_bind_int64(q, 7, (sqlite3_int64)w->ended_ms);
    sqlite3_bind_int64(q, 8, (sqlite3_int64)w->uid);
    sqlite3_bind_int64(q, 9, (sqlite3_int64)w->bytes);
    int r = sqlite3_step(q);
    sqlite3_reset(q);
    return r == SQLITE_DONE ? SQLITE_OK : r;
}

static int refuse_row(const char *path, const char *table, uint64_t id, struct err *err)
{
    return err_set_at(err, -EBADMSG, path,
                      "row %" PRIu64
                      " of table %s does not match its checksum; restore the file from a backup, or remove "
                      "that row with `sqlite3 state.db 'DELETE FROM %s WHERE rowid=%" PRIu64 "'`",
                      id, table, table, id);
}

static const char *column(sqlite3_stmt *q, int i)
{
    return (const char *)sqlite3_column_text(q, i);
}

static uint64_t number(sqlite3_stmt *q, int i)
{
    return (uint64_t)sqlite3_column_int64(q, i);
}

static int take_columns(const char *path, sqlite3_stmt *q, bool brief, struct state_job *ret, struct err *err)
{
    *ret = (struct state_job){.id = number(q, 0),
                              .key = column(q, 1),
                              .body = column(q, 2),
                              .spec = column(q, 3),
                              .status = column(q, 5),
                              .ended_ms = number(q, 7),
                              .uid = number(q, 8),
                              .bytes = number(q, 9)};
    if (!brief && row_crc(ret->id, 0, ret->key, ret->body, ret->spec) != (uint32_t)number(q, 4))
        return refuse_row(path, "jobs", ret->id, err);
    if (ret->body == NULL || ret->status == NULL ||
        status_crc(ret->id, ret->ended_ms, ret->uid, ret->bytes, ret->status) != (uint32_t)number(q, 6))
        return refuse_row(path, "status", ret->id, err);
    return 0;
}

int row_take_job(const char *path, sqlite3_stmt *q, struct state_job *ret, struct err *err)
{
    return take_columns(path, q, false, ret, err);
}

int row_take_job_brief(const char *path, sqlite3_stmt *q, struct state_job *ret, struct err *err)
{
    return take_columns(path, q, true, ret, err);
}

int row_take_event(const char *path, sqlite3_stmt *q, struct state_event *ret, struct err *err)
{
    *ret = (struct state_event){number(q, 0), number(q, 1), column(q, 2)};
    if (row_crc(ret->seq, ret->job, NULL, ret->body, NULL) != (uint32_t)number(q, 3))
        return refuse_row(path, "events", ret->seq, err);
    return 0;
}

int row_read_number(const char *path, sqlite3 *db, const char *name, uint64_t *ret, struct err *err)
{
    sqlite3_stmt *q = NULL;
    int r = 0, step = SQLITE_ERROR;
    *ret = 0;
    if (sqlite3_prepare_v2(db, "SELECT value, crc FROM meta WHERE key=?1", -1, &q, NULL) == SQLITE_OK) {
        sqlite3_bind_text(q, 1, name, -1, SQLITE_STATIC);
        step = sqlite3_step(q);
    }
    if (step == SQLITE_ROW) {
        *ret = number(q, 0);
        if (row_crc(*ret, 0, name, NULL, NULL) != (uint32_t)number(q, 1))
            r = err_set_at(err, -EBADMSG, path,
                           "row %s of table meta does not match its checksum; restore the file from a backup "
                           "and start tuttid with --accept-older-state",
                           name);
    } else if (step != SQLITE_DONE) {
        r = db_fail(path, db, "read the state", err);
    }
    sqlite3_finalize(q);
    return r;
}

int row_read_last_numbers(const char *path, sqlite3 *db, int version, uint64_t *ret_id, uint64_t *ret_seq,
                          struct err *err)
{
    char text[200];
    uint64_t id = 0, seq = 0;
    int r = version >= 2 ? row_read_number(path, db, "id", &id, err) : 0;
    if (r == 0 && version >= 2)
        r = row_read_number(path, db, "seq", &seq, err);
    if (r == 0)
        r = db_first_text(path, db, "SELECT max(id) FROM jobs", text, err);
    if (r < 0)
        return r;
    uint64_t last = strtoull(text, NULL, 10);
    *ret_id = last > id ? last : id;
    r = db_first_text(path, db, "SELECT max(seq) + 1 FROM events", text, err);
    last = strtoull(text, NULL, 10);
    *ret_seq = last > seq ? last : seq;
    return r;
}

bool db_no_memory(int code)
{
    return (code & 0xff) == SQLITE_NOMEM || code == SQLITE_IOERR_NOMEM;
}

int db_fail(const char *path, sqlite3 *db, const char *what, struct err *err)
{
    int code = sqlite3_errcode(db) & 0xff;
    bool damaged = code == SQLITE_CORRUPT || code == SQLITE_NOTADB;
    return err_set_at(
        err, damaged ? -EBADMSG : -EIO, path, "cannot %s: %s%s", what, sqlite3_errmsg(db),
        damaged ? "; restore the file from a backup, or recover what is left with `sqlite3 state.db .recover`"
                : "");
}

int db_exec(const char *path, sqlite3 *db, const char *sql, const char *what, struct err *err)
{
    return sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : db_fail(path, db, what, err);
}

static int keep_first(void *ctx, int n, char **values, char **names)
{
    (void)names;
    char *text = ctx;
    if (n > 0 && values[0] != NULL && text[0] == '\0')
        snprintf(text, 200, "%s", values[0]);
    return 0;
}

int db_first_text(const char *path, sqlite3 *db, const char *sql, char ret[200], struct err *err)
{
    ret[0] = '\0';
    return sqlite3_exec(db, sql, keep_first, ret, NULL) == SQLITE_OK
               ? 0
               : db_fail(path, db, "read the state", err);
}

/* ---- files ---- */

char *state_join_path(const char *dir, const char *name)
{
    size_t n = strlen(dir) + strlen(name) + 2;
    char *path = xmalloc(n);
    snprintf(path, n, "%s/%s", dir, name);
    return path;
}

int state_sync_dir(const char *dir, struct err *err)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = fd < 0 || fsync(fd) < 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return r < 0 ? err_set_at(err, r, dir, "cannot sync the directory: %s", strerror(-r)) : 0;
}

static int copy_bytes(int from, int to)
{
    char buf[65536];
    ssize_t n;
    while ((n = read(from, buf, sizeof buf)) > 0)
        for (ssize_t done = 0, k; done < n; done += k)
            if ((k = write(to, buf + done, (size_t)(n - done))) < 0)
                return -errno;
    return n < 0 || fsync(to) < 0 ? -errno : 0;
}

int state_copy_file(const char *from, const char *to, struct err *err)
{
    int in = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (in < 0)
        return err_set_at(err, -errno, from, "cannot open: %s", strerror(errno));
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    int r = out < 0 ? -errno : copy_bytes(in, out);
    close(in);
    if (out >= 0)
        close(out);
    return r < 0 ? err_set_at(err, r, to, "cannot copy %s here: %s", from, strerror(-r)) : 0;
}
