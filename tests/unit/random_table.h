/* Makes random profile tables for property tests. One seed determines everything. */
#ifndef TESTS_RANDOM_TABLE_H
#define TESTS_RANDOM_TABLE_H

#include <stdbool.h>

#include "base/rng.h"
#include "base/strbuf.h"
#include "scheduler/table.h"

#define RANDOM_TABLE_LAYERS 10

static inline uint32_t random_axis(struct strbuf *b, struct rng *r, const char *key)
{
    uint32_t n = 1 + rng_below(r, 4), size = 0;
    strbuf_addf(b, ",\"%s\":[", key);
    for (uint32_t i = 0; i < n; i++) {
        size += 1 + rng_below(r, 5);
        strbuf_addf(b, "%s%u", i > 0 ? "," : "", size);
    }
    strbuf_add(b, "]");
    return n;
}

/* Ascending, from `least`: what is measured grows with the size. */
static inline void random_numbers(struct strbuf *b, struct rng *r, const char *key, uint32_t n,
                                  uint32_t least, uint32_t step, const char *unit)
{
    uint32_t v = least;
    strbuf_addf(b, ",\"%s\":[", key);
    for (uint32_t i = 0; i < n; i++) {
        v += 1 + rng_below(r, step);
        strbuf_addf(b, "%s%u%s", i > 0 ? "," : "", v, unit);
    }
    strbuf_add(b, "]");
}

/* Writes a random profile table. Some layers lack weights or optimizer state, some have buffers, and one may
 * be tied to another layer. At least one layer has weights. */
static inline void random_table_json(struct strbuf *b, struct rng *r)
{
    static const char *const keys[] = {"micro_batch_fwd", "micro_batch_bwd", "micro_batch_fwd_bytes",
                                       "micro_batch_bwd_bytes", "micro_batch_input"};
    uint32_t n[5], layers = 2 + rng_below(r, RANDOM_TABLE_LAYERS - 1);
    uint32_t trained = rng_below(r, layers - 1), owner_w = 0;
    uint32_t tied = rng_below(r, 3) == 0 ? trained + 1 + rng_below(r, layers) : 0; /* beyond the last: none */
    /* The precision is not drawn from the generator, so that all other numbers stay as they were. */
    const bool half = r->seed % 3 == 0;
    strbuf_addf(b, "{\"schema\":\"profile/v1\"%s", half ? ",\"precision\":\"bf16\"" : "");
    for (int i = 0; i < 5; i++)
        n[i] = random_axis(b, r, keys[i]);
    strbuf_add(b, ",\"layers\":[");
    for (uint32_t l = 0; l < layers; l++) {
        uint32_t moments = rng_below(r, 3);
        uint32_t w = l == trained || rng_below(r, 4) != 0 ? 4 * (1 + rng_below(r, 20000)) : 0;
        bool is_tied = tied > 0 && l == tied && l + 1 < layers;
        w = is_tied ? owner_w : w;
        owner_w = l == trained ? w : owner_w;
        uint32_t state = w + (rng_below(r, 3) == 0 ? 256 : 0);
        strbuf_addf(b, "%s{\"weight_bytes\":%u,\"buffer_bytes\":%u,\"optimizer_bytes\":%u", l > 0 ? "," : "",
                    w, state - w, is_tied ? 0 : w * moments);
        if (!is_tied && moments == 2)
            strbuf_addf(b, ",\"optimizer_part_bytes\":[%u,%u]", w, w);
        if (is_tied)
            strbuf_addf(b, ",\"tied_to\":%u", trained);
        random_numbers(b, r, "input_bytes", n[4], 64, 5000, "");
        random_numbers(b, r, "fwd_s", n[0], 0, 2000, "e-6");
        random_numbers(b, r, "bwd_s", n[1], 0, 6000, "e-6");
        random_numbers(b, r, "fwd_bytes", n[2], state, 20000, "");
        bool saves = l + 1 < layers || rng_below(r, 2) != 0; /* half of the losses do not */
        random_numbers(b, r, "bwd_bytes", n[3], saves ? state + (half ? 2 : 1) * w : 0, saves ? 40000 : 1,
                       "");
        strbuf_addf(b, ",\"update_cpu_s\":%ue-6,\"update_gpu_s\":%ue-7}", rng_below(r, 500),
                    rng_below(r, 3) * 10);
    }
    strbuf_add(b, "]}");
}

#endif
