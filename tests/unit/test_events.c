/* Tests of events, with a real state and event loop. Watchers see events in the order of their numbers, and
 * only after the events are on disk. Memory is bounded, and a watcher is told about a gap when the memory did
 * not suffice. Watchers may stop reading, leave, or come back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "base/rng.h"
#include "base/vec.h"
#include "base/wire.h"
#include "daemon/events.h"
#include "tests/skip.h"

/* -------------------------------------------------------------------------------------------- fixture */

static char dir[64];
static uv_loop_t loop;
static struct daemon d;
static struct events *e;

static void die(void *ctx, const char *why)
{
    (void)ctx;
    fail_msg("die: %s", why);
}

static void open_all(void)
{
    struct err err = {0};
    d = (struct daemon){.loop = &loop};
    if (state_open(&(struct state_config){&loop, dir, die, NULL}, &d.state, &err) < 0 ||
        events_create(&d, &e, &err) < 0)
        fail_msg("%s", err.msg);
}

static void close_all(void)
{
    state_close(d.state);
    uv_run(&loop, UV_RUN_DEFAULT); /* lets its handles go */
    events_destroy(e);
    e = NULL;
}

static void run_until_idle(void)
{
    while (!state_idle(d.state))
        uv_run(&loop, UV_RUN_ONCE);
}

static int begin(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s/tutti-events-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (mkdtemp(dir) == NULL || uv_loop_init(&loop) < 0)
        return -1;
    open_all();
    return 0;
}

static int end(void **state)
{
    static const char *const files[] = {"state.db", "state.db-wal", "state.db-shm", "state.mark"};
    char path[128];
    (void)state;
    if (e != NULL)
        close_all();
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
    return uv_loop_close(&loop);
}

/* ---- adding ---- */

static void count_done(void *ctx, int status)
{
    if (ctx != NULL)
        *(int *)ctx += status == 0 ? 1 : 1000;
}

static void add_kept(uint64_t job, int *done)
{
    events_add_kept(e, state_begin(d.state), job, "kept", "\"n\":1", false, count_done, done);
}

static void add_memory(uint64_t job)
{
    events_add(e, job, "memory", NULL);
}

/* ---- a watcher that remembers ---- */

enum kind { KEPT, MEMORY, GAP };

struct seen {
    uint64_t seq, job;
    enum kind kind;
};

struct spy {
    struct watcher w; /* first */
    bool ready;
    size_t room; /* lines it takes before it is no longer ready; 0: any number */
    int gone;
    VEC(struct seen) seen;
};

static bool spy_ready(struct watcher *w)
{
    struct spy *s = (struct spy *)w;
    return s->ready && (s->room == 0 || s->seen.n < s->room);
}

static uint64_t number(const struct json *params, const char *key)
{
    uint64_t v = 0;
    assert_int_equal(json_u64(json_get(params, key), key, &v, NULL), 0);
    return v;
}

static void spy_send(struct watcher *w, const char *line, size_t bytes)
{
    struct spy *s = (struct spy *)w;
    struct wire_msg m;
    enum wire_code code;
    struct err err = {0};
    const char *name;
    assert_int_equal(s->gone, 0);
    assert_int_equal(line[bytes - 1], '\n');
    if (wire_parse(line, bytes - 1, 0, &m, &code, &err) < 0)
        fail_msg("%s: %.200s", err.msg, line);
    assert_int_equal(m.kind, WIRE_NOTIFICATION);
    assert_string_equal(m.method, "event");
    assert_int_equal(json_string(json_get(m.params, "event"), "event", &name, NULL), 0);
    assert_true(number(m.params, "time_ms") > 1500000000000);
    enum kind kind = strcmp(name, "kept") == 0 ? KEPT : strcmp(name, "memory") == 0 ? MEMORY : GAP;
    if (kind == GAP)
        assert_string_equal(name, "gap");
    if (kind == KEPT)
        assert_int_equal(number(m.params, "n"), 1);
    vec_push(&s->seen, (struct seen){number(m.params, "seq"), number(m.params, "job"), kind});
    wire_msg_finish(&m);
}

static void spy_gone(struct watcher *w)
{
    ((struct spy *)w)->gone++;
}

