/* Tests of token files: every form of file and every refusal, samples that span several files, ignored
 * targets, ids beyond the vocabulary, files that change while they are read, synthetic tokens, and the data
 * section of the spec. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/rng.h"
#include "daemon/spec/spec_private.h"
#include "daemon/worker/data/data.h"
#include "daemon/worker/data/tokens.h"
#include "tests/skip.h"

enum { MAGIC_16 = 20240520, MAGIC_32 = 20240801, N_PATHS = 4 };

/* ------------------------------------------------------------------------------------------ helpers */

static char dir[] = "/tmp/test_tokens_XXXXXX";
static char paths[N_PATHS][64];

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    for (int i = 0; i < N_PATHS; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%d.bin", dir, i);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < N_PATHS; i++)
        unlink(paths[i]);
    return rmdir(dir);
}

static void put_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void put_number(uint8_t *p, uint32_t v, uint32_t width)
{
    for (uint32_t k = 0; k < width; k++)
        p[k] = (uint8_t)(v >> (8 * k));
}

/* A file in memory: `magic` 0: raw. */
struct file {
    uint8_t bytes[8192];
    size_t n;
};

static void begin(struct file *f, uint32_t magic, uint32_t count)
{
    memset(f, 0, sizeof *f);
    if (magic == 0)
        return;
    put_number(f->bytes, magic, 4);
    put_number(f->bytes + 4, magic == MAGIC_16 ? 1 : 7, 4);
    put_number(f->bytes + 8, count, 4);
    f->n = TOKENS_HEADER_BYTES;
}

static void add(struct file *f, uint32_t v, uint32_t width)
{
    assert_true(f->n + width <= sizeof f->bytes);
    put_number(f->bytes + f->n, v, width);
    f->n += width;
}

/* Token i of the files below. */
static uint32_t token(uint32_t i, uint32_t width)
{
    uint32_t v = i * 2654435761u + 12345;
    return width == 1 ? v >> 24 : width == 2 ? v >> 16 : v >> 1;
}

static struct file make_file(uint32_t magic, uint32_t width, uint32_t count)
{
    struct file f;

    begin(&f, magic, count);
    for (uint32_t i = 0; i < count; i++)
        add(&f, token(i, width), width);
    return f;
}

static void put(int path, const struct file *f)
{
    put_file(paths[path], f->bytes, f->n);
}

static void check_refused(uint32_t width, int code, const char *part)
{
    struct token_file f = {.count = 77};
    struct err err = {0};
    int r = tokens_open(paths[0], "data.train", width, &f, &err);

    if (r >= 0)
        fail_msg("accepted; expected \"%s\"", part);
    if (r != code || strcmp(err.path, paths[0]) != 0 || !strstr(err.msg, part) ||
        !strstr(err.msg, "data.train"))
        fail_msg("expected %d with \"%s\", found %d at \"%s\": %s", code, part, r, err.path, err.msg);
    assert_int_equal(f.count, 77);
}

static struct token_file open_good(uint32_t width)
{
    struct token_file f = {0};
    struct err err;

