/* Between the simulator and translated kernels (ptx2c.py): the shape of a kernel library, and what the
 * body of a kernel calls. A body is one C function that runs one thread of a grid; it may be left in the
 * middle (by a barrier, a shuffle or an error) and runs on a stack of its own.
 *
 * `loc` is an index into the module's table of source lines. */
#ifndef CUDASIM_SIMT_H
#define CUDASIM_SIMT_H

#include <stdint.h>

enum simt_access { SIMT_READ, SIMT_WRITE, SIMT_ATOMIC };

struct simt_loc {
    const char *file;
    uint32_t line;
};

/* A variable of the module in device memory (__device__, __constant__). */
struct simt_variable {
    const void *data;
    uint64_t bytes;
};

struct simt_kernel {
    const char *name; /* as registered: mangled unless extern "C" */
    void (*body)(void **args);
    uint32_t n_params;
    const uint32_t *param_bytes;
    uint32_t shared_bytes; /* static; dynamic shared memory begins here */
};

/* A kernel library exports one: `const struct simt_module cudasim_module`. */
struct simt_module {
    uint32_t abi;
    uint32_t n_kernels, n_locs, n_variables;
    const struct simt_kernel *kernels;
    const struct simt_loc *locs;
    const struct simt_variable *variables;
};
#define SIMT_ABI 1

#define SIMT_THREADS      1024 /* of a block */
#define SIMT_SHARED_BYTES (163u << 10)

struct simt_place {
    uint32_t tid[3], ctaid[3], ntid[3], nctaid[3];
};
extern struct simt_place simt_here;     /* of the running thread */
extern uint64_t simt_instructions;      /* run by the grid so far */
extern uint8_t *const simt_shared_base; /* the block's shared memory */

/* Where the bytes of an access are. `bytes` is a power of two. They do not return when it is wrong. */
void *simt_global(uint64_t address, uint32_t bytes, enum simt_access access, uint32_t loc);
void *simt_generic(uint64_t address, uint32_t bytes, enum simt_access access, uint32_t loc);
void *simt_shared(uint32_t offset, uint32_t bytes, uint32_t loc);

void simt_barrier(uint32_t loc);
uint32_t simt_lane(void);
/* The value that lane `from` brings; all lanes of the mask meet here. */
uint64_t simt_exchange(uint32_t mask, uint64_t value, uint32_t from, uint32_t loc);
uint32_t simt_ballot(uint32_t mask, int predicate, uint32_t loc);
void simt_trap(uint32_t loc) __attribute__((noreturn));

#endif
