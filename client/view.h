/* The live display of a job. A struct view has everything that is displayed. Events keep it up to date, and
 * the functions below draw it. */
#ifndef CLIENT_VIEW_H
#define CLIENT_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/curve.h"
#include "base/json.h"
#include "client/show.h"

#define VIEW_EVALS  4
#define VIEW_BLOCKS 64

/* What is known about a job that is being followed. view_from_job fills in a zeroed struct, and view_event
 * updates the struct. */
struct view {
    char name[128], state[16], reason[160];
    uint64_t seq;                                   /* number of its newest event */
    uint64_t step, total;                           /* total 0: unknown */
    uint64_t in_bytes, out_bytes, peer_bytes;       /* bytes moved so far */
    double loss, samples_per_s, eta_s, stall_share; /* NAN: unknown */
    double loss_scale;                              /* NAN: losses are not scaled */
    bool moved;                                     /* the byte counts are known */
    /* The losses and accuracies of the first blocks, for a job that trains the blocks of its model separately
     * ("local updates"), and the number of these blocks. An
     * accuracy that is not known is NAN. */
    double block_loss[VIEW_BLOCKS], block_accuracy[VIEW_BLOCKS];
    int n_blocks;
    struct curve curve;
    uint64_t eval_step;            /* step of the last evaluation */
    double accuracies[VIEW_EVALS]; /* of the last evaluations, oldest first */
    int n_evals;                   /* how many of `accuracies` are set */
};

/* Fills in the view from the daemon's answer to the method `show`. */
void view_from_job(struct view *v, const struct json *job);
/* Updates the view with an event. Ignores an event whose number is not greater than v->seq, because the view
 * already includes this event. */
void view_event(struct view *v, const struct json *event);

/* Appends a drawing of the view to `b`, for a terminal with `rows` rows. */
void view_draw(struct strbuf *b, const struct style *s, const struct view *v, int rows);
/* Appends the progress of the job as one line, without a newline. Used when the output is a file or a
 * pipe. */
void view_line(struct strbuf *b, const struct style *s, const struct view *v);

#endif
