/* The tensors of a transformer under the names of transformer.h, each in its own memory. */
#ifndef TESTS_UNIT_HF_MODEL_H
#define TESTS_UNIT_HF_MODEL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/spec/transformer.h"
#include "daemon/worker/model/safetensors.h"

enum { HF_MODEL_MOST = 256 };

struct hf_model {
    struct transformer t;
    struct st_tensor at[HF_MODEL_MOST];
    char names[HF_MODEL_MOST][64];
    size_t n;
};

static inline void hf_model_add(struct hf_model *o, uint32_t layer, const char *name, uint64_t a, uint64_t b)
{
    struct st_tensor *t = &o->at[o->n];

    if (o->n == HF_MODEL_MOST)
        abort();
    snprintf(o->names[o->n], sizeof o->names[0], "layers.%u.%s", layer, name);
    *t = (struct st_tensor){.name = o->names[o->n], .rank = b ? 2 : 1, .shape = {a, b}};
    t->data = malloc(a * (b ? b : 1) * sizeof(float));
    if (!t->data)
        abort();
    memset(t->data, 0xff, a * (b ? b : 1) * sizeof(float));
    o->n++;
}

static inline void hf_model_add_pair(struct hf_model *o, uint32_t layer, const char *name, uint64_t a,
                                     uint64_t b)
{
    char text[40];

    snprintf(text, sizeof text, "%s.weight", name);
    hf_model_add(o, layer, text, a, b);
    snprintf(text, sizeof text, "%s.bias", name);
    if (o->t.arch == ARCH_GPT2)
        hf_model_add(o, layer, text, a, 0);
}

/* Filled with what is no number. */
static inline struct hf_model *hf_model_make(const struct transformer *t)
{
    struct hf_model *o = calloc(1, sizeof *o);
    uint32_t layer = 0, head = t->width / t->heads;

    o->t = *t;
    hf_model_add(o, layer++, "weight", t->vocab, t->width);
    if (t->arch == ARCH_GPT2)
        hf_model_add(o, layer++, "weight", t->positions, t->width);
    for (uint32_t i = 0; i < t->layers; i++, layer++) {
        hf_model_add_pair(o, layer, "ln_1", t->width, 0);
        hf_model_add_pair(o, layer, "attn.qkv", (t->heads + 2 * t->kv_heads) * head, t->width);
        hf_model_add_pair(o, layer, "attn.proj", t->width, t->heads * head);
        hf_model_add_pair(o, layer, "ln_2", t->width, 0);
        hf_model_add_pair(o, layer, "mlp.fc", t->arch == ARCH_LLAMA ? 2 * t->hidden : t->hidden, t->width);
        hf_model_add_pair(o, layer, "mlp.proj", t->width, t->hidden);
    }
    hf_model_add(o, layer, "weight", t->width, 0);
    if (t->arch == ARCH_GPT2)
        hf_model_add(o, layer, "bias", t->width, 0);
    if (!t->tied)
        hf_model_add(o, layer + 1, "weight", t->vocab, t->width);
    return o;
}

static inline void hf_model_free(struct hf_model *o)
{
    for (size_t i = 0; i < o->n; i++)
        free(o->at[i].data);
    free(o);
}

#endif
