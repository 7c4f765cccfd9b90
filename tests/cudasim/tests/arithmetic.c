/* Kernels against the CPU: what nvcc made of kernels.cu must give the numbers that C gives. */
#include <cublas_v2.h>
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "program.h"

#define N 4099u /* not a multiple of any block */

static float *floats(size_t n)
{
    float *x = malloc(n * sizeof *x);

    REQUIRE(x);
    for (size_t i = 0; i < n; i++)
        x[i] = random_float();
    return x;
}

/* Bits, except that all NaN are alike. */
static int same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static int same_double(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static void case_add(int argc, char **argv)
{
    float *a = floats(N), *b = floats(N), *c = device_memory(N * 4), *r;

    (void)argc, (void)argv;
    launch_add(to_device(a, N * 4), to_device(b, N * 4), c, N, NULL);
    CHECK(cudaGetLastError());
    r = from_device(c, N * 4);
    for (size_t i = 0; i < N; i++)
        REQUIRE(same(r[i], a[i] + b[i]));

    launch_scale4(c, 3, N, NULL);
    r = from_device(c, N * 4);
    for (size_t i = 0; i < N; i++)
        REQUIRE(same(r[i], i / 4 < N / 4 ? (a[i] + b[i]) * 3 : a[i] + b[i]));
}

static void case_ieee(int argc, char **argv)
{
    float *a = floats(N), *b = floats(N), *c = floats(N), *out = device_memory(9 * N * 4), *r;

    (void)argc, (void)argv;
    launch_ieee(to_device(a, N * 4), to_device(b, N * 4), to_device(c, N * 4), out, N, NULL);
    r = from_device(out, 9 * N * 4);
    for (size_t i = 0; i < N; i++) {
        double exact = (double)a[i] + (double)b[i];
        float nearest = a[i] + b[i], toward_zero = r[7 * N + i];

        REQUIRE(same(r[i], a[i] / b[i]));
        REQUIRE(same(r[N + i], sqrtf(fabsf(a[i]))));
        REQUIRE(same(r[2 * N + i], fmaf(a[i], b[i], c[i])));
        REQUIRE(same(r[3 * N + i], a[i] * b[i] + c[i])); /* this file is compiled without contraction */
        REQUIRE(same(r[4 * N + i], fmaf(a[i], b[i], c[i])));
        REQUIRE(same(r[5 * N + i], 1 / b[i]));
        /* the product is exact in double, and nvcc fuses it with the sum, which rounds the same once */
        REQUIRE(same(r[6 * N + i], (float)fma((double)a[i], (double)b[i], (double)c[i])));
        REQUIRE(toward_zero == nearest || fabsf(toward_zero) == nextafterf(fabsf(nearest), 0));
        REQUIRE(fabs((double)toward_zero) <= fabs(exact) || isnan(exact));
        REQUIRE(same(r[8 * N + i], fmaxf(a[i], b[i]) + fminf(a[i], c[i])));
    }
}

static void case_ieee_double(int argc, char **argv)
{
    double *x = malloc(3 * N * 8), *out = device_memory(4 * N * 8), *r, *d;

    (void)argc, (void)argv;
    REQUIRE(x);
    for (size_t i = 0; i < 3 * N; i++)
        x[i] = (double)random_float() + (double)random_float() * 0x1p-30;
    x[0] = INFINITY;
    x[N + 1] = NAN;
    d = to_device(x, 3 * N * 8);
    launch_ieee_double(d, d + N, d + 2 * N, out, N, NULL);
    r = from_device(out, 4 * N * 8);
    for (size_t i = 0; i < N; i++) {
        double a = x[i], b = x[N + i], c = x[2 * N + i];
        REQUIRE(same_double(r[i], a / b));
        REQUIRE(same_double(r[N + i], sqrt(fabs(a))));
        REQUIRE(same_double(r[2 * N + i], fma(a, b, c)));
        REQUIRE(r[3 * N + i] == (isfinite(a) ? 1 : 0) + (isnan(b) ? 2 : 0) + (a < b ? 4 : 0));
    }
}

/* Division, square root and a product that is not fused, as the optimizers have them. */
static void case_exact(int argc, char **argv)
{
    float *a = floats(N), *b = floats(N), *c = floats(N), *out = device_memory(N * 4), *r;

    (void)argc, (void)argv;
    launch_exact(to_device(a, N * 4), to_device(b, N * 4), to_device(c, N * 4), out, N, NULL);
    r = from_device(out, N * 4);
    for (size_t i = 0; i < N; i++)
        REQUIRE(same(r[i], (a[i] * b[i] + c[i]) / (sqrtf(fabsf(b[i])) + 1e-8f)));
}

static double reference(int function, double x)
{
    switch (function) {
    case 0:
    case 9:
        return exp(x);
    case 1:
        return tanh(x);
    case 2:
    case 10:
        return log(fabs(x));
    case 3:
        return sin(x);
    case 4:
        return cos(x);
    case 5:
        return 1 / sqrt(fabs(x));
    case 6:
        return log1p(fabs(x));
    case 7:
        return erf(x);
    case 8:
        return pow(fabs(x), 1.5);
    case 11:
        return pow(fabs(x), 0.25);
    default:
        return sin(x * 1e6);
    }
}

/* Of the library that nvcc links into kernels. The CUDA guide promises at most 4 units in the last place
 * for these. */
static void case_functions(int argc, char **argv)
{
    float *x = floats(N), *out = device_memory(13 * N * 4), *r;

    (void)argc, (void)argv;
    launch_functions(to_device(x, N * 4), out, N, NULL);
    r = from_device(out, 13 * N * 4);
    for (int f = 0; f < 13; f++)
        for (size_t i = 0; i < N; i++) {
            double want = reference(f, (double)x[i]), got = (double)r[(size_t)f * N + i];
            double unit = fmax(ldexp(1, ilogb(want) - 23), 0x1p-149);

            if (isnan(want) || isinf((float)want) || fabs(want) < 0x1p-120) {
                REQUIRE(isnan(want)             ? isnan(got)
                        : fabs(want) < 0x1p-120 ? fabs(got) < 0x1p-119
                                                : got == (double)(float)want);
                continue;
            }
            if (fabs(got - want) > 5 * unit) {
                printf("function %d of %a: %a, should be %a\n", f, (double)x[i], got, want);
                exit(1);
            }
        }
}

static uint32_t reverse_bits(uint32_t x)
{
    uint32_t r = 0;

    for (int i = 0; i < 32; i++)
        r |= (x >> i & 1) << (31 - i);
    return r;
}

static uint32_t byte_of(uint32_t a, uint32_t b, int i)
{
    return (uint32_t)(((uint64_t)b << 32 | a) >> (8 * i)) & 255;
}

static void case_integers(int argc, char **argv)
{
    uint32_t *x = malloc(2 * N * 4), *d;
    uint64_t *out = device_memory(12 * N * 8), *r;

    (void)argc, (void)argv;
    REQUIRE(x);
    for (size_t i = 0; i < 2 * N; i++)
        x[i] = random32() >> (random32() % 32);
    d = to_device(x, 2 * N * 4);
    launch_integers(d, d + N, out, N, NULL);
    r = from_device(out, 12 * N * 8);
    for (size_t i = 0; i < N; i++) {
        uint32_t a = x[i], b = x[N + i], by = b & 31;
        int32_t sa = (int32_t)a, sb = (int32_t)b;
        uint64_t want[12] = {
            (uint64_t)a * b,
            (uint64_t)((int64_t)sa * sb),
            (uint64_t)a * b >> 32,
            (uint64_t)(((unsigned __int128)((uint64_t)a << 21 | b) * ((uint64_t)b << 17 | a)) >> 64),
            (a / (b | 1)) + ((uint64_t)(a % (b | 1)) << 32),
            (uint64_t)(int64_t)(sa / (sb | 1)) ^ (uint64_t)(int64_t)(sa % (sb | 1)) << 7,
            (uint64_t)(int64_t)(sa >> by) ^ (uint64_t)(a << by) << 16,
            (uint64_t)(uint32_t)(__builtin_popcount(a) | (b ? __builtin_clz(b) : 32) << 8 |
                                 __builtin_ffs(sa) << 16) |
                (uint64_t)reverse_bits(a) << 32,
            (byte_of(a, b, 3) | byte_of(a, b, 6) << 8 | byte_of(a, b, 1) << 16 | byte_of(a, b, 5) << 24) |
                (uint64_t)(by ? b << by | a >> (32 - by) : b) << 32,
            (uint64_t)(uint32_t)(sa > sb ? sa : sb) | (uint64_t)(a < b ? a : b) << 32,
            (uint64_t)(uint32_t)abs(sa >> 1) + ((a ^ b) & ~(a | 5u)) * 3ull,
            (uint64_t)(int64_t)(int8_t)a ^ (uint64_t)(uint16_t)b << 20 ^ (uint64_t)(int64_t)(int16_t)b << 40,
        };
        for (size_t k = 0; k < 12; k++)
            if (r[k * N + i] != want[k]) {
                printf("integers %zu of %#x, %#x: %#llx, should be %#llx\n", k, a, b,
                       (unsigned long long)r[k * N + i], (unsigned long long)want[k]);
                exit(1);
            }
    }
}

static int64_t clamp(double x, double low, double high)
{
    return isnan(x) ? 0 : x < low ? (int64_t)low : x > high ? (int64_t)high : (int64_t)x;
}

/* On a GPU what does not fit becomes the nearest that does. */
static void case_convert(int argc, char **argv)
{
    const double low = -2147483648.0, high = 2147483647.0;
    float *x = floats(N);
    int64_t *out = device_memory(8 * N * 8), *r;

    (void)argc, (void)argv;
    for (size_t i = 0; i < N; i += 3)
        x[i] *= (float)(1u << (i % 31));
    x[1] = NAN;
    x[2] = -INFINITY;
    x[4] = 2.5f;
    x[5] = -0.5f;
    launch_convert(to_device(x, N * 4), out, N, NULL);
    r = from_device(out, 8 * N * 8);
    for (size_t i = 0; i < N; i++) {
        double v = (double)x[i];
        float third = (float)(v * (1.0 / 3.0));
        int32_t bits;

        REQUIRE(r[i] == clamp(trunc(v), low, high));
        REQUIRE(r[N + i] == clamp(trunc(v), 0, 4294967295.0));
        REQUIRE(r[2 * N + i] == clamp(rint(v), low, high));
        REQUIRE(r[3 * N + i] == clamp(floor(v), low, high));
        REQUIRE(r[4 * N + i] == clamp(ceil(v), low, high));
        REQUIRE(r[5 * N + i] == (isnan(v)      ? INT64_MIN
                                 : v >= 0x1p63 ? INT64_MAX
                                 : v < -0x1p63 ? INT64_MIN
                                               : (int64_t)v));
        memcpy(&bits, &third, 4);
        REQUIRE(isnan(v) || r[7 * N + i] == bits);
    }
}

static void case_philox(int argc, char **argv)
{
    uint32_t *out = device_memory(N * 16), *r;

    (void)argc, (void)argv;
    launch_philox(out, N, 0x123456789abcdefULL, NULL);
    r = from_device(out, N * 16);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t c[4] = {i, 0, 7, 9}, key[2] = {0x89abcdefu, 0x1234567u};
        for (int k = 0; k < 10; k++) {
            uint64_t p = 0xD2511F53ULL * c[0], q = 0xCD9E8D57ULL * c[2];
            uint32_t next[4] = {(uint32_t)(q >> 32) ^ c[1] ^ key[0], (uint32_t)q,
                                (uint32_t)(p >> 32) ^ c[3] ^ key[1], (uint32_t)p};
            memcpy(c, next, sizeof c);
            key[0] += 0x9E3779B9u;
            key[1] += 0xBB67AE85u;
        }
        REQUIRE(memcmp(&r[4 * i], c, sizeof c) == 0);
    }
}

