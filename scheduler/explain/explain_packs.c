/* Packs, found again. A plan has no packs, only instructions. On one device and for one kind of task, layer
 * l+1 is in the pack of layer l when for EVERY micro-batch the task of l+1 comes right after that of l
 * (before it, in the backward pass), tasks of other kinds between them left aside. Every micro-batch, because
 * the last micro-batch of one pack may be followed directly by the first of the next pack: that alone does
 * not join them. With one micro-batch this finds the longest stretches, which is what the device does.
 */
#include <string.h>

#include "scheduler/explain/explain_parts.h"

/* The layer whose task comes before that of `layer` inside a pack. */
static uint32_t neighbour(enum instr_kind kind, uint32_t layer)
{
    return kind == INSTR_BWD ? layer + 1 : layer - 1;
}

void explain_find_use(const struct plan *p, uint32_t stream, enum instr_kind kind, struct layer_use *use)
{
    const struct plan_program *prog = &p->programs[PROGRAM_CYCLE];
    const struct plan_instr *before = NULL;

    memset(use, 0, p->n_layers * sizeof *use);
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        const struct plan_instr *in = &prog->instrs[i];
        if (in->stream != stream || in->kind != kind || in->layer >= p->n_layers)
            continue;
        use[in->layer].used = true;
        if (!before || before->layer != neighbour(kind, in->layer) || before->micro != in->micro ||
            before->replica != in->replica)
            use[in->layer].begins = true;
        before = in;
    }
}

uint32_t explain_find_packs(const struct plan *p, const struct layer_use *use, int way, struct pack *ret)
{
    uint32_t n = 0;
    bool inside = false;

    for (uint32_t i = 0; i < p->n_layers; i++) {
        uint32_t l = way > 0 ? i : p->n_layers - 1 - i;
        if (use[l].used && inside && !use[l].begins)
            ret[n - 1].last = l;
        else if (use[l].used)
            ret[n++] = (struct pack){l, l};
        inside = use[l].used;
    }
    return n;
}

/* Layers from one pack to the next, by their first layers. */
