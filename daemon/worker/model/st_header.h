/* Declares the parser for the JSON header of a safetensors file, and defines struct safetensors. Only
 * safetensors.c, st_floats.c, st_header.c and the tests include this header. */
#ifndef DAEMON_WORKER_MODEL_ST_HEADER_H
#define DAEMON_WORKER_MODEL_ST_HEADER_H

#include <stdbool.h>

#include "daemon/worker/model/safetensors.h"

/* A parsed header. */
struct st_header {
    struct st_entry *entries;
    struct st_meta *meta;
    size_t n_entries, cap_entries; /* used and allocated elements of `entries` */
    size_t n_meta, cap_meta;       /* used and allocated elements of `meta` */
    bool has_meta;                 /* the header has "__metadata__" */
};

/* Parses the header in `text` and fills *h. The names and values in *h point into `text`, which is changed by
 * the parser and must live as long as *h.
 *
 * Entries are in the order of the text. The caller still has to check that names are unique, that shapes fit
 * the offsets, and that the offsets cover the data without gaps.
 *
 * Returns -ENOMEM, or -EBADMSG with the file and the position in the message. Call st_header_finish even
 * after a failure. */
int st_header_parse(struct st_header *h, char *text, size_t bytes, const char *file, struct err *err);

/* Frees the lists of the header. */
void st_header_finish(struct st_header *h);

struct safetensors {
    int fd;     /* belongs to the caller of safetensors_open */
    char *file; /* name of the file, for messages */
    char *text; /* the header's text; names point here */
    /* The parsed header. Its entries are in the order of the data in the file, and its metadata are in the
     * order of the keys. */
    struct st_header header;
    /* Pointers to the entries of `header`, in the order of the tensors' names, for binary search. */
    const struct st_entry **by_name;
    uint64_t data_begin; /* offset of the data in the file */
};

#endif
