/* Tests that no acknowledged change of the state is lost silently, whatever happens to its files.
 *
 * The test makes a state and copies its files at several moments: early, later with a log that is not folded,
 * and after a clean close. Then it flips bits, cuts, empties, removes and replaces each file by an older
 * copy, hundreds of times. Each time the state must either open with every acknowledged job in its
 * acknowledged status, or be refused with a message that names a file. A refusal must leave the files
 * unchanged. Ids never decrease.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/vec.h"
#include "daemon/state.h"
#include "daemon/wal.h"

/* -------------------------------------------------------------------------------------------- fixture */

enum file { DB, WAL, SHM, MARK, N_FILES };
static const char *const names[N_FILES] = {"state.db", "state.db-wal", "state.db-shm", "state.mark"};

struct content {
    char *bytes; /* NULL: the file is not there */
    size_t n;
};

/* The files of a state at one moment. */
struct snapshot {
    struct content file[N_FILES];
};

#define N_JOBS 12

static char dir[64], work[80];
static uv_loop_t loop;
static struct snapshot early, later, closed;
static char status_of[N_JOBS + 1][64]; /* what was acknowledged last, by id */
static uint64_t n_tried, n_served, n_refused;

static void die(void *ctx, const char *why)
{
    (void)ctx;
    fail_msg("die: %s", why);
}

static const char *in(const char *where, const char *name)
{
    static char path[2][512];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", where, name);
    return path[turn];
}

static struct content read_content(const char *path)
{
    struct content c = {0};
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return c;
    c.bytes = malloc(1 << 20);
    c.n = fread(c.bytes, 1, 1 << 20, f);
    fclose(f);
    return c;
}

static struct snapshot take_snapshot(void)
{
    struct snapshot s;
    for (int i = 0; i < N_FILES; i++)
        s.file[i] = read_content(in(dir, names[i]));
    return s;
}

static void free_snapshot(struct snapshot *s)
{
    for (int i = 0; i < N_FILES; i++)
        free(s->file[i].bytes);
}

static void remove_all(const char *where)
{
    DIR *d = opendir(where);
    const struct dirent *e;
    while (d != NULL && (e = readdir(d)) != NULL) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", where, e->d_name);
        if (e->d_name[0] != '.' && unlink(path) < 0)
            remove_all(path); /* a directory */
    }
    if (d != NULL)
        closedir(d);
    rmdir(where);
}

