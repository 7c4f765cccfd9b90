/* Test cases for every op in ops.def, used by the tests of each backend. An op without a row here does not
 * link.
 *
 * The row of an op builds calls and checks their results against double precision. The number of the variant
 * alone determines the shapes and values of a call. Every variant occurs with several types of arrays. A case
 * is a variant with its types. The arrays of one call are on a tape. Usually each array
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

#include "kernels/half.h"
#include "kernels/op.h"
#include "tests/unit/op_move.h"

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))
#define EPS          (FLT_EPSILON / 2) /* relative error of one rounding */

/* ---- types ---- */

/* The types of the arrays of one call. `dtype` and `w` are the fields dtype and w_dtype of the op. `out` is
 * its field y_dtype or dx_dtype. If the op lacks one of these fields, the type is equal to `dtype`. */
struct op_types {
    enum dtype dtype, w, out;
};

/* ---- tape: the arrays of one call ---- */

#define GUARD      64
#define GUARD_BYTE 0xa5
#define TAPE_MAX   14

struct tape {
    struct op_types types;
    size_t shift; /* bytes; rounded up to a multiple of the alignment of each array */
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

/* Arrays of type `dtype`, which is F32, BF16 or F16: random numbers that are only read, random numbers that
 * are read and written, and NaNs that are only written. So an op that adds to such an array is found out. */
void *tape_in(struct tape *t, enum dtype dtype, uint64_t n, float scale);
void *tape_inout(struct tape *t, enum dtype dtype, uint64_t n, float scale);
void *tape_out(struct tape *t, enum dtype dtype, uint64_t n);

/* The same for arrays that are always floats. */
float *tape_floats(struct tape *t, uint64_t n, float scale);
float *tape_state(struct tape *t, uint64_t n, float scale); /* read and written */
float *tape_result(struct tape *t, uint64_t n);
float *tape_scratch(struct tape *t, uint64_t n); /* written, and what it holds then means nothing */

void tape_check_guards(const struct tape *t);
void tape_finish(struct tape *t);
void assert_same_outputs(const struct tape *a, const struct tape *b);

/* ---- rows ---- */

struct op_test {
    uint32_t variants;
    void (*build)(struct tape *t, uint32_t variant, struct op_call *call);
    void (*check)(const struct op_call *in, const struct op_call *out); /* in: as built, before the run */
    /* Hashes of the results of all cases: of those whose types are all F32, and of the others. 0 means that
     * the bits depend on a library. */
    uint64_t golden, golden_16;
};

#define OP(name) extern const struct op_test name##_test;
#include "kernels/ops.def"
#undef OP
extern const struct op_test *const op_tests[OP_COUNT];

/* Returns the number of cases of an op. The first cases are the variants with the type F32, in their order.
 * All variants with the next types follow, and so on. For example, an op with 10 variants and the types F32,
 * BF16 and F16 has 30 cases, and case 12 is variant 2 with the type BF16. */
uint32_t op_case_count(enum op op);

/* Builds case number `number` of an op. op_build puts each array in an allocation of its own, shifted by
 * `shift` bytes from its alignment. op_build_in puts all arrays in the given region, from its start. */
void op_build(enum op op, uint32_t number, size_t shift, struct tape *t, struct op_call *call);
void op_build_in(enum op op, uint32_t number, void *region, size_t bytes, struct tape *t,
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

/* Returns element `i` of an array of type `dtype`. */
float get(enum dtype dtype, const void *array, uint64_t i);
/* Sets element `i` of an array of type `dtype` to `value`, rounded to this type. */
void put(enum dtype dtype, void *array, uint64_t i, float value);
/* Return the `n` elements of an array of type `dtype` in memory from malloc. */
float *to_floats(enum dtype dtype, const void *array, uint64_t n);
double *to_doubles(enum dtype dtype, const void *array, uint64_t n);
/* Returns the largest error that one rounding to `dtype` can have if the size of the rounded number is at
 * most `size`. This is half a unit in the last place. The result is 0 for F32, because the tolerances of
 * float results already contain all roundings to float. */
double rounding_error(enum dtype dtype, double size);

void assert_near(float got, double want, double tolerance);
void assert_bits(float got, float want);
/* The same for element `i` of an array of type `dtype`. `tolerance` is for the number before it is rounded to
 * this type, and `want` in assert_rounded is that number exactly. */
void assert_near_in(enum dtype dtype, const void *got, uint64_t i, double want, double tolerance);
void assert_rounded(enum dtype dtype, const void *got, uint64_t i, float want);

#endif