static void watch(struct spy *s, uint64_t since, uint64_t job)
{
    s->w = (struct watcher){
        .next = since + 1, .job = job, .ready = spy_ready, .send = spy_send, .gone = spy_gone};
    s->ready = true;
    events_watch(e, &s->w);
}

static void forget(struct spy *s)
{
    events_unwatch(e, &s->w);
    run_until_idle();
    assert_int_equal(s->gone, 1);
    vec_free(&s->seen);
    *s = (struct spy){0};
}

static void check_seen(const struct spy *s, size_t i, uint64_t seq, enum kind kind)
{
    assert_true(i < s->seen.n);
    assert_int_equal(s->seen.at[i].seq, seq);
    assert_int_equal(s->seen.at[i].kind, kind);
}

/* Numbers ascend; only a gap may repeat one, of the event before it. */
static void check_ascending(const struct spy *s)
{
    for (size_t i = 1; i < s->seen.n; i++) {
        uint64_t before = s->seen.at[i - 1].seq, now = s->seen.at[i].seq;
        if (now < before || (now == before && s->seen.at[i].kind != GAP))
            fail_msg("%" PRIu64 " after %" PRIu64, now, before);
    }
}

static size_t count(const struct spy *s, enum kind kind)
{
    size_t n = 0;
    for (size_t i = 0; i < s->seen.n; i++)
        n += s->seen.at[i].kind == kind;
    return n;
}

/* ------------------------------------------------------------------------------------------ visibility */

static void test_numbers_begin_at_one_and_ascend(void **state)
{
    struct spy s = {0};
    (void)state;
    assert_int_equal(events_newest(e), 0);
    watch(&s, 0, 0);
    for (uint64_t i = 1; i <= 5; i++) {
        add_memory(i);
        assert_int_equal(events_newest(e), i);
        check_seen(&s, i - 1, i, MEMORY);
        assert_int_equal(s.seen.at[i - 1].job, i);
    }
    forget(&s);
}

static void test_members_stand_in_the_line(void **state)
{
    struct spy s = {0};
    (void)state;
    watch(&s, 0, 0);
    events_add(e, 3, "memory", "\"step\":3,\"loss\":null");
    events_add(e, 3, "memory", "");
    assert_int_equal(s.seen.n, 2);
    forget(&s);
}

static void test_a_kept_event_is_seen_when_it_is_on_disk(void **state)
{
    struct spy s = {0};
    int done = 0;
    (void)state;
    watch(&s, 0, 0);
    add_kept(1, &done);
    assert_int_equal(events_newest(e), 0);
    assert_int_equal(s.seen.n, 0);
    assert_int_equal(done, 0);
    run_until_idle();
    assert_int_equal(done, 1);
    assert_int_equal(events_newest(e), 1);
    check_seen(&s, 0, 1, KEPT);
    forget(&s);
}

static void test_nothing_overtakes_a_kept_event(void **state)
{
    struct spy s = {0}, late = {0};
    (void)state;
    watch(&s, 0, 0);
    add_memory(1);
    add_kept(1, NULL);
    add_memory(1);
    add_kept(1, NULL);
    add_memory(1);
    assert_int_equal(events_newest(e), 1);
    assert_int_equal(s.seen.n, 1);
    watch(&late, 0, 0); /* comes while they wait */
    assert_int_equal(late.seen.n, 1);
    run_until_idle();
    assert_int_equal(events_newest(e), 5);
    assert_int_equal(s.seen.n, 5);
    assert_int_equal(late.seen.n, 5);
    for (size_t i = 0; i < 5; i++) {
        check_seen(&s, i, i + 1, i % 2 ? KEPT : MEMORY);
        check_seen(&late, i, i + 1, i % 2 ? KEPT : MEMORY);
    }
    forget(&s);
    forget(&late);
}

struct reader {
    uint64_t seq;
    bool found;
};

static void find(void *ctx, int status, const struct state_event *list, size_t n)
{
    struct reader *r = ctx;
    assert_int_equal(status, 0);
    for (size_t i = 0; i < n; i++)
        r->found |= list[i].seq == r->seq;
}

