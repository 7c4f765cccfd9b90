/* Upkeep of the database: folds the log into the database, prunes old jobs, and checks a large database while
 * the daemon serves.
 *
 * Folding and pruning use the writer, so commits wait for them. A fold copies at most a few megabytes.
 * Pruning removes one batch of jobs at a time, and commits may come between two batches. Each batch is one
 * transaction, so a kill never leaves half a job.
 *
 * Before a fold, the newest acknowledged transactions are only in state.db-wal, and a copy of state.db alone
 * would miss them. So the log is folded and emptied a second after the last commit, and under load whenever
 * it has FOLD_PAGES pages. The mark must record that a transaction is in state.db before the log may forget
 * it (state_guard.c explains why). SQLite cannot do that, so its own automatic fold is off.
 *
 * While nothing changes, nothing here runs, except once an hour to prune jobs that have become too old.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/log.h"
#include "daemon/state_internal.h"

/* Background upkeep of the database begins when there has been no commit for this many milliseconds. */
#define QUIET_MS 1000
#define HOUR_MS  3600000
#define BUSY_MS  10000 /* how long SQLite waits for a lock */
/* Number of rows that one piece of the check reads. The number is small, because other reads wait until the
 * piece is done. */
#define CHECK_ROWS 64
/* The largest number of old jobs that are removed in one batch. The number is small, because commits wait
 * until the batch is done. */
#define PRUNE_JOBS 32
/* When this many jobs have ended since the last removal of old jobs, the next removal no longer waits for a
 * quiet moment. */
#define PRUNE_EVERY 256

/* ---- folding; on the writer ---- */

static void fold_failed(struct state *s, int extended)
{
    int code = extended & 0xff;
    if (code != SQLITE_OK && code != SQLITE_BUSY && code != SQLITE_LOCKED && code != SQLITE_FULL &&
        !db_no_memory(extended))
        snprintf(s->failure, sizeof s->failure, "cannot write %s: %s", s->path, sqlite3_errmsg(s->db));
}

/* If a reader blocks the move of the log into the database, or if the disk is full, the log stays as it is. A
 * later call finishes the work. */
void state_fold(struct state *s, bool empty_log)
{
    int pages = 0, folded = 0;
    int r = sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_PASSIVE, &pages, &folded);
    fold_failed(s, r);
    if (r != SQLITE_OK || folded < pages)
        return;
    struct state_mark next = s->mark;
    next.folded = next.commits;
    if (next.folded != s->mark.folded) {
        r = state_mark_write(s->mark_fd, &next);
        if (r < 0) {
            snprintf(s->failure, sizeof s->failure, "cannot write %s: %s", s->mark_path, strerror(-r));
            return;
        }
        s->mark = next;
    }
    s->wal_pages = 0;
    if (!empty_log)
        /* Do not truncate the log file. SQLite will overwrite the log from its beginning at the next
         * commit. */
        return;
    sqlite3_busy_timeout(s->db, 0);
    fold_failed(s, sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL));
    sqlite3_busy_timeout(s->db, BUSY_MS);
}

static void fold_work(uv_work_t *work)
{
    state_fold(work->data, true);
}

static void work_done(uv_work_t *work, int status)
{
    struct state *s = work->data;
    (void)status; /* never cancelled */
    s->busy = false;
    if (s->failure[0] != '\0')
        s->config.die(s->config.ctx, s->failure);
    state_next_work(s);
}

/* ---- pruning ---- */

/* One batch of ended jobs that are removed from the database. The loop thread creates the batch. A pool
 * thread chooses the jobs and removes them. */
struct pruning {
    struct state *state;
    uint64_t now_ms;
    uint64_t *spared; /* ended jobs that are still in use */
    size_t n_spared;
    uint64_t ids[PRUNE_JOBS]; /* jobs of this batch */
    size_t n;
    bool removed; /* the batch is removed; more may follow */
};

static int one_number(sqlite3 *db, const char *sql, uint64_t a, uint64_t *ret)
{
    sqlite3_stmt *q = NULL;
    int step = SQLITE_ERROR;
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) == SQLITE_OK) {
        sqlite3_bind_int64(q, 1, (sqlite3_int64)a);
        step = sqlite3_step(q);
    }
    if (step == SQLITE_ROW)
        *ret = (uint64_t)sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return step == SQLITE_ROW || step == SQLITE_DONE ? 0 : -EIO;
}

static bool is_spared(const struct pruning *p, uint64_t id)
{
    for (size_t i = 0; i < p->n_spared; i++)
        if (p->spared[i] == id)
            return true;
    return false;
}

/* Adds ended jobs to the batch. Each row of the query `sql` gives the id and the size in bytes of one job.
 * The rows must be in the order in which the jobs ended. Stops when the batch is full, when it has `jobs`
 * jobs, or when at least `bytes` bytes were chosen. */
