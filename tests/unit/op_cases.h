/* Test cases for every op in ops.def, used by the tests of each backend. An op without a row here does not
 * link.
 *
 * The row of an op builds calls and checks their results against double precision. The number of the variant
 * alone determines the shapes and values of a call. The arrays of one call are on a tape. Usually each array
 * is an allocation of its own with a guard behind it, so that a sanitizer or the guard detects a write beyond
 * its end. For devices whose memory the host cannot access, the tape is one region that can be copied to the
 * device and back as a whole (op_move).
 *
 * Any thread may use a tape, but only one thread at a time.
 */
#ifndef TESTS_UNIT_OP_CASES_H
#define TESTS_UNIT_OP_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/op.h"
#include "tests/unit/op_move.h"

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))
#define EPS          (FLT_EPSILON / 2) /* relative error of one rounding */

/* ---- tape: the arrays of one call ---- */

#define GUARD      64
#define GUARD_BYTE 0xa5
#define TAPE_MAX   12

struct tape {
    size_t shift; /* bytes; a multiple of 4 */
    uint32_t key; /* of the next random array */
    uint32_t n, n_out;
    unsigned char *region; /* what arrays are cut from; NULL: each is an allocation */
    size_t region_bytes, region_used;
    struct {
        unsigned char *base; /* NULL: in the region */
        unsigned char *end;
    } mem[TAPE_MAX];
    struct {
        const void *at;
        size_t bytes;
        bool scratch;
    } out[TAPE_MAX];
    struct step_args step;
};

void *tape_bytes(struct tape *t, size_t bytes, size_t align);
void tape_output(struct tape *t, const void *at, size_t bytes);
float *tape_floats(struct tape *t, uint64_t n, float scale);
float *tape_state(struct tape *t, uint64_t n, float scale); /* read and written */
float *tape_result(struct tape *t,
                   uint64_t n); /* only written: NaN before, so that an op that adds to it is found out */
float *tape_scratch(struct tape *t, uint64_t n); /* written, and what it holds then means nothing */

void tape_check_guards(const struct tape *t);
void tape_finish(struct tape *t);
void assert_same_outputs(const struct tape *a, const struct tape *b);

/* ---- rows ---- */

struct op_test {
    uint32_t variants;
    void (*build)(struct tape *t, uint32_t variant, struct op_call *call);
    void (*check)(const struct op_call *in, const struct op_call *out); /* in: as built, before the run */
    uint64_t golden;
};

#define OP(name) extern const struct op_test name##_test;
#include "kernels/ops.def"
#undef OP
extern const struct op_test *const op_tests[OP_COUNT];

/* Builds variant number `variant` of an op. op_build puts each array in an allocation of its own, shifted by
 * `shift` bytes from its alignment. op_build_in puts all arrays in the given region, from its start. */
void op_build(enum op op, uint32_t variant, size_t shift, struct tape *t, struct op_call *call);
void op_build_in(enum op op, uint32_t variant, void *region, size_t bytes, struct tape *t,
                 struct op_call *call);

/* Returns a copy of tape t that refers to the region `to` instead of `from`, as op_move does for a call. The
 * copy owns no memory. */
struct tape op_move_tape(const struct tape *t, const void *from, const void *to);

/* ---- what rows share ---- */

#define N_LENGTHS  14
#define N_MATRICES 14
#define N_PRODUCTS 25
extern const uint64_t lengths[N_LENGTHS];
extern const uint32_t matrices[N_MATRICES][2]; /* rows, columns */
extern const uint32_t products[N_PRODUCTS][3]; /* rows, in, out */

/* Returns element `i` of an array of floats. The arguments of most ops are pointers to void, because the type
 * of the elements is an argument too. All cases here are of type DTYPE_F32. */
static inline float get(const void *array, uint64_t i)
{
    return ((const float *)array)[i];
}

void assert_near(float got, double want, double tolerance);
void assert_bits(float got, float want);

#endif
