/* Tolerant lookups in JSON from another program. A member that is missing or of the wrong type counts as
 * absent. `object` may be NULL or any other node.
 *
 * Code that must refuse bad input uses the json_take functions of json.h. */
#ifndef BASE_GET_H
#define BASE_GET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"

/* Returns the member `key`, or NULL when it is absent or null. */
const struct json *get_node(const struct json *object, const char *key);
/* Returns the member `key` if it is an object, or NULL otherwise. */
const struct json *get_object(const struct json *object, const char *key);
/* Returns the member `key` if it is an array, or NULL otherwise. */
const struct json *get_array(const struct json *object, const char *key);
/* Returns the string member `key`, or "" when there is none. The text belongs to the document and is not
 * scrubbed. */
const char *get_text(const struct json *object, const char *key);
/* These store the number `key` in *ret and return true. If there is no such number, they return false and
 * leave *ret alone. get_count accepts only whole numbers from 0 to JSON_MAX_INTEGER. */
bool get_number(const struct json *object, const char *key, double *ret);
bool get_count(const struct json *object, const char *key, uint64_t *ret);
/* These return the number `key`, or `otherwise` when there is no such number. */
uint64_t get_count_or(const struct json *object, const char *key, uint64_t otherwise);
double get_number_or(const struct json *object, const char *key, double otherwise);
/* Returns true when the member `key` is the JSON value true. */
bool get_flag(const struct json *object, const char *key);

/* Stores the number at index `i` of `array` in *ret. Returns false when there is no number at that index. */
bool get_number_at(const struct json *array, size_t i, double *ret);

#endif