static int choose(struct pruning *p, const char *sql, uint64_t a, uint64_t jobs, uint64_t bytes)
{
    sqlite3_stmt *q = NULL;
    int step = SQLITE_ERROR;
    uint64_t chosen = 0;
    if (sqlite3_prepare_v2(p->state->db, sql, -1, &q, NULL) == SQLITE_OK) {
        sqlite3_bind_int64(q, 1, (sqlite3_int64)a);
        step = SQLITE_DONE;
        while (p->n < PRUNE_JOBS && p->n < jobs && chosen < bytes && (step = sqlite3_step(q)) == SQLITE_ROW) {
            uint64_t id = (uint64_t)sqlite3_column_int64(q, 0);
            if (is_spared(p, id))
                continue;
            p->ids[p->n++] = id;
            chosen += (uint64_t)sqlite3_column_int64(q, 1);
        }
    }
    sqlite3_finalize(q);
    return step == SQLITE_ROW || step == SQLITE_DONE ? 0 : -EIO;
}

static int choose_by_age(struct pruning *p)
{
    uint64_t ms = p->state->config.keep.ms;
    if (ms == 0 || p->now_ms <= ms)
        return 0;
    return choose(p, "SELECT id, bytes FROM status WHERE ended_ms>0 AND ended_ms<?1 ORDER BY ended_ms, id",
                  p->now_ms - ms, UINT64_MAX, UINT64_MAX);
}

static int choose_by_number(struct pruning *p)
{
    uint64_t n = 0, most = p->state->config.keep.jobs;
    int r = most > 0
                ? one_number(p->state->db, "SELECT count(*) FROM status WHERE ended_ms>0 AND ?1=0", 0, &n)
                : 0;
    if (r < 0 || n <= most)
        return r;
    return choose(p, "SELECT id, bytes FROM status WHERE ended_ms>0 AND ?1=0 ORDER BY ended_ms, id", 0,
                  n - most, UINT64_MAX);
}

/* Finds a user whose ended jobs take more bytes than the limit allows, and adds some of these jobs to the
 * batch. */
static int choose_by_bytes(struct pruning *p)
{
    static const char over[] =
        "SELECT uid, sum(bytes) FROM status WHERE ended_ms>0 GROUP BY uid HAVING sum(bytes)>?1";
    uint64_t most = p->state->config.keep.bytes, uid = 0, bytes = 0;
    sqlite3_stmt *q = NULL;
    int step = SQLITE_DONE;
    if (most == 0)
        return 0;
    if (sqlite3_prepare_v2(p->state->db, over, -1, &q, NULL) != SQLITE_OK)
        return -EIO;
    sqlite3_bind_int64(q, 1, (sqlite3_int64)most);
    if ((step = sqlite3_step(q)) == SQLITE_ROW) {
        uid = (uint64_t)sqlite3_column_int64(q, 0);
        bytes = (uint64_t)sqlite3_column_int64(q, 1);
    }
    sqlite3_finalize(q);
    if (step != SQLITE_ROW)
        return step == SQLITE_DONE ? 0 : -EIO;
    return choose(p, "SELECT id, bytes FROM status WHERE uid=?1 AND ended_ms>0 ORDER BY ended_ms, id", uid,
                  UINT64_MAX, bytes - most);
}

static int remove_job(struct state *s, uint64_t id)
{
    static const char *const sql[] = {"DELETE FROM events WHERE job=?1", "DELETE FROM status WHERE id=?1",
                                      "DELETE FROM jobs WHERE id=?1"};
    int r = SQLITE_OK;
    for (size_t i = 0; r == SQLITE_OK && i < sizeof sql / sizeof sql[0]; i++) {
        sqlite3_stmt *q = NULL;
        r = sqlite3_prepare_v2(s->db, sql[i], -1, &q, NULL);
        if (r == SQLITE_OK) {
            sqlite3_bind_int64(q, 1, (sqlite3_int64)id);
            r = sqlite3_step(q) == SQLITE_DONE ? SQLITE_OK : sqlite3_errcode(s->db);
        }
        sqlite3_finalize(q);
    }
    return r;
}

static int remove_batch(struct state *s, void *ctx, struct state_mark *next)
{
    const struct pruning *p = ctx;
    int r = SQLITE_OK;
    (void)next;
    for (size_t i = 0; r == SQLITE_OK && i < p->n; i++)
        r = remove_job(s, p->ids[i]);
    return r;
}

