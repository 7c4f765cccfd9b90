/* What json_read.c needs of the tree beyond json.h. Private to base/json*.c. */
#ifndef BASE_JSON_PRIVATE_H
#define BASE_JSON_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json.h"

/* Each for a node of that type only. */
const char *json_node_text(const struct json *node);
double json_node_number(const struct json *node);
bool json_node_true(const struct json *node);

#endif