/* With "wrong" the kernel has no barriers; prints the sum, which then depends on the seed. */
static void case_reduce(int argc, char **argv)
{
    int barriers = argc == 0 || strcmp(argv[0], "wrong") != 0;
    size_t blocks = (N + 255) / 256;
    float *x = floats(N);
    double *out = device_memory(blocks * 8), *r, total = 0;

    launch_reduce(to_device(x, N * 4), out, N, barriers, NULL);
    r = from_device(out, blocks * 8);
    for (size_t b = 0; b < blocks; b++) {
        double tree[256] = {0};
        for (size_t i = 0; i < 256 && b * 256 + i < N; i++)
            tree[i] = (double)x[b * 256 + i] * (double)x[b * 256 + i];
        for (size_t half = 128; half > 0; half /= 2)
            for (size_t i = 0; i < half; i++)
                tree[i] += tree[i + half];
        REQUIRE(!barriers || same_double(r[b], tree[0]));
        total += r[b];
    }
    printf("%a\n", total);
}

static void check_warp(unsigned lanes)
{
    uint32_t x[32], *out = device_memory(7 * 32 * 4), *r, odd = 0;
    unsigned any = 0, all = 1;

    for (unsigned i = 0; i < lanes; i++) {
        x[i] = random32() | 2;
        odd |= (x[i] & 1) << i;
        any |= x[i] > 4000000000u;
    }
    launch_warp(to_device(x, lanes * 4), out, lanes, NULL);
    r = from_device(out, 7 * 32 * 4);
    for (unsigned i = 0; i < lanes; i++) {
        REQUIRE(r[lanes + i] == (i % 8 >= 3 ? x[i - 3] : x[i]));
        REQUIRE((i ^ 5) >= lanes || r[2 * lanes + i] == x[i ^ 5]);
        REQUIRE(r[3 * lanes + i] == x[i / 16 * 16 + 2]);
        REQUIRE(r[4 * lanes + i] == odd);
        REQUIRE(r[5 * lanes + i] == any + 2 * all);
        REQUIRE(i >= 8 || r[6 * lanes + i] == x[i ^ 1]);
    }
    if (lanes == 32) {
        uint32_t sum = 0;
        for (unsigned i = 0; i < lanes; i++)
            sum += x[i];
        REQUIRE(r[0] == sum);
    }
}