static void prune_work(uv_work_t *work)
{
    struct state *s = work->data;
    struct pruning *p = s->pruning;
    static int (*const rules[])(struct pruning *) = {choose_by_age, choose_by_number, choose_by_bytes};
    int r = 0;
    for (size_t i = 0; r == 0 && p->n == 0 && i < sizeof rules / sizeof rules[0]; i++)
        r = rules[i](p);
    if (r == 0 && p->n == 0)
        return;
    /* Remove a job's log file before its rows in the database. If the daemon is killed in between, the next
     * batch still finds the rows. */
    for (size_t i = 0; s->config.pruning != NULL && i < p->n; i++)
        s->config.pruning(s->config.ctx, p->ids[i]);
    r = r == 0 ? state_commit_changes(s, remove_batch, p) : sqlite3_errcode(s->db);
    p->removed = r == SQLITE_OK;
    if (r != SQLITE_OK && (r & 0xff) != SQLITE_FULL && !db_no_memory(r))
        snprintf(s->failure, sizeof s->failure, "cannot prune old jobs in %s: %s", s->path,
                 sqlite3_errmsg(s->db));
    if (p->removed && s->failure[0] == '\0' && s->wal_pages >= FOLD_PAGES)
        state_fold(s, false);
}

static void prune_done(uv_work_t *work, int status)
{
    struct state *s = work->data;
    struct pruning *p = s->pruning;
    s->pruning = NULL;
    if (p->removed)
        log_info("pruned %zu ended jobs, starting with job %" PRIu64, p->n, p->ids[0]);
    s->prune_due = p->removed;
    s->fold_due |= p->removed;
    free(p->spared);
    free(p);
    work_done(work, status);
}

static void start_pruning(struct state *s)
{
    struct pruning *p = xcalloc(1, sizeof *p);
    p->state = s;
    p->now_ms = clock_wall_ns() / 1000000;
    if (s->config.in_use != NULL)
        p->n_spared = s->config.in_use(s->config.ctx, &p->spared);
    s->pruning = p;
    s->ended = 0;
    s->pruned_last = true;
    state_start_work(s, prune_work, prune_done);
}

/* ---- checking a large database; on the reader ---- */

/* One piece of the check of a large database. The check runs in the thread pool while the daemon serves
 * clients. */
struct checking {
    uv_work_t work;
    struct state *state;
    struct check_at at;
    struct err err;
    int status;
};

static void check_work(uv_work_t *work)
{
    struct checking *c = work->data;
    struct state *s = c->state;
    uv_mutex_lock(&s->reader_lock);
    if (s->reader != NULL) /* NULL: the state was closed meanwhile */
        c->status = state_check_rows(s->path, s->reader, &c->at, CHECK_ROWS, &c->err);
    uv_mutex_unlock(&s->reader_lock);
}

static void check_done(uv_work_t *work, int status);

static void check_next(struct state *s)
{
    struct checking *c = xcalloc(1, sizeof *c);
    c->state = s;
    c->at = s->check;
    c->work.data = c;
    s->checking = true;
    uv_queue_work(s->config.loop, &c->work, check_work, check_done);
}

static void check_done(uv_work_t *work, int status)
{
    struct checking *c = work->data;
    struct state *s = c->state;
    char text[sizeof c->err];
    (void)status; /* never cancelled */
    s->check = c->at;
    s->checking = false;
    if (uv_is_closing((uv_handle_t *)&s->prepare))
        state_released(s);
    else if (c->status < 0)
        s->config.die(s->config.ctx, err_text(&c->err, text, sizeof text));
    else if (s->check.table < CHECK_TABLES)
        check_next(s);
    else
        log_info("checked all rows of %s: no damage was found", s->path);
    free(c);
}

/* ---- scheduling upkeep ---- */

static void on_quiet(uv_timer_t *timer)
{
    struct state *s = timer->data;
    s->fold_due = true;
    s->prune_due |= s->ended > 0;
    state_next_work(s);
}

static void on_hour(uv_timer_t *timer)
{
    struct state *s = timer->data;
    s->prune_due = true;
    state_next_work(s);
}

void upkeep_begin(struct state *s)
{
    s->prune_due = true;
    uv_timer_start(&s->hour, on_hour, HOUR_MS, HOUR_MS);
    if (s->check.table < CHECK_TABLES)
        check_next(s);
    state_next_work(s);
}

void upkeep_committed(struct state *s)
{
    uv_timer_start(&s->quiet, on_quiet, QUIET_MS, 0);
    s->prune_due |= s->ended >= PRUNE_EVERY;
}

/* Commits and the removal of old jobs both write to the database, and only one of them can run at a time.
 * They take turns, so that neither delays the other for long. */
bool upkeep_next(struct state *s)
{
    const struct state_keep *k = &s->config.keep;
    s->prune_due &= k->ms > 0 || k->jobs > 0 || k->bytes > 0;
    if (s->prune_due && !(s->pruned_last && s->waiting.first != NULL)) {
        start_pruning(s);
        return true;
    }
    if (s->fold_due && s->waiting.first == NULL) {
        s->fold_due = false;
        state_start_work(s, fold_work, work_done);
        return true;
    }
    return false;
}
