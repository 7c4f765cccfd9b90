/* Implements the tolerant JSON lookups of get.h. A returned string is exactly what the other program wrote.
 * Call utf8_scrub before you show it on a terminal, because it may contain unsafe characters. */
#include "base/get.h"

#include <stddef.h>

/* Returns `node` if it has the type `type`, and NULL otherwise. `node` may be NULL. */
static const struct json *of_type(const struct json *node, enum json_type type)
{
    return node != NULL && json_type(node) == type ? node : NULL;
}

const struct json *get_node(const struct json *object, const char *key)
{
    const struct json *n = object != NULL ? json_get(object, key) : NULL;
    return n != NULL && json_type(n) != JSON_NULL ? n : NULL;
}

const struct json *get_object(const struct json *object, const char *key)
{
    return of_type(get_node(object, key), JSON_OBJECT);
}

const struct json *get_array(const struct json *object, const char *key)
{
    return of_type(get_node(object, key), JSON_ARRAY);
}

const char *get_text(const struct json *object, const char *key)
{
    const char *s = "";
    const struct json *n = of_type(get_node(object, key), JSON_STRING);
    if (n != NULL)
        json_string(n, key, &s, NULL);
    return s;
}

bool get_number(const struct json *object, const char *key, double *ret)
{
    const struct json *n = of_type(get_node(object, key), JSON_NUMBER);
    return n != NULL && json_double(n, key, ret, NULL) == 0;
}

bool get_count(const struct json *object, const char *key, uint64_t *ret)
{
    const struct json *n = of_type(get_node(object, key), JSON_NUMBER);
    return n != NULL && json_u64(n, key, ret, NULL) == 0;
}

uint64_t get_count_or(const struct json *object, const char *key, uint64_t otherwise)
{
    get_count(object, key, &otherwise);
    return otherwise;
}

double get_number_or(const struct json *object, const char *key, double otherwise)
{
    get_number(object, key, &otherwise);
    return otherwise;
}

bool get_flag(const struct json *object, const char *key)
{
    bool v = false;
    const struct json *n = of_type(get_node(object, key), JSON_BOOL);
    if (n != NULL)
        json_bool(n, key, &v, NULL);
    return v;
}

bool get_number_at(const struct json *array, size_t i, double *ret)
{
    const struct json *n = of_type(array, JSON_ARRAY) != NULL ? json_array_at(array, i) : NULL;
    return of_type(n, JSON_NUMBER) != NULL && json_double(n, "", ret, NULL) == 0;
}
