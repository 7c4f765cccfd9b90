/* Implements units, group commit and closing of the state. state.h has the contract, and state_internal.h
 * lists the other files.
 *
 * DESIGN. There are two connections to one database. `db` writes. It belongs to the one piece of work that is
 * under way in the pool (a commit, or upkeep), and to the loop thread when there is no such work. `reader`
 * serves reads in the pool, one at a time under `reader_lock`. In WAL mode both can work at the same time.
 *
 * The loop thread builds units. A prepare handle is active only while there are units, and starts a commit
 * when none is under way. So all changes of one turn of the loop share one fsync.
 *
 * Every commit increments `commits` in table meta. When the commit is on disk, the same number is written to
 * the mark. Only then are the callbacks called.
 */
#include "daemon/state.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "daemon/state_internal.h"

/* Delay in milliseconds before a commit is tried again when the disk was full or memory had run out. */
#define FULL_RETRY_MS 1000

/* ---- lists and texts ---- */

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

/* ---- units ---- */

struct state_unit *state_begin(struct state *s)
{
    struct state_unit *u = xcalloc(1, sizeof *u);
    u->state = s;
    return u;
}

void state_put_job(struct state_unit *u, const struct state_job *job)
{
    struct state_job whole = *job;
    whole.bytes = strlen(job->body) + strlen(job->spec) + strlen(job->status);
    vec_push(&u->writes, (struct row_write){.kind = WRITE_JOB,
                                            .id = job->id,
                                            .key = copy(u, job->key),
                                            .body = copy(u, job->body),
                                            .spec = copy(u, job->spec)});
    state_put_status(u, &whole);
}

void state_put_status(struct state_unit *u, const struct state_job *job)
{
    vec_push(&u->writes, (struct row_write){.kind = WRITE_STATUS,
                                            .id = job->id,
                                            .body = copy(u, job->status),
                                            .ended_ms = job->ended_ms,
                                            .uid = job->uid,
                                            .bytes = job->bytes});
}

void state_put_event(struct state_unit *u, const struct state_event *e)
{
    vec_push(&u->writes,
             (struct row_write){.kind = WRITE_EVENT, .id = e->seq, .job = e->job, .body = copy(u, e->body)});
}

void state_put_seq(struct state_unit *u, uint64_t limit)
{
    vec_push(&u->writes,
             (struct row_write){.kind = WRITE_META, .id = limit}); /* write_numbers supplies the key */
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
    for (size_t i = 0; i < u->writes.n; i++)
        s->ended += u->writes.at[i].ended_ms > 0;
    list_add(&s->waiting, u);
    state_next_work(s);
}

bool state_idle(const struct state *s)
{
    return !s->busy && s->waiting.first == NULL && s->reads == 0;
}

/* ---- a transaction; on the writer ---- */

/* Sets *ret to true if the unit adds a new job whose key another job already has. Returns an SQLite code. */
static int key_is_taken(struct state *s, const struct state_unit *u, bool *ret)
{
    *ret = false;
    for (size_t i = 0; i < u->writes.n; i++) {
        const struct row_write *w = &u->writes.at[i];
        if (w->kind != WRITE_JOB || w->key == NULL)
            continue;
        sqlite3_reset(s->find_key);
        sqlite3_bind_text(s->find_key, 1, w->key, -1, SQLITE_STATIC);
        int r = sqlite3_step(s->find_key);
        *ret = r == SQLITE_ROW;
        sqlite3_reset(s->find_key);
        sqlite3_clear_bindings(s->find_key);
        return r == SQLITE_ROW || r == SQLITE_DONE ? SQLITE_OK : r;
    }
    return SQLITE_OK;
}

