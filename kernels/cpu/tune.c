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

#define PROBES  8
#define CLEARLY 20 /* a clear win saves more than 1/20 of the time */

static struct ways_slot *find(struct ways *w, uint64_t key)
{
    uint32_t at = (uint32_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 40);

    for (uint32_t i = 0; i < PROBES; i++) {
        struct ways_slot *s = &w->slots[(at + i) % WAYS_SLOTS];
        uint64_t seen = atomic_load_explicit(&s->key, memory_order_relaxed);
        /* If another thread takes the slot first, `seen` becomes that thread's key. */
        if (seen == 0)
            atomic_compare_exchange_strong(&s->key, &seen, key);
        if (seen == 0 || seen == key)
            return s;
    }
    return NULL;
}

/* Returns true if more trials could still change the choice. */
static bool is_open(struct ways_slot *s)
{
    return atomic_load_explicit(&s->wins, memory_order_relaxed) < WAYS_WINS &&
           atomic_load_explicit(&s->losses, memory_order_relaxed) <= WAYS_PAIRS - WAYS_WINS &&
           atomic_load_explicit(&s->tries, memory_order_relaxed) < 2 * WAYS_PAIRS;
}

uint32_t ways_choose(struct ways *w, uint64_t key, struct ways_slot **ret_slot)
{
    struct ways_slot *s = find(w, key);

    *ret_slot = NULL;
    if (!s)
        return 0;
    if (is_open(s)) {
        uint32_t n = atomic_fetch_add_explicit(&s->tries, 1, memory_order_relaxed);
        if (n < 2 * WAYS_PAIRS) {
            *ret_slot = s;
            return n % 2;
        }
    }
    return atomic_load_explicit(&s->wins, memory_order_relaxed) >= WAYS_WINS;
}

void ways_note(struct ways_slot *s, uint32_t way, uint64_t ns)
{
    if (way == 0) {
        atomic_store_explicit(&s->default_ns, ns, memory_order_relaxed);
        return;
    }
    uint64_t before = atomic_load_explicit(&s->default_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(ns < before - before / CLEARLY ? &s->wins : &s->losses, 1,
                              memory_order_relaxed);
}
