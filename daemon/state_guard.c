/* Checks, before SQLite opens the database, that no acknowledged transaction is lost.
 *
 * SQLite repairs silently. It takes a bad frame for the end of the log (state.db-wal), a missing log for an
 * empty log, and an older copy of the database for the newest. In each case acknowledged jobs would be gone,
 * their ids would be given out again, and finished jobs would run again. So the guard first looks at four
 * things, without changing them:
 *
 *    the mark            says which transaction was the last acknowledged one, and which was the last
 *                        that was folded from the log into the database (state_mark.h)
 *    the log             may have commits behind a bad frame (wal.h)
 *    state.db with log   has a transaction number, `commits` in table meta; if that number is lower
 *                        than the mark's, acknowledged transactions are gone
 *    state.db alone      has a transaction number too; if that number is lower than the number of the
 *                        last folded transaction, state.db is an older copy and the log does not
 *                        belong to it
 *
 * A transaction that a crash cut off was never acknowledged. The mark does not have its number, so the
 * transaction may be gone. After a power cut its last frame may be on disk while an earlier frame is not. So
 * one commit behind a bad frame is not damage yet. Two commits are damage, because a transaction begins only
 * when the previous transaction is in the mark.
 *
 * With --accept-older-state the daemon starts with the transactions that are left. The files are copied
 * aside, and job ids and event numbers continue above those of the mark. Without a readable mark nobody knows
 * which numbers were given out, so the numbers continue far above those of the database.
 *
 * Called only at start. Blocks.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "daemon/state_internal.h"

#define SMALLEST_DATABASE 512
/* If there is no readable mark file, the daemon cannot know which job ids are already in use. In that case,
 * it skips this many job ids. */
#define ID_JUMP 1000000u
/* If there is no readable mark file, the daemon cannot know which event numbers are already in use. In that
 * case, it skips this many event numbers. */
#define SEQ_JUMP (UINT64_C(1) << 32)
#define REMEDY                                                                                               \
    "Put back the newest copy of the whole state directory, or start tuttid with --accept-older-state to "   \
    "go on "                                                                                                 \
    "without them"

/* The facts that state_guard has found out about the files in the state directory. */
struct found {
    const char *dir;
    char *path, *wal_path, *mark_path;
    bool exists; /* state.db exists and is not empty */
    /* Set if the log belongs to another state.db and must not be applied to this one. */
    bool other_log;
    int version; /* version of the schema; 0: no tables */
    /* Result of reading the mark: 0, -ENOENT if there is no mark, or -EBADMSG if the mark is damaged. */
    int mark_status;
    struct state_mark mark; /* all zeros when mark_status is not 0 */
    struct wal_walk wal;
    bool base_known; /* `base` could be read */
    /* The transaction number that state.db has if its log is ignored. */
    uint64_t base;
    uint64_t commits, id, seq; /* the numbers in state.db with its log */
};

/* ---- inspecting ---- */

/* Returns whether the end of a database of `bytes` bytes is missing. SQLite writes whole pages, so the size
 * of a complete database is a multiple of the page size. SQLite itself accepts a file whose last page is
 * short, and takes the missing bytes for zeros. With a log it may be right: a crash can interrupt the move
 * of the log into the database, and the log then still has the page. Bytes 16 and 17 of the header `h` are
 * the page size, where 1 means 65536. */
static bool ends_within_a_page(const struct found *f, const uint8_t *h, int64_t bytes)
{
    int64_t page = h[16] << 8 | h[17];
    page = page == 1 ? 65536 : page;
    return f->wal.bytes == 0 && page > 0 && bytes % page != 0;
}

static int read_header(struct found *f, struct err *err)
{
    uint8_t h[20] = {0};
    struct stat st;
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT
                   ? 0
                   : err_set_at(err, -errno, f->path, "cannot open the state: %s", strerror(errno));
    ssize_t n = pread(fd, h, sizeof h, 0);
    int r = n < 0 || fstat(fd, &st) < 0 ? -errno : 0;
    close(fd);
    if (r < 0)
        return err_set_at(err, r, f->path, "cannot read the state: %s", strerror(-r));
    f->exists = st.st_size > 0;
    /* Byte 18 of the header is 1 if the database uses no write-ahead log, as in a backup. So a log file
     * beside such a database belongs to another database. */
    f->other_log = h[18] == 1 && f->wal.bytes > 0;
    if (st.st_size > 0 && st.st_size < SMALLEST_DATABASE)
        return err_set_at(
            err, -EBADMSG, f->path,
            "the file is damaged: it has only %lld bytes; restore it from a backup, or remove it to begin "
            "without jobs",
            (long long)st.st_size);
    if (ends_within_a_page(f, h, st.st_size))
        return err_set_at(err, -EBADMSG, f->path,
                          "the file is damaged: it ends within a page, after %lld bytes; restore it from a "
                          "backup, or recover what is left with `sqlite3 state.db .recover`",
                          (long long)st.st_size);
    return 0;
}