/* When a watcher gets an event, it reads the event back from the disk. */
static void test_what_is_seen_is_on_disk(void **state)
{
    struct spy s = {0};
    (void)state;
    watch(&s, 0, 0);
    for (int round = 0; round < 20; round++) {
        add_kept(1, NULL);
        while (s.seen.n <= (size_t)round)
            uv_run(&loop, UV_RUN_ONCE);
        struct reader r = {.seq = s.seen.at[round].seq};
        state_read_events(d.state, 0, r.seq, r.seq + 1, 1, find, &r);
        run_until_idle();
        assert_true(r.found);
    }
    forget(&s);
}

/* -------------------------------------------------------------------------------------------- watching */

static void test_a_watcher_begins_where_it_says(void **state)
{
    (void)state;
    for (int i = 0; i < 30; i++) {
        if (i % 3)
            add_memory(1);
        else
            add_kept(2, NULL);
    }
    run_until_idle();
    for (uint64_t since = 0; since <= 30; since++) {
        struct spy s = {0};
        watch(&s, since, 0);
        assert_int_equal(s.seen.n, 30 - since);
        for (size_t i = 0; i < s.seen.n; i++)
            check_seen(&s, i, since + 1 + i, (since + i) % 3 ? MEMORY : KEPT);
        forget(&s);
    }
}

static void test_a_watcher_of_one_job_sees_only_that(void **state)
{
    struct spy one = {0}, all = {0}, none = {0};
    (void)state;
    watch(&one, 0, 7);
    watch(&all, 0, 0);
    watch(&none, 0, 8);
    for (uint64_t i = 1; i <= 20; i++) {
        if (i % 2)
            add_memory(i % 4 ? 6 : 7);
        else
            add_kept(i % 4 ? 6 : 7, NULL);
    }
    run_until_idle();
    assert_int_equal(all.seen.n, 20);
    assert_int_equal(one.seen.n, 5);
    for (size_t i = 0; i < one.seen.n; i++) {
        assert_int_equal(one.seen.at[i].job, 7);
        assert_int_equal(one.seen.at[i].seq, 4 * (i + 1));
    }
    assert_int_equal(none.seen.n, 0);
    forget(&one);
    forget(&all);
    forget(&none);
}

static void test_a_watcher_that_is_not_ready_holds_up_nobody(void **state)
{
    struct spy quick[3] = {0}, slow = {0};
    (void)state;
    watch(&quick[0], 0, 0);
    watch(&slow, 0, 0);
    slow.ready = false;
    watch(&quick[1], 0, 0);
    watch(&quick[2], 0, 0);
    for (int i = 0; i < 100; i++) {
        add_memory(1);
        add_kept(1, NULL);
    }
    run_until_idle();
    for (int i = 0; i < 3; i++)
        assert_int_equal(quick[i].seen.n, 200);
    assert_int_equal(slow.seen.n, 0);
    slow.ready = true;
    events_pump(e, &slow.w);
    assert_int_equal(slow.seen.n, 200);
    for (size_t i = 0; i < 200; i++)
        check_seen(&slow, i, i + 1, i % 2 ? KEPT : MEMORY);
    for (int i = 0; i < 3; i++)
        forget(&quick[i]);
    forget(&slow);
}

static void test_a_watcher_that_takes_little_at_once_gets_all(void **state)
{
    struct spy s = {0};
    (void)state;
    watch(&s, 0, 0);
    s.ready = false;
    for (int i = 0; i < 100; i++)
        add_memory(1);
    s.ready = true;
    for (size_t n = 3; n <= 102; n += 3) {
        s.room = n;
        events_pump(e, &s.w);
        assert_int_equal(s.seen.n, n < 100 ? n : 100);
    }
    check_ascending(&s);
    forget(&s);
}

static void test_no_event_comes_after_unwatch(void **state)
{
    struct spy s = {0}, other = {0};
    (void)state;
    watch(&s, 0, 0);
    watch(&other, 0, 0);
    add_memory(1);
    add_kept(1, NULL);
    events_unwatch(e, &s.w);
    assert_int_equal(s.gone, 1); /* nothing was under way */
    run_until_idle();
    add_memory(1);
    assert_int_equal(s.seen.n, 1);
    assert_int_equal(other.seen.n, 3);
    vec_free(&s.seen);
    forget(&other);
}

