/* Tests the state. Every acknowledged change must be there after reopening. Callbacks come in order and not
 * before the change is on disk. Damage is refused with its place. A full disk refuses only changes that may
 * be refused. Each test uses a real database in a directory of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/vec.h"
#include "daemon/state.h"
#include "tests/skip.h"

/* -------------------------------------------------------------------------------------------- fixture */

static char dir[64];
static uv_loop_t loop;

static void die(void *ctx, const char *why)
{
    (void)ctx;
    fail_msg("die: %s", why);
}

static int try_open(struct state **ret, struct err *err)
{
    return state_open(&(struct state_config){&loop, dir, die, NULL}, ret, err);
}

static struct state *open_state(void)
{
    struct state *s = NULL;
    struct err err = {0};
    if (try_open(&s, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    return s;
}

static void close_state(struct state *s)
{
    state_close(s);
    uv_run(&loop, UV_RUN_DEFAULT); /* lets its handles go */
}

static void run_until_idle(struct state *s)
{
    while (!state_idle(s))
        uv_run(&loop, UV_RUN_ONCE);
}

static const char *scratch_parent(void)
{
    return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
}

static int begin(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s/tutti-state-XXXXXX", scratch_parent());
    return mkdtemp(dir) == NULL || uv_loop_init(&loop) < 0 ? -1 : 0;
}

static int end(void **state)
{
    static const char *const files[] = {"state.db",   "state.db-wal", "state.db-shm",
                                        "state.mark", "whole",        "filler"};
    char path[128];
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
    uv_run(&loop, UV_RUN_DEFAULT);
    return uv_loop_close(&loop); /* fails when a handle is left */
}

/* A change behind the state's back. */
static void tamper(const char *sql)
{
    char path[128];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/state.db", dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    sqlite3_close(db);
}

static void write_file(const char *name, const char *bytes, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static void leave(void *ctx, const char *why)
{
    (void)ctx;
    _exit(strstr(why, "cannot write") != NULL ? 42 : 43);
}

/* ---- a record of callbacks ---- */

static VEC(int) called; /* the numbers of units, in the order of their callbacks; negative: status */

static void note(void *ctx, int status)
{
    vec_push(&called, status < 0 ? status : (int)(intptr_t)ctx);
}

static void *number(int i)
{
    return (void *)(intptr_t)i;
}

/* ---- jobs ---- */

static const struct state_job examples[] = {
    {1, NULL, "{\"a\":1}", "{}", "{\"state\":\"queued\"}"},
    {2, "0:key", "", "", ""},
    {7, "1000:\xc3\xa9\xf0\x9f\x8e\xb5 ' \" \n", "body \xff\xfe", "spec", "status"},
    {1ull << 53, "", "b", "s", "t"},
};
#define N_EXAMPLES (sizeof examples / sizeof examples[0])

static void put_examples(struct state *s)
{
    for (size_t i = 0; i < N_EXAMPLES; i++) {
        struct state_unit *u = state_begin(s);
        state_put_job(u, &examples[i]);
        state_commit(u, true, note, number((int)i));
    }
}

static void check_same(const char *a, const char *b)
{
    assert_true((a == NULL) == (b == NULL));
    if (a != NULL)
        assert_string_equal(a, b);
}

static void check_job(const struct state_job *found, const struct state_job *want)
{
    assert_int_equal(found->id, want->id);
    check_same(found->key, want->key);
    check_same(found->body, want->body);
    check_same(found->spec, want->spec);
    check_same(found->status, want->status);
}

static size_t loaded;

static int expect_example(void *ctx, const struct state_job *job, struct err *err)
{
    (void)ctx;
    (void)err;
    assert_true(loaded < N_EXAMPLES);
    check_job(job, &examples[loaded++]);
    return 0;
}

static void check_examples(struct state *s)
{
    struct err err = {0};
    loaded = 0;
    if (state_load(s, expect_example, NULL, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(loaded, N_EXAMPLES);
}

static void put_event(struct state *s, uint64_t seq, uint64_t job, const char *body)
{
    struct state_unit *u = state_begin(s);
    state_put_event(u, &(struct state_event){seq, job, body});
    state_commit(u, false, NULL, NULL);
}

/* -------------------------------------------------------------------------------------------- writing */

static int no_job(void *ctx, const struct state_job *job, struct err *err)
{
    (void)ctx;
    (void)job;
    (void)err;
    fail_msg("there is a job");
    return 0;
}

static void test_a_new_state_is_empty(void **state)
{
    struct state *s = open_state();
    (void)state;
    assert_true(state_idle(s));
    assert_int_equal(state_load(s, no_job, NULL, NULL), 0);
    close_state(s);
    close_state(NULL);
}

static void test_jobs_survive_reopening(void **state)
{
    struct state *s = open_state();
    (void)state;
    put_examples(s);
    assert_false(state_idle(s));
    run_until_idle(s);
    close_state(s);
    s = open_state();
    check_examples(s);
    close_state(s);
    vec_free(&called);
}

static int refuse_second(void *ctx, const struct state_job *job, struct err *err)
{
    ++*(int *)ctx;
    return job->id == 2 ? err_set(err, -E2BIG, "enough") : 0;
}

static void test_loading_ends_with_the_callbacks_failure(void **state)
{
    struct state *s = open_state();
    struct err err = {0};
    int n = 0;
    (void)state;
    put_examples(s);
    run_until_idle(s);
    close_state(s);
    s = open_state();
    assert_int_equal(state_load(s, refuse_second, &n, &err), -E2BIG);
    assert_int_equal(n, 2);
    assert_string_equal(err.msg, "enough");
    close_state(s);
    vec_free(&called);
}

static void keep_status(void *ctx, int status, const struct state_job *job)
{
    assert_int_equal(status, 0);
    snprintf(ctx, 32, "%s", job->status);
}

static void test_the_newest_status_counts(void **state)
{
    struct state *s = open_state();
    char status[32] = "";
    (void)state;
    put_examples(s);
    for (int i = 0; i < 50; i++) {
        char text[16];
        snprintf(text, sizeof text, "status %d", i);
        struct state_unit *u = state_begin(s);
        state_put_status(u, &(struct state_job){.id = 2, .status = text});
        state_commit(u, false, NULL, NULL);
        if (i % 7 == 0)
            uv_run(&loop, UV_RUN_NOWAIT);
    }
    run_until_idle(s);
    state_read_job(s, 2, keep_status, status);
    run_until_idle(s);
    assert_string_equal(status, "status 49");
    close_state(s);
    vec_free(&called);
}

static void test_callbacks_come_in_order_and_not_before_the_loop(void **state)
{
    struct state *s = open_state();
    (void)state;
    for (int i = 0; i < 500; i++) {
        struct state_unit *u = state_begin(s);
        if (i % 3 == 0)
            state_put_event(u, &(struct state_event){(uint64_t)i + 1, 1, "x"});
        state_commit(u, i % 2, note, number(i));
        assert_int_equal(called.n, 0);
    }
    run_until_idle(s);
    assert_int_equal(called.n, 500);
    for (int i = 0; i < 500; i++)
        assert_int_equal(called.at[i], i);
    close_state(s);
    vec_free(&called);
}

struct chain {
    struct state *state;
    int left;
};

static void commit_next(void *ctx, int status)
{
    struct chain *c = ctx;
    assert_int_equal(status, 0);
    vec_push(&called, c->left);
    if (c->left-- > 0)
        state_commit(state_begin(c->state), false, commit_next, c);
}

static void test_a_callback_may_commit_more(void **state)
{
    struct chain c = {open_state(), 20};
    (void)state;
    state_commit(state_begin(c.state), false, commit_next, &c);
    state_commit(state_begin(c.state), false, note, number(1000));
    run_until_idle(c.state);
    assert_int_equal(called.n, 22);
    assert_int_equal(called.at[0], 20);
    assert_int_equal(called.at[1], 1000); /* of the same turn, before what the first one began */
    assert_int_equal(called.at[21], 0);
    close_state(c.state);
    vec_free(&called);
}

static void test_close_commits_the_rest(void **state)
{
    struct state *s = open_state();
    struct chain c = {s, 3};
    (void)state;
    put_examples(s);
    state_commit(state_begin(s), false, commit_next, &c);
    close_state(s); /* the loop never ran */
    assert_int_equal(called.n, N_EXAMPLES + 4);
    for (size_t i = 0; i < N_EXAMPLES; i++)
        assert_int_equal(called.at[i], i);
    s = open_state();
    check_examples(s);
    close_state(s);
    vec_free(&called);
}

/* -------------------------------------------------------------------------------------------- reading */

static void note_status(void *ctx, int status, const struct state_job *job)
{
    (void)job;
    *(int *)ctx = status;
}

static void expect_job(void *ctx, int status, const struct state_job *job)
{
    assert_int_equal(status, 0);
    check_job(job, &examples[*(size_t *)ctx]);
    *(size_t *)ctx = N_EXAMPLES;
}

static void test_reads_find_the_job_or_say_that_there_is_none(void **state)
{
    struct state *s = open_state();
    int status = 0;
    (void)state;
    put_examples(s);
    run_until_idle(s);
    for (size_t i = 0; i < N_EXAMPLES; i++) {
        size_t which = i;
        state_read_job(s, examples[i].id, expect_job, &which);
        assert_false(state_idle(s));
        run_until_idle(s);
        assert_int_equal(which, N_EXAMPLES);
    }
    state_read_job(s, 3, note_status, &status);
    run_until_idle(s);
    assert_int_equal(status, -ENOENT);
    close_state(s);
    vec_free(&called);
}

static void read_in_callback(void *ctx, int status)
{
    static size_t which;
    assert_int_equal(status, 0);
    which = 0;
    state_read_job(ctx, examples[0].id, expect_job, &which);
}

static void test_what_is_acknowledged_is_read(void **state)
{
    struct state *s = open_state();
    struct state_unit *u = state_begin(s);
    (void)state;
    state_put_job(u, &examples[0]);
    state_commit(u, false, read_in_callback, s);
    run_until_idle(s);
    close_state(s);
}

static VEC(uint64_t) seqs;

static void collect(void *ctx, int status, const struct state_event *events, size_t n)
{
    assert_int_equal(status, 0);
    seqs.n = 0;
    for (size_t i = 0; i < n; i++) {
        char want[32];
        snprintf(want, sizeof want, "event %" PRIu64, events[i].seq);
        assert_string_equal(events[i].body, want);
        assert_int_equal(events[i].job, events[i].seq % 3 + 1);
        vec_push(&seqs, events[i].seq);
    }
    *(bool *)ctx = true;
}

static void check_events(struct state *s, uint64_t job, uint64_t first, uint64_t limit_seq, uint32_t limit)
{
    bool done = false;
    size_t n = 0;
    state_read_events(s, job, first, limit_seq, limit, collect, &done);
    run_until_idle(s);
    assert_true(done);
    for (uint64_t seq = first < 10 ? 10 : first; seq < limit_seq && seq < 110 && n < limit; seq++) {
        if (seq % 2 != 0 || (job != 0 && seq % 3 + 1 != job))
            continue;
        assert_true(n < seqs.n);
        assert_int_equal(seqs.at[n++], seq);
    }
    assert_int_equal(seqs.n, n);
}

static void test_events_are_read_by_range_job_and_limit(void **state)
{
    struct state *s = open_state();
    (void)state;
    for (uint64_t seq = 10; seq < 110; seq += 2) {
        char body[32];
        snprintf(body, sizeof body, "event %" PRIu64, seq);
        put_event(s, seq, seq % 3 + 1, body);
    }
    run_until_idle(s);
    for (uint64_t job = 0; job <= 4; job++) {
        check_events(s, job, 0, 1000, 1000);
        check_events(s, job, 10, 11, 1000);
        check_events(s, job, 11, 12, 1000);
        check_events(s, job, 12, 12, 1000);
        check_events(s, job, 20, 50, 7);
        check_events(s, job, 20, 50, 1);
        check_events(s, job, 108, 109, 5);
        check_events(s, job, 109, 1ull << 62, 5);
    }
    close_state(s);
    vec_free(&seqs);
}

/* ------------------------------------------------------------------------------------ live and ended jobs */

static void put_ended(struct state *s, uint64_t id, uint64_t ended_ms, uint64_t uid)
{
    char key[32];
    struct state_unit *u = state_begin(s);
    snprintf(key, sizeof key, "%" PRIu64 ":%" PRIu64, uid, id);
    state_put_job(
        u,
        &(struct state_job){
            .id = id, .key = key, .body = "b", .spec = "s", .status = "t", .ended_ms = ended_ms, .uid = uid});
    state_put_event(u, &(struct state_event){2 * id, id, "submitted"});
    state_put_event(u, &(struct state_event){2 * id + 1, id, "ended"});
    state_commit(u, false, NULL, NULL);
}

static VEC(uint64_t) ids;

static int collect_id(void *ctx, const struct state_job *job)
{
    (void)ctx;
    vec_push(&ids, job->id);
    return 0;
}

static int load_id(void *ctx, const struct state_job *job, struct err *err)
{
    (void)err;
    return collect_id(ctx, job);
}

static void note_done(void *ctx, int status)
{
    (void)ctx;
    assert_int_equal(status, 0);
}

static void read_ids(struct state *s, uint64_t after, uint64_t ended_after_ms, uint32_t limit)
{
    ids.n = 0;
    state_read_jobs(s,
                    &(struct state_query){.after = after, .ended_after_ms = ended_after_ms, .limit = limit},
                    collect_id, note_done, NULL);
    run_until_idle(s);
}

static void check_ids(const uint64_t *want, size_t n)
{
    assert_int_equal(ids.n, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids.at[i], want[i]);
}

static void test_only_live_jobs_are_loaded_and_all_are_read(void **state)
{
    struct state *s = open_state();
    (void)state;
    for (uint64_t id = 1; id <= 9; id++)
        put_ended(s, id, id % 3 == 0 ? 0 : 1000 * id, 0);
    run_until_idle(s);
    struct state_unit *u = state_begin(s);
    state_put_status(u, &(struct state_job){.id = 6, .status = "t", .ended_ms = 50});
    state_commit(u, false, NULL, NULL);
    run_until_idle(s);
    close_state(s);
    s = open_state();
    ids.n = 0;
    assert_int_equal(state_load(s, load_id, NULL, NULL), 0);
    check_ids((uint64_t[]){3, 9}, 2);
    assert_int_equal(state_last_id(s), 9);
    read_ids(s, 0, 0, 100);
    check_ids((uint64_t[]){1, 2, 3, 4, 5, 6, 7, 8, 9}, 9);
    read_ids(s, 2, 0, 3);
    check_ids((uint64_t[]){3, 4, 5}, 3);
    read_ids(s, 0, 5000, 100); /* live, or ended at 5000 or later */
    check_ids((uint64_t[]){3, 5, 7, 8, 9}, 5);
    read_ids(s, 5, 5000, 2);
    check_ids((uint64_t[]){7, 8}, 2);
    close_state(s);
    vec_free(&ids);
}

static void test_a_key_that_is_taken_writes_nothing(void **state)
{
    struct state *s = open_state();
    (void)state;
    put_ended(s, 1, 1000, 0);
    for (uint64_t id = 2; id <= 4; id++) { /* in one transaction; 3 has the key of 1 */
        struct state_unit *u = state_begin(s);
        state_put_job(u, &(struct state_job){
                             .id = id, .key = id == 3 ? "0:1" : NULL, .body = "b", .spec = "", .status = ""});
        state_put_event(u, &(struct state_event){100 + id, id, "e"});
        state_commit(u, true, note, number((int)id));
    }
    run_until_idle(s);
    assert_int_equal(called.n, 3);
    assert_int_equal(called.at[0], 2);
    assert_int_equal(called.at[1], -EEXIST);
    assert_int_equal(called.at[2], 4);
    read_ids(s, 0, 0, 100);
    check_ids((uint64_t[]){1, 2, 4}, 3);
    ids.n = 0;
    state_read_jobs(s, &(struct state_query){.key = "0:1"}, collect_id, note_done, NULL);
    run_until_idle(s);
    check_ids((uint64_t[]){1}, 1);
    close_state(s);
    vec_free(&ids);
    vec_free(&called);
}

/* -------------------------------------------------------------------------------------------- pruning */

static VEC(uint64_t) pruned; /* only touched while the state is busy */

static void note_pruned(void *ctx, uint64_t id)
{
    (void)ctx;
    vec_push(&pruned, id);
}

static size_t spare_five(void *ctx, uint64_t **ret)
{
    (void)ctx;
    *ret = malloc(sizeof **ret);
    **ret = 5;
    return 1;
}

static struct state *open_keeping(const struct state_keep *keep)
{
    struct state *s = NULL;
    struct err err = {0};
    struct state_config c = {
        .loop = &loop, .dir = dir, .die = die, .keep = *keep, .in_use = spare_five, .pruning = note_pruned};
    if (state_open(&c, &s, &err) < 0 || state_load(s, load_id, NULL, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    run_until_idle(s);
    return s;
}

static int count(const char *sql)
{
    char path[128];
    sqlite3 *db;
    sqlite3_stmt *q;
    snprintf(path, sizeof path, "%s/state.db", dir);
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &q, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    int n = sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    return n;
}

static void check_no_orphans(void)
{
    assert_int_equal(count("SELECT count(*) FROM status WHERE id NOT IN (SELECT id FROM jobs)"), 0);
    assert_int_equal(count("SELECT count(*) FROM jobs WHERE id NOT IN (SELECT id FROM status)"), 0);
    assert_int_equal(count("SELECT count(*) FROM events WHERE job NOT IN (SELECT id FROM jobs)"), 0);
}

/* Ended in the order of their ids; every tenth is live. */
static void put_history(uint64_t n)
{
    struct state *s = open_state();
    for (uint64_t id = 1; id <= n; id++)
        put_ended(s, id, id % 10 == 0 ? 0 : 1000 + id, id % 2);
    run_until_idle(s);
    close_state(s);
}

static void test_the_oldest_ended_jobs_are_pruned(void **state)
{
    (void)state;
    put_history(200);
    struct state *s = open_keeping(&(struct state_keep){.jobs = 50});
    assert_int_equal(pruned.n, 130); /* 180 had ended */
    for (size_t i = 1; i < pruned.n; i++)
        assert_true(pruned.at[i] > pruned.at[i - 1]);
    for (size_t i = 0; i < pruned.n; i++)
        assert_true(pruned.at[i] % 10 != 0 && pruned.at[i] != 5); /* 5 is in use */
    assert_int_equal(count("SELECT count(*) FROM status WHERE ended_ms > 0"), 50);
    assert_int_equal(count("SELECT count(*) FROM status WHERE ended_ms = 0"), 20);
    check_no_orphans();
    /* A job that ends later takes the place of the oldest. */
    pruned.n = 0;
    for (uint64_t id = 300; id < 600; id++)
        put_ended(s, id, id, 0);
    run_until_idle(s);
    close_state(s);
    s = open_keeping(&(struct state_keep){.jobs = 50});
    close_state(s);
    assert_int_equal(count("SELECT count(*) FROM status WHERE ended_ms > 0"), 50);
    check_no_orphans();
    vec_free(&pruned);
    vec_free(&ids);
}

static void test_each_user_has_its_own_bytes(void **state)
{
    (void)state;
    put_history(40); /* of 3 bytes each; users 0 and 1 */
    close_state(open_keeping(&(struct state_keep){.bytes = 30}));
    assert_int_equal(count("SELECT sum(bytes) FROM status WHERE ended_ms > 0 AND uid = 0"), 30);
    assert_int_equal(count("SELECT sum(bytes) FROM status WHERE ended_ms > 0 AND uid = 1"), 30);
    assert_int_equal(count("SELECT count(*) FROM status WHERE id = 5"), 1);
    assert_int_equal(count("SELECT count(*) FROM status WHERE id = 3"), 0);
    vec_free(&pruned);
    vec_free(&ids);
}

static void test_age_is_what_the_clock_says(void **state)
{
    (void)state;
    put_history(40); /* in 1970 */
    close_state(open_keeping(&(struct state_keep){.ms = 86400000}));
    assert_int_equal(count("SELECT count(*) FROM status WHERE ended_ms > 0"), 1); /* the one in use */
    assert_int_equal(count("SELECT count(*) FROM status"), 5);
    vec_free(&pruned);
    vec_free(&ids);
}

static void die_at_job(void *ctx, uint64_t id)
{
    if (id == *(uint64_t *)ctx)
        _exit(7);
}

/* In processes of their own, which end in the middle of a batch. */
static void test_pruning_survives_a_kill(void **state)
{
    uint64_t at[] = {1, 16, 33, 77};
    (void)state;
    put_history(100);
    fflush(NULL);
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        pid_t child = fork();
        if (child == 0) {
            struct state *s;
            uv_loop_t own;
            uv_loop_init(&own);
            struct state_config c = {.loop = &own,
                                     .dir = dir,
                                     .die = leave,
                                     .ctx = &at[i],
                                     .keep = {.jobs = 1},
                                     .pruning = die_at_job};
            if (state_open(&c, &s, NULL) < 0 || state_load(s, load_id, NULL, NULL) < 0)
                _exit(44);
            while (!state_idle(s))
                uv_run(&own, UV_RUN_ONCE);
            _exit(45);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(WEXITSTATUS(status), 7);
        check_no_orphans();
        assert_int_equal(count("SELECT count(*) FROM status WHERE ended_ms = 0"), 10);
    }
    assert_true(count("SELECT count(*) FROM status") < 100);
    close_state(open_keeping(&(struct state_keep){.jobs = 1}));
    assert_int_equal(count("SELECT count(*) FROM status WHERE ended_ms > 0"), 1);
    check_no_orphans();
    vec_free(&pruned);
    vec_free(&ids);
}

/* --------------------------------------------------------------------------------------- a large database */

static char died_of[1200];

static void note_death(void *ctx, const char *why)
{
    (void)ctx;
    snprintf(died_of, sizeof died_of, "%s", why);
}

static void put_large(uint64_t n)
{
    struct state *s = open_state();
    char *spec = malloc(100000);
    memset(spec, 's', 99999);
    spec[99999] = '\0';
    for (uint64_t id = 1; id <= n; id++) {
        struct state_unit *u = state_begin(s);
        state_put_job(u,
                      &(struct state_job){
                          .id = id, .body = "b", .spec = spec, .status = "t", .ended_ms = id == n ? 0 : id});
        state_put_event(u, &(struct state_event){id, id, "e"});
        state_commit(u, false, NULL, NULL);
    }
    run_until_idle(s);
    close_state(s);
    free(spec);
}

/* Opens and loads at once; then runs the loop until the check has said something. */
static void check_large(const char *want)
{
    struct state *s = NULL;
    struct err err = {0};
    died_of[0] = '\0';
    if (state_open(&(struct state_config){.loop = &loop, .dir = dir, .die = note_death}, &s, &err) < 0)
        fail_msg("%s", err.msg);
    ids.n = 0;
    assert_int_equal(state_load(s, load_id, NULL, NULL), 0);
    check_ids((uint64_t[]){120}, 1);
    while (uv_run(&loop, UV_RUN_ONCE) != 0) /* timers do not keep it going, the check does */
        ;
    if ((want == NULL) != (died_of[0] == '\0') || (want != NULL && strstr(died_of, want) == NULL))
        fail_msg("expected \"%s\", found \"%s\"", want != NULL ? want : "", died_of);
    close_state(s);
}

static void test_a_large_database_serves_first_and_is_checked_then(void **state)
{
    (void)state;
    put_large(120); /* 12 MB */
    check_large(NULL);
    tamper("UPDATE jobs SET body='c' WHERE id=77");
    check_large("row 77 of table jobs");
    tamper("UPDATE jobs SET body='b' WHERE id=77; UPDATE events SET body='f' WHERE seq=99");
    check_large("row 99 of table events");
    /* Job 120 is the live one. */
    tamper("UPDATE events SET body='e' WHERE seq=99; UPDATE status SET body='u' WHERE id=120");
    struct state *s = open_state();
    assert_int_equal(state_load(s, load_id, NULL, NULL), -EBADMSG);
    close_state(s);
    vec_free(&ids);
}

/* -------------------------------------------------------------------------------------------- backups */

static int backup_fd;

static void take_backup(void *ctx, int status, int fd, uint64_t bytes)
{
    (void)ctx;
    assert_int_equal(status, 0);
    assert_true(bytes >= 4096);
    backup_fd = fd;
}

static void test_a_backup_has_what_was_committed_and_commits_go_on(void **state)
{
    struct state *s = open_state();
    char command[128], *bytes = malloc(1 << 20);
    (void)state;
    put_examples(s);
    run_until_idle(s);
    backup_fd = -1;
    assert_int_equal(state_backup(s, take_backup, NULL), 0);
    assert_int_equal(state_backup(s, take_backup, NULL), -EBUSY);
    put_event(s, 5, 1, "meanwhile");
    run_until_idle(s);
    assert_true(backup_fd >= 0);
    close_state(s);
    ssize_t n = read(backup_fd, bytes, 1 << 20);
    assert_true(n > 0);
    write_file("state.db", bytes, (size_t)n); /* in the place of the state */
    free(bytes);
    close(backup_fd);
    struct err err = {0};
    int r = try_open(&s, &err);
    if (r < 0) { /* the event came after the copy was begun */
        assert_non_null(strstr(err.msg, "--accept-older-state"));
        assert_int_equal(state_open(&(struct state_config){&loop, dir, die, NULL, true}, &s, &err), 0);
    }
    check_examples(s);
    close_state(s);
    snprintf(command, sizeof command, "rm -rf %s/refused-1", dir);
    assert_int_equal(system(command), 0);
    vec_free(&called);
}

/* --------------------------------------------------------------------------------------------- numbers */

static uint64_t reserve(struct state *s, uint64_t ahead)
{
    uint64_t first = 0;
    struct err err = {0};
    if (state_reserve_seq(s, ahead, &first, &err) < 0)
        fail_msg("%s", err.msg);
    return first;
}

static void test_numbers_are_never_given_out_twice(void **state)
{
    struct state *s = open_state();
    (void)state;
    assert_int_equal(reserve(s, 10), 1);
    close_state(s);
    s = open_state();
    assert_int_equal(reserve(s, 10), 11);
    struct state_unit *u = state_begin(s);
    state_put_seq(u, 500);
    state_commit(u, false, NULL, NULL);
    run_until_idle(s);
    close_state(s);
    s = open_state();
    assert_int_equal(reserve(s, 1), 500);
    put_event(s, 900, 1, "beyond what was reserved");
    run_until_idle(s);
    close_state(s);
    s = open_state();
    assert_int_equal(reserve(s, 1), 901);
    close_state(s);
}

/* --------------------------------------------------------------------------------------------- damage */

static void fill_and_close(void)
{
    struct state *s = open_state();
    put_examples(s);
    put_event(s, 1, 1, "one");
    run_until_idle(s);
    close_state(s);
    vec_free(&called);
}

static int ignore_job(void *ctx, const struct state_job *job, struct err *err)
{
    (void)ctx;
    (void)job;
    (void)err;
    return 0;
}

static void check_load_refused(const char *sql, const char *part)
{
    struct err err = {0};
    char path[128];
    fill_and_close();
    tamper(sql);
    struct state *s = open_state();
    assert_int_equal(state_load(s, ignore_job, NULL, &err), -EBADMSG);
    snprintf(path, sizeof path, "%s/state.db", dir);
    assert_string_equal(err.path, path);
    if (strstr(err.msg, part) == NULL || strstr(err.msg, "backup") == NULL)
        fail_msg("%s: %s", sql, err.msg);
    close_state(s);
    unlink(path);
    snprintf(path, sizeof path, "%s/state.mark", dir);
    unlink(path);
}

static void test_changed_rows_are_refused_with_table_and_row(void **state)
{
    (void)state;
    check_load_refused("UPDATE jobs SET body='{\"a\":2}' WHERE id=1", "row 1 of table jobs");
    check_load_refused("UPDATE jobs SET spec='{} ' WHERE id=1", "row 1 of table jobs");
    check_load_refused("UPDATE jobs SET key='0:kez' WHERE id=2", "row 2 of table jobs");
    check_load_refused("UPDATE jobs SET key=NULL WHERE id=2", "row 2 of table jobs");
    check_load_refused("UPDATE jobs SET id=3 WHERE id=2; UPDATE status SET id=3 WHERE id=2",
                       "row 3 of table jobs");
    check_load_refused("UPDATE jobs SET body='', spec='{\"a\":1}{}' WHERE id=1", "row 1 of table jobs");
    check_load_refused("UPDATE jobs SET crc=crc+1 WHERE id=7", "row 7 of table jobs");
    check_load_refused("UPDATE status SET body='statut' WHERE id=7", "row 7 of table status");
    check_load_refused("UPDATE status SET body=(SELECT body FROM status WHERE id=1) WHERE id=7",
                       "row 7 of table status");
    check_load_refused("DELETE FROM status WHERE id=7", "row 7 of table status");
}

static void test_a_damaged_row_is_told_to_who_reads_it(void **state)
{
    int status = 0;
    (void)state;
    fill_and_close();
    tamper("UPDATE status SET body='other' WHERE id=2");
    struct state *s = open_state();
    state_read_job(s, 2, note_status, &status);
    run_until_idle(s);
    assert_int_equal(status, -EBADMSG);
    close_state(s);
}

static void note_event_status(void *ctx, int status, const struct state_event *events, size_t n)
{
    (void)events;
    (void)n;
    *(int *)ctx = status;
}

static void test_a_damaged_event_is_told_to_who_reads_it(void **state)
{
    int status = 0;
    (void)state;
    fill_and_close();
    tamper("UPDATE events SET body='two'");
    struct state *s = open_state();
    state_read_events(s, 0, 0, 100, 10, note_event_status, &status);
    run_until_idle(s);
    assert_int_equal(status, -EBADMSG);
    close_state(s);
}

static char *read_file(const char *name, size_t *ret_n)
{
    char path[128], *bytes = malloc(1 << 20);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    *ret_n = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    return bytes;
}

static void test_what_is_no_database_is_refused(void **state)
{
    static const char text[] =
        "This is a letter to a friend, and no database at all. It goes on for quite some time, "
        "longer than the header of one, so that nobody takes it for an empty file.";
    struct state *s = NULL;
    struct err err = {0};
    (void)state;
    write_file("state.db", text, sizeof text);
    assert_int_equal(try_open(&s, &err), -EBADMSG);
    assert_non_null(strstr(err.msg, "backup"));
    assert_null(s);
}

static void test_a_newer_schema_is_refused(void **state)
{
    struct state *s = NULL;
    struct err err = {0};
    (void)state;
    fill_and_close();
    tamper("PRAGMA user_version=99");
    assert_int_equal(try_open(&s, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "newer tuttid"));
}

/* A flipped bit is refused, or it was in a place that holds nothing: then every job is as it was. */
static void check_flipped(char *bytes, size_t n, size_t at)
{
    struct state *s = NULL;
    struct err err = {0};
    bytes[at] = (char)(bytes[at] ^ 0x10);
    write_file("state.db", bytes, n);
    bytes[at] = (char)(bytes[at] ^ 0x10);
    int r = try_open(&s, &err);
    if (r == 0) {
        loaded = 0;
        r = state_load(s, expect_example, NULL, &err);
        if (r == 0 && loaded != N_EXAMPLES)
            fail_msg("byte %zu flipped: %zu jobs are left", at, loaded);
        close_state(s);
    }
    if (r < 0 && err.msg[0] == '\0')
        fail_msg("byte %zu flipped: refused without a word", at);
}

static void test_flipped_bits_never_give_other_jobs(void **state)
{
    size_t n;
    char path[128];
    (void)state;
    fill_and_close();
    char *bytes = read_file("state.db", &n);
    for (size_t at = 0; at < n; at += at < 100 ? 1 : 23) {
        snprintf(path, sizeof path, "%s/state.db-wal", dir);
        unlink(path);
        check_flipped(bytes, n, at);
    }
    free(bytes);
}

static void test_truncated_files_never_give_other_jobs(void **state)
{
    size_t n;
    (void)state;
    fill_and_close();
    char *bytes = read_file("state.db", &n);
    for (size_t keep = 1; keep < n; keep += keep < 600 ? 7 : 1021) {
        struct state *s = NULL;
        write_file("state.db", bytes, keep);
        int r = try_open(&s, NULL);
        if (r == 0) {
            loaded = 0;
            r = state_load(s, expect_example, NULL, NULL);
            if (r == 0 && loaded != N_EXAMPLES)
                fail_msg("cut after %zu bytes: %zu jobs are left", keep, loaded);
            close_state(s);
        }
    }
    free(bytes);
}

/* --------------------------------------------------------------------------------------- no room, no disk */

/* In a process of its own: the limit is of a process, and after `die` nothing is cleaned up. */
static void test_a_write_error_is_final(void **state)
{
    (void)state;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct state *s;
        uv_loop_t own;
        uv_loop_init(&own);
        if (state_open(&(struct state_config){&own, dir, leave, NULL}, &s, NULL) < 0)
            _exit(44);
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, 4096});
        put_examples(s);
        uv_run(&own, UV_RUN_DEFAULT);
        _exit(45);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);
}

/* Mounts a small file system at `dir`. Returns false when this is not possible. */
static bool mount_small(void)
{
    return geteuid() == 0 && mount("tmpfs", dir, "tmpfs", 0, "size=512k") == 0;
}

/* Leaves `spare` bytes. */
static void fill_disk(size_t spare)
{
    char path[128], page[4096];
    struct stat st;
    memset(page, 1, sizeof page);
    snprintf(path, sizeof path, "%s/filler", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    assert_true(fd >= 0);
    while (write(fd, page, sizeof page) == (ssize_t)sizeof page)
        ;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(ftruncate(fd, st.st_size / 4096 * 4096 - (off_t)spare), 0);
    close(fd);
}

static void make_room(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/filler", dir);
    assert_int_equal(truncate(path, 0), 0);
}

static void put_big_job(struct state *s, uint64_t id, bool optional)
{
    char *spec = malloc(60000);
    memset(spec, 's', 59999);
    spec[59999] = '\0';
    struct state_unit *u = state_begin(s);
    state_put_job(u, &(struct state_job){id, NULL, "b", spec, "s"});
    state_commit(u, optional, note, number((int)id));
    free(spec);
}

static int count_jobs(void *ctx, const struct state_job *job, struct err *err)
{
    (void)job;
    (void)err;
    ++*(int *)ctx;
    return 0;
}

static void test_a_full_disk_refuses_what_may_be_refused(void **state)
{
    int n = 0;
    (void)state;
    if (!mount_small())
        SKIP_TEST("needs root and mount");
    struct state *s = open_state();
    put_big_job(s, 1, true);
    run_until_idle(s);
    fill_disk(0);
    put_big_job(s, 2, true);
    put_big_job(s, 3, false);
    put_big_job(s, 4, true);
    while (called.n < 3)
        uv_run(&loop, UV_RUN_ONCE);
    assert_false(state_idle(s)); /* job 3 waits */
    make_room();
    put_big_job(s, 5, true);
    run_until_idle(s);
    assert_int_equal(called.n, 5);
    assert_int_equal(called.at[0], 1);
    assert_int_equal(called.at[1], -ENOSPC);
    assert_int_equal(called.at[2], -ENOSPC);
    assert_int_equal(called.at[3], 3); /* what was to be kept goes first */
    assert_int_equal(called.at[4], 5);
    close_state(s);
    s = open_state();
    assert_int_equal(state_load(s, count_jobs, &n, NULL), 0);
    assert_int_equal(n, 3);
    close_state(s);
    vec_free(&called);
    assert_int_equal(umount(dir), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_write_error_is_final), /* forks: before there are threads */
        TEST(test_pruning_survives_a_kill),
        TEST(test_a_new_state_is_empty),
        TEST(test_only_live_jobs_are_loaded_and_all_are_read),
        TEST(test_a_key_that_is_taken_writes_nothing),
        TEST(test_the_oldest_ended_jobs_are_pruned),
        TEST(test_each_user_has_its_own_bytes),
        TEST(test_age_is_what_the_clock_says),
        TEST(test_a_large_database_serves_first_and_is_checked_then),
        TEST(test_a_backup_has_what_was_committed_and_commits_go_on),
        TEST(test_jobs_survive_reopening),
        TEST(test_loading_ends_with_the_callbacks_failure),
        TEST(test_the_newest_status_counts),
        TEST(test_callbacks_come_in_order_and_not_before_the_loop),
        TEST(test_a_callback_may_commit_more),
        TEST(test_close_commits_the_rest),
        TEST(test_reads_find_the_job_or_say_that_there_is_none),
        TEST(test_what_is_acknowledged_is_read),
        TEST(test_events_are_read_by_range_job_and_limit),
        TEST(test_numbers_are_never_given_out_twice),
        TEST(test_changed_rows_are_refused_with_table_and_row),
        TEST(test_a_damaged_row_is_told_to_who_reads_it),
        TEST(test_a_damaged_event_is_told_to_who_reads_it),
        TEST(test_what_is_no_database_is_refused),
        TEST(test_a_newer_schema_is_refused),
        TEST(test_flipped_bits_never_give_other_jobs),
        TEST(test_truncated_files_never_give_other_jobs),
        TEST(test_a_full_disk_refuses_what_may_be_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
