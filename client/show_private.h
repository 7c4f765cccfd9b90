/* Functions that show_report.c, show_job.c and show_event.c share. */
#ifndef CLIENT_SHOW_PRIVATE_H
#define CLIENT_SHOW_PRIVATE_H

#include "client/show.h"

/* The bytes that one iteration moves to devices, from devices, and between devices. */
struct traffic {
    uint64_t in, out, peer;
};

/* Appends a label, padded to a fixed width. The caller then appends the value of the row. */
void show_label(struct strbuf *b, const struct style *s, const char *label);
/* Appends a small table of the bytes that an iteration moves. If `from` has numbers for comparison, the
 * table also shows the lower bound and demand paging. */
void show_traffic(struct strbuf *b, const struct style *s, const struct traffic *t, const struct json *from);
/* Reads the bytes per iteration from a plan. Returns false when the plan does not have them. */
bool show_plan_traffic(const struct json *plan, struct traffic *ret);
/* Appends a row with the peak memory of a device. `capacity` is 0 if it is unknown. */
void show_peak(struct strbuf *b, const struct style *s, unsigned device, uint64_t peak, uint64_t capacity);
/* Appends a row with the job's error, if it has one. */
void show_error(struct strbuf *b, const struct style *s, const struct json *job);
/* Appends the rows of a report, from "time" to "weights". `report` may be NULL. */
void show_report_rows(struct strbuf *b, const struct style *s, const struct json *report);

#endif