/* Returns a URI that makes SQLite read the database without its log. The caller frees the URI. */
static char *immutable_uri(const char *path)
{
    size_t n = 3 * strlen(path) + sizeof "file:?immutable=1";
    char *uri = xmalloc(n), *to = uri + sprintf(uri, "file:");
    for (const char *p = path; *p != '\0'; p++) {
        if (*p == '%' || *p == '?' || *p == '#')
            to += sprintf(to, "%%%02x", (unsigned char)*p);
        else
            *to++ = *p;
    }
    strcpy(to, "?immutable=1");
    return uri;
}

/* Reads the transaction number of state.db without its log. The read may fail because a crash interrupted the
 * move of the log into state.db. This failure does not mean that data is lost, because the log still has the
 * pages. */
static void inspect_base(struct found *f)
{
    sqlite3 *db = NULL;
    char *uri = immutable_uri(f->path), text[200];
    if (sqlite3_open_v2(uri, &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX, NULL) ==
            SQLITE_OK &&
        db_first_text(f->path, db, "PRAGMA user_version", text, NULL) == 0)
        f->base_known = atoi(text) < 2 || row_read_number(f->path, db, "commits", &f->base, NULL) == 0;
    sqlite3_close(db);
    free(uri);
}

static int read_numbers(struct found *f, sqlite3 *db, struct err *err)
{
    int r = schema_version(f->path, db, &f->version, err);
    if (r < 0 || f->version == 0)
        return r;
    if (f->version >= 2)
        r = row_read_number(f->path, db, "commits", &f->commits, err);
    if (r == 0)
        r = row_read_last_numbers(f->path, db, f->version, &f->id, &f->seq, err);
    return r;
}

/* Reads the transaction number, job id and event number from state.db together with its log. state_guard must
 * change no file. So SQLite must not move the log into the database when it closes the database, and the
 * exclusive lock keeps SQLite from creating a -shm file. */
static int inspect_whole(struct found *f, struct err *err)
{
    sqlite3 *db = NULL;
    struct stat st;
    bool had_log = stat(f->wal_path, &st) == 0;
    int r = db_open(f->path, true, &db, err);
    if (r == 0) {
        sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
        r = db_exec(f->path, db, "PRAGMA locking_mode=EXCLUSIVE", "open the state", err);
    }
    if (r == 0)
        r = read_numbers(f, db, err);
    sqlite3_close(db);
    if (!had_log && stat(f->wal_path, &st) == 0 && st.st_size == 0)
        unlink(f->wal_path);
    return r;
}

static int inspect(struct found *f, struct err *err)
{
    f->mark_status = state_mark_read(f->mark_path, &f->mark, err);
    if (f->mark_status < 0 && f->mark_status != -ENOENT && f->mark_status != -EBADMSG)
        return f->mark_status;
    int r = wal_walk(f->wal_path, &f->wal);
    if (r < 0)
        return err_set_at(err, r, f->wal_path, "cannot read the log of the state: %s", strerror(-r));
    r = read_header(f, err);
    if (r < 0 || !f->exists || f->other_log)
        return r;
    inspect_base(f);
    return inspect_whole(f, err);
}

/* ---- judging ---- */

/* Writes the place where the log is damaged to `buf`, as a part of an error message. */
static void describe_log(const struct found *f, char *buf, size_t size)
{
    if (f->wal.bytes == 0)
        snprintf(buf, size, "%s is missing or empty", f->wal_path);
    else if (f->wal.bad)
        snprintf(buf, size, "%s is damaged at byte %" PRIu64 " of %" PRIu64, f->wal_path, f->wal.bad_offset,
                 f->wal.bytes);
    else
        snprintf(buf, size, "%s ends after %" PRIu64 " bytes", f->wal_path, f->wal.bytes);
}

static int judge_mark(const struct found *f, struct err *err)
{
    if (f->mark_status == -EBADMSG)
        return err_set_at(
            err, -EBADMSG, f->mark_path,
            "the file is damaged: neither of its two copies can be read. It tells whether the state is "
            "complete. Put it back from a copy, or start tuttid with --accept-older-state to go on without "
            "it");
    if (f->mark_status == -ENOENT && f->version >= 2)
        return err_set_at(
            err, -EBADMSG, f->mark_path,
            "the file is missing. It tells whether the state is complete. Put it back, or start tuttid with "
            "--accept-older-state to go on without it: for a state that was restored from a backup");
    return 0;
}

static int judge_missing(const struct found *f, struct err *err)
{
    if (f->wal.bytes > 0)
        return err_set_at(err, -EBADMSG, f->path,
                          "the file is missing or empty, but %s has %" PRIu64
                          " bytes: the state was damaged. " REMEDY,
                          f->wal_path, f->wal.bytes);
    if (f->mark.commits > 0)
        return err_set_at(err, -EBADMSG, f->path,
                          "the file is missing or empty, but %" PRIu64
                          " changes were acknowledged, up to job %" PRIu64 ". " REMEDY,
                          f->mark.commits, f->mark.id);
    return 0;
}

