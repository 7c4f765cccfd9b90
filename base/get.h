/* Tolerant lookups in JSON that another program wrote. A member that is missing or has the wrong type counts
 * as absent. `object` may be NULL or a node of any type. Code that must refuse bad input uses json_take and
 * its variants (json.h) instead. */
#ifndef BASE_GET_H
#define BASE_GET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"

/* Returns the member `key` of an object. Returns NULL if the member is absent or its value is null. */
const struct json *get_node(const struct json *object, const char *key);
/* Returns the member `key` if its value is an object, and NULL otherwise. */
const struct json *get_object(const struct json *object, const char *key);
/* Returns the member `key` if its value is an array, and NULL otherwise. */
const struct json *get_array(const struct json *object, const char *key);
/* Returns the member `key` if its value is a string, and "" otherwise. The text belongs to the JSON document.
 * It may contain characters that control a terminal. */
const char *get_text(const struct json *object, const char *key);
/* get_number and get_count store the value of the member `key` in *ret and return true. If the value is
 * absent or not a number, they return false and do not change *ret. get_count accepts only whole numbers from
 * 0 to JSON_MAX_INTEGER. */
bool get_number(const struct json *object, const char *key, double *ret);
bool get_count(const struct json *object, const char *key, uint64_t *ret);
/* get_count_or and get_number_or return the value of the member `key`. If get_count or get_number would
 * return false, they return `otherwise`. */
uint64_t get_count_or(const struct json *object, const char *key, uint64_t otherwise);
double get_number_or(const struct json *object, const char *key, double otherwise);
/* Returns true if the member `key` has the JSON value true. Returns false in all other cases. */
bool get_flag(const struct json *object, const char *key);

/* Stores the number at index `i` of `array` in *ret and returns true. Returns false if there is no number at
 * that index. */
bool get_number_at(const struct json *array, size_t i, double *ret);

#endif