    if (tokens_open(paths[0], "data.train", width, &f, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    return f;
}

/* ------------------------------------------------------------------------------------------ forms */

static void test_every_form_is_read(void **state)
{
    static const struct {
        uint32_t magic, asked, width;
    } forms[] = {{MAGIC_16, 0, 2}, {MAGIC_16, 2, 2}, {MAGIC_32, 0, 4}, {MAGIC_32, 4, 4},
                 {0, 0, 2},        {0, 2, 2},        {0, 4, 4},        {0, 1, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        for (uint32_t count = 1; count < 300; count += 37) {
            struct file content = make_file(forms[i].magic, forms[i].width, count);
            struct token_file f;
            put(0, &content);
            f = open_good(forms[i].asked);
            assert_int_equal(f.count, count);
            assert_int_equal(f.width, forms[i].width);
            assert_int_equal(f.bytes, content.n);
            for (uint32_t k = 0; k < count; k++)
                assert_int_equal(tokens_at(&f, k), token(k, f.width));
            assert_int_equal(tokens_check(&f, NULL), 0);
            tokens_close(&f);
            tokens_close(&f);
        }
    }
}

/* A header is a text like any other where bytes are asked for. */
static void test_bytes_are_those_of_any_file(void **state)
{
    struct file content = make_file(MAGIC_16, 2, 3);
    struct token_file f;

    (void)state;
    put(0, &content);
    f = open_good(1);
    assert_int_equal(f.count, content.n);
    assert_int_equal(tokens_at(&f, 0), MAGIC_16 & 0xff);
    tokens_close(&f);
    put_file(paths[0], "x", 1);
    f = open_good(1);
    assert_int_equal(f.count, 1);
    assert_int_equal(tokens_at(&f, 0), 'x');
    tokens_close(&f);
}

static void test_tokens_are_read_at_any_address(void **state)
{
    uint8_t bytes[64];

    (void)state;
    for (int i = 0; i < 64; i++)
        bytes[i] = (uint8_t)(200 + i);
    for (uint32_t shift = 0; shift < 4; shift++) {
        for (uint32_t width = 1; width <= 4; width *= 2) {
            struct token_file f = {.data = bytes + shift, .width = width, .count = 60 / width};
            for (uint64_t i = 0; i < f.count; i++) {
                uint64_t expected = 0;
                for (uint32_t k = 0; k < width; k++)
                    expected |= (uint64_t)bytes[shift + i * width + k] << (8 * k);
                assert_int_equal(tokens_at(&f, i), expected);
            }
        }
    }
}

static void test_advice_for_any_window_is_taken(void **state)
{
    struct file content = make_file(MAGIC_16, 2, 3000);
    struct token_file f;

    (void)state;
    put(0, &content);
    f = open_good(0);
    tokens_advise(&f, 0, 3000);
    tokens_advise(&f, 2999, 1);
    tokens_advise(&f, 2999, UINT64_MAX);
    tokens_advise(&f, 3000, 1);
    tokens_advise(&f, UINT64_MAX, UINT64_MAX);
    tokens_advise(&f, 5, 0);
    assert_int_equal(tokens_at(&f, 2999), token(2999, 2));
    tokens_close(&f);
}

/* ------------------------------------------------------------------------------------------ checksums */

static uint32_t crc_of(uint32_t width)
{
    struct token_file f = open_good(width);
    uint32_t crc = f.crc;

    tokens_close(&f);
    return crc;
}

static void test_checksum_is_of_every_byte_of_a_small_file(void **state)
{
    struct file content = make_file(MAGIC_16, 2, 2000);
    uint32_t crc;

    (void)state;
    put(0, &content);
    crc = crc_of(0);
    assert_int_equal(crc_of(2), crc);
    for (size_t i = TOKENS_HEADER_BYTES; i < content.n; i += 97) {
        content.bytes[i] ^= 1;
        put(0, &content);
        assert_int_not_equal(crc_of(0), crc);
        content.bytes[i] ^= 1;
    }
    content = make_file(0, 2, 2000);
    put(0, &content);
    assert_int_not_equal(crc_of(2), crc_of(4)); /* the same bytes as other tokens */
}

/* Of a large one: of both ends and what lies at the blocks in between; of the size always. */
static void test_checksum_of_a_large_file_is_of_its_blocks(void **state)
{
    const size_t size = 4 << 20, span = size - TOKENS_CRC_BYTES;
    uint8_t *bytes = malloc(size);
    uint32_t crc;

    (void)state;
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    put_file(paths[0], bytes, size);
    crc = crc_of(2);
    for (size_t k = 0; k < TOKENS_CRC_BLOCKS; k++) {
        size_t at = span * k / (TOKENS_CRC_BLOCKS - 1);
        for (int end = 0; end < 2; end++) {
            size_t changed = at + (end ? TOKENS_CRC_BYTES - 1 : 0);
            bytes[changed] ^= 1;
            put_file(paths[0], bytes, size);
            assert_int_not_equal(crc_of(2), crc);
            bytes[changed] ^= 1;
        }
    }
    bytes[TOKENS_CRC_BYTES + 1] ^= 1;
    put_file(paths[0], bytes, size);
    assert_int_equal(crc_of(2), crc);
    bytes[TOKENS_CRC_BYTES + 1] ^= 1;
    put_file(paths[0], bytes, size - 2);
    assert_int_not_equal(crc_of(2), crc);
    free(bytes);
}

/* ------------------------------------------------------------------------------------------ refusals */

static void test_truncation_at_every_length_is_refused(void **state)
{
    static const uint32_t magics[] = {MAGIC_16, MAGIC_32};

    (void)state;
    for (int m = 0; m < 2; m++) {
        struct file content = make_file(magics[m], m == 0 ? 2 : 4, 20);
        for (size_t n = 0; n < content.n; n++) {
            put_file(paths[0], content.bytes, n);
            if (n == 0)
                check_refused(0, -EBADMSG, "empty");
            else if (n >= 4)
                check_refused(0, -EBADMSG, "cut short");
            else if (n != 2) /* two bytes are a raw token */
                check_refused(0, -EBADMSG, "not a whole number");
        }
        put_file(paths[0], content.bytes, content.n + 1);
        check_refused(0, -EBADMSG, "too long");
    }
}

static void test_truncation_names_both_sizes(void **state)
{
    struct file content = make_file(MAGIC_32, 4, 20);

    (void)state;
    put_file(paths[0], content.bytes, content.n - 3);
    check_refused(0, -EBADMSG, "20 tokens, which takes 1104 bytes with the header, but there are 1101");
    put_file(paths[0], content.bytes, 1023);
    check_refused(0, -EBADMSG, "the llm.c header takes 1024 bytes, but there are 1023");
}

static void test_flipped_bits_of_a_header_are_refused(void **state)
{
    struct file content = make_file(MAGIC_16, 2, 100);

    (void)state;
    for (int i = 4 * 8; i < 12 * 8; i++) { /* version and count; a flipped magic makes it a raw file */
        content.bytes[i / 8] ^= (uint8_t)(1 << i % 8);
        put(0, &content);
        check_refused(0, i < 8 * 8 ? -EOPNOTSUPP : -EBADMSG, i < 8 * 8 ? "version" : "its header says");
        content.bytes[i / 8] ^= (uint8_t)(1 << i % 8);
    }
}

static void test_wrong_headers_are_refused(void **state)
{
    struct file content = make_file(MAGIC_16, 2, 100);

    (void)state;
    put(0, &content);
    check_refused(4, -EINVAL, "says uint16, but data.dtype is uint32");
    put_number(content.bytes + 4, 2, 4);
    put(0, &content);
    check_refused(0, -EOPNOTSUPP, "version 2, but with magic 20240520 only version 1");
    content = make_file(MAGIC_32, 4, 100);
    put(0, &content);
    check_refused(2, -EINVAL, "says uint32, but data.dtype is uint16");
    put_number(content.bytes + 8, 0, 4);
    put_file(paths[0], content.bytes, TOKENS_HEADER_BYTES);
    check_refused(0, -EBADMSG, "no tokens");
    for (int i = 0; i < 2; i++) { /* big-endian */
        uint8_t b = content.bytes[i];
        content.bytes[i] = content.bytes[3 - i];
        content.bytes[3 - i] = b;
    }
    put(0, &content);
    check_refused(0, -EOPNOTSUPP, "big-endian");
}

static void test_what_is_no_file_of_tokens_is_refused(void **state)
{
    struct file content = make_file(0, 2, 3);

    (void)state;
    put_file(paths[0], content.bytes, 5);
    check_refused(0, -EBADMSG, "5 bytes, which is not a whole number of 2-byte tokens");
    put_file(paths[0], content.bytes, 6);
    check_refused(4, -EBADMSG, "6 bytes, which is not a whole number of 4-byte tokens");
    put_file(paths[0], "", 0);
    check_refused(0, -EBADMSG, "empty");
    check_refused(1, -EBADMSG, "empty");
    put_file(paths[0], "\x93NUMPY\1\0v\0{", 12);
    check_refused(0, -EOPNOTSUPP, "tofile");
    put_file(paths[0], "\x1f\x8b\x08\0\0\0\0\0\0\3", 10);
    check_refused(0, -EOPNOTSUPP, "gunzip");
    check_refused(1, -EOPNOTSUPP, "gunzip");
}

static void test_raw_uint32_that_is_read_as_uint16_is_refused(void **state)
{
    struct file content;
    struct token_file f;

    (void)state;
    begin(&content, 0, 0);
    for (uint32_t i = 0; i < 300; i++)
        add(&content, token(i, 2), 4);
    put(0, &content);
    check_refused(0, -EINVAL, "\"dtype\": \"uint32\"");
    f = open_good(4);
    assert_int_equal(f.count, 300);
    tokens_close(&f);
    f = open_good(2); /* who says so means it */
    assert_int_equal(f.count, 600);
    tokens_close(&f);
    begin(&content, 0, 0);
    for (uint32_t i = 0; i < 300; i++)
        add(&content, 0, 4);
    put(0, &content);
    f = open_good(0); /* all zero: nobody knows */
    assert_int_equal(f.count, 600);
    tokens_close(&f);
}

static void test_missing_and_odd_files_are_refused(void **state)
{
    (void)state;
    unlink(paths[0]);
    check_refused(0, -ENOENT, "cannot open data.train");
    assert_int_equal(mkdir(paths[0], 0700), 0);
    check_refused(0, -EISDIR, "not a regular file");
    assert_int_equal(rmdir(paths[0]), 0);
    assert_int_equal(mkfifo(paths[0], 0600), 0);
    check_refused(1, -EINVAL, "not a regular file");
    unlink(paths[0]);
    assert_int_equal(symlink("/dev/null", paths[0]), 0);
    check_refused(0, -EINVAL, "not a regular file");
    unlink(paths[0]);
}

/* --------------------------------------------------------------------------------------- the data section */

static struct spec *model_spec(bool tokens, uint32_t seq, uint32_t vocab)
{
    static const char text[] =
        "{\"schema\":\"job/v1\",\"model\":{\"type\":\"mlp\",\"input\":4,\"hidden\":[],\"classes\":3},"
        "\"data\":{\"format\":\"synthetic\",\"samples\":1},\"train\":{\"epochs\":1,\"global_batch\":2},"
        "\"optimizer\":{\"type\":\"sgd\",\"lr\":1}}";
    struct spec *s = NULL;

    assert_int_equal(spec_parse(text, strlen(text), "job", &(struct spec_options){0}, &s, NULL), 0);
    if (tokens) {
        s->tokens = true;
        s->features = s->seq = seq;
        s->vocab = s->classes = vocab;
    }
    return s;
}

static int read_data(struct spec *s, const char *text, const char *base_dir, struct err *err)
{
    const struct spec_options options = {.base_dir = base_dir};
    struct spec_reader reader = {.s = s, .options = &options, .err = err};
    struct json *doc;
    int r;

    if (json_parse(text, strlen(text), "data", false, &doc, err) < 0)
        fail_msg("%s: %s", text, err->msg);
    r = spec_read_data(&reader, doc);
    json_free(doc);
    return r;
}

static struct spec *token_spec(uint32_t seq, uint32_t vocab, const char *data)
{
    struct spec *s = model_spec(true, seq, vocab);
    struct err err;

    if (read_data(s, data, NULL, &err) < 0)
        fail_msg("%s: %s: %s", data, err.path, err.msg);
    return s;
}

static void test_data_section_is_read(void **state)
{
    struct spec *s = model_spec(true, 8, 300);

    (void)state;
    assert_int_equal(read_data(s,
                               "{\"format\":\"tokens\",\"train\":[\"a.bin\",\"/abs/b.bin\"],\"val\":\"c\","
                               "\"dtype\":\"uint32\",\"ignore\":299,\"shuffle\":false}",
                               "/base", NULL),
                     0);
    assert_int_equal(s->data.format, DATA_TOKENS);
    assert_int_equal(s->data.train_files.n, 2);
    assert_string_equal(s->data.train_files.at[0], "/base/a.bin");
    assert_string_equal(s->data.train_files.at[1], "/abs/b.bin");
    assert_int_equal(s->data.val_files.n, 1);
    assert_string_equal(s->data.val_files.at[0], "/base/c");
    assert_int_equal(s->data.token_bytes, 4);
    assert_true(s->data.has_ignore && s->data.ignore == 299 && !s->data.shuffle && spec_has_val(s));
    spec_destroy(s);
    s = token_spec(8, 256, "{\"format\":\"bytes\",\"train\":\"text\"}");
    assert_int_equal(s->data.format, DATA_BYTES);
    assert_int_equal(s->data.token_bytes, 0);
    assert_true(!s->data.has_ignore && s->data.shuffle && !spec_has_val(s));
    spec_destroy(s);
}

static void check_section(bool tokens, uint32_t vocab, const char *data, const char *path, const char *part)
{
    struct spec *s = model_spec(tokens, 8, vocab);
    struct err err = {0};
    int r = read_data(s, data, NULL, &err);

    if (r != -EINVAL || strcmp(err.path, path) != 0 || !strstr(err.msg, part))
        fail_msg("%s: expected \"%s\" with \"%s\", found %d at \"%s\": %s", data, path, part, r, err.path,
                 err.msg);
    spec_destroy(s);
}

static void test_wrong_data_sections_are_refused(void **state)
{
    static const struct {
        uint32_t vocab; /* 0: the model takes no tokens */
        const char *data, *path, *part;
    } wrong[] = {
        {300, "{\"format\":\"tokens\"}", "data.train", "missing"},
        {300, "{\"format\":\"tokens\",\"train\":[]}", "data.train", "1 to 400"},
        {300, "{\"format\":\"tokens\",\"train\":7}", "data.train", "path of a file"},
        {300, "{\"format\":\"tokens\",\"train\":\"\"}", "data.train", "empty"},
        {300, "{\"format\":\"tokens\",\"train\":[\"a\",\"\"]}", "data.train[1]", "empty"},
        {300, "{\"format\":\"tokens\",\"train\":[\"a\",{}]}", "data.train[1]", "an object"},
        {300, "{\"format\":\"tokens\",\"train\":\"a\",\"val\":[3]}", "data.val[0]", "a number"},
        {300, "{\"format\":\"tokens\",\"train\":\"a\",\"dtype\":\"int8\"}", "data.dtype", "uint16"},
        {300, "{\"format\":\"tokens\",\"train\":\"a\",\"ignore\":300}", "data.ignore",
         "300 is not a token id"},
        {300, "{\"format\":\"tokens\",\"train\":\"a\",\"ignore\":-1}", "data.ignore", ""},
        {300, "{\"format\":\"tokens\",\"train\":\"a\",\"samples\":1}", "data.samples", "unknown"},
        {300, "{\"format\":\"bytes\",\"train\":\"a\",\"dtype\":\"uint16\"}", "data.dtype", "unknown"},
        {255, "{\"format\":\"bytes\",\"train\":\"a\"}", "data.format", "set model.vocab to 256"},
        {0, "{\"format\":\"bytes\",\"train\":\"a\"}", "data.format", "the model takes numbers"},
        {0, "{\"format\":\"tokens\",\"train\":\"a\",\"ignore\":3}", "data.format", "the model takes numbers"},
        {300, "{\"format\":\"idx\",\"train\":{\"images\":\"a\",\"labels\":\"b\"}}", "data.format",
         "takes tokens"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        check_section(wrong[i].vocab > 0, wrong[i].vocab, wrong[i].data, wrong[i].path, wrong[i].part);
}

static void test_resolved_text_has_what_decides_the_samples(void **state)
{
    struct spec *s = token_spec(8, 300, "{\"format\":\"tokens\",\"train\":\"a\",\"ignore\":7}");
    struct strbuf b = {0};

    (void)state;
    assert_int_equal(spec_resolve(s, (struct spec_sizes){0}, 50, 0xabcd, NULL), 0);
    spec_resolved_json(s, &b);
    if (!strstr(b.at, "\"data\":{\"format\":\"tokens\",\"samples\":50,\"shuffle\":true,\"context\":8,"
                      "\"crc32c\":\"0000abcd\",\"ignore\":7}"))
        fail_msg("%s", b.at);
    strbuf_finish(&b);
    spec_destroy(s);
}

/* ------------------------------------------------------------------------------------------ samples */

static struct spec *files_spec(uint32_t seq, uint32_t vocab, int n_files, const char *more)
{
    char data[512] = "";

    for (int i = 0; i < n_files; i++)
        snprintf(data + strlen(data), sizeof data - strlen(data), "%s\"%s\"", i ? "," : "", paths[i]);
    char text[700];
    snprintf(text, sizeof text, "{\"format\":\"tokens\",\"train\":[%s]%s}", data, more);
    return token_spec(seq, vocab, text);
}

static struct dataset *open_set(const struct spec *s)
{
    struct dataset *d = NULL;
    struct err err;

    if (dataset_open(s, DATA_TRAIN, &d, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    return d;
}

static void check_set_refused(const struct spec *s, int code, int path, const char *part)
{
    struct dataset *d = (struct dataset *)&d; /* must stay as it is */
    struct err err = {0};
    int r = dataset_open(s, DATA_TRAIN, &d, &err);

    if (r != code || strcmp(err.path, paths[path]) != 0 || !strstr(err.msg, part))
        fail_msg("expected %d at file %d with \"%s\", found %d at \"%s\": %s", code, path, part, r, err.path,
                 err.msg);
    assert_ptr_equal(d, &d);
}

/* Three files of other forms with `count` tokens: 100 * file + position. */
static void put_three(const uint32_t count[3])
{
    static const uint32_t magics[3] = {MAGIC_16, 0, MAGIC_16};

    for (uint32_t i = 0; i < 3; i++) {
        struct file f;
        begin(&f, magics[i], count[i]);
        for (uint32_t k = 0; k < count[i]; k++)
            add(&f, 100 * i + k, 2);
        put((int)i, &f);
    }
}

static void test_samples_do_not_cross_files(void **state)
{
    static const uint32_t count[3] = {23, 9, 12}; /* of 4: 5, 2, 2 samples */
    static const uint32_t file_of[9] = {0, 0, 0, 0, 0, 1, 1, 2, 2}, within[9] = {0, 1, 2, 3, 4, 0, 1, 0, 1};
    struct spec *s = files_spec(4, 300, 3, "");
    struct dataset *d;
    uint64_t order[9], targets = 0;
    int32_t x[10 * 4], y[10 * 4];

    (void)state;
    put_three(count);
    d = open_set(s);
    assert_int_equal(d->n_samples, 9);
    assert_int_equal(d->n_tokens, 44);
    assert_int_equal(d->n_files, 3);
    assert_int_equal(d->bytes, 0);
    for (uint64_t i = 0; i < 9; i++)
        order[i] = 8 - i;
    dataset_prefetch(d, order, 9);
    assert_int_equal(dataset_fill(d, order, 9, 10, x, y, &targets, NULL), 0);
    assert_int_equal(targets, 36);
    for (int i = 0; i < 9; i++) {
        for (int k = 0; k < 4; k++) {
            int32_t first = (int32_t)(100 * file_of[8 - i] + 4 * within[8 - i]);
            assert_int_equal(x[i * 4 + k], first + k);
            assert_int_equal(y[i * 4 + k], first + k + 1);
        }
    }
    for (int k = 36; k < 40; k++) {
        assert_int_equal(x[k], 0);
        assert_int_equal(y[k], -1); /* padding does not count */
    }
    dataset_close(d);
    spec_destroy(s);
}

static void test_number_of_samples_is_that_of_whole_ones(void **state)
{
    (void)state;
    for (uint32_t seq = 1; seq <= 7; seq++) {
        for (uint32_t count = 1; count <= 30; count++) {
            struct spec *s = files_spec(seq, 300, 1, "");
            struct file f = {.n = 0};
            for (uint32_t i = 0; i < count; i++)
                add(&f, i, 2);
            put(0, &f);
            if (count <= seq) {
                check_set_refused(s, -EINVAL, 0, "too few for one sample");
            } else {
                struct dataset *d = open_set(s);
                assert_int_equal(d->n_samples, (count - 1) / seq);
                dataset_close(d);
            }
            spec_destroy(s);
        }
    }
}

static void test_short_file_among_others_is_named(void **state)
{
    static const uint32_t count[3] = {23, 4, 12};
    struct spec *s = files_spec(4, 300, 3, "");

    (void)state;
    put_three(count);
    check_set_refused(s, -EINVAL, 1, "data.train[1] has 4 tokens");
    unlink(paths[2]);
    put_three((const uint32_t[3]){23, 9, 12});
    unlink(paths[2]);
    check_set_refused(s, -ENOENT, 2, "cannot open data.train[2]");
    spec_destroy(s);
}

static void test_checksum_is_of_files_and_their_order(void **state)
{
    struct spec *s = files_spec(4, 300, 2, "");
    const char *swapped[] = {paths[1], paths[0]};
    struct dataset *d;
    uint32_t crc;

    (void)state;
    put_three((const uint32_t[3]){23, 9, 12});
    d = open_set(s);
    crc = d->crc;
    dataset_close(d);
    s->data.train_files.at = swapped;
    d = open_set(s);
    assert_int_not_equal(d->crc, crc);
    dataset_close(d);
    spec_destroy(s);
}

static void test_ignored_targets_do_not_count(void **state)
{
    struct spec *s = files_spec(4, 300, 1, ",\"ignore\":7");
    static const uint32_t ids[9] = {7, 7, 1, 7, 2, 7, 7, 7, 7}; /* the second sample has no target at all */
    static const int32_t expected[8] = {-1, 1, -1, 2, -1, -1, -1, -1}, input[8] = {7, 7, 1, 7, 2, 7, 7, 7};
    struct file f = {.n = 0};
    uint64_t order[2] = {0, 1}, targets = 99;
    int32_t x[8], y[8];
    struct dataset *d;

    (void)state;
    for (int i = 0; i < 9; i++)
        add(&f, ids[i], 2);
    put(0, &f);
    d = open_set(s);
    assert_int_equal(dataset_fill(d, order, 2, 2, x, y, &targets, NULL), 0);
    assert_int_equal(targets, 2);
    assert_memory_equal(x, input, sizeof x);
    assert_memory_equal(y, expected, sizeof y);
    assert_int_equal(dataset_fill(d, order + 1, 1, 1, x, y, &targets, NULL), 0);
    assert_int_equal(targets, 0);
    assert_int_equal(dataset_fill(d, order, 0, 2, x, y, &targets, NULL), 0);
    assert_int_equal(targets, 0);
    dataset_close(d);
    spec_destroy(s);
}

/* In the first and the last sample of a file when it is opened, elsewhere when it is read. */
static void test_id_beyond_the_vocabulary_is_found(void **state)
{
    struct spec *s = files_spec(4, 300, 2, "");
    struct file f;

    (void)state;
    put_three((const uint32_t[3]){23, 9, 12});
    for (uint32_t bad = 0; bad < 25; bad++) {
        struct dataset *d = NULL;
        uint64_t targets = 99;
        int32_t x[4], y[4];
        struct err err = {0};
        begin(&f, MAGIC_16, 25);
        for (uint32_t i = 0; i < 25; i++)
            add(&f, i == bad ? 300 : 299, 2);
        put(1, &f);
        if (bad < 5 || bad >= 20) {
            check_set_refused(s, -ERANGE, 1, "of data.train[1] is 300");
            continue;
        }
        d = open_set(s);
        for (uint64_t i = 0; i < d->n_samples; i++) {
            uint64_t first = i < 5 ? 1000 : (i - 5) * 4;
            int r = dataset_fill(d, &i, 1, 1, x, y, &targets, &err);
            if (bad < first || bad > first + 4) {
                assert_int_equal(r, 0);
                continue;
            }
            char says[128];
            snprintf(says, sizeof says,
                     "token %u of data.train[1] is 300, but the model's vocabulary has 300 (0 to 299)", bad);
            assert_int_equal(r, -ERANGE);
            assert_string_equal(err.path, paths[1]);
            if (!strstr(err.msg, says))
                fail_msg("%s", err.msg);
        }
        dataset_close(d);
    }
    spec_destroy(s);
}

static void test_file_that_becomes_shorter_is_an_error_and_no_signal(void **state)
{
    struct spec *s = files_spec(4, 70000, 1, "");
    uint64_t first = 0, targets = 0;
    int32_t x[4], y[4];
    struct err err = {0};
    struct dataset *d;
    struct file f = make_file(MAGIC_16, 2, 3000);

    (void)state;
    put(0, &f);
    d = open_set(s);
    assert_int_equal(dataset_fill(d, &first, 1, 1, x, y, &targets, &err), 0);
    assert_int_equal(truncate(paths[0], (off_t)f.n + 4096), 0);
    assert_int_equal(dataset_fill(d, &first, 1, 1, x, y, &targets, &err), 0); /* longer: nothing is gone */
    assert_int_equal(truncate(paths[0], 0), 0);
    assert_int_equal(dataset_fill(d, &first, 1, 1, x, y, &targets, &err), -ESTALE);
    assert_string_equal(err.path, paths[0]);
    assert_non_null(strstr(err.msg, "data.train has become shorter"));
    unlink(paths[0]);
    put(0, &f); /* another file of that name: ours is still the short one */
    assert_int_equal(dataset_fill(d, &first, 1, 1, x, y, &targets, &err), -ESTALE);
    dataset_close(d);
    spec_destroy(s);
}

/* Opened at once, and exact beyond 2^32 bytes and tokens. */
static void test_huge_file_is_read_at_its_end(void **state)
{
    const uint64_t count = (1ull << 32) + 12345;
    struct spec *s = files_spec(1000, 300, 1, "");
    int fd = open(paths[0], O_CREAT | O_TRUNC | O_RDWR, 0600);
    uint8_t end[4] = {17, 0, 18, 0};
    uint64_t last, targets = 0;
    int32_t x[1000], y[1000];
    struct dataset *d;

    (void)state;
    assert_true(fd >= 0);
    if (ftruncate(fd, (off_t)(2 * count)) < 0)
        SKIP_TEST("the file system cannot make so large a file");
    last = (count - 1) / 1000;
    assert_int_equal(pwrite(fd, end, 4, (off_t)(2 * (last * 1000 - 1))), 4);
    close(fd);
    d = open_set(s);
    assert_int_equal(d->n_tokens, count);
    assert_int_equal(d->n_samples, last--);
    dataset_prefetch(d, &last, 1);
    assert_int_equal(dataset_fill(d, &last, 1, 1, x, y, &targets, NULL), 0);
    assert_int_equal(x[998], 0);
    assert_int_equal(x[999], 17);
    assert_int_equal(y[998], 17);
    assert_int_equal(y[999], 18);
    dataset_close(d);
    spec_destroy(s);
    unlink(paths[0]);
}

/* ------------------------------------------------------------------------------------------ synthetic */

static struct spec *synthetic_spec(uint32_t seq, uint32_t vocab, const char *noise)
{
    char data[200];

    snprintf(data, sizeof data,
             "{\"format\":\"synthetic\",\"samples\":200,\"val_samples\":20,\"seed\":3,\"noise\":%s}", noise);
    return token_spec(seq, vocab, data);
}

static void test_synthetic_tokens_do_not_depend_on_order(void **state)
{
    struct spec *s = synthetic_spec(7, 50, "0.3");
    struct dataset *d = open_set(s), *val = NULL;
    uint64_t order[20], targets = 0;
    int32_t x[20 * 7], y[20 * 7], x1[7], y1[7];

    (void)state;
    assert_int_equal(dataset_open(s, DATA_VAL, &val, NULL), 0);
    for (uint64_t i = 0; i < 20; i++)
        order[i] = i;
    assert_int_equal(dataset_fill(d, order, 20, 20, x, y, &targets, NULL), 0);
    assert_int_equal(targets, 140);
    for (uint64_t i = 20; i-- > 0;) {
        assert_int_equal(dataset_fill(d, &i, 1, 1, x1, y1, &targets, NULL), 0);
        assert_memory_equal(x1, x + i * 7, sizeof x1);
        assert_memory_equal(y1, y + i * 7, sizeof y1);
        assert_memory_equal(x1 + 1, y1, 6 * sizeof *x1);
        for (int k = 0; k < 7; k++)
            assert_true(x1[k] >= 0 && x1[k] < 50 && y1[k] >= 0 && y1[k] < 50);
    }
    assert_int_equal(dataset_fill(val, order, 1, 1, x1, y1, &targets, NULL), 0);
    assert_memory_not_equal(x1, x, sizeof x1);
    dataset_close(val);
    dataset_close(d);
    spec_destroy(s);
}

/* Without noise a token always has the same one after it; with noise most of the time. */
static void test_synthetic_tokens_follow_a_rule(void **state)
{
    static const char *const noises[] = {"0", "0.2", "2"};
    static const double least[] = {1, 0.75, 0}, most[] = {1, 0.9, 0.3};

    (void)state;
    for (int k = 0; k < 3; k++) {
        struct spec *s = synthetic_spec(64, 1000, noises[k]);
        struct dataset *d = open_set(s);
        int agree = 0, all = 0;
        for (uint64_t i = 0; i < 200; i++) {
            int32_t x[64], y[64];
            uint64_t targets;
            assert_int_equal(dataset_fill(d, &i, 1, 1, x, y, &targets, NULL), 0);
            for (int t = 0; t < 64; t++) {
                uint32_t bits = rng_philox(3, 0, (uint32_t)x[t], rng_word2(RNG_DATA, 5), 0).v[0];
                uint64_t square = (uint64_t)bits * bits >> 32;
                agree += y[t] == (int32_t)((square * square >> 32) * 1000 >> 32);
                all++;
            }
        }
        if (agree < least[k] * all || agree > most[k] * all)
            fail_msg("noise %s: %d of %d tokens follow the rule", noises[k], agree, all);
        dataset_close(d);
        spec_destroy(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_form_is_read),
        cmocka_unit_test(test_bytes_are_those_of_any_file),
        cmocka_unit_test(test_tokens_are_read_at_any_address),
        cmocka_unit_test(test_advice_for_any_window_is_taken),
        cmocka_unit_test(test_checksum_is_of_every_byte_of_a_small_file),
        cmocka_unit_test(test_checksum_of_a_large_file_is_of_its_blocks),
        cmocka_unit_test(test_truncation_at_every_length_is_refused),
        cmocka_unit_test(test_truncation_names_both_sizes),
        cmocka_unit_test(test_flipped_bits_of_a_header_are_refused),
        cmocka_unit_test(test_wrong_headers_are_refused),
        cmocka_unit_test(test_what_is_no_file_of_tokens_is_refused),
        cmocka_unit_test(test_raw_uint32_that_is_read_as_uint16_is_refused),
        cmocka_unit_test(test_missing_and_odd_files_are_refused),
        cmocka_unit_test(test_data_section_is_read),
        cmocka_unit_test(test_wrong_data_sections_are_refused),
        cmocka_unit_test(test_resolved_text_has_what_decides_the_samples),
        cmocka_unit_test(test_samples_do_not_cross_files),
        cmocka_unit_test(test_number_of_samples_is_that_of_whole_ones),
        cmocka_unit_test(test_short_file_among_others_is_named),
        cmocka_unit_test(test_checksum_is_of_files_and_their_order),
        cmocka_unit_test(test_ignored_targets_do_not_count),
        cmocka_unit_test(test_id_beyond_the_vocabulary_is_found),
        cmocka_unit_test(test_file_that_becomes_shorter_is_an_error_and_no_signal),
        cmocka_unit_test(test_huge_file_is_read_at_its_end),
        cmocka_unit_test(test_synthetic_tokens_do_not_depend_on_order),
        cmocka_unit_test(test_synthetic_tokens_follow_a_rule),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
