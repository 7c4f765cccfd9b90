/* What is known of a job that is being watched, kept up to date by events, and its live display. */
#ifndef CLIENT_VIEW_H
#define CLIENT_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/curve.h"
#include "base/json.h"
#include "client/show.h"

#define VIEW_EVALS 4

struct view { /* zero-initialized: nothing is known */
    char name[128], state[16], reason[160];
    uint64_t seq;         /* of the newest event that is in it */
    uint64_t step, total; /* total 0: not known */
    uint64_t in_bytes, out_bytes, peer_bytes;
    double loss, samples_per_s, eta_s, stall_share; /* NAN: not known */
    bool moved;                                     /* the byte counts are known */
    struct curve curve;
    uint64_t eval_step; /* of the last one */
    double accuracies[VIEW_EVALS];
    int n_evals; /* in accuracies, oldest first */
};

/* From the long form of `show`. */
void view_from_job(struct view *v, const struct json *job);
/* From an event (its params). Those that the view contains already are ignored. */
void view_event(struct view *v, const struct json *event);

/* The live region: at most `rows` lines. */
void view_draw(struct strbuf *b, const struct style *s, const struct view *v, int rows);
/* The same in one line, for a pipe. */
void view_line(struct strbuf *b, const struct style *s, const struct view *v);

#endif
