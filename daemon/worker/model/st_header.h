/* The JSON header of a safetensors file, and the file object. Private to safetensors.c and st_floats.c. */
#ifndef DAEMON_WORKER_MODEL_ST_HEADER_H
#define DAEMON_WORKER_MODEL_ST_HEADER_H

#include <stdbool.h>

#include "daemon/worker/model/safetensors.h"

struct st_header {
    struct st_entry *entries;
    struct st_meta *meta;
    size_t n_entries, cap_entries;
    size_t n_meta, cap_meta;
    bool has_meta;
};

/* Parses `bytes` of text in place: names and values in the result point into it, so it must live as long.
 * Entries are in the order of the text; that names differ, shapes fit offsets and offsets tile the data is
 * checked by the caller. -EBADMSG with the file and the position; -ENOMEM. Finish the header in any case. */
int st_header_parse(struct st_header *h, char *text, size_t bytes, const char *file, struct err *err);
void st_header_finish(struct st_header *h);

struct safetensors {
    int fd;
    char *file;
    char *text;              /* the header; names point into it */
    struct st_header header; /* entries in order of the data, metadata in order of keys */
    const struct st_entry **by_name;
    uint64_t data_begin; /* in the file */
};

#endif
