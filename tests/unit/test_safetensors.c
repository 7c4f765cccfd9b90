/* Tests of safetensors files: written files read back and follow the format, and hostile files are
 * refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/json.h"
#include "base/rng.h"
#include "daemon/worker/model/safetensors.h"
#include "kernels/half.h"

/* ------------------------------------------------------------------------------------------ helpers */

static int new_file(void)
{
    int fd = memfd_create("test", MFD_CLOEXEC);

    assert_true(fd >= 0);
    return fd;
}

/* A file with this header and `data` zero bytes after it. */
static int file_of(const char *header, size_t header_bytes, size_t data)
{
    uint64_t n = header_bytes;
    int fd = new_file();

    assert_int_equal(write(fd, &n, 8), 8);
    assert_int_equal(write(fd, header, header_bytes), header_bytes);
    assert_int_equal(ftruncate(fd, (off_t)(8 + header_bytes + data)), 0);
    return fd;
}

static struct safetensors *open_good(int fd)
{
    struct safetensors *f = NULL;
    struct err err;

    if (safetensors_open(fd, "x.safetensors", &f, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    return f;
}

static void check_refused(int fd, const char *part)
{
    struct safetensors *f = (struct safetensors *)&f;
    struct err err = {0};
    int r = safetensors_open(fd, "x.safetensors", &f, &err);

    if (r >= 0)
        fail_msg("accepted; expected \"%s\"", part);
    if (r != -EBADMSG || strcmp(err.path, "x.safetensors") != 0 || !strstr(err.msg, part))
        fail_msg("expected \"%s\", found %d at \"%s\": %s", part, r, err.path, err.msg);
    assert_ptr_equal(f, &f);
    close(fd);
}

static float values[24];
static const struct st_tensor tensors[] = {
    {.name = "layers.0.weight", .rank = 2, .shape = {3, 4}, .data = values},
    {.name = "layers.0.bias", .rank = 1, .shape = {3}, .data = values + 12},
    {.name = "empty", .rank = 2, .shape = {0, 7}, .data = NULL},
    {.name = "scalar \"quoted\" \xc3\xa9", .rank = 0, .data = values + 15},
    {.name = "cube", .rank = 3, .shape = {2, 2, 2}, .data = values + 16},
};
enum { N_TENSORS = sizeof tensors / sizeof tensors[0] };
static const struct st_meta meta[] = {{"format", "pt"}, {"note", "a \"b\"\n"}};

static int write_good(uint64_t *bytes, uint32_t *crc)
{
    int fd = new_file();

    for (int i = 0; i < 24; i++)
        values[i] = (float)i * 0.5f;
    assert_int_equal(safetensors_write(fd, "x", tensors, N_TENSORS, meta, 2, bytes, crc, NULL), 0);
    return fd;
}

/* --------------------------------------------------------------------------------------- writing, reading */

static void test_what_is_written_reads_back(void **state)
{
    struct safetensors *f;
    float back[24];
    int fd = write_good(NULL, NULL);

    (void)state;
    f = open_good(fd);
    assert_int_equal(safetensors_count(f), N_TENSORS);
    assert_string_equal(safetensors_meta(f, "format"), "pt");
    assert_string_equal(safetensors_meta(f, "note"), "a \"b\"\n");
    assert_null(safetensors_meta(f, "other"));
    for (int i = 0; i < N_TENSORS; i++) {
        struct st_tensor t = tensors[i];
        size_t n = 1;
        for (uint32_t k = 0; k < t.rank; k++)
            n *= t.shape[k];
        memset(back, 0xff, sizeof back);
        t.data = back;
        assert_int_equal(safetensors_read_tensor(f, &t, NULL), 0);
        if (n > 0)
            assert_memory_equal(back, tensors[i].data, n * sizeof(float));
    }
    assert_null(safetensors_find(f, "layers.0"));
    safetensors_close(f);
    close(fd);
}

static void test_size_and_checksum_are_of_the_file(void **state)
{
    uint64_t bytes;
    uint32_t crc;
    int fd = write_good(&bytes, &crc);
    char all[4096];

    (void)state;
    assert_int_equal(pread(fd, all, sizeof all, 0), bytes);
    assert_int_equal(crc32c(0, all, bytes), crc);
    close(fd);
}

static void test_header_is_json_padded_to_eight(void **state)
{
    int fd = write_good(NULL, NULL);
    struct json *doc;
    char all[4096];
    uint64_t n;

    (void)state;
    assert_true(pread(fd, all, sizeof all, 0) > 0);
    memcpy(&n, all, 8);
    assert_int_equal(n % 8, 0);
    assert_int_equal(all[8], '{');
    assert_int_equal(json_parse(all + 8, n, "header", false, &doc, NULL), 0);
    assert_non_null(json_get(json_get(doc, "__metadata__"), "format"));
    assert_int_equal(json_array_size(json_get(json_get(doc, "cube"), "shape")), 3);
    json_free(doc);
    close(fd);
}

static void test_file_without_tensors_is_legal(void **state)
{
    struct safetensors *f;
    int fd = new_file();

    (void)state;
    assert_int_equal(safetensors_write(fd, "x", NULL, 0, NULL, 0, NULL, NULL, NULL), 0);
    f = open_good(fd);
    assert_int_equal(safetensors_count(f), 0);
    assert_null(safetensors_find(f, ""));
    safetensors_close(f);
    close(fd);
}

static void test_zero_sizes_and_spaces_at_the_end_are_legal(void **state)
{
    static const char header[] = "{\"b\":{\"dtype\":\"F32\",\"shape\":[0,4294967296],\"data_offsets\":[4,4]},"
                                 "\"a\":{\"dtype\":\"F16\",\"shape\":[2,1],\"data_offsets\":[0,4]},"
                                 "\"c\":{\"dtype\":\"U64\",\"shape\":[0],\"data_offsets\":[0,0]},"
                                 "\"d\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[4,5]}}         ";
    int fd = file_of(header, sizeof header - 1, 5);
    struct safetensors *f = open_good(fd);

    (void)state;
    assert_int_equal(safetensors_count(f), 4);
    assert_string_equal(safetensors_at(f, 0)->name, "c");
    assert_string_equal(safetensors_at(f, 3)->name, "d");
    assert_int_equal(safetensors_find(f, "d")->rank, 0);
    safetensors_close(f);
    close(fd);
}

static void test_transposed_tensors_are_turned(void **state)
{
    static const uint64_t shapes[][2] = {{3, 5}, {1, 7}, {7, 1}, {0, 4}, {4, 0}, {1000, 700}, {2, 300000}};
    struct st_map map;

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        uint64_t a = shapes[i][0], b = shapes[i][1];
        float *at = malloc((a * b + 1) * sizeof *at);
        for (uint64_t k = 0; k < a * b; k++)
            at[k] = (float)k;
        struct st_tensor t = {.name = "t", .rank = 2, .shape = {a, b}, .data = at, .transposed = true};
        int fd = new_file();
        assert_int_equal(safetensors_write(fd, "x", &t, 1, NULL, 0, NULL, NULL, NULL), 0);
        struct safetensors *f = open_good(fd);
        assert_int_equal(safetensors_map(f, &map, NULL), 0);
        assert_int_equal(map.n, 1);
        assert_memory_equal(map.tensors[0].shape, t.shape, sizeof t.shape);
        for (uint64_t r = 0; r < a; r++)
            for (uint64_t c = 0; c < b; c++)
                assert_true(((const float *)map.tensors[0].data)[r * b + c] == at[c * a + r]);
        st_map_finish(&map);
        safetensors_close(f);
        close(fd);
        free(at);
    }
}

/* Floats are rounded to 16 bits while they are written, also if they are transposed in memory, and while they
 * are read. Both agree with half_round, whatever the blocks. */
static void test_floats_are_rounded_on_the_way(void **state)
{
    static const uint64_t shapes[][2] = {{3, 5}, {0, 4}, {1000, 700}, {2, 300000}};
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16};

