/* Functions that show_report.c, show_job.c and show_event.c share. */
#ifndef CLIENT_SHOW_PRIVATE_H
#define CLIENT_SHOW_PRIVATE_H

#include "client/show.h"

/* The numbers of bytes that one iteration moves from the host to devices, from devices to the host, and
 * between devices. */
struct traffic {
    uint64_t in, out, peer;
};

/* Appends the label of a row, padded to a fixed width. The caller then appends the value of the row. */
void show_label(struct strbuf *b, const struct style *s, const char *label);
/* Appends a small table of the bytes that one iteration moves. If `from` has these numbers, the table also
 * shows the lower bound, and the bytes that demand paging would move. */
void show_traffic(struct strbuf *b, const struct style *s, const struct traffic *t, const struct json *from);
/* Reads from a plan how many bytes one iteration moves. Returns false if the plan does not contain these
 * numbers. */
bool show_plan_traffic(const struct json *plan, struct traffic *ret);
/* Appends a row with the peak memory of a device, in bytes. `capacity` is the memory of the device, or 0 if
 * it is unknown. */
void show_peak(struct strbuf *b, const struct style *s, unsigned device, uint64_t peak, uint64_t capacity);
/* Appends a row with the job's error. Appends nothing if the job has no error. */
void show_error(struct strbuf *b, const struct style *s, const struct json *job);
/* Appends the rows of a final report, from the row "time" to the row "weights". `report` may be NULL. */
void show_report_rows(struct strbuf *b, const struct style *s, const struct json *report);

#endif
