/* Implements dtype.h, with tables of the types' names and sizes. The functions keep no state, so any thread
 * may call them. */
#include "kernels/dtype.h"

#include <string.h>

#include "base/checked.h"

const char *const dtype_names[DTYPE_COUNT] = {
#define DTYPE(name, bytes) [DTYPE_##name] = #name,
    DTYPES(DTYPE)
#undef DTYPE
};

const uint8_t dtype_sizes[DTYPE_COUNT] = {
#define DTYPE(name, bytes) [DTYPE_##name] = (bytes),
    DTYPES(DTYPE)
#undef DTYPE
};

bool dtype_bytes(enum dtype d, uint64_t elements, uint64_t *ret)
{
    return checked_mul(elements, dtype_size(d), ret);
}

bool dtype_find(const char *name, enum dtype *ret)
{
    for (int d = 0; d < DTYPE_COUNT; d++)
        if (strcmp(dtype_names[d], name) == 0) {
            *ret = (enum dtype)d;
            return true;
        }
    return false;
}