/* ------------------------------------------------------------------------------------- falling behind */

static void test_who_fell_behind_gets_what_is_kept_then_a_gap(void **state)
{
    struct spy s = {0};
    size_t n = EVENTS_KEPT + 1000, kept = 0, kept_in_memory = 0;
    (void)state;
    watch(&s, 0, 0);
    s.ready = false;
    for (size_t i = 1; i <= n; i++) {
        if (i % 100 == 50) {
            add_kept(1, NULL);
            kept++;
            kept_in_memory += i > n - EVENTS_KEPT;
        } else {
            add_memory(1);
        }
        if (i % 50 == 0)
            run_until_idle();
    }
    run_until_idle();
    assert_int_equal(events_newest(e), n);
    s.ready = true;
    events_pump(e, &s.w);
    run_until_idle();
    check_ascending(&s);
    assert_int_equal(count(&s, GAP), 1);
    assert_int_equal(count(&s, KEPT), kept);
    assert_int_equal(s.seen.at[s.seen.n - 1].seq, n);
    for (size_t i = 0; i < s.seen.n; i++)
        if (s.seen.at[i].kind == GAP)
            assert_int_equal(s.seen.at[i].seq, n - EVENTS_KEPT); /* all after it are there */
    assert_int_equal(count(&s, MEMORY), EVENTS_KEPT - kept_in_memory);
    forget(&s);
}

static void test_who_fell_behind_in_one_job_gets_that_jobs(void **state)
{
    struct spy s = {0};
    (void)state;
    watch(&s, 0, 7);
    s.ready = false;
    add_memory(7);
    add_kept(7, NULL);
    add_kept(8, NULL);
    run_until_idle();
    for (int i = 0; i < EVENTS_KEPT; i++)
        add_memory(8);
    add_memory(7);
    s.ready = true;
    events_pump(e, &s.w);
    run_until_idle();
    assert_int_equal(s.seen.n, 3);
    check_seen(&s, 0, 2, KEPT);
    assert_int_equal(s.seen.at[1].kind, GAP);
    assert_int_equal(s.seen.at[1].job, 7);
    check_seen(&s, 2, EVENTS_KEPT + 4, MEMORY);
    forget(&s);
}

/* More than are read at once. */
static void test_a_long_replay_is_complete(void **state)
{
    struct spy s = {0}, little = {0};
    (void)state;
    for (int i = 0; i < 1500; i++)
        add_kept(1, NULL);
    run_until_idle();
    for (int i = 0; i < EVENTS_KEPT; i++)
        add_memory(1);
    watch(&s, 0, 0);
    run_until_idle();
    assert_int_equal(count(&s, KEPT), 1500);
    assert_int_equal(count(&s, MEMORY), EVENTS_KEPT);
    assert_int_equal(count(&s, GAP), 1);
    check_ascending(&s);
    watch(&little, 0, 0);
    while (little.seen.n < s.seen.n) { /* stops being ready in the middle */
        little.room = little.seen.n + 100;
        events_pump(e, &little.w);
        run_until_idle();
    }
    assert_int_equal(little.seen.n, s.seen.n);
    for (size_t i = 0; i < s.seen.n; i++)
        check_seen(&little, i, s.seen.at[i].seq, s.seen.at[i].kind);
    forget(&s);
    forget(&little);
}

static void test_leaving_during_a_replay_is_safe(void **state)
{
    struct spy s = {0};
    (void)state;
    add_kept(1, NULL);
    run_until_idle();
    for (int i = 0; i < EVENTS_KEPT; i++)
        add_memory(1);
    watch(&s, 0, 0);
    assert_true(s.w.reading);
    events_unwatch(e, &s.w);
    assert_int_equal(s.gone, 0); /* the read is under way */
    run_until_idle();
    assert_int_equal(s.gone, 1);
    assert_int_equal(s.seen.n, 0);
}

