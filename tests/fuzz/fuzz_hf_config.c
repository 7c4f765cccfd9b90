/* Reads the input as a config.json. An accepted config must give a model that passes its check, and that
 * reads back as the same model after it was written as a config. */
#include "tests/fuzz/fuzz.h"

#include "daemon/spec/hf_config.h"
#include "daemon/spec/spec.h"

static void check_range(uint32_t v)
{
    HOLDS(v >= 1 && v <= SPEC_MAX_DIM);
}

static void check_model(const struct transformer *t)
{
    const uint32_t sizes[] = {t->layers, t->width, t->heads, t->kv_heads, t->hidden, t->vocab, t->positions};
    const float shares[] = {t->embd_dropout, t->attn_dropout, t->resid_dropout, t->eps, t->init_std};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_range(sizes[i]);
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++)
        HOLDS(shares[i] >= 0 && shares[i] < 1);
    HOLDS(t->layers <= SPEC_MAX_LAYERS && t->width % t->heads == 0 && t->heads % t->kv_heads == 0);
    HOLDS(t->arch == ARCH_LLAMA ? t->rope_theta >= 1 && t->rope_theta < 1e31f : t->kv_heads == t->heads);
    HOLDS(transformer_check(t, "", NULL) == 0);
}

static void check_round_trip(const struct transformer *t)
{
    struct strbuf a = {0}, b = {0};
    struct transformer back;
    hf_config_write(t, DTYPE_F32, &a);
    HOLDS(hf_config_parse(a.at, a.n, "written", &back, NULL) == 0);
    hf_config_write(&back, DTYPE_F32, &b);
    HOLDS(a.n == b.n && memcmp(a.at, b.at, a.n) == 0);
    HOLDS(t->eps == back.eps && t->init_std == back.init_std && t->rope_theta == back.rope_theta);
    HOLDS(t->attn_dropout == back.attn_dropout && t->hidden == back.hidden && t->act == back.act);
    strbuf_finish(&a);
    strbuf_finish(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct transformer t;
    struct err err = {0};
    int r = hf_config_parse((const char *)data, bytes, "fuzz", &t, &err);
    if (r < 0) {
        check_failure(r, &err);
        return 0;
    }
    check_model(&t);
    check_round_trip(&t);
    return 0;
}
