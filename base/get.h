/* Tolerant lookups in JSON that came from another program. No schema is checked: a member that is missing,
 * null or of another type reads as if it were absent. Code that must refuse bad input uses the json_take
 * functions of json.h.
 *
 * In all functions `object` may be NULL or a node that is not an object. Both read as
 * an object without members.
 */
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
/* Returns the member `key` if it is a string, or "" otherwise. The text belongs to the document and is not
 * scrubbed. */
const char *get_text(const struct json *object, const char *key);
/* If the member `key` is a number, these store it in *ret and return true. Otherwise they return false and
 * leave *ret alone. get_count accepts only whole numbers from 0 to JSON_MAX_INTEGER. */
bool get_number(const struct json *object, const char *key, double *ret);
bool get_count(const struct json *object, const char *key, uint64_t *ret);
/* These return the member `key` as a number, or `otherwise` when the member is absent or has another type. */
uint64_t get_count_or(const struct json *object, const char *key, uint64_t otherwise);
double get_number_or(const struct json *object, const char *key, double otherwise);
/* Returns true when the member `key` is the JSON value true. */
bool get_flag(const struct json *object, const char *key);

/* Stores the number at index `i` of `array` in *ret and returns true. Returns false when there is no
 * number at that index. Used for rows such as [step, loss, accuracy]. */
bool get_number_at(const struct json *array, size_t i, double *ret);

#endif
