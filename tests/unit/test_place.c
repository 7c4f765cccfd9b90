/* Tests the placement of random lifetimes in drafts of every size. Copies that live at the same time must not
 * overlap, addresses must be aligned and below the peak, and waste must be small. When a placement exceeds
 * the given limit, the peak must say so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "scheduler/build/build.h"

#define N_DEVICES 2

/* Sizes as chains have them, or any. */
static uint64_t random_bytes(struct rng *rng, bool few)
{
    static const uint64_t sizes[] = {256, 1024, 4096, 4096, 40960};
    return few ? sizes[rng_below(rng, 5)] : 1 + rng_below(rng, 50000);
}

static void random_draft(struct draft *d, uint32_t positions, struct rng *rng)
{
    bool few = rng_below(rng, 2);
    uint32_t n = positions / 3, most = 1 + rng_below(rng, rng_below(rng, 2) ? 60 : positions / 4);
    *d = (struct draft){.n_devices = N_DEVICES, .n_shares = 1, .cyclic = true};
    for (uint32_t i = 0; i < positions; i++)
        vec_push(&d->instrs, (struct plan_instr){.kind = INSTR_DROP});
    for (uint32_t i = 0; i < n; i++) {
        struct segment s = {.device = rng_below(rng, N_DEVICES), .start = rng_below(rng, positions)};
        s.of.end = random_bytes(rng, few);
        s.end = s.start + rng_below(rng, most);
        if (rng_below(rng, 200) == 0) { /* across the boundary, all the time or not */
            s.boundary = true;
            s.start = rng_below(rng, 2) ? 0 : positions / 2 + rng_below(rng, positions / 2);
            s.end = s.start == 0 ? positions - 1 : rng_below(rng, positions / 2);
        }
        if (s.end >= positions)
            s.end = positions - 1;
        vec_push(&d->segments, s);
    }
}

struct event {
    uint32_t at, segment;
    bool begins;
};

static int compare_events(const void *pa, const void *pb)
{
    const struct event *a = pa, *b = pb;
    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    if (a->begins != b->begins)
        return a->begins ? -1 : 1; /* both are alive where one ends and another begins */
    return a->segment < b->segment ? -1 : a->segment > b->segment;
}

static bool overlap(const struct segment *a, const struct segment *b)
{
    return a->addr < b->addr + segment_bytes(b) && b->addr < a->addr + segment_bytes(a);
}

static uint64_t check_device(const struct draft *d, uint32_t device)
{
    VEC(struct event) events = {0};
    VEC(uint32_t) alive = {0};
    uint64_t live = 0, most = 0;
    for (uint32_t i = 0; i < d->segments.n; i++) {
        const struct segment *s = &d->segments.at[i];
        if (s->device != device)
            continue;
        assert_int_equal(s->addr % PLAN_ALIGN, 0);
        assert_true(s->addr + segment_bytes(s) <= d->peak[device]);
        if (s->start > s->end) {
            vec_push(&events, (struct event){0, i, true});
            vec_push(&events, (struct event){s->end, i, false});
            vec_push(&events, (struct event){s->start, i, true});
            vec_push(&events, (struct event){(uint32_t)d->instrs.n, i, false});
        } else {
            vec_push(&events, (struct event){s->start, i, true});
            vec_push(&events, (struct event){s->end, i, false});
        }
    }
    if (events.n > 0)
        qsort(events.at, events.n, sizeof *events.at, compare_events);
    for (size_t e = 0; e < events.n; e++) {
        const struct segment *s = &d->segments.at[events.at[e].segment];
        if (events.at[e].begins) {
            for (size_t k = 0; k < alive.n; k++)
                assert_false(overlap(s, &d->segments.at[alive.at[k]]));
            vec_push(&alive, events.at[e].segment);
            live += segment_bytes(s);
            most = live > most ? live : most;
            continue;
        }
        for (size_t k = 0; k < alive.n; k++)
            if (alive.at[k] == events.at[e].segment) {
                alive.at[k] = alive.at[--alive.n];
                break;
            }
        live -= segment_bytes(s);
    }
    vec_free(&events);
    vec_free(&alive);
    return most;
}

static void test_place_no_overlap_at_any_size(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {12, 300, 3000, 9000, 21000};
    uint32_t within = 0, passed = 0;
    for (uint32_t seed = 1; seed <= 200; seed++) {
        struct rng rng = {.seed = seed};
        struct draft d;
        uint64_t limits[DEVICE_MAX] = {0}, live[N_DEVICES];
        random_draft(&d, sizes[seed % 5], &rng);
        uint32_t tenths = 8 + rng_below(&rng, 5);
        for (uint32_t i = 0; i < N_DEVICES; i++) {
            live[i] = draft_live_peak(&d, i);
            limits[i] = live[i] / 10 * tenths;
        }
        bool limited = rng_below(&rng, 3) != 0;
        draft_place(&d, limited ? limits : NULL);
        for (uint32_t i = 0; i < N_DEVICES; i++) {
            bool over = limited && limits[i] > 0 && d.peak[i] > limits[i];
            passed += over;
            if (over && d.instrs.n > 20000)
                continue; /* says that less should be alive, and no more */
            assert_int_equal(check_device(&d, i), live[i]);
            assert_true(d.peak[i] >= live[i]);
            within += d.peak[i] <= live[i] + live[i] / 4;
        }
        draft_finish(&d);
    }
    assert_true(passed > 20 && within > 250);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_place_no_overlap_at_any_size),
    };
    return cmocka_run_group_tests_name("place", tests, NULL, NULL);
}