    (void)state;
    for (size_t i = 0; i < 16; i++) {
        uint64_t a = shapes[i / 4][0], b = shapes[i / 4][1], n = a * b;
        enum dtype dtype = types[i % 2];
        bool transposed = i / 2 % 2 != 0;
        float *at = malloc((n + 1) * sizeof *at), *plain = malloc((n + 1) * sizeof *at);
        uint16_t *want = malloc((n + 1) * sizeof *want), *found = malloc((n + 1) * sizeof *found);
        for (uint64_t k = 0; k < n; k++)
            plain[k] = (float)(k % 60000) * 1.0001f - 30000;
        for (uint64_t r = 0; r < a; r++)
            for (uint64_t c = 0; c < b; c++)
                at[transposed ? c * a + r : r * b + c] = plain[r * b + c];
        half_round(dtype, plain, want, n);
        struct st_tensor t = {.name = "t",
                              .dtype = dtype,
                              .rank = 2,
                              .shape = {a, b},
                              .data = at,
                              .transposed = transposed,
                              .rounded = true};
        int fd = new_file();
        assert_int_equal(safetensors_write(fd, "x", &t, 1, NULL, 0, NULL, NULL, NULL), 0);
        struct safetensors *f = open_good(fd);
        t = (struct st_tensor){.name = "t", .dtype = dtype, .rank = 2, .shape = {a, b}, .data = found};
        assert_int_equal(safetensors_read_tensor(f, &t, NULL), 0);
        assert_true(n == 0 || memcmp(found, want, n * sizeof *want) == 0);
        assert_int_equal(safetensors_read_rounded(f, &t, NULL), 0);
        safetensors_close(f);
        close(fd);
        t = (struct st_tensor){.name = "t", .rank = 2, .shape = {a, b}, .data = plain};
        fd = new_file();
        assert_int_equal(safetensors_write(fd, "x", &t, 1, NULL, 0, NULL, NULL, NULL), 0);
        f = open_good(fd);
        memset(found, 0, (n + 1) * sizeof *found);
        t = (struct st_tensor){.name = "t", .dtype = dtype, .rank = 2, .shape = {a, b}, .data = found};
        assert_int_equal(safetensors_read_tensor(f, &t, NULL), -EINVAL);
        assert_int_equal(safetensors_read_rounded(f, &t, NULL), 0);
        assert_true(n == 0 || memcmp(found, want, n * sizeof *want) == 0);
        t.shape[0] = a + 1;
        assert_int_equal(safetensors_read_rounded(f, &t, NULL), -EINVAL);
        t.name = "other";
        assert_int_equal(safetensors_read_rounded(f, &t, NULL), -ENOENT);
        safetensors_close(f);
        close(fd);
        free(at);
        free(plain);
        free(want);
        free(found);
    }
}

