/* Inside residency: what residency.c hands to residency_shares.c. Nobody else includes this.
 *
 * Where moves and drops stand in the issue order is a number, the slot: 3p is just before task p, 3p+1 the task, 3p+2 just
 * after it.
 */
#ifndef SCHEDULER_BUILD_RESIDENCY_PRIVATE_H
#define SCHEDULER_BUILD_RESIDENCY_PRIVATE_H

#include "scheduler/build/build.h"

#define NO_END UINT32_MAX

struct use {
    tensor_id tensor;
    enum access access;
    uint32_t pos; /* of its task */
    struct extent of;
    uint32_t segment; /* the result of this stage; SEGMENT_NONE on the host */
};

/* What residency knows of a segment besides `struct segment`. */
struct life {
    uint32_t last;     /* position of its last use */
    uint32_t produced; /* position of the write whose value leaves by a move; PLAN_NONE: none leaves */
    uint32_t limit;    /* slot by which it must be gone: the tensor's next copy on the device begins there */
    bool spilled, sent;
};

/* FREE: a drop of what has left long ago, which need not stand behind the moves of what is new. */
enum entry_class { ENTRY_FREE, ENTRY_SPILL, ENTRY_SEND, ENTRY_DROP, ENTRY_FETCH, ENTRY_GATHER, ENTRY_TASK };

struct entry {
    uint32_t slot;
    enum entry_class cls; /* order within a slot: what frees comes before what takes */
    uint32_t seq;         /* order within a class: first use first */
    uint32_t from, to;    /* segments; TASK: `from` is the position */
    struct extent of;     /* moves */
};

/* First and last task of every unit of a location. */
struct units {
    uint32_t *first, *last;
    uint32_t n;
};

struct direct_send {
    uint32_t produced, read;
};

/* A fetch of what the device had had. */
struct reload {
    uint32_t use;
    uint32_t from, to; /* segments: given up, fetched */
    uint32_t saves;    /* moves that would not happen: the fetch, and a spill that is for it alone */
};

struct residency {
    struct draft *d;
    const struct order *o;
    const struct graph *g;
    const struct knobs *knobs;
    struct todo *todos;
    uint32_t n;
    struct units *spans, *items; /* per device */
    VEC(struct use) uses;
    uint32_t *use_first; /* per task, n + 1 */
    VEC(struct life) lives;
    VEC(struct entry) entries;
    VEC(struct direct_send) direct; /* of the layer and kind under way */
    tensor_id direct_base;          /* first tensor of that layer and kind */
    const gap_list *retained;       /* may be NULL */
    VEC(struct reload) reloads;
    VEC(uint32_t) merged; /* pairs: a segment, and the one that it became */
    struct arena *arena;
};

/* The tensor under way. */
struct value {
    tensor_id tensor;
    uint32_t producer; /* segment, or SEGMENT_NONE: the host */
    uint32_t produced; /* position of the write; PLAN_NONE: before the program */
    uint32_t pieces;   /* that have been written, of a value that is written by pieces */
    bool at_host;
    bool read;                     /* by anyone since it was produced */
    bool home;                     /* somebody wants it on the host for its own sake */
    uint32_t fetches, reloads;     /* since then; of these, of what the device had had */
    uint32_t reload;               /* the last of those, or PLAN_NONE */
    uint32_t current[DEVICE_MAX];  /* segment with the newest value, or SEGMENT_NONE */
    uint32_t previous[DEVICE_MAX]; /* last segment, whatever its value, or SEGMENT_NONE */
};

static inline uint32_t slot_before(uint32_t pos)
{
    return 3 * pos;
}
static inline uint32_t slot_after(uint32_t pos)
{
    return 3 * pos + 2;
}

/* residency.c */
uint32_t residency_segment(struct residency *r, tensor_id tensor, uint32_t device, uint32_t pos,
                           struct extent of);
uint32_t residency_fetch_slot(const struct residency *r, tensor_id tensor, uint32_t pos);
bool residency_keeps(const struct residency *r, uint32_t seg, uint32_t pos);
void residency_use(struct residency *r, struct value *v, struct use *u);
void residency_new_value(struct value *v, uint32_t producer, uint32_t pos);
void residency_spill(struct residency *r, uint32_t seg, uint32_t produced, struct extent of);
void residency_end(struct residency *r, uint32_t seg);

/* residency_shares.c: the uses of one tensor whose state is shared among devices. */
void residency_shared(struct residency *r, tensor_id tensor, const uint32_t *sorted, uint32_t n);

#endif