static void case_warp(int argc, char **argv)
{
    (void)argc, (void)argv;
    check_warp(32);
    check_warp(24);
}

static void case_atomics(int argc, char **argv)
{
    uint32_t zero[8] = {0}, *x = to_device(zero, sizeof zero), *r;
    float *f = to_device(zero, 4), *rf;
    unsigned long long *w = to_device(zero, 8), *rw;

    (void)argc, (void)argv;
    launch_atomics(x, f, w, NULL);
    r = from_device(x, sizeof zero);
    rf = from_device(f, 4);
    rw = from_device(w, 8);
    REQUIRE(r[0] == 255 * 256 / 2 && r[1] == 255 && (int32_t)r[2] == -255 && r[3] == ~0u && r[4] == 77);
    REQUIRE(*rf == 128 && *rw == 256ULL << 33);
}

static void case_mixed(int argc, char **argv)
{
    const struct mixed m = {.by = 2, .values = {1, 2, 3, 4}, .which = 1, .bytes = {-1, 5, -128}};
    const float table[4] = {1, 10, 100, 1000};
    float *out = device_memory(64 * 4), *r;

    (void)argc, (void)argv;
    CHECK(launch_mixed(out, &m, 50, 50 * 4, NULL));
    r = from_device(out, 64 * 4);
    for (int t = 0; t < 50; t++) {
        int from = 49 - t;
        REQUIRE(r[t] ==
                (float)from * 2 + table[from & 3] + m.values[3 - (t & 3)] + 7 + (float)m.bytes[t % 3]);
    }
    REQUIRE(isnan(r[50])); /* new memory is NaN */
    REQUIRE(launch_mixed(out, &m, 50, 100 << 10, NULL) == cudaErrorInvalidConfiguration);
    CHECK((cudaGetLastError(), allow_shared(100 << 10)));
    CHECK(launch_mixed(out, &m, 50, 100 << 10, NULL));
    CHECK(cudaDeviceSynchronize());
}