static void test_numbers_beyond_fp16_are_refused(void **state)
{
    float at[] = {1, -65519, NAN, INFINITY, 65520, 2};
    struct st_tensor t = {
        .name = "big", .dtype = DTYPE_F16, .rank = 1, .shape = {4}, .data = at, .rounded = true};
    struct err err = {0};
    int fd = new_file();

    (void)state;
    assert_int_equal(safetensors_write(fd, "x", &t, 1, NULL, 0, NULL, NULL, &err), 0);
    t.shape[0] = 6;
    assert_int_equal(safetensors_write(fd, "x", &t, 1, NULL, 0, NULL, NULL, &err), -ERANGE);
    assert_non_null(strstr(err.msg, "\"big\" has the element 65520"));
    t.dtype = DTYPE_BF16;
    assert_int_equal(safetensors_write(fd, "x", &t, 1, NULL, 0, NULL, NULL, &err), 0);
    close(fd);
}

static void test_mapped_tensors_are_those_of_the_file(void **state)
{
    int fd = write_good(NULL, NULL);
    struct safetensors *f = open_good(fd);
    struct st_map map = {0};

    (void)state;
    st_map_finish(&map);
    assert_int_equal(safetensors_map(f, &map, NULL), 0);
    assert_int_equal(map.n, N_TENSORS);
    for (size_t i = 0; i < map.n; i++) {
        const struct st_entry *e = safetensors_find(f, map.tensors[i].name);
        float back[24];
        assert_int_equal(safetensors_read(f, e, back, NULL), 0);
        assert_memory_equal(map.tensors[i].data, back, e->end - e->begin);
    }
    st_map_finish(&map);
    safetensors_close(f);
    close(fd);
}

