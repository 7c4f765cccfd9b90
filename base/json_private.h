/* Direct access to the values of JSON nodes, for json_read.c. Private to base/json*.c. */
#ifndef BASE_JSON_PRIVATE_H
#define BASE_JSON_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json.h"

/* These return the value of a node. The caller must have checked the node's type. */
const char *json_node_text(const struct json *node); /* JSON_STRING */
double json_node_number(const struct json *node);    /* JSON_NUMBER */
bool json_node_true(const struct json *node);        /* JSON_BOOL */

#endif
