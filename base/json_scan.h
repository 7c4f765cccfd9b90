/* The strict half of json_parse: grammar, UTF-8, depth, number of values. Private to base/json*.c. */
#ifndef BASE_JSON_SCAN_H
#define BASE_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json.h"

/* 0 when `text` is one JSON document that cJSON can represent and that keeps the limits of `options`. Otherwise -EINVAL,
 * or -E2BIG for too many values, with "name:line:column" as path. The caller has already blanked out comments;
 * options->comments only words the advice for what is left of them. */
int json_scan(const char *text, size_t bytes, const char *name, const struct json_options *options,
              struct err *err);

/* Overwrites // comments with spaces, so that positions in messages stay true. */
void json_blank_comments(char *text, size_t bytes);

#endif