static void test_files_that_cannot_be_mapped_say_why(void **state)
{
    static const char odd[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}} ";
    static const char half[] = "{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}";
    struct st_map map;
    struct err err;
    struct safetensors *f;
    int fd;

    (void)state;
    for (size_t n = sizeof odd - 2; n < sizeof odd;
         n++) { /* with and without the space: one is no multiple of 4 */
        fd = file_of(odd, n, 4);
        f = open_good(fd);
        int r = safetensors_map(f, &map, &err);
        assert_int_equal(r, n % 4 == 0 ? 0 : -EINVAL);
        if (r == 0)
            st_map_finish(&map);
        else
            assert_non_null(strstr(err.msg, "multiple of 4"));
        safetensors_close(f);
        close(fd);
    }
    fd = file_of(half, sizeof half - 1, 4);
    f = open_good(fd);
    assert_int_equal(safetensors_map(f, &map, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "\"a\" is F16"));
    safetensors_close(f);
    close(fd);
}

static void test_other_shapes_are_refused(void **state)
{
    int fd = write_good(NULL, NULL);
    struct safetensors *f = open_good(fd);
    struct st_tensor t = tensors[0];
    struct err err;

    (void)state;
    t.shape[1] = 5;
    assert_int_equal(safetensors_read_tensor(f, &t, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "[3,4]"));
    assert_non_null(strstr(err.msg, "[3,5]"));
    t = tensors[1];
    t.rank = 2;
    assert_int_equal(safetensors_read_tensor(f, &t, &err), -EINVAL);
    t.name = "layers.9.weight";
    assert_int_equal(safetensors_read_tensor(f, &t, &err), -ENOENT);
    assert_non_null(strstr(err.msg, "layers.9.weight"));
    safetensors_close(f);
    close(fd);
}

/* Tensors of every type, as they are and transposed, come back with the same bytes and the same type. */
static void test_every_dtype_is_written(void **state)
{
    enum { ROWS = 5, COLUMNS = 3, MOST = ROWS * COLUMNS * 8 };
    unsigned char plain[MOST], turned[MOST], back[MOST];

    (void)state;
    for (int d = 0; d < DTYPE_COUNT; d++) {
        const size_t size = dtype_size((enum dtype)d), bytes = ROWS * COLUMNS * size;
        for (size_t i = 0; i < bytes; i++)
            plain[i] = (unsigned char)(i * 37 + (size_t)d);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t c = 0; c < COLUMNS; c++)
                memcpy(turned + (c * ROWS + r) * size, plain + (r * COLUMNS + c) * size, size);
        for (int transposed = 0; transposed < 2; transposed++) {
            struct st_tensor t = {.name = "t", .dtype = (enum dtype)d, .rank = 2, .shape = {ROWS, COLUMNS}};
            t.data = transposed ? turned : plain;
            t.transposed = transposed != 0;
            int fd = new_file();
            assert_int_equal(safetensors_write(fd, "x", &t, 1, NULL, 0, NULL, NULL, NULL), 0);
            struct safetensors *f = open_good(fd);
            assert_int_equal(safetensors_at(f, 0)->dtype, d);
            t.data = back;
            assert_int_equal(safetensors_read_tensor(f, &t, NULL), 0);
            assert_memory_equal(back, plain, bytes);
            t.dtype = (enum dtype)((d + 1) % DTYPE_COUNT);
            assert_int_equal(safetensors_read_tensor(f, &t, NULL), -EINVAL);
            safetensors_close(f);
            close(fd);
        }
    }
}

static void test_every_dtype_is_read(void **state)
{
    char header[256];
    unsigned char data[8];

    (void)state;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        int n = snprintf(header, sizeof header,
                         "{\"a\" : {\"shape\":[1],\"data_offsets\":[0,%u],\"dtype\":\"%s\"}} ",
                         dtype_sizes[i], dtype_names[i]);
        int fd = file_of(header, (size_t)n, dtype_sizes[i]);
        struct safetensors *f = open_good(fd);
        assert_int_equal(safetensors_at(f, 0)->dtype, i);
        assert_int_equal(safetensors_read(f, safetensors_find(f, "a"), data, NULL), 0);
        safetensors_close(f);
        close(fd);
    }
}

