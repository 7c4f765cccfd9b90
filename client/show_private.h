/* Parts that the pages of show_report.c, show_job.c and show_event.c share. */
#ifndef CLIENT_SHOW_PRIVATE_H
#define CLIENT_SHOW_PRIVATE_H

#include "client/show.h"

/* Bytes that one iteration moves: from the host to devices, from devices to the host, and between devices. */
struct traffic {
    uint64_t in, out, peer;
};

/* Appends a label in a column of fixed width. The row's value follows. */
void show_label(struct strbuf *b, const struct style *s, const char *label);
/* Appends a small table of the bytes that an iteration moves. Where `from` has "bound_bytes" and "lru_bytes",
 * rows for the lower bound and for demand paging follow, for comparison. */
void show_traffic(struct strbuf *b, const struct style *s, const struct traffic *t, const struct json *from);
/* Reads the bytes per iteration from a plan. Returns false when the plan does not have them. */
bool show_plan_traffic(const struct json *plan, struct traffic *ret);
/* Appends a row with the peak memory of a device. `capacity` is 0 when it is unknown. */
void show_peak(struct strbuf *b, const struct style *s, unsigned device, uint64_t peak, uint64_t capacity);
/* Appends a row with the job's error, if it has one. */
void show_error(struct strbuf *b, const struct style *s, const struct json *job);
/* Appends the rows of a report from "time" to "weights". `report` may be NULL. */
void show_report_rows(struct strbuf *b, const struct style *s, const struct json *report);

#endif
