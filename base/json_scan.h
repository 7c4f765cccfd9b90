/* The first pass of json_parse, which checks the text before cJSON reads it. Only the files base/json*.c may
 * include this header. */
#ifndef BASE_JSON_SCAN_H
#define BASE_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json.h"

/* Returns 0 if `text` is one JSON document within the limits of `options`, -E2BIG if it has too many values,
 * and -EINVAL otherwise. The path in `err` is "name:line:column". Call json_blank_comments first if the text
 * may contain comments. options->comments only selects the advice in the message about an unexpected '/'. */
int json_scan(const char *text, size_t bytes, const char *name, const struct json_options *options,
              struct err *err);

/* Overwrites each // comment with spaces of the same length, so that line and column numbers in messages
 * stay correct. */
void json_blank_comments(char *text, size_t bytes);

#endif
