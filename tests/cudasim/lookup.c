/* See lookup.h. */
#include "tests/cudasim/lookup.h"

#include <dlfcn.h>

bool cudasim_lookup(struct cudasim_calls *ret)
{
    void *library = dlopen("libcudart.so.13", RTLD_NOLOAD | RTLD_LAZY);

    if (!library)
        return false;
    /* POSIX lets a function's address be read as a pointer's. */
    *(void **)&ret->begin = dlsym(library, "cudasim_begin");
    *(void **)&ret->copied = dlsym(library, "cudasim_copied");
    *(void **)&ret->host_access = dlsym(library, "cudasim_host_access");
    *(void **)&ret->races = dlsym(library, "cudasim_races");
    *(void **)&ret->problems = dlsym(library, "cudasim_problems");
    dlclose(library); /* the module keeps it */
    return ret->begin && ret->copied && ret->host_access && ret->races && ret->problems;
}
