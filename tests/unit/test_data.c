/* Tests of data sets: plain and gzipped IDX files, every kind of damaged file, synthetic samples, sample
 * order, padding. test_tokens.c tests token files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/rng.h"
#include "daemon/worker/data/data.h"
#include "kernels/half.h"

/* ------------------------------------------------------------------------------------------ helpers */

static char dir[] = "/tmp/test_data_XXXXXX";
static char images_path[64], labels_path[64];

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(images_path, sizeof images_path, "%s/images", dir);
    snprintf(labels_path, sizeof labels_path, "%s/labels", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(images_path);
    unlink(labels_path);
    return rmdir(dir);
}

static void put_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static size_t gzip(const void *p, size_t n, unsigned char *out, size_t size)
{
    z_stream z = {0};

    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (unsigned char *)(uintptr_t)p;
    z.avail_in = (uInt)n;
    z.next_out = out;
    z.avail_out = (uInt)size;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return size - z.avail_out;
}

/* Three images of 2 x 3, bytes 0, 10, 20 ...; labels 2, 0, 1. */
static const unsigned char images[] = {0,  0,  8,   3,   0,   0,   0,   3,   0,   0,  0,  2,
                                       0,  0,  0,   3,   0,   10,  20,  30,  40,  50, 60, 70,
                                       80, 90, 100, 110, 120, 130, 140, 150, 255, 170};
static const unsigned char labels[] = {0, 0, 8, 1, 0, 0, 0, 3, 2, 0, 1};

static struct spec *make_spec(const char *input, int classes, const char *loss, const char *data)
{
    char text[1024];
    struct spec *s = NULL;
    struct err err;

    snprintf(text, sizeof text,
             "{\"schema\":\"job/v1\",\"model\":{\"type\":\"mlp\",\"input\":%s,\"hidden\":[],\"classes\":%d,"
             "\"loss\":\"%s\"},\"init\":{\"seed\":7},\"data\":%s,\"train\":{\"epochs\":1,\"global_batch\":2},"
             "\"optimizer\":{\"type\":\"sgd\",\"lr\":1}}",
             input, classes, loss, data);
    if (spec_parse(text, strlen(text), "job.json", &(struct spec_options){0}, &s, &err) < 0)
        fail_msg("%s: %s: %s", text, err.path, err.msg);
    return s;
}

static struct spec *idx_spec_with(const char *input, int classes, const char *loss, const char *more)
{
    char data[512];

    snprintf(data, sizeof data, "{\"format\":\"idx\",\"train\":{\"images\":\"%s\",\"labels\":\"%s\"}%s}",
             images_path, labels_path, more);
    return make_spec(input, classes, loss, data);
}

static struct spec *idx_spec(void)
{
    return idx_spec_with("[2,3]", 3, "softmax_xent", "");
}

static struct dataset *open_good(const struct spec *s)
{
    struct dataset *d = NULL;
    struct err err;

