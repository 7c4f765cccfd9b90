/* The kernels of gemm_small.c. That file includes this one once per instruction set, so this header has no
 * include guard.
 *
 * Before each inclusion, the includer defines:
 *
 *     NAME(x)       adds the suffix of the instruction set to a name
 *     TARGET        function attribute that selects the instruction set
 *     VEC           vector of 16 floats, with NAME(vec_zero), NAME(vec_load), NAME(vec_store),
 *                   NAME(vec_add) and NAME(vec_fma)(scalar, vec, vec)
 *     ACCUMULATORS  number of VECs that fit into registers beside the operands: 4 or 24
 *     ROWS_AT_ONCE  number of rows that the rows form computes at a time
 *     TILE_ROWS, TILE_VECS  size of a tile of gemm_rows
 *
 * Loops over accumulators have constant bounds after inlining and are unrolled, so the accumulators stay
 * in registers.
 */

/* Multiplies `rows` rows of the wide operand by the panel, which contains the narrow operand. The sums stay
 * in registers. */
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

/* Multiplies `count` rows of the wide operand by the panel, which contains the narrow operand. The loop
 * handles ROWS_AT_ONCE rows at a time. Rows that are left at the end are handled one by one. */
TARGET static void NAME(rows_form)(const float *wide, size_t ld, uint32_t count, const panel p, uint32_t n,
                                   float (*out)[LANES])
{
    uint32_t j = 0;

    for (; j + ROWS_AT_ONCE <= count; j += ROWS_AT_ONCE)
        NAME(rows_group)(wide + j * ld, ld, p, n, ROWS_AT_ONCE, out + j);
    for (; j < count; j++)
        NAME(rows_group)(wide + j * ld, ld, p, n, 1, out + j);
}

/* Multiplies `rows` rows of the narrow operand, starting at row `i`, by `vecs` vectors of columns of the wide
 * operand. */
TARGET INLINE void NAME(lanes_group)(const float *wide, size_t ld, const panel p, uint32_t i, uint32_t n,
                                     uint32_t rows, uint32_t vecs, float (*out)[WIDE_PIECE])
{
    VEC acc[ACCUMULATORS];

    UNROLL
    for (uint32_t a = 0; a < rows * vecs; a++)
        acc[a] = NAME(vec_zero)();
    for (uint32_t k = 0; k < n; k++)
        UNROLL
    for (uint32_t v = 0; v < vecs; v++) {
        VEC b = NAME(vec_load)(wide + k * ld + (size_t)v * LANES);
        UNROLL
        for (uint32_t r = 0; r < rows; r++)
            acc[r * vecs + v] = NAME(vec_fma)(p[k][i + r], b, acc[r * vecs + v]);
    }
    UNROLL
    for (uint32_t a = 0; a < rows * vecs; a++)
        NAME(vec_store)(out[i + a / vecs] + (size_t)(a % vecs) * LANES, acc[a]);
}

/* Multiplies `rows` rows of the narrow operand, starting at row `i`, by all columns of the wide operand. The
 * loop handles `vecs` vectors of columns at a time. Vectors that are left at the end are handled one by
 * one. */
TARGET INLINE void NAME(lanes_strip)(const float *wide, size_t ld, uint32_t lanes, const panel p, uint32_t i,
                                     uint32_t n, uint32_t rows, uint32_t vecs, float (*out)[WIDE_PIECE])
{
    uint32_t l = 0;

    for (; l + vecs * LANES <= lanes; l += vecs * LANES)
        NAME(lanes_group)(wide + l, ld, p, i, n, rows, vecs, (float(*)[WIDE_PIECE])(out[0] + l));
    for (; l < lanes; l += LANES)
        NAME(lanes_group)(wide + l, ld, p, i, n, rows, 1, (float(*)[WIDE_PIECE])(out[0] + l));
}

/* Multiplies the narrow operand by `lanes` columns of the wide operand. `lanes` must be a multiple of LANES.
 * The number of rows of the narrow operand is rounded up to a multiple of 4, and the panel contains zeros for
 * the additional rows. */
TARGET static void NAME(lanes_form)(const float *wide, size_t ld, uint32_t lanes, const panel p,
                                    uint32_t narrow, uint32_t n, float (*out)[WIDE_PIECE])
{
    if (ACCUMULATORS < 24)
        for (uint32_t i = 0; i < narrow; i += 4)
            NAME(lanes_strip)(wide, ld, lanes, p, i, n, 4, ACCUMULATORS / 4, out);
    else if (narrow <= 4)
        NAME(lanes_strip)(wide, ld, lanes, p, 0, n, 4, 4, out);
    else if (narrow <= 8)
        NAME(lanes_strip)(wide, ld, lanes, p, 0, n, 8, 2, out);
    else if (narrow <= 12)
        NAME(lanes_strip)(wide, ld, lanes, p, 0, n, 12, 2, out);
    else
        NAME(lanes_strip)(wide, ld, lanes, p, 0, n, 16, 1, out);
}

/* Computes one tile of c. The tile has `rows` rows starting at row `i`, and `vecs` vectors of columns
 * starting at column `j`. */
TARGET INLINE void NAME(tile)(const struct gemm_rows *g, uint32_t i, uint32_t j, uint32_t rows, uint32_t vecs)
{
    const float *a = g->a + i * g->a_i, *b = g->b + j;
    float *c = g->c + i * g->ldc + j;
    VEC acc[ACCUMULATORS], wide[TILE_VECS];

    UNROLL
    for (uint32_t t = 0; t < rows * vecs; t++)
        acc[t] = NAME(vec_zero)();
    for (uint32_t k = 0; k < g->k; k++) {
        UNROLL
        for (uint32_t v = 0; v < vecs; v++)
            wide[v] = NAME(vec_load)(b + k * g->ldb + (size_t)v * LANES);
        UNROLL
        for (uint32_t t = 0; t < rows * vecs; t++)
            acc[t] = NAME(vec_fma)(a[t / vecs * g->a_i + k * g->a_k], wide[t % vecs], acc[t]);
    }
    UNROLL
    for (uint32_t t = 0; t < rows * vecs; t++) {
        float *at = c + t / vecs * g->ldc + (size_t)(t % vecs) * LANES;
        NAME(vec_store)(at, g->accumulate ? NAME(vec_add)(NAME(vec_load)(at), acc[t]) : acc[t]);
    }
}

/* Implements gemm_rows_run for this instruction set. */
TARGET static void NAME(some_rows)(const struct gemm_rows *g)
{
    /* Copy *g to a local variable. Otherwise the compiler would load the fields of *g again after each store
     * to c, because a store to c could change *g. */
    const struct gemm_rows here = *g;

    for (uint32_t i = 0; i < GEMM_ROWS; i += TILE_ROWS) {
        uint32_t j = 0;
        for (; j + TILE_VECS * LANES <= here.n; j += TILE_VECS * LANES)
            NAME(tile)(&here, i, j, TILE_ROWS, TILE_VECS);
        for (; j < here.n; j += LANES)
            NAME(tile)(&here, i, j, TILE_ROWS, 1);
    }
}

static const struct kernels NAME(kernels) = {NAME(rows_form), NAME(lanes_form), NAME(some_rows)};

#undef NAME
#undef TARGET
#undef VEC
#undef ROWS_AT_ONCE
#undef ACCUMULATORS
#undef TILE_ROWS
#undef TILE_VECS
