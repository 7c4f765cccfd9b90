/* A fake module of another version, which refuses every ABI. */
#include <stddef.h>

#include "kernels/backend.h"

backend_module_fn tutti_backend;

const struct backend *tutti_backend(uint32_t abi, const struct backend_host *host)
{
    (void)abi;
    (void)host;
    return NULL;
}