    if (dataset_open(s, DATA_TRAIN, &d, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    return d;
}

static void check_refused(const struct spec *s, int code, const char *path, const char *part)
{
    struct dataset *d = (struct dataset *)&d; /* must stay as it is */
    struct err err = {0};
    int r = dataset_open(s, DATA_TRAIN, &d, &err);

    if (r >= 0)
        fail_msg("accepted; expected \"%s\"", part);
    if (r != code || strcmp(err.path, path) != 0 || !strstr(err.msg, part))
        fail_msg("expected %d at \"%s\" with \"%s\", found %d at \"%s\": %s", code, path, part, r, err.path,
                 err.msg);
    assert_ptr_equal(d, &d);
}

/* Fills, and all the samples count. */
static void fill(const struct dataset *d, const uint64_t *indices, uint32_t n, uint32_t rows, void *x,
                 void *target)
{
    uint64_t targets = 99;
    struct err err;

    if (dataset_fill(d, indices, n, rows, x, target, &targets, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    assert_int_equal(targets, (uint64_t)n * (d->tokens ? d->seq : 1));
}

static void put_good(void)
{
    put_file(images_path, images, sizeof images);
    put_file(labels_path, labels, sizeof labels);
}

/* ------------------------------------------------------------------------------------------ reading */

static void check_content(const struct dataset *d)
{
    uint64_t order[3] = {2, 0, 1};
    int32_t target[4] = {9, 9, 9, 9};
    float x[4 * 6];

    assert_int_equal(d->n_samples, 3);
    assert_int_equal(d->features, 6);
    fill(d, order, 3, 4, x, target);
    for (int f = 0; f < 6; f++) {
        assert_true(x[f] == (float)(images[16 + 12 + f] / 255.0));
        assert_true(x[6 + f] == (float)(images[16 + f] / 255.0));
        assert_true(x[18 + f] == 0); /* padding */
    }
    assert_true(x[4] == 1.0f); /* byte 255 */
    assert_int_equal(target[0], 1);
    assert_int_equal(target[1], 2);
    assert_int_equal(target[2], 0);
    assert_int_equal(target[3], 0);
}

static void test_plain_and_gzipped_files_read_alike(void **state)
{
    struct spec *s = idx_spec();
    unsigned char packed[256];
    struct dataset *d;
    uint32_t crc;

    (void)state;
    put_good();
    d = open_good(s);
    check_content(d);
    assert_int_equal(d->bytes, 21);
    crc = d->crc;
    dataset_close(d);
    put_file(images_path, packed, gzip(images, sizeof images, packed, sizeof packed));
    put_file(labels_path, packed, gzip(labels, sizeof labels, packed, sizeof packed));
    d = open_good(s);
    check_content(d);
    assert_int_equal(d->crc, crc);
    dataset_close(d);
    spec_destroy(s);
}

static void test_gzip_members_are_joined(void **state)
{
    struct spec *s = idx_spec();
    unsigned char packed[512];
    struct dataset *d;
    size_t n = gzip(images, 20, packed, sizeof packed);

    (void)state;
    put_good();
    n += gzip(images + 20, sizeof images - 20, packed + n, sizeof packed - n);
    put_file(images_path, packed, n);
    d = open_good(s);
    check_content(d);
    dataset_close(d);
    spec_destroy(s);
}

static void test_content_changes_the_checksum(void **state)
{
    struct spec *s = idx_spec();
    unsigned char changed[sizeof images];
    struct dataset *d;
    uint32_t crc;

    (void)state;
    put_good();
    d = open_good(s);
    crc = d->crc;
    dataset_close(d);
    memcpy(changed, images, sizeof images);
    changed[sizeof images - 1] ^= 1;
    put_file(images_path, changed, sizeof changed);
    d = open_good(s);
    assert_int_not_equal(d->crc, crc);
    dataset_close(d);
    spec_destroy(s);
}

static void test_scale_and_transpose_are_applied(void **state)
{
    struct spec *s = idx_spec_with("[2,3]", 3, "softmax_xent", ",\"scale\":[-1,1],\"transpose\":true");
    struct dataset *d;
    uint64_t first = 0;
    int32_t target;
    float x[6];

    (void)state;
    put_good();
    d = open_good(s);
    fill(d, &first, 1, 1, x, &target);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            assert_true(x[j * 2 + i] == (float)(-1 + 2.0 * images[16 + i * 3 + j] / 255));
    dataset_close(d);
    spec_destroy(s);
}

static void test_mse_targets_are_one_hot(void **state)
{
    struct spec *s = idx_spec_with("6", 3, "mse", "");
    static const float expected[4 * 3] = {0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0};
    uint64_t order[3] = {0, 1, 2};
    struct dataset *d;
    float x[24], target[12];

    (void)state;
    put_good();
    d = open_good(s);
    memset(target, 0xff, sizeof target);
    fill(d, order, 3, 4, x, target);
    assert_memory_equal(target, expected, sizeof expected);
    dataset_close(d);
    spec_destroy(s);
}

/* ------------------------------------------------------------------------------------------ wrong files */

static void test_truncation_at_every_length_is_refused(void **state)
{
    struct spec *s = idx_spec();
    unsigned char packed[256];
    size_t n = gzip(images, sizeof images, packed, sizeof packed);

    (void)state;
    put_good();
    for (size_t i = 0; i < sizeof images; i++) {
        put_file(images_path, images, i);
        check_refused(s, -EBADMSG, images_path, "cut short");
    }
    for (size_t i = 0; i < n; i++) {
        put_file(images_path, packed, i);
        check_refused(s, -EBADMSG, images_path, i < 2 ? "cut short" : "gzip stream");
    }
    put_file(images_path, images, sizeof images);
    for (size_t i = 0; i < sizeof labels; i++) {
        put_file(labels_path, labels, i);
        check_refused(s, -EBADMSG, labels_path, "cut short");
    }
    spec_destroy(s);
}

static void test_truncation_names_both_sizes(void **state)
{
    struct spec *s = idx_spec();

    (void)state;
    put_good();
    put_file(images_path, images, 30);
    check_refused(s, -EBADMSG, images_path,
                  "3 x 2 x 3, which takes 34 bytes with the header, but there are 30");
    spec_destroy(s);
}

static void test_tail_is_refused(void **state)
{
    struct spec *s = idx_spec();
    unsigned char longer[sizeof images + 1] = {0}, packed[300];
    size_t n;

    (void)state;
    put_good();
    memcpy(longer, images, sizeof images);
    put_file(images_path, longer, sizeof longer);
    check_refused(s, -EBADMSG, images_path, "more than the 34 bytes");
    n = gzip(longer, sizeof longer, packed, sizeof packed);
    put_file(images_path, packed, n);
    check_refused(s, -EBADMSG, images_path, "more than the 34 bytes");
    n = gzip(images, sizeof images, packed, sizeof packed);
    packed[n] = 'x';
    put_file(images_path, packed, n + 1);
    check_refused(s, -EBADMSG, images_path, "after the end of its gzip stream");
    spec_destroy(s);
}

static void test_damaged_gzip_is_refused(void **state)
{
    struct spec *s = idx_spec();
    unsigned char packed[256], flipped[256];
    size_t n = gzip(images, sizeof images, packed, sizeof packed);
    struct dataset *d;
    int refused = 0;

    (void)state;
    put_good();
    for (size_t i = 0; i < n * 8; i++) {
        memcpy(flipped, packed, n);
        flipped[i / 8] ^= (unsigned char)(1 << i % 8);
        put_file(images_path, flipped, n);
        if (dataset_open(s, DATA_TRAIN, &d, NULL) == 0) { /* the header's time, name and system may change */
            check_content(d);
            dataset_close(d);
        } else {
            refused++;
        }
    }
    assert_true(refused > (int)n * 4);
    spec_destroy(s);
}

static void test_flipped_bits_of_plain_files_never_crash(void **state)
{
    struct spec *s = idx_spec();
    unsigned char flipped[sizeof images];
    struct dataset *d;

    (void)state;
    put_good();
    for (size_t i = 0; i < 16 * 8; i++) {
        memcpy(flipped, images, sizeof images);
        flipped[i / 8] ^= (unsigned char)(1 << i % 8);
        put_file(images_path, flipped, sizeof flipped);
        if (dataset_open(s, DATA_TRAIN, &d, NULL) == 0)
            fail_msg("bit %zu of the header is not checked", i);
    }
    spec_destroy(s);
}

static void test_wrong_headers_are_refused(void **state)
{
    static const unsigned char noise[] = "PNG and so on, not an IDX file",
                               floats[] = {0, 0, 0x0d, 1, 0, 0, 0, 0};
    static const unsigned char huge[] = {0,   0,   8,   3,   255, 255, 255, 255,
                                         255, 255, 255, 255, 255, 255, 255, 255};
    static const unsigned char large[] = {0, 0, 8, 3, 127, 255, 255, 255, 0, 0, 255, 255, 0, 0, 255, 255};
    static const unsigned char none[] = {0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3};
    static const unsigned char rank0[] = {0, 0, 8, 0}, rank9[] = {0, 0, 8, 9};
    struct spec *s = idx_spec();
    unsigned char packed[256];

    (void)state;
    put_good();
    put_file(images_path, noise, sizeof noise);
    check_refused(s, -EBADMSG, images_path, "not an IDX file");
    put_file(images_path, floats, sizeof floats);
    check_refused(s, -EOPNOTSUPP, images_path, "32-bit floats");
    put_file(images_path, huge, sizeof huge);
    check_refused(s, -EBADMSG, images_path, "2^64");
    put_file(images_path, large, sizeof large);
    check_refused(s, -EBADMSG, images_path, "cut short");
    put_file(images_path, packed, gzip(large, sizeof large, packed, sizeof packed));
    check_refused(s, -EBADMSG, images_path, "at most");
    put_file(images_path, none, sizeof none);
    check_refused(s, -EINVAL, images_path, "no samples");
    put_file(images_path, rank0, sizeof rank0);
    check_refused(s, -EBADMSG, images_path, "0 dimensions");
    put_file(images_path, rank9, sizeof rank9);
    check_refused(s, -EBADMSG, images_path, "9 dimensions");
    spec_destroy(s);
}

static void test_files_that_do_not_belong_together_are_refused(void **state)
{
    static const unsigned char two[] = {0, 0, 8, 1, 0, 0, 0, 2, 2, 0};
    struct spec *s = idx_spec(), *other;

    (void)state;
    put_good();
    put_file(labels_path, two, sizeof two);
    check_refused(s, -EINVAL, labels_path, "2 labels, but data.train.images has 3 images");
    put_file(labels_path, images, sizeof images);
    check_refused(s, -EINVAL, labels_path, "exchanged");
    put_good();
    other = idx_spec_with("[2,3]", 2, "softmax_xent", "");
    check_refused(other, -EINVAL, labels_path, "label 2 of sample 0");
    check_refused(other, -EINVAL, labels_path, "to 3 or give other labels");
    spec_destroy(other);
    other = idx_spec_with("[28,28]", 3, "softmax_xent", "");
    check_refused(other, -EINVAL, images_path, "set model.input to [2,3]");
    spec_destroy(other);
    spec_destroy(s);
}

static void test_missing_and_odd_files_are_refused(void **state)
{
    struct spec *s = idx_spec();

    (void)state;
    put_good();
    unlink(images_path);
    check_refused(s, -ENOENT, images_path, "cannot open data.train.images");
    assert_int_equal(symlink(dir, images_path), 0);
    check_refused(s, -EISDIR, images_path, "not a regular file");
    unlink(images_path);
    put_good();
    unlink(labels_path);
    check_refused(s, -ENOENT, labels_path, "cannot open data.train.labels");
    spec_destroy(s);
}

/* ------------------------------------------------------------------------------------------ synthetic */

#define SYNTHETIC(noise)                                                                                     \
    "{\"format\":\"synthetic\",\"samples\":50,\"val_samples\":20,\"seed\":3,\"noise\":" noise "}"

static void test_synthetic_rows_do_not_depend_on_order(void **state)
{
    struct spec *s = make_spec("7", 4, "softmax_xent", SYNTHETIC("0.1"));
    struct dataset *d = open_good(s);
    float all[50 * 7], one[7];
    int32_t labels_all[50], label;
    uint64_t order[50];

    (void)state;
    for (uint64_t i = 0; i < 50; i++)
        order[i] = i;
    fill(d, order, 50, 50, all, labels_all);
    for (uint64_t i = 50; i-- > 0;) {
        fill(d, &i, 1, 1, one, &label);
        assert_memory_equal(one, all + i * 7, sizeof one);
        assert_int_equal(label, labels_all[i]);
        assert_in_range(label, 0, 3);
    }
    dataset_close(d);
    spec_destroy(s);
}

/* Inputs of 16 bits are the rounded floats, and padding is 0. */
static void test_inputs_of_16_bits_are_rounded(void **state)
{
    (void)state;
    for (enum spec_precision p = PRECISION_BF16; p <= PRECISION_FP16; p++) {
        struct spec *s = make_spec("7", 4, "softmax_xent", SYNTHETIC("0.1"));
        struct dataset *wide = open_good(s), *d;
        uint64_t order[] = {4, 0, 49};
        uint16_t x[6 * 7 + 1], want[5 * 7];
        int32_t found[5], wanted[5];
        float floats[5 * 7];

        fill(wide, order, 3, 5, floats, wanted);
        s->precision = p;
        d = open_good(s);
        assert_int_equal(d->bytes, wide->bytes + 7 * sizeof(float));
        memset(x, 0xff, sizeof x);
        fill(d, order, 3, 5, x, found);
        half_round(spec_dtype(p), floats, want, 5 * 7);
        assert_memory_equal(x, want, sizeof want);
        for (int i = 5 * 7; i < 6 * 7 + 1; i++)
            assert_int_equal(x[i], 0xffff);
        assert_memory_equal(found, wanted, sizeof found);
        dataset_close(d);
        dataset_close(wide);
        spec_destroy(s);
    }
}

static void test_synthetic_splits_share_prototypes_and_differ(void **state)
{
    struct spec *s = make_spec("7", 4, "softmax_xent", SYNTHETIC("0"));
    struct dataset *d[2] = {open_good(s), NULL};
    uint64_t order[20];
    int32_t label[2][20];
    float x[2][20 * 7];

    (void)state;
    assert_int_equal(dataset_open(s, DATA_VAL, &d[1], NULL), 0);
    assert_int_equal(d[1]->n_samples, 20);
    for (uint64_t i = 0; i < 20; i++)
        order[i] = i;
    for (int k = 0; k < 2; k++)
        fill(d[k], order, 20, 20, x[k], label[k]);
    assert_memory_not_equal(label[0], label[1], sizeof label[0]);
    for (int i = 0; i < 20; i++) /* without noise a sample is its prototype */
        for (int j = 0; j < 20; j++)
            assert_int_equal(memcmp(x[0] + i * 7, x[1] + j * 7, 7 * sizeof(float)) == 0,
                             label[0][i] == label[1][j]);
    dataset_close(d[0]);
    dataset_close(d[1]);
    spec_destroy(s);
}

static void test_synthetic_values_are_pinned(void **state)
{
    struct spec *s = make_spec("4", 10, "softmax_xent", SYNTHETIC("0.1"));
    struct dataset *d = open_good(s);
    struct rng_block label = rng_philox(3, 0, 5, rng_word2(RNG_DATA, 1), 0);
    uint32_t class = (uint32_t)((uint64_t)label.v[0] * 10 >> 32);
    struct rng_block proto = rng_philox(3, 0, class, rng_word2(RNG_DATA, 0), 0);
    struct rng_block noise = rng_philox(3, 0, 5, rng_word2(RNG_DATA, 2), 0);
    uint64_t five = 5;
    int32_t target;
    float x[4];

    (void)state;
    fill(d, &five, 1, 1, x, &target);
    assert_int_equal(target, class);
    for (int i = 0; i < 4; i++) {
        float away = 0.1f * (2 * rng_unit(noise.v[i]) - 1);
        assert_true(x[i] == rng_unit(proto.v[i]) + away);
    }
    dataset_close(d);
    spec_destroy(s);
}

/* ------------------------------------------------------------------------------------------ order */

static void test_stream_visits_every_sample_once_per_epoch(void **state)
{
    struct spec *s = make_spec("4", 10, "softmax_xent", SYNTHETIC("0.1"));
    uint64_t first[50];

    (void)state;
    assert_int_equal(spec_resolve(s, (struct spec_sizes){0}, 50, 0, NULL), 0);
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        int seen[50] = {0}, same = 0;
        for (uint64_t i = 0; i < 50; i++) {
            uint64_t index = data_index(s, epoch * 50 + i);
            assert_true(index < 50);
            assert_int_equal(seen[index]++, 0);
            if (epoch == 0)
                first[i] = index;
            same += first[i] == index;
        }
        assert_true(epoch == 0 || same < 50);
    }
    s->data.shuffle = false;
    for (uint64_t i = 0; i < 120; i++)
        assert_int_equal(data_index(s, i), i % 50);
    spec_destroy(s);
}

/* A text of which no two samples are alike: what is read in an epoch is the text, in another order. */
static void test_stream_of_a_text_reads_all_of_it(void **state)
{
    enum { SEQ = 5, SAMPLES = 40, TEXT = SEQ * SAMPLES + 3 };
    struct spec *s = make_spec("5", 10, "softmax_xent", SYNTHETIC("0.1"));
    const char *paths[] = {images_path};
    unsigned char text[TEXT];
    struct dataset *d;

    (void)state;
    for (int i = 0; i < TEXT; i++)
        text[i] = (unsigned char)(i + i / 256);
    put_file(images_path, text, TEXT);
    s->tokens = true;
    s->seq = SEQ;
    s->vocab = 256;
    s->data.format = DATA_BYTES;
    s->data.train_files = (struct spec_paths){paths, 1};
    d = open_good(s);
    assert_int_equal(d->n_samples, SAMPLES);
    assert_int_equal(spec_resolve(s, (struct spec_sizes){0}, d->n_samples, d->crc, NULL), 0);
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        int seen[SAMPLES] = {0};
        for (uint64_t i = 0; i < SAMPLES; i++) {
            uint64_t index = data_index(s, epoch * SAMPLES + i);
            int32_t ids[SEQ], targets[SEQ];
            assert_int_equal(seen[index]++, 0);
            dataset_prefetch(d, &index, 1);
            fill(d, &index, 1, 1, ids, targets);
            for (uint64_t k = 0; k < SEQ; k++) {
                assert_int_equal(ids[k], text[index * SEQ + k]);
                assert_int_equal(targets[k], text[index * SEQ + k + 1]);
            }
        }
    }
    dataset_close(d);
    spec_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_and_gzipped_files_read_alike),
        cmocka_unit_test(test_gzip_members_are_joined),
        cmocka_unit_test(test_content_changes_the_checksum),
        cmocka_unit_test(test_scale_and_transpose_are_applied),
        cmocka_unit_test(test_mse_targets_are_one_hot),
        cmocka_unit_test(test_truncation_at_every_length_is_refused),
        cmocka_unit_test(test_truncation_names_both_sizes),
        cmocka_unit_test(test_tail_is_refused),
        cmocka_unit_test(test_damaged_gzip_is_refused),
        cmocka_unit_test(test_flipped_bits_of_plain_files_never_crash),
        cmocka_unit_test(test_wrong_headers_are_refused),
        cmocka_unit_test(test_files_that_do_not_belong_together_are_refused),
        cmocka_unit_test(test_missing_and_odd_files_are_refused),
        cmocka_unit_test(test_synthetic_rows_do_not_depend_on_order),
        cmocka_unit_test(test_inputs_of_16_bits_are_rounded),
        cmocka_unit_test(test_synthetic_splits_share_prototypes_and_differ),
        cmocka_unit_test(test_synthetic_values_are_pinned),
        cmocka_unit_test(test_stream_visits_every_sample_once_per_epoch),
        cmocka_unit_test(test_stream_of_a_text_reads_all_of_it),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
