/* The kernels of gemm_small.c, compiled once per instruction set: no include guard, on purpose.
 *
 * Before each inclusion: NAME(x) (suffix), TARGET (attribute), VEC (16 floats), vec_zero, vec_load, vec_store,
 * vec_fma(scalar, vec, vec) as NAME(...), and the counts of accumulators that fit the registers:
 * ROWS_AT_ONCE (one vector each) and VECS_AT_ONCE (of 4 each).
 */

/* `rows` of the long side against the panel: rows accumulators, kept in registers since `rows` is a constant. */
TARGET INLINE void NAME(rows_group)(const float *wide, size_t ld, const panel p, uint32_t n, uint32_t rows,
                                    float (*out)[LANES])
{
    VEC acc[ROWS_AT_ONCE];

    UNROLL
    for (uint32_t j = 0; j < rows; j++)
        acc[j] = NAME(vec_zero)();
    for (uint32_t k = 0; k < n; k++) {
        VEC b = NAME(vec_load)(p[k]);
        UNROLL
        for (uint32_t j = 0; j < rows; j++)
            acc[j] = NAME(vec_fma)(wide[j * ld + k], b, acc[j]);
    }
    UNROLL
    for (uint32_t j = 0; j < rows; j++)
        NAME(vec_store)(out[j], acc[j]);
}

TARGET static void NAME(rows_form)(const float *wide, size_t ld, uint32_t count, const panel p, uint32_t n,
                                   float (*out)[LANES])
{
    uint32_t j = 0;

    for (; j + ROWS_AT_ONCE <= count; j += ROWS_AT_ONCE)
        NAME(rows_group)(wide + j * ld, ld, p, n, ROWS_AT_ONCE, out + j);
    for (; j < count; j++)
        NAME(rows_group)(wide + j * ld, ld, p, n, 1, out + j);
}

/* Four of the short side, from i on, against `vecs` vectors of the long side. */
TARGET INLINE void NAME(lanes_group)(const float *wide, size_t ld, const panel p, uint32_t i, uint32_t n,
                                     uint32_t vecs, float (*out)[WIDE_PIECE])
{
    VEC acc[4][VECS_AT_ONCE];

    UNROLL
    for (uint32_t r = 0; r < 4; r++)
        UNROLL
        for (uint32_t v = 0; v < vecs; v++)
            acc[r][v] = NAME(vec_zero)();
    for (uint32_t k = 0; k < n; k++)
        UNROLL
        for (uint32_t v = 0; v < vecs; v++) {
            VEC b = NAME(vec_load)(wide + k * ld + v * LANES);
            UNROLL
            for (uint32_t r = 0; r < 4; r++)
                acc[r][v] = NAME(vec_fma)(p[k][i + r], b, acc[r][v]);
        }
    UNROLL
    for (uint32_t r = 0; r < 4; r++)
        UNROLL
        for (uint32_t v = 0; v < vecs; v++)
            NAME(vec_store)(out[i + r] + v * LANES, acc[r][v]);
}

/* `lanes` is a multiple of LANES here; `narrow` is rounded up to 4, the panel's padding is zero. */
TARGET static void NAME(lanes_form)(const float *wide, size_t ld, uint32_t lanes, const panel p, uint32_t narrow,
                                    uint32_t n, float (*out)[WIDE_PIECE])
{
    uint32_t l = 0;

    for (; l + VECS_AT_ONCE * LANES <= lanes; l += VECS_AT_ONCE * LANES)
        for (uint32_t i = 0; i < narrow; i += 4)
            NAME(lanes_group)(wide + l, ld, p, i, n, VECS_AT_ONCE, (float(*)[WIDE_PIECE])(out[0] + l));
    for (; l < lanes; l += LANES)
        for (uint32_t i = 0; i < narrow; i += 4)
            NAME(lanes_group)(wide + l, ld, p, i, n, 1, (float(*)[WIDE_PIECE])(out[0] + l));
}

static const struct kernels NAME(kernels) = {NAME(rows_form), NAME(lanes_form)};

#undef NAME
#undef TARGET
#undef VEC
#undef ROWS_AT_ONCE
#undef VECS_AT_ONCE
