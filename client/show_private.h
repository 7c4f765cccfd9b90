/* Parts of pages that show_report.c and show_job.c have in common. */
#ifndef CLIENT_SHOW_PRIVATE_H
#define CLIENT_SHOW_PRIVATE_H

#include "client/show.h"

struct traffic { /* bytes of one iteration */
    uint64_t in, out, peer;
};

/* "  label      ", for the value that follows. */
void show_label(struct strbuf *b, const struct style *s, const char *label);
/* A small table, with `bound_bytes` and `lru_bytes` of `from` beside it where there are. */
void show_traffic(struct strbuf *b, const struct style *s, const struct traffic *t, const struct json *from);
bool show_plan_traffic(const struct json *plan, struct traffic *ret);
void show_peak(struct strbuf *b, const struct style *s, unsigned device, uint64_t peak, uint64_t capacity);
void show_error(struct strbuf *b, const struct style *s, const struct json *job);
void show_report_rows(struct strbuf *b, const struct style *s, const struct json *report);

#endif