/* Element (i, j) of op(x). */
static double at(const float *x, int transpose, int ld, int i, int j)
{
    return (double)(transpose ? x[j + i * ld] : x[i + j * ld]);
}

static void check_gemm(cublasHandle_t h, int ta, int tb, int m, int n, int k, float beta)
{
    int lda = (ta ? k : m) + 3, ldb = (tb ? n : k) + 1, ldc = m + 2;
    size_t size_a = (size_t)lda * (size_t)(ta ? m : k), size_b = (size_t)ldb * (size_t)(tb ? k : n);
    size_t size_c = (size_t)ldc * (size_t)n;
    float *a = malloc(size_a * 4), *b = malloc(size_b * 4), *c = malloc(size_c * 4), *dc, *r, alpha = 0.75f;

    for (size_t i = 0; i < size_a; i++)
        a[i] = (float)(random32() % 2001) / 1000 - 1;
    for (size_t i = 0; i < size_b; i++)
        b[i] = (float)(random32() % 2001) / 1000 - 1;
    for (size_t i = 0; i < size_c; i++)
        c[i] = beta == 0 ? NAN : (float)(random32() % 2001) / 1000 - 1;
    dc = to_device(c, size_c * 4);
    REQUIRE(cublasSgemm(h, ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb ? CUBLAS_OP_T : CUBLAS_OP_N, m, n, k, &alpha,
                        to_device(a, size_a * 4), lda, to_device(b, size_b * 4), ldb, &beta, dc,
                        ldc) == CUBLAS_STATUS_SUCCESS);
    r = from_device(dc, size_c * 4);
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) {
            double want = 0, size = 0;
            for (int p = 0; p < k; p++) {
                want += at(a, ta, lda, i, p) * at(b, tb, ldb, p, j);
                size += fabs(at(a, ta, lda, i, p) * at(b, tb, ldb, p, j));
            }
            want = (double)alpha * want + (beta == 0 ? 0 : (double)beta * (double)c[i + j * ldc]);
            REQUIRE(fabs((double)r[i + j * ldc] - want) <= 1e-6 * (size + 1));
        }
    REQUIRE(n < 2 || memcmp(&r[m], &c[m], 8) == 0); /* between columns nothing is written */
}

