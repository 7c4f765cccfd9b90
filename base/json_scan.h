/* The strict half of json_parse: grammar, UTF-8, depth. Private to base/json*.c. */
#ifndef BASE_JSON_SCAN_H
#define BASE_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* 0 when `text` is one JSON document that cJSON can represent, else -EINVAL with "name:line:column" as path.
 * `comments` only words the advice when a comment is met: blank them out before. */
int json_scan(const char *text, size_t bytes, const char *name, bool comments, struct err *err);

/* Overwrites // comments with spaces, so that positions in messages stay true. */
void json_blank_comments(char *text, size_t bytes);

#endif
