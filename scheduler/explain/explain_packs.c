/* Recovers the packs of a plan, which contains only instructions.
 *
 * For one device and one kind of task, layers l and l+1 are in the same pack if, for every micro-batch, the
 * task of l+1 directly follows the task of l (in the backward pass, precedes it). Tasks of other kinds in
 * between are ignored. It is not enough that this holds for one micro-batch, because the last micro-batch
 * of one pack may be directly followed by the first of the next pack. With a single micro-batch, this finds
 * the longest possible packs.
 */
#include <string.h>

#include "scheduler/explain/explain_parts.h"

/* Returns the layer that runs just before `layer` in the same pack. In the backward pass, this is layer +
 * 1. */
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