static void case_gemm(int argc, char **argv)
{
    const int shapes[][3] = {{1, 1, 1}, {37, 29, 53}, {32, 4, 300}, {5, 70, 1}, {64, 33, 17}};
    float one = 1, zero = 0, x[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, *d, *out = device_memory(64),
          *r;
    cublasHandle_t h;

    (void)argc, (void)argv;
    REQUIRE(cublasCreate(&h) == CUBLAS_STATUS_SUCCESS);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 0; t < 4; t++) {
            check_gemm(h, t & 1, t >> 1, shapes[i][0], shapes[i][1], shapes[i][2], 0);
            check_gemm(h, t & 1, t >> 1, shapes[i][0], shapes[i][1], shapes[i][2], -0.5f);
        }

    d = to_device(x, sizeof x); /* three products of 2x1 and 1x2 */
    REQUIRE(cublasSgemmStridedBatched(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 1, &one, d, 2, 4, d + 2, 1, 4, &zero,
                                      out, 2, 4, 3) == CUBLAS_STATUS_SUCCESS);
    r = from_device(out, 48);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 4; j++)
            REQUIRE(r[4 * i + j] == x[4 * i + j % 2] * x[4 * i + 2 + j / 2]);
    REQUIRE(cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 1, 2, &one, d, CUDA_R_32F, 2, d, CUDA_R_32F, 2,
                         &zero, out, CUDA_R_32F, 2, CUBLAS_COMPUTE_32F,
                         CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
    r = from_device(out, 8);
    REQUIRE(r[0] == 1 * 1 + 3 * 2 && r[1] == 2 * 1 + 4 * 2);
    REQUIRE(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 4, 1, 1, &one, d, 3, d, 1, &zero, out, 4) ==
            CUBLAS_STATUS_INVALID_VALUE);
    REQUIRE(cublasDestroy(h) == CUBLAS_STATUS_SUCCESS);
}

/* Rounds to the nearest number with `bits` significant bits, in another way than the simulator. */
static double significant(double x, int bits)
{
    int exponent;
    const double fraction = frexp(x, &exponent);

    return ldexp(rint(ldexp(fraction, bits)), exponent - bits);
}

/* Small numbers with few bits, which every type holds exactly. */
static double small_number(void)
{
    return (double)(int)(random32() % 33) / 8 - 2;
}

/* Writes the number x, which has few bits, as element `i` of an array of this type. */
static void put(void *array, cudaDataType type, size_t i, double x)
{
    const float f = (float)x;
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    if (type == CUDA_R_32F)
        ((float *)array)[i] = f;
    else if (type == CUDA_R_16BF)
        ((uint16_t *)array)[i] = (uint16_t)(bits >> 16);
    else /* 0 or a normal number */
        ((uint16_t *)array)[i] =
            (uint16_t)(x == 0 ? 0 : (bits >> 16 & 0x8000) | ((bits >> 13 & 0x3ffff) - (112u << 10)));
}

static double get(const void *array, cudaDataType type, size_t i)
{
    const uint16_t v = type == CUDA_R_32F ? 0 : ((const uint16_t *)array)[i];
    const uint32_t bits = (uint32_t)v << 16;
    float f;

    if (type == CUDA_R_32F)
        return (double)((const float *)array)[i];
    memcpy(&f, &bits, sizeof f);
    if (type == CUDA_R_16BF)
        return (double)f;
    return (v >> 15 ? -1 : 1) *
           (v >> 10 & 31 ? ldexp((v & 1023) + 1024, (v >> 10 & 31) - 25) : ldexp(v & 1023, -24));
}

