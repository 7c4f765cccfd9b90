/* Reading JSON that came from elsewhere without a schema: whatever is missing or of another type reads as nothing. */
#ifndef BASE_GET_H
#define BASE_GET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"

/* Each takes NULL, and anything that is no object, for an object without members. */
const struct json *get_node(const struct json *object, const char *key); /* NULL for null too */
const struct json *get_object(const struct json *object, const char *key);
const struct json *get_array(const struct json *object, const char *key);
const char *get_text(const struct json *object, const char *key); /* "" when there is none */
bool get_number(const struct json *object, const char *key, double *ret);
bool get_count(const struct json *object, const char *key, uint64_t *ret);
uint64_t get_count_or(const struct json *object, const char *key, uint64_t otherwise);
double get_number_or(const struct json *object, const char *key, double otherwise);
bool get_flag(const struct json *object, const char *key); /* false when there is none */

/* The number at place i of an array such as [step, loss, accuracy]. */
bool get_number_at(const struct json *array, size_t i, double *ret);

#endif
