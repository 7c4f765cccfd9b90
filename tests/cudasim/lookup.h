/* Finds the simulator's own calls (cudasim.h) at run time. A program that loads CUDA inside a module cannot
 * link to these calls, so it looks them up in the libcudart that the module loaded. Any thread. */
#ifndef CUDASIM_LOOKUP_H
#define CUDASIM_LOOKUP_H

#include <stdbool.h>

#include "tests/cudasim/cudasim.h"

struct cudasim_calls {
    void (*begin)(uint64_t seed);
    void (*copied)(int device, struct cudasim_copied *ret);
    void (*host_access)(const void *p, size_t bytes, int write);
    uint64_t (*races)(void);
    uint64_t (*problems)(void);
};

/* false: no libcudart is loaded yet, or it is the real one. */
bool cudasim_lookup(struct cudasim_calls *ret);

#endif
