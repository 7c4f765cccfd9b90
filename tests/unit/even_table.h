/* Profile tables for tests: chains of equal layers, for which the result of a plan can be computed by hand,
 * and the published profiles of tests/profiles. */
#ifndef TESTS_EVEN_TABLE_H
#define TESTS_EVEN_TABLE_H

#include <stdio.h>
#include <stdlib.h>

#include "base/strbuf.h"
#include "scheduler/table.h"

#define MIB (1ull << 20)
#define KIB (1ull << 10)

/* Adds the list of the parts of K, if K consists of several parts of the size of W. */
static inline void even_parts(struct strbuf *b, uint64_t w, uint64_t k)
{
    const uint64_t n = w > 0 && k % w == 0 ? k / w : 0;
    for (uint64_t i = 0; n > 1 && i < n; i++)
        strbuf_addf(b, "%s%llu%s", i > 0 ? "," : "\"optimizer_part_bytes\":[", (unsigned long long)w,
                    i + 1 < n ? "" : "],");
}

/* Makes a table of equal layers before a loss without weights. `x` and `s` are the bytes of X and S for
 * one sample. A forward pass takes 1 ms per sample, and a backward pass including its recomputation takes
 * 3 ms. */
static inline struct table *even_table(uint32_t layers, uint64_t w, uint64_t k, uint64_t x, uint64_t s)
{
    struct strbuf b = {0};
    struct table *t;
    strbuf_add(
        &b, "{\"micro_batch_fwd\":[1,2],\"micro_batch_bwd\":[1,2],\"micro_batch_fwd_bytes\":[1,2],"
            "\"micro_batch_bwd_bytes\":[1,2],\"micro_batch_input\":[1,2],\"link\":{\"swap_bytes_per_s\":1e10,"
            "\"p2p_bytes_per_s\":1e10},\"layers\":[");
    for (uint32_t l = 0; l < layers; l++) {
        uint64_t mine = l + 1 < layers ? w : 0, inside = l + 1 < layers ? s : 0;
        strbuf_addf(&b, "%s{\"weight_bytes\":%llu,\"optimizer_bytes\":%llu,\"input_bytes\":[%llu,%llu],",
                    l ? "," : "", (unsigned long long)mine, (unsigned long long)(mine ? k : 0),
                    (unsigned long long)x, (unsigned long long)(2 * x));
        even_parts(&b, mine, mine ? k : 0);
        strbuf_addf(&b,
                    "\"fwd_s\":[1e-3,2e-3],\"bwd_s\":[3e-3,6e-3],\"fwd_bytes\":[%llu,%llu],\"bwd_bytes\":[%"
                    "llu,%llu],",
                    (unsigned long long)(mine + 2 * x), (unsigned long long)(mine + 4 * x),
                    (unsigned long long)(2 * mine + 2 * x + inside),
                    (unsigned long long)(2 * mine + 4 * x + 2 * inside));
        strbuf_add(&b, "\"update_cpu_s\":1e-3}");
    }
    strbuf_add(&b, "]}");
    int r = table_parse(b.at, b.n, "even", &t, NULL);
    strbuf_finish(&b);
    return r == 0 ? t : NULL;
}

/* Reads a profile of tests/profiles. Returns NULL when it cannot be read. */
static inline struct table *published_table(const char *name)
{
    const size_t most = 1 << 24;
    char path[512];
    struct table *t = NULL;
    snprintf(path, sizeof path, GOLDEN_DIR "/../profiles/%s.json", name);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return NULL;
    char *text = malloc(most);
    size_t n = fread(text, 1, most, f);
    fclose(f);
    int r = table_parse(text, n, path, &t, NULL);
    free(text);
    return r == 0 ? t : NULL;
}

#endif