static void test_escapes_are_read(void **state)
{
    static const char header[] = "{\"__metadata__\":{\"\\u0041\\n\":\"\\ud83d\\ude00\\/\\\"\\u00e9\"}}";
    int fd = file_of(header, sizeof header - 1, 0);
    struct safetensors *f = open_good(fd);

    (void)state;
    assert_string_equal(safetensors_meta(f, "A\n"), "\xf0\x9f\x98\x80/\"\xc3\xa9");
    safetensors_close(f);
    close(fd);
}

/* ------------------------------------------------------------------------------------------ hostile */

#define T(name, shape, begin, end)                                                                           \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static const struct {
    const char *header;
    size_t data;
    const char *part;
} hostile[] = {
    {"", 0, "begin with '{'"},
    {" {}", 0, "begin with '{'"},
    {"[]", 0, "begin with '{'"},
    {"{", 0, "expected"},
    {"{}x", 0, "follows the header's end"},
    {"{}\n", 0, "follows the header's end"},
    {"{} \t", 0, "follows the header's end"},
    {"{\"a\"}", 0, "expected ':'"},
    {"{\"a\":{}}", 0, "expected"},
    {"{\"a\":null}", 0, "expected '{'"},
    {"{\"a\":{\"dtype\":\"F32\"}}", 0, "lacks"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"x\":1}}", 4, "unknown key"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "twice"},
    {"{\"a\":{\"dtype\":\"F33\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "unknown dtype"},
    {"{" T("a", "[1]", "0", "4") ",}", 4, "expected '\"'"},
    {"{" T("a", "[1]", "0", "4") " " T("b", "[1]", "4", "8") "}", 8, "expected"},
    {"{" T("a", "[1,]", "0", "4") "}", 4, "whole number"},
    {"{" T("a", "[-1]", "0", "4") "}", 4, "whole number"},
    {"{" T("a", "[1.0]", "0", "4") "}", 4, "expected"},
    {"{" T("a", "[01]", "0", "4") "}", 4, "whole number"},
    {"{" T("a", "[1e0]", "0", "4") "}", 4, "expected"},
    {"{" T("a", "[1]", "0", "18446744073709551616") "}", 4, "too large"},
    {"{" T("a", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, "more than 8"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "more than 2"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4]}}", 4, "not two numbers"},
    /* layout */
    {"{" T("a", "[1]", "0", "4") "," T("a", "[1]", "4", "8") "}", 8, "\"a\" occurs twice"},
    {"{" T("a", "[1]", "0", "4") "," T("b", "[1]", "0", "4") "}", 4, "gaps and overlaps"},
    {"{" T("a", "[1]", "0", "4") "," T("b", "[1]", "8", "12") "}", 12, "gaps and overlaps"},
    {"{" T("a", "[2]", "0", "8") "," T("b", "[1]", "4", "8") "}", 8, "gaps and overlaps"},
    {"{" T("a", "[1]", "4", "8") "}", 8, "gaps and overlaps"},
    {"{" T("a", "[1]", "4", "0") "}", 4, "gaps and overlaps"},
    {"{" T("a", "[2]", "0", "4") "}", 4, "shape"},
    {"{" T("a", "[4294967296,4294967296]", "0", "0") "}", 0, "shape"},
    {"{" T("a", "[1]", "0", "4") "}", 3, "describes 4 bytes of data, but the file has 3"},
    {"{" T("a", "[1]", "0", "4") "}", 5, "describes 4 bytes of data, but the file has 5"},
    {"{}", 1, "describes 0 bytes"},
    /* metadata */
    {"{\"__metadata__\":{\"a\":1}}", 0, "expected '\"'"},
    {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "metadata \"a\" occurs twice"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "occurs twice"},
    {"{\"__metadata__\":[]}", 0, "expected '{'"},
    /* strings */
    {"{\"a", 0, "without end"},
    {"{\"a\\", 0, "without end"},
    {"{\"\\x\":1}", 0, "bad escape"},
    {"{\"\\u12\":1}", 0, "escape"},
    {"{\"\\u0000\":1}", 0, "not a character"},
    {"{\"\\ud800\":1}", 0, "surrogate"},
    {"{\"\\ud800\\u0041\":1}", 0, "surrogate"},
    {"{\"\\udc00\":1}", 0, "not a character"},
    {"{\"\xff\":1}", 0, "not allowed"},
    {"{\"a\nb\":1}", 0, "not allowed"},
    {"{" T("a\\u202e", "[1]", "0", "4") "}", 4, "contains U+202E"},
    {"{" T("\xC2\x9B"
           "2J",
           "[1]", "0", "4") "}",
     4, "contains U+009B"},
};

