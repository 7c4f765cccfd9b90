/* bench_timeline: measures the processor time of simulating a program, for several lengths, numbers of
 * devices and kinds of sharing. The program copies and computes on every device in turn. All copies have
 * different sizes, so they end at different times. Each time, the other copies get new shares of the links.
 * Prints the best of several repetitions of one run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/arena.h"
#include "scheduler/predict/timeline.h"

#define REPEAT 5

enum lane_of { L_COMPUTE, L_IN, L_OUT, L_PEER, LANES };
enum shares { OWN_LINKS, ALL_LINKS, ALL_AND_MEMORY, SHARES_COUNT };
static const char *const share_names[SHARES_COUNT] = {"own links", "all links", "all links, memory"};

/* Writes the resources that one copy uses to `uses`, and returns their number. Each device has four resources
 * of its own (in, out, peer in, peer out). Three other resources belong to all devices together: all in, all
 * out, and memory. */
static uint32_t add_uses(uint32_t *uses, uint32_t own, uint32_t all, uint32_t memory, enum shares shares)
{
    uint32_t n = 0;
    uses[n++] = own;
    if (shares >= ALL_LINKS)
        uses[n++] = all;
    if (shares >= ALL_AND_MEMORY)
        uses[n++] = memory;
    return n;
}

static void make_op(struct timeline_op *op, uint32_t i, uint32_t devices, enum shares shares)
{
    uint32_t device = i / LANES % devices, lane = (i + 1) % LANES, base = 4 * devices;
    *op = (struct timeline_op){.stream = device * LANES + lane, .wait = i, .n_waits = i >= LANES * devices};
    uint64_t size = 1000000 + i * 2654435761u % 30000000;
    if (lane == L_COMPUTE) {
        op->fixed_ns = size / 8;
        return;
    }
    op->bytes = size;
    if (lane == L_PEER) {
        op->uses[op->n_uses++] = 4 * device + 3;
        op->uses[op->n_uses++] = 4 * ((device + 1) % devices) + 2;
    } else {
        op->n_uses =
            add_uses(op->uses, 4 * device + (lane == L_OUT), base + (lane == L_OUT), base + 2, shares);
    }
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* others may be busy here */
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static double best_ms(const struct timeline *t)
{
    double best = 1e9;
    for (int i = 0; i < REPEAT; i++) {
        struct arena *a = arena_create();
        struct timeline_result r;
        double begin = now_ms();
        timeline_run(t, 1, a, &r);
        double ms = now_ms() - begin;
        best = ms < best ? ms : best;
        arena_destroy(a);
    }
    return best;
}

static double bench(uint32_t n_ops, uint32_t devices, enum shares shares)
{
    struct arena *a = arena_create();
    struct timeline_op *ops = arena_alloc_array(a, n_ops, sizeof *ops);
    struct plan_wait *waits = arena_alloc_array(a, n_ops, sizeof *waits);
    uint64_t *per_s = arena_alloc_array(a, 4 * devices + 3, sizeof *per_s);
    for (uint32_t i = 0; i < n_ops; i++) {
        make_op(&ops[i], i, devices, shares);
        waits[i].instr =
            i < LANES * devices ? 0 : i - LANES * devices + 1; /* the lane before, a round before */
    }
    for (uint32_t r = 0; r < 4 * devices + 3; r++)
        per_s[r] = r < 4 * devices ? 12000000000 : r < 4 * devices + 2 ? 20000000000 : 60000000000;
    const struct timeline t = {ops, waits, per_s, n_ops, devices * LANES, 4 * devices + 3};
    double ms = best_ms(&t);
    arena_destroy(a);
    return ms;
}

int main(void)
{
    static const uint32_t lengths[] = {10000, 100000}, devices[] = {1, 4, 8, 16, 64};
    printf("%-10s %8s", "ops", "devices");
    for (int s = 0; s < SHARES_COUNT; s++)
        printf(" %18s ms", share_names[s]);
    printf("\n");
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++)
        for (size_t d = 0; d < sizeof devices / sizeof devices[0]; d++) {
            printf("%-10u %8u", lengths[l], devices[d]);
            for (int s = 0; s < SHARES_COUNT; s++)
                printf(" %21.2f", bench(lengths[l], devices[d], (enum shares)s));
            printf("\n");
        }
    return 0;
}
