/* Implements the tuning tables of tune.h.
 *
 * Trials alternate, and each trial of the alternative is compared with the trial of the default just
 * before it. Other load on the machine usually lasts longer than a trial, so it slows both members of a
 * pair. Most pairs must agree. If they do not, the difference is only noise, and the default is just as
 * good.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "kernels/cpu/tune.h"

#define PROBES 8
/* A trial of variant 1 wins if its time is less than 19/20 of the time of variant 0. */
#define CLEARLY 20

static struct tune_slot *find_slot(struct tune_table *t, uint64_t key)
{
    uint32_t at = (uint32_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 40);

    for (uint32_t i = 0; i < PROBES; i++) {
        struct tune_slot *s = &t->slots[(at + i) % TUNE_SLOTS];
        uint64_t seen = atomic_load_explicit(&s->key, memory_order_relaxed);
        /* Another thread may take the slot between the load above and this exchange. The exchange then fails
         * and sets `seen` to the other thread's key. */
        if (seen == 0)
            atomic_compare_exchange_strong(&s->key, &seen, key);
        if (seen == 0 || seen == key)
            return s;
    }
    return NULL;
}

/* Returns true if the choice of the variant is not final, which means that further trials could change it. */
static bool is_open(struct tune_slot *s)
{
    return atomic_load_explicit(&s->wins, memory_order_relaxed) < TUNE_WINS &&
           atomic_load_explicit(&s->losses, memory_order_relaxed) <= TUNE_PAIRS - TUNE_WINS &&
           atomic_load_explicit(&s->tries, memory_order_relaxed) < 2 * TUNE_PAIRS;
}

uint32_t tune_choose(struct tune_table *t, uint64_t key, struct tune_slot **ret_slot)
{
    struct tune_slot *s = find_slot(t, key);

    *ret_slot = NULL;
    if (!s)
        return 0;
    if (is_open(s)) {
        uint32_t n = atomic_fetch_add_explicit(&s->tries, 1, memory_order_relaxed);
        if (n < 2 * TUNE_PAIRS) {
            *ret_slot = s;
            return n % 2;
        }
    }
    return atomic_load_explicit(&s->wins, memory_order_relaxed) >= TUNE_WINS;
}

void tune_note(struct tune_slot *s, uint32_t variant, uint64_t ns)
{
    if (variant == 0) {
        atomic_store_explicit(&s->default_ns, ns, memory_order_relaxed);
        return;
    }
    uint64_t before = atomic_load_explicit(&s->default_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(ns < before - before / CLEARLY ? &s->wins : &s->losses, 1,
                              memory_order_relaxed);
}
