/* Direct access to the values of JSON nodes, for json_read.c. Only the files base/json*.c may include this
 * header. */
#ifndef BASE_JSON_PRIVATE_H
#define BASE_JSON_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json.h"

/* Each of these functions returns the value of a node. The node must have the type that the comment behind
 * the function names. */
const char *json_node_text(const struct json *node); /* JSON_STRING */
double json_node_number(const struct json *node);    /* JSON_NUMBER */
bool json_node_true(const struct json *node);        /* JSON_BOOL */

#endif