/* c = a * b + beta * c, a[m][k] and b[k][n] column-major; all sums are exact in float. */
static void check_gemm_types(cublasHandle_t h, cudaDataType type, cudaDataType c_type, float beta)
{
    enum { M = 37, N_ = 9, K = 50 };
    const size_t size = type == CUDA_R_32F ? 4 : 2, c_size = c_type == CUDA_R_32F ? 4 : 2;
    const int bits = c_type == CUDA_R_32F ? 24 : c_type == CUDA_R_16BF ? 8 : 11;
    double a[M * K], b[K * N_], c[M * N_];
    void *ha = malloc(M * K * size), *hb = malloc(K * N_ * size), *hc = malloc(M * N_ * c_size), *dc, *r;
    const float one = 1;

    REQUIRE(ha && hb && hc);
    for (size_t i = 0; i < M * K; i++)
        put(ha, type, i, a[i] = small_number());
    for (size_t i = 0; i < K * N_; i++)
        put(hb, type, i, b[i] = small_number());
    for (size_t i = 0; i < M * N_; i++)
        put(hc, c_type, i, c[i] = small_number());
    dc = to_device(hc, M * N_ * c_size);
    REQUIRE(cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, M, N_, K, &one, to_device(ha, M * K * size), type, M,
                         to_device(hb, K * N_ * size), type, K, &beta, dc, c_type, M, CUBLAS_COMPUTE_32F,
                         CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
    r = from_device(dc, M * N_ * c_size);
    for (size_t j = 0; j < N_; j++)
        for (size_t i = 0; i < M; i++) {
            double want = (double)beta * c[i + j * M];
            for (size_t p = 0; p < K; p++)
                want += a[i + p * M] * b[p + j * K];
            REQUIRE(get(r, c_type, i + j * M) == significant(want, bits));
        }
    free(ha);
    free(hb);
    free(hc);
    free(r);
}

/* Products of 16-bit numbers, and of floats that the product rounds to TF32. */
static void case_gemm_types(int argc, char **argv)
{
    const cudaDataType halves[] = {CUDA_R_16BF, CUDA_R_16F};
    const float one = 1, zero = 0, x[2] = {1 + 0x1p-11f + 0x1p-20f, 3};
    float *d = to_device(x, sizeof x), *out = device_memory(4), *r;
    cublasHandle_t h;

    (void)argc, (void)argv;
    REQUIRE(cublasCreate(&h) == CUBLAS_STATUS_SUCCESS);
    check_gemm_types(h, CUDA_R_32F, CUDA_R_32F, 1);
    for (int i = 0; i < 2; i++) {
        check_gemm_types(h, halves[i], halves[i], 0);
        check_gemm_types(h, halves[i], halves[i], 0.5f);
        check_gemm_types(h, halves[i], CUDA_R_32F, 0);
        check_gemm_types(h, halves[i], CUDA_R_32F, 1);
        REQUIRE(cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, d, halves[i], 1, d, halves[1 - i], 1,
                             &zero, out, CUDA_R_32F, 1, CUBLAS_COMPUTE_32F,
                             CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_NOT_SUPPORTED);
        REQUIRE(cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, d, CUDA_R_32F, 1, d, CUDA_R_32F, 1,
                             &zero, out, halves[i], 1, CUBLAS_COMPUTE_32F,
                             CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_NOT_SUPPORTED);
    }
    REQUIRE(cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, d, CUDA_R_32F, 1, d + 1, CUDA_R_32F, 1,
                         &zero, out, CUDA_R_32F, 1, CUBLAS_COMPUTE_32F_FAST_TF32,
                         CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
    r = from_device(out, 4);
    REQUIRE(*r == 3 * (1 + 0x1p-10f));
    REQUIRE(cublasDestroy(h) == CUBLAS_STATUS_SUCCESS);
}

int main(int argc, char **argv)
{
    static const struct program_case cases[] = {
        {"add", case_add},
        {"atomics", case_atomics},
        {"convert", case_convert},
        {"exact", case_exact},
        {"functions", case_functions},
        {"gemm", case_gemm},
        {"gemm-types", case_gemm_types},
        {"ieee", case_ieee},
        {"ieee-double", case_ieee_double},
        {"integers", case_integers},
        {"mixed", case_mixed},
        {"philox", case_philox},
        {"reduce", case_reduce},
        {"warp", case_warp},
    };

    return program_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