static void test_hostile_headers_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++)
        check_refused(file_of(hostile[i].header, strlen(hostile[i].header), hostile[i].data),
                      hostile[i].part);
}

static void test_hostile_lengths_are_refused(void **state)
{
    static const uint64_t lengths[] = {3, 100, 99999999, 100000001, 1ull << 40, UINT64_MAX, UINT64_MAX - 7};

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        int fd = new_file();
        assert_int_equal(write(fd, &lengths[i], 8), 8);
        assert_int_equal(write(fd, "{}", 2), 2);
        check_refused(fd, "claims");
    }
    for (off_t n = 0; n < 8; n++) {
        int fd = new_file();
        assert_int_equal(ftruncate(fd, n), 0);
        check_refused(fd, "at least 8");
    }
}

static void test_truncation_at_every_length_is_refused(void **state)
{
    uint64_t bytes;
    int fd = write_good(&bytes, NULL);
    struct safetensors *f;

    (void)state;
    while (bytes-- > 0) {
        assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
        assert_int_equal(safetensors_open(fd, "x", &f, NULL), -EBADMSG);
    }
    close(fd);
}

static void test_mutated_headers_never_crash(void **state)
{
    uint64_t bytes, header;
    int fd = write_good(&bytes, NULL);
    char good[4096], bad[4096];
    struct rng r = {.seed = 5};
    struct safetensors *f;

    (void)state;
    assert_int_equal(pread(fd, good, sizeof good, 0), bytes);
    memcpy(&header, good, 8);
    for (int i = 0; i < 20000; i++) {
        memcpy(bad, good, bytes);
        for (uint32_t k = 0; k <= rng_below(&r, 3); k++)
            bad[8 + rng_below(&r, (uint32_t)header)] =
                i % 2 ? (char)rng_next(&r) : "{}[]\",:0123456789 \\u"[rng_below(&r, 20)];
        assert_int_equal(pwrite(fd, bad, bytes, 0), bytes);
        if (safetensors_open(fd, "x", &f, NULL) == 0) {
            for (size_t t = 0; t < safetensors_count(f); t++) {
                const struct st_entry *e = safetensors_at(f, t);
                void *p = malloc(e->end - e->begin + 1);
                assert_int_equal(safetensors_read(f, e, p, NULL), 0);
                free(p);
            }
            safetensors_close(f);
        }
    }
    close(fd);
}

static void test_write_failure_names_the_file(void **state)
{
    struct err err;
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(safetensors_write(fds[0], "out/x", tensors, N_TENSORS, NULL, 0, NULL, NULL, &err),
                     -EBADF);
    assert_string_equal(err.path, "out/x");
    close(fds[0]);
    close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_written_reads_back),
        cmocka_unit_test(test_size_and_checksum_are_of_the_file),
        cmocka_unit_test(test_header_is_json_padded_to_eight),
        cmocka_unit_test(test_file_without_tensors_is_legal),
        cmocka_unit_test(test_zero_sizes_and_spaces_at_the_end_are_legal),
        cmocka_unit_test(test_transposed_tensors_are_turned),
        cmocka_unit_test(test_floats_are_rounded_on_the_way),
        cmocka_unit_test(test_numbers_beyond_fp16_are_refused),
        cmocka_unit_test(test_mapped_tensors_are_those_of_the_file),
        cmocka_unit_test(test_files_that_cannot_be_mapped_say_why),
        cmocka_unit_test(test_other_shapes_are_refused),
        cmocka_unit_test(test_every_dtype_is_written),
        cmocka_unit_test(test_every_dtype_is_read),
        cmocka_unit_test(test_escapes_are_read),
        cmocka_unit_test(test_hostile_headers_are_refused),
        cmocka_unit_test(test_hostile_lengths_are_refused),
        cmocka_unit_test(test_truncation_at_every_length_is_refused),
        cmocka_unit_test(test_mutated_headers_never_crash),
        cmocka_unit_test(test_write_failure_names_the_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