static int write_unit(struct state *s, struct state_unit *u, struct state_mark *next)
{
    bool taken;
    int r = key_is_taken(s, u, &taken);
    u->status = taken ? -EEXIST : 0;
    for (size_t i = 0; r == SQLITE_OK && !taken && i < u->writes.n; i++) {
        const struct row_write *w = &u->writes.at[i];
        if (w->kind == WRITE_META) { /* from state_put_seq; write_numbers writes it */
            next->seq = w->id > next->seq ? w->id : next->seq;
            continue;
        }
        r = row_put(s->write[w->kind], w);
        if (w->kind == WRITE_JOB && w->id > next->id)
            next->id = w->id;
        if (w->kind == WRITE_EVENT && w->id >= next->seq)
            next->seq = w->id + 1;
    }
    return r;
}

static int write_numbers(struct state *s, const struct state_mark *m)
{
    const struct row_write numbers[] = {
        {.kind = WRITE_META, .id = m->commits, .key = (char *)"commits"},
        {.kind = WRITE_META, .id = m->id, .key = (char *)"id"},
        {.kind = WRITE_META, .id = m->seq, .key = (char *)"seq"},
    };
    int r = SQLITE_OK;
    for (size_t i = 0; r == SQLITE_OK && i < sizeof numbers / sizeof numbers[0]; i++)
        r = row_put(s->write[WRITE_META], &numbers[i]);
    return r;
}

/* Writes the file state.mark, which records the number of the newest transaction on disk. The callbacks of
 * the transaction's units are called only after this write. So when somebody is told about a change, the file
 * already covers this change. */
static void write_mark(struct state *s, const struct state_mark *m)
{
    s->mark = *m;
    int r = state_mark_write(s->mark_fd, &s->mark);
    if (r < 0)
        snprintf(s->failure, sizeof s->failure, "cannot write %s: %s", s->mark_path, strerror(-r));
}

int state_commit_changes(struct state *s, int (*change)(struct state *s, void *ctx, struct state_mark *next),
                         void *ctx)
{
    struct state_mark next = s->mark;
    int r = sqlite3_exec(s->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (r == SQLITE_OK && change != NULL)
        r = change(s, ctx, &next);
    next.commits++;
    if (r == SQLITE_OK)
        r = write_numbers(s, &next);
    if (r == SQLITE_OK)
        r = sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL);
    if (r != SQLITE_OK && !sqlite3_get_autocommit(s->db))
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    if (r == SQLITE_OK)
        write_mark(s, &next);
    return r;
}

/* ---- group commit ---- */

static int write_units(struct state *s, void *ctx, struct state_mark *next)
{
    int r = SQLITE_OK;
    for (struct state_unit *u = ctx; r == SQLITE_OK && u != NULL; u = u->next)
        r = write_unit(s, u, next);
    return r;
}

static bool has_writes(const struct state_unit *units)
{
    for (; units != NULL; units = units->next)
        if (units->writes.n > 0)
            return true;
    return false;
}

/* Writes all units in one transaction. Runs on a pool thread, or on the loop thread while the state is being
 * closed. */
static void commit_all(struct state *s)
{
    s->refusal = 0;
    if (!has_writes(s->committing.first))
        /* There is nothing to write, because all these units are empty. An empty unit is committed only to
         * find out when all earlier units are on disk. */
        return;
    int r = state_commit_changes(s, write_units, s->committing.first);
    s->refusal = (r & 0xff) == SQLITE_FULL ? -ENOSPC : db_no_memory(r) ? -ENOMEM : 0;
    if (r != SQLITE_OK && s->refusal == 0)
        snprintf(s->failure, sizeof s->failure, "cannot write %s: %s", s->path, sqlite3_errmsg(s->db));
    else if (r == SQLITE_OK && s->failure[0] == '\0' && s->wal_pages >= FOLD_PAGES)
        state_fold(s, false);
}

static void finish_unit(struct state_unit *u, int status)
{
    if (u->done != NULL)
        u->done(u->ctx, status);
    unit_free(u);
}

static void on_retry(uv_timer_t *timer)
{
    state_next_work(timer->data);
}

/* Gives up the optional units, because the disk is full or memory has run out. Their callbacks get `code` as
 * the status. All other units are tried again after a delay. */
