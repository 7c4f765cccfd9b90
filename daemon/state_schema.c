/* Tables of the database, and migrations from older schemas.
 *
 * `PRAGMA user_version` holds the version of the schema. A migration takes the database from version N to N +
 * 1. All migrations that are needed run in one transaction. Before that, the whole database is checked and
 * copied to state-vN.db in the same directory. A database of a newer version is refused.
 *
 * To change the schema, raise SCHEMA_VERSION, change `tables`, add a row to `migrations`, and commit a
 * database of the old version under tests/golden. A new member in the JSON texts needs no new version, as
 * long as job_json.c reads texts without that member.
 *
 * Version 2 added three columns to `status`: the end of the job, its user, and its size. Their indexes find
 * live jobs and old jobs without reading all jobs. Version 2 also added a checksum to each row of `meta`.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/get.h"
#include "base/json.h"
#include "daemon/state_internal.h"

static const char tables[] =
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE jobs(id INTEGER PRIMARY KEY, key TEXT UNIQUE, body TEXT NOT NULL, spec TEXT NOT NULL,"
    "  crc INTEGER NOT NULL);"
    "CREATE TABLE status(id INTEGER PRIMARY KEY, body TEXT NOT NULL, crc INTEGER NOT NULL,"
    "  ended_ms INTEGER NOT NULL, uid INTEGER NOT NULL, bytes INTEGER NOT NULL);"
    "CREATE TABLE events(seq INTEGER PRIMARY KEY, job INTEGER NOT NULL, body TEXT NOT NULL,"
    "  crc INTEGER NOT NULL);"
    "CREATE INDEX events_by_job ON events(job, seq);"
    /* This index finds ended jobs by the time of their end. It also finds live jobs, because their ended_ms
     * is 0. */
    "CREATE INDEX status_by_end ON status(ended_ms, id);"
    "CREATE INDEX status_by_user ON status(uid, ended_ms, bytes);";

int schema_version(const char *path, sqlite3 *db, int *ret, struct err *err)
{
    char text[200];
    int r = db_first_text(path, db, "PRAGMA user_version", text, err);
    if (r < 0)
        return r;
    *ret = atoi(text);
    if (*ret > SCHEMA_VERSION || *ret < 0)
        return err_set_at(
            err, -EINVAL, path,
            "was written by a newer tuttid (schema %s, this one knows %d); start the newer one, or name "
            "another directory with --state",
            text, SCHEMA_VERSION);
    return 0;
}

static int set_version(const char *path, sqlite3 *db, int version, struct err *err)
{
    char sql[64];
    snprintf(sql, sizeof sql, "PRAGMA user_version=%d", version);
    return db_exec(path, db, sql, "write the state", err);
}

int schema_make(const char *path, sqlite3 *db, struct err *err)
{
    int r = db_exec(path, db, "BEGIN IMMEDIATE", "write the state", err);
    if (r == 0)
        r = db_exec(path, db, tables, "make the tables", err);
    if (r == 0)
        r = set_version(path, db, SCHEMA_VERSION, err);
    return r == 0 ? db_exec(path, db, "COMMIT", "write the state", err) : r;
}

static int refuse_schema(const char *path, const char *type, const char *name, struct err *err)
{
    return err_set_at(err, -EBADMSG, path,
                      "the file is damaged: %s %s is missing or differs from what this version creates; "
                      "restore the file from a backup, or "
                      "recover what is left with `sqlite3 state.db .recover`",
                      type, name);
}

/* SQLite interprets a table by the SQL text that created it. A flipped bit in such a text is not noticed by
 * SQLite's own integrity_check. So this function compares the texts with those of a new database. */