/* A whole ring of events comes before the disk has the first: the watcher still sees every kept one. */
static void test_kept_events_are_not_lost_when_the_ring_turns_before_the_disk(void **state)
{
    struct spy s = {0}, late = {0};
    int done = 0;
    (void)state;
    watch(&s, 0, 0);
    add_kept(1, &done);
    for (int i = 0; i < EVENTS_KEPT + 100; i++)
        add_memory(1);
    add_kept(1, &done);
    for (int i = 0; i < EVENTS_KEPT + 100; i++)
        add_kept(2, &done);
    watch(&late, 0, 0);
    run_until_idle();
    assert_int_equal(done, EVENTS_KEPT + 102);
    check_ascending(&s);
    check_ascending(&late);
    assert_int_equal(count(&s, KEPT), EVENTS_KEPT + 102);
    assert_int_equal(count(&late, KEPT), EVENTS_KEPT + 102);
    assert_int_equal(s.seen.at[0].seq, 1);
    assert_true(count(&s, GAP) > 0); /* memory could not hold the others */
    forget(&s);
    forget(&late);
}

/* ---------------------------------------------------------------------------------------- another day */

static void test_numbers_go_on_after_a_restart_and_what_is_kept_is_replayed(void **state)
{
    (void)state;
    uint64_t newest = 0;
    size_t kept = 0;
    for (int life = 0; life < 4; life++) {
        struct spy s = {0};
        assert_true(events_newest(e) >= newest);
        watch(&s, 0, 0);
        run_until_idle();
        check_ascending(&s);
        assert_int_equal(count(&s, KEPT), kept);
        assert_int_equal(count(&s, MEMORY), 0);
        assert_int_equal(count(&s, GAP), life > 0);
        add_kept(1, NULL);
        add_memory(1);
        add_kept(1, NULL);
        kept += 2;
        run_until_idle();
        check_ascending(&s);
        assert_int_equal(count(&s, KEPT), kept);
        assert_true(s.seen.at[s.seen.n - 1].seq > newest);
        newest = events_newest(e);
        assert_int_equal(newest, s.seen.at[s.seen.n - 1].seq);
        forget(&s);
        close_all();
        open_all();
    }
}

static void test_from_the_newest_on_there_is_no_gap_after_a_restart(void **state)
{
    struct spy s = {0};
    (void)state;
    add_kept(1, NULL);
    run_until_idle();
    close_all();
    open_all();
    watch(&s, events_newest(e), 0);
    add_memory(1);
    run_until_idle();
    assert_int_equal(s.seen.n, 1);
    assert_int_equal(s.seen.at[0].kind, MEMORY);
    forget(&s);
}

/* Cut anywhere, come back with the last number: nothing twice, nothing kept is lost. */
static void test_coming_back_with_the_last_number_loses_and_repeats_nothing(void **state)
{
    struct rng rng = {.seed = 11};
    VEC(uint64_t) kept = {0}, seen = {0};
    uint64_t last = 0;
    size_t n = 0;
    (void)state;
    for (int round = 0; round < 60; round++) {
        struct spy s = {0};
        watch(&s, last, 0);
        s.room = 1 + rng_below(&rng, 400);
        uint32_t events = rng_below(&rng, round % 10 == 9 ? 6000 : 200);
        for (uint32_t i = 0; i < events; i++) {
            if (rng_below(&rng, 10) == 0)
                add_kept(1, NULL);
            else
                add_memory(1);
            if (rng_below(&rng, 30) == 0)
                uv_run(&loop, UV_RUN_NOWAIT);
        }
        run_until_idle();
        if (round == 59) { /* the last one reads to the end */
            s.room = 0;
            events_pump(e, &s.w);
            run_until_idle();
        }
        for (size_t i = 0; i < s.seen.n; i++) {
            assert_true(s.seen.at[i].seq > last || s.seen.at[i].kind == GAP);
            last = s.seen.at[i].seq;
            if (s.seen.at[i].kind == KEPT)
                vec_push(&seen, last);
        }
        forget(&s);
        if (round % 20 == 19 && round < 59) {
            close_all();
            open_all();
        }
    }
    struct spy all = {0};
    watch(&all, 0, 0);
    run_until_idle();
    for (size_t i = 0; i < all.seen.n; i++)
        if (all.seen.at[i].kind == KEPT)
            vec_push(&kept, all.seen.at[i].seq);
    forget(&all);
    assert_int_equal(seen.n, kept.n);
    for (; n < kept.n; n++)
        assert_int_equal(seen.at[n], kept.at[n]);
    assert_true(n > 500);
    vec_free(&kept);
    vec_free(&seen);
}