static void lay_out(const struct snapshot *s)
{
    remove_all(work);
    assert_int_equal(mkdir(work, 0700), 0);
    for (int i = 0; i < N_FILES; i++) {
        if (s->file[i].bytes == NULL)
            continue;
        FILE *f = fopen(in(work, names[i]), "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(s->file[i].bytes, 1, s->file[i].n, f), s->file[i].n);
        fclose(f);
    }
}

static void run_until_idle(struct state *s)
{
    while (!state_idle(s))
        uv_run(&loop, UV_RUN_ONCE);
}

static void put_job(struct state *s, uint64_t id)
{
    char key[16], body[600];
    struct state_unit *u = state_begin(s);
    snprintf(key, sizeof key, "0:%" PRIu64, id);
    snprintf(body, sizeof body, "{\"body\":\"%0*d\"}", (int)(40 * id), (int)id);
    snprintf(status_of[id], sizeof status_of[id], "{\"state\":\"queued\",\"n\":%" PRIu64 "}", id);
    state_put_job(
        u, &(struct state_job){.id = id, .key = key, .body = body, .spec = "{}", .status = status_of[id]});
    state_put_event(u, &(struct state_event){id, id, "submitted"});
    state_commit(u, false, NULL, NULL);
    run_until_idle(s);
}

static void end_job(struct state *s, uint64_t id)
{
    struct state_unit *u = state_begin(s);
    snprintf(status_of[id], sizeof status_of[id], "{\"state\":\"done\",\"n\":%" PRIu64 "}", id);
    state_put_status(
        u, &(struct state_job){.id = id, .status = status_of[id], .ended_ms = 1000 + id, .bytes = 9});
    state_put_event(u, &(struct state_event){100 + id, id, "ended"});
    state_commit(u, false, NULL, NULL);
    run_until_idle(s);
}

static int try_open(const char *where, bool accept, struct state **ret, struct err *err)
{
    return state_open(&(struct state_config){.loop = &loop, .dir = where, .die = die, .accept_older = accept},
                      ret, err);
}

static struct state *must_open(const char *where, bool accept)
{
    struct state *s = NULL;
    struct err err = {0};
    if (try_open(where, accept, &s, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    return s;
}

static void close_state(struct state *s)
{
    state_close(s);
    uv_run(&loop, UV_RUN_DEFAULT);
}

/* A reader with an open transaction: while it is there the log cannot be folded any further. */
static sqlite3 *hold_log(void)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open_v2(in(dir, "state.db"), &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN; SELECT count(*) FROM meta", NULL, NULL, NULL), SQLITE_OK);
    return db;
}

static int make_fixture(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s/tutti-damage-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (mkdtemp(dir) == NULL || uv_loop_init(&loop) < 0)
        return -1;
    snprintf(work, sizeof work, "%s.work", dir);
    struct state *s = must_open(dir, false);
    for (uint64_t id = 1; id <= N_JOBS / 2; id++)
        put_job(s, id);
    end_job(s, 2);
    close_state(s); /* folds */
    s = must_open(dir, false);
    early = take_snapshot();
    sqlite3 *holder = hold_log();
    for (uint64_t id = N_JOBS / 2 + 1; id <= N_JOBS; id++)
        put_job(s, id);
    for (uint64_t id = 3; id <= 9; id += 2)
        end_job(s, id);
    later = take_snapshot(); /* as a kill leaves it */
    sqlite3_close(holder);
    close_state(s);
    closed = take_snapshot();
    return 0;
}

static int drop_fixture(void **state)
{
    (void)state;
    free_snapshot(&early);
    free_snapshot(&later);
    free_snapshot(&closed);
    remove_all(dir);
    remove_all(work);
    return uv_loop_close(&loop);
}

/* -------------------------------------------------------------------------------------------- judging */

static VEC(uint64_t) found;

static int check_job(void *ctx, const struct state_job *job)
{
    const char *what = ctx;
    if (job->id > N_JOBS || strcmp(job->status, status_of[job->id]) != 0)
        fail_msg("%s: job %" PRIu64 " is %s", what, job->id, job->status);
    vec_push(&found, job->id);
    return 0;
}

static int count_live(void *ctx, const struct state_job *job, struct err *err)
{
    (void)job;
    (void)err;
    ++*(int *)ctx;
    return 0;
}

static void check_read(void *ctx, int status)
{
    if (status < 0)
        fail_msg("%s: the jobs cannot be read: %d", (const char *)ctx, status);
}

static void check_whole(struct state *s, char *what)
{
    uint64_t seq = 0;
    found.n = 0;
    state_read_jobs(s, &(struct state_query){.limit = 1000}, check_job, check_read, what);
    run_until_idle(s);
    if (found.n != N_JOBS)
        fail_msg("%s: %zu of %d acknowledged jobs are there, and it was not refused", what, found.n, N_JOBS);
    if (state_last_id(s) != N_JOBS)
        fail_msg("%s: the last id is %" PRIu64, what, state_last_id(s));
    assert_int_equal(state_reserve_seq(s, 1, &seq, NULL), 0);
    if (seq < 110)
        fail_msg("%s: event numbers go back to %" PRIu64, what, seq);
}

static bool names_a_file(const struct err *err)
{
    return strstr(err->path, "/state.") != NULL;
}

static void check_untouched(const struct snapshot *s, const char *what, const struct err *err)
{
    static const enum file kept[] = {DB, WAL, MARK};
    for (size_t k = 0; k < sizeof kept / sizeof kept[0]; k++) {
        struct content c = read_content(in(work, names[kept[k]]));
        const struct content *was = &s->file[kept[k]];
        bool same = (c.bytes == NULL) == (was->bytes == NULL) && c.n == was->n &&
                    (c.n == 0 || memcmp(c.bytes, was->bytes, c.n) == 0);
        free(c.bytes);
        if (!same)
            fail_msg("%s: refused with \"%s\", and %s was changed", what, err->msg, names[kept[k]]);
    }
}

/* Opens a state with these files. True: it was served. */
static bool judge(const struct snapshot *s, const char *fmt, ...)
{
    char what[160];
    va_list ap;
    struct state *st = NULL;
    struct err err = {0};
    int live = 0;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    n_tried++;
    lay_out(s);
    int r = try_open(work, false, &st, &err);
    if (r < 0)
        check_untouched(s, what, &err);
    else if ((r = state_load(st, count_live, &live, &err)) == 0)
        check_whole(st, what);
    if (r < 0 && (!names_a_file(&err) || err.msg[0] == '\0'))
        fail_msg("%s: refused with \"%s\": %s", what, err.path, err.msg);
    if (st != NULL)
        close_state(st);
    n_served += r == 0;
    n_refused += r < 0;
    return r == 0;
}

/* The snapshot with one file replaced; `bytes` NULL: removed. */
static bool judge_with(const struct snapshot *s, enum file file, const char *bytes, size_t n,
                       const char *what, size_t at)
{
    struct snapshot other = *s;
    other.file[file] = (struct content){(char *)bytes, n};
    return judge(&other, "%s: %s at %zu of %zu", names[file], what, at, s->file[file].n);
}

/* ------------------------------------------------------------------------------------------- mutations */

static void flip_all_over(const struct snapshot *s, enum file file, size_t times)
{
    const struct content *c = &s->file[file];
    char *bytes = malloc(c->n + 1);
    size_t stride = c->n / times + 1;
    for (size_t at = stride / 3; at < c->n; at += stride) {
        memcpy(bytes, c->bytes, c->n);
        bytes[at] = (char)(bytes[at] ^ (1 << (at % 8)));
        judge_with(s, file, bytes, c->n, "bit flipped", at);
    }
    free(bytes);
}

static void cut_all_over(const struct snapshot *s, enum file file, size_t times)
{
    const struct content *c = &s->file[file];
    size_t stride = c->n / times + 1;
    for (size_t n = 0; n < c->n; n += stride)
        judge_with(s, file, c->bytes, n, "cut", n);
    judge_with(s, file, c->bytes, c->n - 1, "cut", c->n - 1);
}

static void test_the_undamaged_are_served(void **state)
{
    (void)state;
    assert_true(later.file[WAL].n > 30000);
    assert_true(judge(&later, "with a log"));
    assert_true(judge(&closed, "closed"));
}

static void test_flipped_bits_lose_nothing_silently(void **state)
{
    (void)state;
    flip_all_over(&later, DB, 60);
    flip_all_over(&later, WAL, 150);
    flip_all_over(&later, SHM, 20);
    flip_all_over(&later, MARK, 40);
    flip_all_over(&closed, DB, 100);
    flip_all_over(&closed, MARK, 20);
}

static void test_flipped_bits_of_headers_lose_nothing_silently(void **state)
{
    char *bytes = malloc(later.file[WAL].n);
    (void)state;
    for (size_t at = 0; at < 32 + 24 + 40; at++) { /* of the log, and of its first frame */
        memcpy(bytes, later.file[WAL].bytes, later.file[WAL].n);
        bytes[at] = (char)(bytes[at] ^ 4);
        judge_with(&later, WAL, bytes, later.file[WAL].n, "header bit flipped", at);
    }
    for (size_t at = 0; at < 72; at++) { /* of the newest copy in the mark */
        size_t slot =
            at + (memcmp(later.file[MARK].bytes + 16, later.file[MARK].bytes + 4096 + 16, 8) > 0 ? 0 : 4096);
        memcpy(bytes, later.file[MARK].bytes, later.file[MARK].n);
        bytes[slot] = (char)(bytes[slot] ^ 4);
        judge_with(&later, MARK, bytes, later.file[MARK].n, "slot bit flipped", slot);
    }
    free(bytes);
}

static void test_cut_files_lose_nothing_silently(void **state)
{
    (void)state;
    cut_all_over(&later, DB, 20);
    cut_all_over(&later, WAL, 60);
    cut_all_over(&later, SHM, 8);
    cut_all_over(&later, MARK, 8);
    cut_all_over(&closed, DB, 30);
    cut_all_over(&closed, MARK, 8);
}

static void test_missing_files_lose_nothing_silently(void **state)
{
    (void)state;
    for (int i = 0; i < N_FILES; i++) {
        if (i != SHM)
            assert_false(judge_with(&later, (enum file)i, NULL, 0, "removed", 0));
        if (i == DB || i == MARK)
            assert_false(judge_with(&closed, (enum file)i, NULL, 0, "removed", 0));
    }
    assert_true(judge_with(&later, SHM, NULL, 0, "removed", 0)); /* it has nothing of its own */
}

/* Tries every mixture of database, log and mark from different moments. Files of one moment must be served.
 * Any other mixture must be refused unless it contains every acknowledged job. The earliest mark is left out,
 * because an older state with its own mark cannot be told from the newest state. */
static void test_older_copies_lose_nothing_silently(void **state)
{
    const struct snapshot *const moments[] = {&early, &later, &closed};
    (void)state;
    for (int db = 0; db < 3; db++)
        for (int wal = 0; wal < 3; wal++)
            for (int mark = 1; mark < 3; mark++) {
                struct snapshot s = {0};
                s.file[DB] = moments[db]->file[DB];
                s.file[WAL] = moments[wal]->file[WAL];
                s.file[MARK] = moments[mark]->file[MARK];
                bool served = judge(&s, "database of moment %d, log of %d, mark of %d", db, wal, mark);
                if (db == wal && wal == mark)
                    assert_true(served);
            }
}

static void test_enough_was_tried(void **state)
{
    (void)state;
    print_message("# %" PRIu64 " tried, %" PRIu64 " served, %" PRIu64 " refused\n", n_tried, n_served,
                  n_refused);
    assert_true(n_tried > 400);
    assert_true(n_served > 50);
    assert_true(n_refused > 100);
    vec_free(&found);
}

/* ------------------------------------------------------------------------------------------- accepting */

static int any_job(void *ctx, const struct state_job *job)
{
    (void)ctx;
    vec_push(&found, job->id);
    return 0;
}

static void check_accepted(const struct snapshot *s, size_t jobs, uint64_t last_id)
{
    struct err err = {0};
    struct state *st = NULL;
    int live = 0;
    uint64_t seq = 0;
    lay_out(s);
    assert_int_equal(try_open(work, false, &st, &err), -EBADMSG);
    st = must_open(work, true);
    if (state_load(st, count_live, &live, &err) < 0)
        fail_msg("%s", err.msg);
    found.n = 0;
    state_read_jobs(st, &(struct state_query){.limit = 1000}, any_job, check_read, (void *)"accepted");
    run_until_idle(st);
    assert_int_equal(found.n, jobs);
    assert_true(state_last_id(st) >= last_id);
    assert_int_equal(state_reserve_seq(st, 1, &seq, NULL), 0);
    assert_true(seq >= 110);
    close_state(st);
    for (int i = 0; i < N_FILES; i++) { /* as they were */
        char path[200];
        snprintf(path, sizeof path, "%s/refused-1/%s", work, names[i]);
        struct content c = read_content(path);
        if (i != SHM && s->file[i].bytes != NULL) {
            assert_int_equal(c.n, s->file[i].n);
            assert_memory_equal(c.bytes, s->file[i].bytes, c.n);
        }
        free(c.bytes);
    }
    st = must_open(work, false); /* from now on it is the state */
    assert_true(state_last_id(st) >= last_id);
    close_state(st);
}

static void test_an_older_state_is_taken_knowingly(void **state)
{
    struct snapshot s = later;
    (void)state;
    s.file[WAL] = (struct content){0}; /* the log is lost */
    check_accepted(&s, N_JOBS / 2, N_JOBS);
    s = early; /* an older backup */
    s.file[MARK] = closed.file[MARK];
    check_accepted(&s, N_JOBS / 2, N_JOBS);
    s = later; /* under a log that may begin later than it ends: the log is not used */
    s.file[DB] = early.file[DB];
    s.file[MARK] = closed.file[MARK];
    check_accepted(&s, N_JOBS / 2, N_JOBS);
    s = closed; /* nothing is left but the mark */
    s.file[DB] = (struct content){0};
    check_accepted(&s, 0, N_JOBS);
}

static void test_without_a_mark_ids_jump(void **state)
{
    struct snapshot s = closed;
    (void)state;
    s.file[MARK] = (struct content){0};
    check_accepted(&s, N_JOBS, N_JOBS + 1000000);
}

/* ------------------------------------------------------------------------------------------- the log */

static struct wal_walk walk(const char *bytes, size_t n)
{
    struct wal_walk w;
    FILE *f = fopen(in(dir, "log"), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    assert_int_equal(wal_walk(in(dir, "log"), &w), 0);
    return w;
}

static void test_the_walk_counts_commits(void **state)
{
    const struct content *c = &later.file[WAL];
    char *bytes = malloc(c->n);
    (void)state;
    struct wal_walk whole = walk(c->bytes, c->n);
    assert_int_equal(whole.good_commits, N_JOBS / 2 + 4);
    assert_false(whole.bad);
    assert_int_equal(whole.bytes, c->n);
    for (size_t at = 32; at < c->n; at += 4120) { /* each frame in turn: header 24, page 4096 */
        memcpy(bytes, c->bytes, c->n);
        bytes[at + 24 + 100] ^= 1;
        struct wal_walk w = walk(bytes, c->n);
        assert_true(w.bad);
        assert_int_equal(w.bad_offset, at);
        /* One commit may be the damaged frame itself. */
        assert_int_equal(w.good_commits + w.commits_behind, whole.good_commits);
        memcpy(bytes, c->bytes, c->n);
        bytes[at + 20] ^=
            1; /* its stored checksum: the frame behind looks bad too, the ones behind that do not */
        w = walk(bytes, c->n);
        assert_int_equal(w.bad_offset, at);
        assert_int_equal(w.good_commits + w.commits_behind, whole.good_commits);
    }
    for (size_t n = 0; n < c->n; n += 997) { /* a cut is no damage by itself */
        struct wal_walk w = walk(c->bytes, n);
        assert_false(w.bad);
        assert_true(w.good_commits <= whole.good_commits);
    }
    free(bytes);
    struct wal_walk none;
    assert_int_equal(wal_walk(in(dir, "nothing"), &none), 0);
    assert_int_equal(none.bytes, 0);
}

/* A power cut can leave the last frame of a transaction and not an earlier one. It was never acknowledged. */
static void test_a_torn_last_transaction_is_no_damage(void **state)
{
    struct snapshot s = later;
    (void)state;
    lay_out(&later);
    struct state *st = must_open(work, false); /* folds */
    /* One more transaction, of which the mark that is kept here does not know. */
    struct content mark = read_content(in(work, "state.mark"));
    sqlite3 *holder;
    assert_int_equal(sqlite3_open_v2(in(work, "state.db"), &holder, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_exec(holder, "BEGIN; SELECT count(*) FROM meta", NULL, NULL, NULL), SQLITE_OK);
    struct state_unit *u = state_begin(st);
    state_put_event(u, &(struct state_event){500, 1, "torn"});
    state_commit(u, false, NULL, NULL);
    run_until_idle(st);
    s.file[DB] = read_content(in(work, "state.db"));
    s.file[WAL] = read_content(in(work, "state.db-wal"));
    s.file[SHM] = (struct content){0};
    s.file[MARK] = mark;
    sqlite3_close(holder);
    close_state(st);
    assert_true(s.file[WAL].n > 32 + 4120); /* at least two frames */
    s.file[WAL].bytes[32 + 24 + 8] ^= 1;    /* the first is not what was written; the commit is */
    assert_true(judge(&s, "torn"));
    free(s.file[DB].bytes);
    free(s.file[WAL].bytes);
    free(mark.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_undamaged_are_served),
        cmocka_unit_test(test_flipped_bits_lose_nothing_silently),
        cmocka_unit_test(test_flipped_bits_of_headers_lose_nothing_silently),
        cmocka_unit_test(test_cut_files_lose_nothing_silently),
        cmocka_unit_test(test_missing_files_lose_nothing_silently),
        cmocka_unit_test(test_older_copies_lose_nothing_silently),
        cmocka_unit_test(test_the_walk_counts_commits),
        cmocka_unit_test(test_a_torn_last_transaction_is_no_damage),
        cmocka_unit_test(test_an_older_state_is_taken_knowingly),
        cmocka_unit_test(test_without_a_mark_ids_jump),
        cmocka_unit_test(test_enough_was_tried),
    };

    return cmocka_run_group_tests(tests, make_fixture, drop_fixture);
}