int schema_check(const char *path, sqlite3 *db, struct err *err)
{
    sqlite3 *fresh = NULL;
    sqlite3_stmt *want = NULL, *have = NULL;
    int r = 0, step = SQLITE_ERROR;
    if (sqlite3_open(":memory:", &fresh) == SQLITE_OK &&
        sqlite3_exec(fresh, tables, NULL, NULL, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(fresh, "SELECT type, name, tbl_name, ifnull(sql, '') FROM sqlite_schema", -1,
                           &want, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(
            db,
            "SELECT 1 FROM sqlite_schema WHERE type=?1 AND name=?2 AND tbl_name=?3 AND ifnull(sql, '')=?4",
            -1, &have, NULL) == SQLITE_OK)
        while (r == 0 && (step = sqlite3_step(want)) == SQLITE_ROW) {
            for (int i = 0; i < 4; i++)
                sqlite3_bind_value(have, i + 1, sqlite3_column_value(want, i));
            if (sqlite3_step(have) != SQLITE_ROW)
                r = refuse_schema(path, (const char *)sqlite3_column_text(want, 0),
                                  (const char *)sqlite3_column_text(want, 1), err);
            sqlite3_reset(have);
        }
    if (r == 0 && step != SQLITE_DONE)
        r = db_fail(path, db, "read the state", err);
    sqlite3_finalize(want);
    sqlite3_finalize(have);
    sqlite3_close(fresh);
    return r;
}

/* ---- version 1 to 2 ---- */

/* Fills in the columns that version 2 of the schema added to the table `status`. Their values come from the
 * JSON texts of version 1. */
static int take_v1_status(const char *path, sqlite3_stmt *q, struct row_write *ret, struct err *err)
{
    const char *status = (const char *)sqlite3_column_text(q, 1),
               *body = (const char *)sqlite3_column_text(q, 3);
    uint64_t id = (uint64_t)sqlite3_column_int64(q, 0);
    if (row_crc(id, 0, NULL, status, NULL) != (uint32_t)sqlite3_column_int64(q, 2))
        return err_set_at(err, -EBADMSG, path,
                          "row %" PRIu64
                          " of table status does not match its checksum; restore the file from a backup",
                          id);
    struct json *s = NULL, *b = NULL;
    json_parse(status, strlen(status), "state", false, &s, NULL);
    json_parse(body, strlen(body), "state", false, &b, NULL);
    if (s == NULL || b == NULL) {
        json_free(s);
        json_free(b);
        return err_set_at(err, -EBADMSG, path,
                          "job %" PRIu64
                          " cannot be read, or memory has run out; start tuttid again, or restore the "
                          "file from a backup",
                          id);
    }
    const char *state = get_text(s, "state");
    bool live = strcmp(state, "done") != 0 && strcmp(state, "failed") != 0 && strcmp(state, "cancelled") != 0;
    uint64_t ended = get_count_or(s, "ended_ms", 0);
    *ret = (struct row_write){.kind = WRITE_STATUS,
                              .id = id,
                              .body = (char *)status,
                              .ended_ms = live        ? 0
                                          : ended > 0 ? ended
                                                      : 1,
                              .uid = get_count_or(b, "uid", 0),
                              .bytes = strlen(status) + strlen(body) + (uint64_t)sqlite3_column_int64(q, 4)};
    json_free(s);
    json_free(b);
    return 0;
}

static int move_v1_statuses(const char *path, sqlite3 *db, struct err *err)
{
    sqlite3_stmt *from = NULL, *to = NULL;
    int r = 0, step = SQLITE_ERROR;
    if (sqlite3_prepare_v2(
            db,
            "SELECT s.id, s.body, s.crc, ifnull(j.body, ''), ifnull(length(CAST(j.spec AS BLOB)), 0)"
            " FROM status_v1 s LEFT JOIN jobs j ON j.id = s.id",
            -1, &from, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(db, row_put_sql[WRITE_STATUS], -1, &to, NULL) == SQLITE_OK)
        while (r == 0 && (step = sqlite3_step(from)) == SQLITE_ROW) {
            struct row_write w;
            r = take_v1_status(path, from, &w, err);
            if (r == 0 && row_put(to, &w) != SQLITE_OK)
                r = db_fail(path, db, "write the state", err);
        }
    if (r == 0 && step != SQLITE_DONE)
        r = db_fail(path, db, "read the state", err);
    sqlite3_finalize(from);
    sqlite3_finalize(to);
    return r;
}

/* Copies the number `seq` from the table meta_v1 to the new table `meta`. meta_v1 is the table `meta` of
 * version 1. `seq` is the only number in meta_v1, and the row `seq_crc` has the checksum of `seq`. */
static int move_v1_numbers(const char *path, sqlite3 *db, struct err *err)
{
    char value[200], crc[200];
    int r = db_first_text(path, db, "SELECT value FROM meta_v1 WHERE key='seq'", value, err);
    if (r == 0)
        r = db_first_text(path, db, "SELECT value FROM meta_v1 WHERE key='seq_crc'", crc, err);
    if (r < 0 || (value[0] == '\0' && crc[0] == '\0'))
        return r;
    uint64_t seq = strtoull(value, NULL, 10);
    if (row_crc(seq, 0, NULL, NULL, NULL) != (uint32_t)strtoull(crc, NULL, 10))
        return err_set_at(
            err, -EBADMSG, path,
            "row seq of table meta does not match its checksum; restore the file from a backup, or "
            "remove that row with `sqlite3 state.db 'DELETE FROM meta'`");
    sqlite3_stmt *to = NULL;
    struct row_write w = {.kind = WRITE_META, .id = seq, .key = (char *)"seq"};
    if (sqlite3_prepare_v2(db, row_put_sql[WRITE_META], -1, &to, NULL) != SQLITE_OK ||
        row_put(to, &w) != SQLITE_OK)
        r = db_fail(path, db, "write the state", err);
    sqlite3_finalize(to);
    return r;
}

static int from_1_to_2(const char *path, sqlite3 *db, struct err *err)
{
    int r = db_exec(
        path, db,
        "ALTER TABLE meta RENAME TO meta_v1; ALTER TABLE status RENAME TO status_v1;"
        "CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;"
        "CREATE TABLE status(id INTEGER PRIMARY KEY, body TEXT NOT NULL, crc INTEGER NOT NULL,"
        "  ended_ms INTEGER NOT NULL, uid INTEGER NOT NULL, bytes INTEGER NOT NULL);"
        "CREATE INDEX status_by_end ON status(ended_ms, id);"
        "CREATE INDEX status_by_user ON status(uid, ended_ms, bytes);",
        "change the tables", err);
    if (r == 0)
        r = move_v1_numbers(path, db, err);
    if (r == 0)
        r = move_v1_statuses(path, db, err);
    if (r == 0)
        r = db_exec(path, db, "DROP TABLE meta_v1; DROP TABLE status_v1", "change the tables", err);
    return r;
}

/* ---- all migrations ---- */

static int (*const migrations[SCHEMA_VERSION])(const char *path, sqlite3 *db, struct err *err) = {
    [1] = from_1_to_2,
};

/* Copies the database to state-vN.db in the same directory before a migration changes the database. N is the
 * old version. Replaces an older copy with the same name. */
static int keep_copy(const char *path, sqlite3 *db, int version, struct err *err)
{
    size_t stem = strlen(path) - strlen(".db"), n = strlen(path) + 32;
    char *copy = xmalloc(n), *fresh = xmalloc(n);
    snprintf(copy, n, "%.*s-v%d.db", (int)stem, path, version);
    snprintf(fresh, n, "%.*s-v%d.db.new", (int)stem, path, version);
    unlink(fresh);
    char *sql = sqlite3_mprintf("VACUUM INTO %Q", fresh);
    int r = db_exec(path, db, sql, "copy the state before it is changed", err);
    int fd = r == 0 ? open(fresh, O_RDONLY | O_CLOEXEC) : -1;
    if (r == 0 && (fd < 0 || fsync(fd) < 0 || rename(fresh, copy) < 0))
        r = err_set_at(err, -errno, copy, "cannot keep a copy of the state: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    sqlite3_free(sql);
    free(copy);
    free(fresh);
    return r;
}

int schema_migrate(const char *path, sqlite3 *db, int version, struct err *err)
{
    int r = keep_copy(path, db, version, err);
    if (r == 0)
        r = db_exec(path, db, "BEGIN IMMEDIATE", "write the state", err);
    for (int v = version; r == 0 && v < SCHEMA_VERSION; v++)
        r = migrations[v](path, db, err);
    if (r == 0)
        r = set_version(path, db, SCHEMA_VERSION, err);
    if (r == 0)
        return db_exec(path, db, "COMMIT", "write the state", err);
    if (!sqlite3_get_autocommit(db))
        sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    return r;
}
