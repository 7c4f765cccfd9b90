/* Host memory: gives every tensor that is stored there an address.
 *
 * Some tensors have a home in host memory, an address that only they ever use: those that keep their value
 * from step to step, and those that the loader fills or the trainer reads. All other tensors are in host
 * memory only for a while. For example, a gradient is there from its spill to the update on the host, and an
 * activation from its spill in the forward pass to its fetch in the backward pass. Each of these host copies
 * becomes a segment, like the copies on devices. It lives from the first instruction that writes it to the
 * last one that reads it.
 *
 * There are two ways to place these segments behind the homes. If the host has enough memory, each segment
 * has its own address, which only the same tensor of later steps uses again. If not, host memory is treated
 * like the memory of a device, and segments share addresses over time. This takes the least memory, but a
 * spill may then have to wait for a fetch that has nothing else to do with it.
 */
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "base/checked.h"
#include "scheduler/build/build.h"

uint64_t host_homes(struct plan_tensor *tensors, const struct graph *g)
{
    uint64_t at = 0;
    for (uint32_t t = 0; t < g->n_tensors; t++) {
        const struct graph_tensor *gt = &g->tensors[t];
        tensors[t] = (struct plan_tensor){.kind = gt->kind,
                                          .layer = gt->layer,
                                          .micro = gt->micro,
                                          .replica = gt->replica,
                                          .step = gt->step,
                                          .group = gt->group,
                                          .dtype = gt->dtype,
                                          .bytes = gt->bytes,
                                          .host_offset = PLAN_NO_HOST};
        if (!graph_has_home(gt))
            continue;
        tensors[t].host_offset = at;
        tensors[t].host_slots = gt->external ? PLAN_RING : 1;
        at += tensors[t].host_slots * round_up(gt->bytes, PLAN_ALIGN);
    }
    return at;
}

/* ---- the segments ---- */

/* Appends a segment to the draft for each tensor that is in host memory, but has no home there. The segments
 * are in the order in which they start. */
static void add_segments(struct draft *d)
{
    const struct graph *g = d->graph;
    uint32_t *of_tensor = xcalloc((size_t)g->n_tensors + 1, sizeof *of_tensor);
    memset(of_tensor, 0xff, g->n_tensors * sizeof *of_tensor);
    for (uint32_t i = 0; i < d->instrs.n; i++) {
        const struct plan_instr *in = &d->instrs.at[i];
        bounded_poll();
        for (uint32_t k = 0; k < in->n_operands; k++) {
            struct draft_operand *o = &d->operands.at[in->operand + k];
            if (o->segment != SEGMENT_NONE || graph_has_home(&g->tensors[o->tensor]))
                continue;
            if (of_tensor[o->tensor] == SEGMENT_NONE) {
                of_tensor[o->tensor] = (uint32_t)d->segments.n;
                vec_push(&d->segments, (struct segment){.tensor = o->tensor,
                                                        .device = PLAN_HOST,
                                                        .of = extent_whole(g, d->n_shares, o->tensor),
                                                        .start = i});
            }
            o->segment = of_tensor[o->tensor];
            d->segments.at[o->segment].end = i;
        }
    }
    xfree(of_tensor);
}

/* ---- an address for each tensor ---- */

/* An address range in host memory that only one tensor uses. The same tensor of later training steps may use
 * the range again. */
struct berth {
    uint64_t addr;
    /* The range is free again from this position on. */
    uint32_t free_from;
    /* The next element in the list of this tensor's ranges, or SEGMENT_NONE. */
    uint32_t next;
};

typedef VEC(struct berth) berth_list;

/* Returns the tensor of training step 0 that corresponds to tensor `t` of another step. */
static tensor_id in_first_step(const struct graph *g, tensor_id t)
{
    const struct graph_tensor *gt = &g->tensors[t];
    uint32_t which = gt->micro != PLAN_NONE ? gt->micro : gt->replica;
    return gt->step == 0 ? t : graph_tensor_find(g, gt->kind, gt->layer, which, 0);
}

/* Finds an address range for segment `s` that is free again, in the list that begins with *head. If there is
 * none, adds a new range at address *top. */
static struct berth *find_berth(berth_list *berths, uint32_t *head, const struct segment *s, uint64_t *top)
{
    for (uint32_t b = *head; b != SEGMENT_NONE; b = berths->at[b].next)
        if (berths->at[b].free_from <= s->start)
            return &berths->at[b];
    vec_push(berths, (struct berth){.addr = *top, .next = *head});
    *head = (uint32_t)berths->n - 1;
    *top += segment_bytes(s);
    return &berths->at[*head];
}

/* Gives every segment from number `first` on an address of its own, which it shares only with the same tensor
 * of other steps. Returns the total number of bytes. */
static uint64_t place_apart(struct draft *d, uint32_t first)
{
    uint64_t top = 0;
    berth_list berths = {0};
    uint32_t *of_tensor = xcalloc((size_t)d->graph->n_tensors + 1, sizeof *of_tensor);
    memset(of_tensor, 0xff, d->graph->n_tensors * sizeof *of_tensor);
    for (uint32_t i = first; i < d->segments.n; i++) {
        struct segment *s = &d->segments.at[i];
        bounded_poll();
        struct berth *b = find_berth(&berths, &of_tensor[in_first_step(d->graph, s->tensor)], s, &top);
        s->addr = b->addr;
        b->free_from = s->end + 1;
    }
    xfree(of_tensor);
    vec_free(&berths);
    return top;
}

/* ---- the stage ---- */

void draft_host(struct draft *d, uint64_t homes, uint64_t bytes)
{
    uint32_t first = (uint32_t)d->segments.n;
    add_segments(d);
    uint64_t apart = place_apart(d, first);
    d->host_peak = apart;
    if (homes + apart > bytes)
        draft_place_host(d);
    if (d->host_peak > apart)
        d->host_peak = place_apart(d, first);
    for (uint32_t i = first; i < d->segments.n; i++)
        d->segments.at[i].addr += homes;
    d->host_peak += homes;
}