/* Numbers are reserved in blocks ahead of use; a daemon that is killed may have used any of them. */
static void test_numbers_are_reserved_on_disk_before_they_are_used(void **state)
{
    uint64_t first;
    (void)state;
    for (int i = 0; i < 600000; i++)
        add_memory(1);
    run_until_idle();
    assert_int_equal(events_newest(e), 600000);
    struct state *other = NULL; /* as a daemon after this one would find it if this one were killed now */
    char copy[80], command[256];
    snprintf(copy, sizeof copy, "%s.copy", dir);
    snprintf(command, sizeof command, "cp -r %s %s", dir, copy);
    assert_int_equal(system(command), 0);
    assert_int_equal(state_open(&(struct state_config){&loop, copy, die, NULL}, &other, NULL), 0);
    assert_int_equal(state_reserve_seq(other, 1, &first, NULL), 0);
    assert_true(first > 600000 + (1u << 19)); /* long before they run out */
    state_close(other);
    snprintf(command, sizeof command, "rm -r %s", copy);
    assert_int_equal(system(command), 0);
}

/* ---------------------------------------------------------------------------------------- a full disk */

static void test_an_event_that_was_given_up_is_never_seen(void **state)
{
    struct spy s = {0};
    int given_up = 0, kept = 0;
    char path[128], page[4096] = {1};
    (void)state;
    close_all();
    if (geteuid() != 0 || mount("tmpfs", dir, "tmpfs", 0, "size=256k") < 0)
        SKIP_TEST("needs root and mount");
    open_all();
    watch(&s, 0, 0);
    snprintf(path, sizeof path, "%s/filler", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    while (write(fd, page, sizeof page) == (ssize_t)sizeof page)
        ;
    close(fd);
    struct state_unit *u = state_begin(d.state);
    char *big = calloc(1, 30001);
    memset(big, 'b', 30000);
    state_put_job(u, &(struct state_job){1, NULL, big, big, big});
    free(big);
    events_add_kept(e, u, 1, "kept", "\"n\":1", true, count_done, &given_up);
    add_memory(1);
    while (given_up == 0)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(given_up, 1000);
    assert_int_equal(events_newest(e), 2);
    assert_int_equal(unlink(path), 0);
    add_kept(1, &kept);
    run_until_idle();
    assert_int_equal(kept, 1);
    assert_int_equal(s.seen.n, 2);
    check_seen(&s, 0, 2, MEMORY);
    check_seen(&s, 1, 3, KEPT);
    forget(&s);
    close_all();
    assert_int_equal(umount(dir), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_numbers_begin_at_one_and_ascend),
        TEST(test_members_stand_in_the_line),
        TEST(test_a_kept_event_is_seen_when_it_is_on_disk),
        TEST(test_nothing_overtakes_a_kept_event),
        TEST(test_what_is_seen_is_on_disk),
        TEST(test_a_watcher_begins_where_it_says),
        TEST(test_a_watcher_of_one_job_sees_only_that),
        TEST(test_a_watcher_that_is_not_ready_holds_up_nobody),
        TEST(test_a_watcher_that_takes_little_at_once_gets_all),
        TEST(test_no_event_comes_after_unwatch),
        TEST(test_who_fell_behind_gets_what_is_kept_then_a_gap),
        TEST(test_who_fell_behind_in_one_job_gets_that_jobs),
        TEST(test_a_long_replay_is_complete),
        TEST(test_leaving_during_a_replay_is_safe),
        TEST(test_kept_events_are_not_lost_when_the_ring_turns_before_the_disk),
        TEST(test_numbers_go_on_after_a_restart_and_what_is_kept_is_replayed),
        TEST(test_from_the_newest_on_there_is_no_gap_after_a_restart),
        TEST(test_coming_back_with_the_last_number_loses_and_repeats_nothing),
        TEST(test_numbers_are_reserved_on_disk_before_they_are_used),
        TEST(test_an_event_that_was_given_up_is_never_seen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