static void refuse_optional(struct state *s, struct state_unit *units, int code)
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

static void after_commit(struct state *s)
{
    struct state_unit *units = s->committing.first;
    list_init(&s->committing);
    s->busy = false;
    if (s->failure[0] != '\0') {
        s->config.die(s->config.ctx, s->failure);
    } else if (s->refusal < 0) {
        refuse_optional(s, units, s->refusal);
    } else {
        for (struct state_unit *u = units, *next; u != NULL; u = next) {
            next = u->next;
            finish_unit(u, u->status);
        }
        upkeep_committed(s);
    }
}

static void commit_work(uv_work_t *work)
{
    commit_all(work->data);
}

static void commit_done(uv_work_t *work, int status)
{
    (void)status; /* never cancelled */
    after_commit(work->data);
    state_next_work(work->data);
}

static void take_waiting(struct state *s)
{
    s->committing = s->waiting;
    if (s->committing.end == &s->waiting.first)
        s->committing.end = &s->committing.first;
    list_init(&s->waiting);
}

void state_start_work(struct state *s, void (*run)(uv_work_t *work),
                      void (*done)(uv_work_t *work, int status))
{
    s->busy = true;
    uv_queue_work(s->config.loop, &s->work, run, done);
}

/* libuv calls this function when all work of this turn of the loop is done and the loop is about to wait.
 * Commits all units of this turn in one transaction. */
static void on_prepare(uv_prepare_t *handle)
{
    struct state *s = handle->data;
    uv_prepare_stop(handle);
    if (s->busy || s->waiting.first == NULL || uv_is_active((uv_handle_t *)&s->retry))
        return;
    take_waiting(s);
    s->pruned_last = false;
    state_start_work(s, commit_work, commit_done);
}

void state_next_work(struct state *s)
{
    if (s->busy || uv_is_active((uv_handle_t *)&s->retry) || uv_is_closing((uv_handle_t *)&s->prepare))
        return;
    if (upkeep_next(s))
        return;
    if (s->waiting.first != NULL)
        uv_prepare_start(&s->prepare, on_prepare);
}

/* ---- closing ---- */

void state_released(struct state *s)
{
    if (--s->holders > 0)
        return;
    uv_mutex_destroy(&s->reader_lock);
    free(s->path);
    free(s->wal_path);
    free(s->mark_path);
    free(s);
}

static void on_state_handle_closed(uv_handle_t *h)
{
    state_released(h->data);
}

static void close_handles(struct state *s)
{
    uv_handle_t *const handles[] = {(uv_handle_t *)&s->prepare, (uv_handle_t *)&s->retry,
                                    (uv_handle_t *)&s->quiet, (uv_handle_t *)&s->hour};
    const size_t n = sizeof handles / sizeof handles[0];
    s->holders = (int)n + s->checking;
    for (size_t i = 0; i < n; i++)
        uv_close(handles[i], on_state_handle_closed);
}

static void close_reader(struct state *s)
{
    uv_mutex_lock(&s->reader_lock);
    sqlite3_close(s->reader);
    s->reader = NULL;
    uv_mutex_unlock(&s->reader_lock);
}

/* Before the call, the caller must make sure that no commit, read or backup is running in the thread pool. A
 * piece of the background check of a large database may still be running there. This function waits for the
 * end of that piece. */
void state_close(struct state *s)
{
    if (s == NULL)
        return;
    while (s->find_key != NULL && s->waiting.first != NULL && !uv_is_active((uv_handle_t *)&s->retry)) {
        take_waiting(s);
        s->busy = true;
        commit_all(s);
        after_commit(s);
    }
    if (s->reader != NULL) { /* the state was opened completely */
        close_reader(s);
        state_fold(s, true);
    }
    for (int k = 0; k < WRITE_COUNT; k++)
        sqlite3_finalize(s->write[k]);
    sqlite3_finalize(s->find_key);
    sqlite3_close(s->db);
    if (s->mark_fd >= 0)
        close(s->mark_fd);
    close_handles(s);
}