static int judge_numbers(const struct found *f, struct err *err)
{
    char log[1200];
    describe_log(f, log, sizeof log);
    if (f->other_log)
        return err_set_at(
            err, -EBADMSG, f->wal_path,
            "this log does not belong to %s, which was restored from a backup. Remove the log, and start "
            "tuttid with --accept-older-state",
            f->path);
    if (f->base_known && f->base < f->mark.folded)
        return err_set_at(err, -EBADMSG, f->path,
                          "the file is older than its log: it has %" PRIu64 " changes of the %" PRIu64
                          " that were written to it. " REMEDY,
                          f->base, f->mark.folded);
    if (f->commits < f->mark.commits)
        return err_set_at(err, -EBADMSG, f->path,
                          "acknowledged changes are gone: %" PRIu64 " were acknowledged, up to job %" PRIu64
                          ", and %" PRIu64 " are there; %s. " REMEDY,
                          f->mark.commits, f->mark.id, f->commits, log);
    if (f->wal.commits_behind >= (f->version >= 2 ? 2 : 1))
        return err_set_at(err, -EBADMSG, f->wal_path,
                          "the log is damaged at byte %" PRIu64 " of %" PRIu64 ", and %" PRIu64
                          " changes after that byte cannot be read. " REMEDY,
                          f->wal.bad_offset, f->wal.bytes, f->wal.commits_behind);
    return 0;
}

static int judge(const struct found *f, struct err *err)
{
    int r = judge_mark(f, err);
    if (r == 0)
        r = f->exists ? judge_numbers(f, err) : judge_missing(f, err);
    return r;
}

/* ---- accepting an older state ---- */

static int keep_aside(const struct found *f, char ret_dir[], size_t size, struct err *err)
{
    const char *const names[] = {STATE_FILE, STATE_WAL, STATE_MARK};
    int r = -EEXIST;
    for (int i = 1; r == -EEXIST; i++) {
        snprintf(ret_dir, size, "%s/refused-%d", f->dir, i);
        r = mkdir(ret_dir, 0700) < 0 ? -errno : 0;
    }
    if (r < 0)
        return err_set_at(err, r, ret_dir, "cannot make the directory: %s", strerror(-r));
    for (size_t i = 0; r == 0 && i < sizeof names / sizeof names[0]; i++) {
        char *from = state_join_path(f->dir, names[i]), *to = state_join_path(ret_dir, names[i]);
        if (access(from, F_OK) == 0)
            r = state_copy_file(from, to, err);
        free(from);
        free(to);
    }
    if (r == 0)
        r = state_sync_dir(ret_dir, err);
    return r == 0 ? state_sync_dir(f->dir, err) : r;
}

/* Removes the log if it belongs to another state.db and therefore cannot be applied to this state.db. */
static int drop_foreign_log(const struct found *f, struct err *err)
{
    bool foreign = f->other_log || !f->exists || (f->base_known && f->base < f->mark.folded);
    if (foreign && unlink(f->wal_path) < 0 && errno != ENOENT)
        return err_set_at(err, -errno, f->wal_path, "cannot remove the log: %s", strerror(errno));
    return 0;
}

static int accept_older(struct found *f, const struct err *why, struct state_mark *ret, struct err *err)
{
    char aside[1200], text[sizeof *why];
    int r = keep_aside(f, aside, sizeof aside, err);
    if (r == 0)
        r = drop_foreign_log(f, err);
    if (r == 0 && f->exists)
        /* Read the transaction number, job id and event number again. They may be lower now, because
         * drop_foreign_log may have removed the log. */
        r = inspect_whole(f, err);
    if (r < 0)
        return r;
    log_warning("--accept-older-state: %s; copies of the files are in %s", err_text(why, text, sizeof text),
                aside);
    *ret = f->mark;
    ret->folded = 0;
    /* Without a readable mark file, the daemon cannot know which job ids and event numbers were given out.
     * Skip many numbers, so that no number is used twice. */
    if (f->mark_status < 0) {
        ret->id = f->id + ID_JUMP;
        ret->seq = f->seq + SEQ_JUMP;
    }
    return 0;
}

int state_guard(const struct state_config *config, struct state_mark *ret, int *ret_fd, struct err *err)
{
    struct found f = {.dir = config->dir};
    struct err why = {0};
    f.path = state_join_path(config->dir, STATE_FILE);
    f.wal_path = state_join_path(config->dir, STATE_WAL);
    f.mark_path = state_join_path(config->dir, STATE_MARK);
    int r = inspect(&f, err);
    bool older = r == 0 && judge(&f, &why) < 0;
    if (r == 0)
        *ret = f.mark;
    if (older && config->accept_older)
        r = accept_older(&f, &why, ret, err);
    else if (older) {
        r = why.code;
        if (err != NULL)
            *err = why;
    }
    if (r == 0) {
        *ret_fd = f.mark_status == 0 && !older ? state_mark_open(f.mark_path, err)
                                               : state_mark_create(f.mark_path, ret, err);
        r = *ret_fd < 0 ? *ret_fd : 0;
    }
    free(f.path);
    free(f.wal_path);
    free(f.mark_path);
    return r;
}
