/* Tests of Hugging Face folders. The folders that the transformers package made (tests/golden/transformers)
 * are read tensor by tensor into the right places, and written back unchanged. Messages name the tensor or
 * file that is missing, surplus, misplaced or damaged. An export overwrites only earlier exports. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/rng.h"
#include "base/strbuf.h"
#include "daemon/spec/hf_config.h"
#include "daemon/worker/model/hf.h"
#include "tests/unit/hf_model.h"

#define GOLDEN GOLDEN_DIR "/transformers"

/* ------------------------------------------------------------------------------------------ models */

static uint64_t count(const struct st_tensor *t)
{
    return t->shape[0] * (t->rank == 2 ? t->shape[1] : 1);
}

static const struct st_tensor *get(const struct hf_model *o, const char *name)
{
    for (size_t i = 0; i < o->n; i++)
        if (strcmp(o->names[i], name) == 0)
            return &o->at[i];
    fail_msg("no %s", name);
    return NULL;
}

static void check_same(const struct hf_model *a, const struct hf_model *b)
{
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++) {
        assert_string_equal(a->names[i], b->names[i]);
        assert_int_equal(count(&a->at[i]), count(&b->at[i]));
        if (memcmp(a->at[i].data, b->at[i].data, count(&a->at[i]) * sizeof(float)) != 0)
            fail_msg("%s differs", a->names[i]);
    }
}

static struct hf_model *load(const char *dir)
{
    struct hf *f = NULL;
    struct err err = {0};

    if (hf_open(dir, &f, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    struct hf_model *o = hf_model_make(hf_transformer(f));
    if (hf_load(f, o->at, o->n, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    hf_close(f);
    return o;
}

/* ------------------------------------------------------------------------------------------ folders */

static char root[] = "/tmp/test_hf.XXXXXX";

static const char *path(const char *format, ...)
{
    static char buf[4][512];
    static int turn;
    char *p = buf[turn++ % 4];
    int n = snprintf(p, sizeof buf[0], "%s/", root);
    va_list ap;

    va_start(ap, format);
    vsnprintf(p + n, sizeof buf[0] - (size_t)n, format, ap);
    va_end(ap);
    return p;
}

static int make_root(void **state)
{
    (void)state;
    strcpy(root + strlen(root) - 6, "XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    return fs_remove_tree(AT_FDCWD, root);
}

static void put_file(const char *dir, const char *name, const void *p, size_t bytes)
{
    FILE *f = fopen(path("%s/%s", dir, name), "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, bytes, f), bytes);
    fclose(f);
}

static void put_text(const char *dir, const char *name, const char *text)
{
    put_file(dir, name, text, strlen(text));
}

static char *read_file(const char *where, size_t *ret_bytes)
{
    static char *text;

    assert_int_equal(fs_read_text(AT_FDCWD, where, 1 << 20, &text, ret_bytes), 0);
    return text;
}

/* Returns the number of entries in the directory, without . and .. */
static int entries(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;

    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static bool exists(const char *where)
{
    return access(where, F_OK) == 0;
}

static const struct transformer small_gpt2 = {.arch = ARCH_GPT2,
                                              .layers = 2,
                                              .width = 6,
                                              .heads = 3,
                                              .kv_heads = 3,
                                              .hidden = 10,
                                              .vocab = 5,
                                              .positions = 4,
                                              .act = ACT_GELU,
                                              .tied = true,
                                              .eps = 1e-5f,
                                              .init_std = 0.02f};
static const struct transformer small_llama = {.arch = ARCH_LLAMA,
                                               .layers = 2,
                                               .width = 8,
                                               .heads = 4,
                                               .kv_heads = 2,
                                               .hidden = 6,
                                               .vocab = 5,
                                               .positions = 4,
                                               .eps = 1e-6f,
                                               .rope_theta = 1e4f,
                                               .init_std = 0.02f};

static struct hf_model *random_model(const struct transformer *t)
{
    struct hf_model *o = hf_model_make(t);
    struct rng r = {.seed = 11};

    for (size_t i = 0; i < o->n; i++)
        for (uint64_t k = 0; k < count(&o->at[i]); k++)
            ((float *)o->at[i].data)[k] = (float)rng_below(&r, 1 << 20) / 1024.0f - 512.0f;
    return o;
}

static int save(const char *dir, const struct hf_model *o, uint64_t shard_bytes, bool replace,
                struct hf_saved *ret, struct err *err)
{
    struct hf_save_options options = {.shard_bytes = shard_bytes, .replace = replace};

    return hf_save(dir, &o->t, o->at, o->n, "the model", &options, ret, err);
}

static void save_good(const char *dir, const struct hf_model *o, uint64_t shard_bytes)
{
    struct err err = {0};

    if (save(dir, o, shard_bytes, false, NULL, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
}

/* A folder "d" with a small model, and its list of tensors, to be written again with changes. */
struct changed {
    struct hf_model *ours;
    struct safetensors *st;
    struct st_map map;
    struct st_tensor at[HF_MODEL_MOST];
    size_t n;
    int fd;
};

static struct changed *begin_change(const struct transformer *t)
{
    struct changed *c = calloc(1, sizeof *c);

    c->ours = random_model(t);
    save_good(path("d"), c->ours, 0);
    c->fd = open(path("d/model.safetensors"), O_RDONLY);
    assert_int_equal(safetensors_open(c->fd, "x", &c->st, NULL), 0);
    assert_int_equal(safetensors_map(c->st, &c->map, NULL), 0);
    c->n = c->map.n;
    memcpy(c->at, c->map.tensors, c->n * sizeof c->at[0]);
    return c;
}

static struct st_tensor *change(struct changed *c, const char *name)
{
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->at[i].name, name) == 0)
            return &c->at[i];
    fail_msg("no %s", name);
    return NULL;
}

static void write_tensors(const char *where, const struct st_tensor *at, size_t n)
{
    int fd = open(where, O_WRONLY | O_CREAT | O_EXCL, 0666);

    assert_true(fd >= 0);
    assert_int_equal(safetensors_write(fd, "x", at, n, NULL, 0, NULL, NULL, NULL), 0);
    close(fd);
}

static void end_change(struct changed *c)
{
    unlink(path("d/model.safetensors"));
    write_tensors(path("d/model.safetensors"), c->at, c->n);
    st_map_finish(&c->map);
    safetensors_close(c->st);
    close(c->fd);
}

static void free_change(struct changed *c)
{
    hf_model_free(c->ours);
    free(c);
}

static void check_refused(const char *dir, int code, const char *place, const char *part)
{
    struct hf *f = NULL;
    struct err err = {0};
    int r = hf_open(dir, &f, &err);

    if (r != code || !strstr(err.msg, part) || strcmp(err.path, place) != 0)
        fail_msg("expected %d at %s \"%s\", found %d at %s: %s", code, place, part, r, err.path, err.msg);
    assert_null(f);
    assert_int_equal(hf_open(dir, &f, NULL), code);
}

/* ----------------------------------------------------------------------------------------- golden folders */

struct theirs {
    int fd;
    struct safetensors *st;
};

static struct theirs open_theirs(const char *file)
{
    struct theirs x = {.fd = open(file, O_RDONLY)};
    struct err err;

    if (safetensors_open(x.fd, file, &x.st, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    return x;
}

static void close_theirs(struct theirs *x)
{
    safetensors_close(x->st);
    close(x->fd);
}

/* Element (i, j) of theirs is element (i, j) of ours from row `row` on; transposed (j, i). */
static void check_part(const struct theirs *x, const char *name, const struct hf_model *o,
                       const char *our_name, uint64_t row, bool transposed)
{
    const struct st_entry *e = safetensors_find(x->st, name);
    const struct st_tensor *t = get(o, our_name);
    uint64_t a, b, columns = t->rank == 2 ? t->shape[1] : 1;
    float *v;

    assert_non_null(e);
    a = e->shape[0];
    b = e->rank == 2 ? e->shape[1] : 1;
    v = malloc(e->end - e->begin);
    assert_int_equal(safetensors_read(x->st, e, v, NULL), 0);
    for (uint64_t i = 0; i < a; i++)
        for (uint64_t j = 0; j < b; j++)
            if (v[i * b + j] !=
                ((const float *)t->data)[transposed ? j * columns + i : (row + i) * columns + j])
                fail_msg("%s[%" PRIu64 "][%" PRIu64 "]", name, i, j);
    free(v);
}

static void test_gpt2_of_transformers_is_read(void **state)
{
    struct hf_model *o = load(GOLDEN "/gpt2");
    struct theirs x = open_theirs(GOLDEN "/gpt2/model.safetensors");

    (void)state;
    assert_int_equal(o->t.arch, ARCH_GPT2);
    assert_int_equal(o->t.hidden, 128);
    assert_int_equal(o->n, 28);
    check_part(&x, "transformer.wte.weight", o, "layers.0.weight", 0, false);
    check_part(&x, "transformer.wpe.weight", o, "layers.1.weight", 0, false);
    check_part(&x, "transformer.h.0.ln_1.weight", o, "layers.2.ln_1.weight", 0, false);
    check_part(&x, "transformer.h.0.ln_1.bias", o, "layers.2.ln_1.bias", 0, false);
    check_part(&x, "transformer.h.0.attn.c_attn.weight", o, "layers.2.attn.qkv.weight", 0, true);
    check_part(&x, "transformer.h.0.attn.c_attn.bias", o, "layers.2.attn.qkv.bias", 0, false);
    check_part(&x, "transformer.h.0.attn.c_proj.weight", o, "layers.2.attn.proj.weight", 0, true);
    check_part(&x, "transformer.h.1.attn.c_proj.bias", o, "layers.3.attn.proj.bias", 0, false);
    check_part(&x, "transformer.h.1.ln_2.weight", o, "layers.3.ln_2.weight", 0, false);
    check_part(&x, "transformer.h.1.ln_2.bias", o, "layers.3.ln_2.bias", 0, false);
    check_part(&x, "transformer.h.1.mlp.c_fc.weight", o, "layers.3.mlp.fc.weight", 0, true);
    check_part(&x, "transformer.h.1.mlp.c_fc.bias", o, "layers.3.mlp.fc.bias", 0, false);
    check_part(&x, "transformer.h.1.mlp.c_proj.weight", o, "layers.3.mlp.proj.weight", 0, true);
    check_part(&x, "transformer.h.1.mlp.c_proj.bias", o, "layers.3.mlp.proj.bias", 0, false);
    check_part(&x, "transformer.ln_f.weight", o, "layers.4.weight", 0, false);
    check_part(&x, "transformer.ln_f.bias", o, "layers.4.bias", 0, false);
    close_theirs(&x);
    hf_model_free(o);
}

static void test_llama_of_transformers_is_read(void **state)
{
    struct hf_model *o = load(GOLDEN "/llama");
    struct theirs x = open_theirs(GOLDEN "/llama/model.safetensors");

    (void)state;
    assert_int_equal(o->t.kv_heads, 2);
    assert_false(o->t.tied);
    assert_int_equal(o->n, 15);
    check_part(&x, "model.embed_tokens.weight", o, "layers.0.weight", 0, false);
    check_part(&x, "model.layers.0.input_layernorm.weight", o, "layers.1.ln_1.weight", 0, false);
    check_part(&x, "model.layers.0.self_attn.q_proj.weight", o, "layers.1.attn.qkv.weight", 0, false);
    check_part(&x, "model.layers.0.self_attn.k_proj.weight", o, "layers.1.attn.qkv.weight", 32, false);
    check_part(&x, "model.layers.0.self_attn.v_proj.weight", o, "layers.1.attn.qkv.weight", 48, false);
    check_part(&x, "model.layers.1.self_attn.o_proj.weight", o, "layers.2.attn.proj.weight", 0, false);
    check_part(&x, "model.layers.1.post_attention_layernorm.weight", o, "layers.2.ln_2.weight", 0, false);
    check_part(&x, "model.layers.1.mlp.gate_proj.weight", o, "layers.2.mlp.fc.weight", 0, false);
    check_part(&x, "model.layers.1.mlp.up_proj.weight", o, "layers.2.mlp.fc.weight", 56, false);
    check_part(&x, "model.layers.1.mlp.down_proj.weight", o, "layers.2.mlp.proj.weight", 0, false);
    check_part(&x, "model.norm.weight", o, "layers.3.weight", 0, false);
    check_part(&x, "lm_head.weight", o, "layers.4.weight", 0, false);
    close_theirs(&x);
    hf_model_free(o);
}

/* To the nearest, halves to even. */
static float to_bf16(float v)
{
    uint32_t bits;

    memcpy(&bits, &v, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&v, &bits, 4);
    return v;
}

static void test_shards_in_bf16_are_read(void **state)
{
    struct hf_model *o = load(GOLDEN "/llama-bf16"), *exact = load(GOLDEN "/llama");

    (void)state;
    for (size_t i = 0; i < exact->n; i++)
        for (uint64_t k = 0; k < count(&exact->at[i]); k++)
            ((float *)exact->at[i].data)[k] = to_bf16(((float *)exact->at[i].data)[k]);
    check_same(o, exact);
    hf_model_free(o);
    hf_model_free(exact);
}

static void check_same_file(const char *a, const char *b)
{
    struct theirs x = open_theirs(a), y = open_theirs(b);

    assert_int_equal(safetensors_count(x.st), safetensors_count(y.st));
    for (size_t i = 0; i < safetensors_count(x.st); i++) {
        const struct st_entry *e = safetensors_at(x.st, i), *f = safetensors_find(y.st, e->name);
        char *p = malloc(2 * (e->end - e->begin)), *q = p + (e->end - e->begin);
        assert_non_null(f);
        assert_int_equal(e->rank, f->rank);
        assert_memory_equal(e->shape, f->shape, e->rank * sizeof e->shape[0]);
        assert_int_equal(f->dtype, DTYPE_F32);
        assert_int_equal(safetensors_read(x.st, e, p, NULL), 0);
        assert_int_equal(safetensors_read(y.st, f, q, NULL), 0);
        assert_memory_equal(p, q, e->end - e->begin);
        free(p);
    }
    assert_string_equal(safetensors_meta(y.st, "format"), "pt");
    close_theirs(&x);
    close_theirs(&y);
}

static void test_what_was_read_is_written_as_it_was(void **state)
{
    static const char *const folders[] = {"gpt2", "llama"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        char golden[512];
        struct hf_saved saved;
        struct err err = {0};
        struct stat st;
        snprintf(golden, sizeof golden, GOLDEN "/%s", folders[i]);
        struct hf_model *o = load(golden);
        if (save(path("%s", folders[i]), o, 0, false, &saved, &err) < 0)
            fail_msg("%s: %s", err.path, err.msg);
        snprintf(golden, sizeof golden, GOLDEN "/%s/model.safetensors", folders[i]);
        check_same_file(golden, path("%s/model.safetensors", folders[i]));
        assert_int_equal(entries(path("%s", folders[i])), 2);
        assert_int_equal(saved.files, 1);
        assert_int_equal(saved.parameters, i == 0 ? 29312 : 23200);
        assert_int_equal(stat(path("%s/model.safetensors", folders[i]), &st), 0);
        assert_int_equal(saved.bytes, st.st_size);
        struct hf_model *back = load(path("%s", folders[i]));
        check_same(o, back);
        hf_model_free(o);
        hf_model_free(back);
    }
    assert_int_equal(entries(root), 2);
}

static void test_shards_of_any_size_read_back(void **state)
{
    static const uint64_t sizes[] = {1, 100, 200, 500, 1000, 1500, 100000};

    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct hf_model *o = random_model(llama ? &small_llama : &small_gpt2);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            const char *dir = path("s%d-%zu", llama, i);
            struct hf_saved saved;
            assert_int_equal(save(dir, o, sizes[i], false, &saved, NULL), 0);
            assert_int_equal(entries(dir), saved.files == 1 ? 2 : saved.files + 2);
            assert_int_equal(exists(path("s%d-%zu/model.safetensors", llama, i)), saved.files == 1);
            if (i == 0)
                assert_int_equal(saved.files, saved.tensors);
            struct hf_model *back = load(dir);
            check_same(o, back);
            hf_model_free(back);
        }
        assert_true(exists(path("s%d-0/model-00001-of-%05d.safetensors", llama, llama ? 21 : 28)));
        assert_true(exists(path("s%d-6/model.safetensors", llama)));
        hf_model_free(o);
    }
}

static void test_untied_gpt2_and_tied_llama_read_back(void **state)
{
    struct transformer t[2] = {small_gpt2, small_llama};

    (void)state;
    t[0].tied = false;
    t[1].tied = true;
    for (int i = 0; i < 2; i++) {
        struct hf_model *o = random_model(&t[i]);
        save_good(path("t%d", i), o, 0);
        struct hf_model *back = load(path("t%d", i));
        assert_int_equal(back->t.tied, t[i].tied);
        check_same(o, back);
        hf_model_free(back);
        hf_model_free(o);
    }
}

/* Blocks of transposed tensors: more than one block of rows, rows of more than a block. */
static void test_wide_models_read_back(void **state)
{
    struct transformer t = small_gpt2;

    (void)state;
    t.width = 36;
    t.layers = 1;
    t.hidden = 300000; /* 1.2 MB */
    struct hf_model *o = random_model(&t);
    save_good(path("wide"), o, 0);
    struct hf_model *back = load(path("wide"));
    check_same(o, back);
    const struct st_tensor *fc = get(o, "layers.2.mlp.fc.weight");
    struct theirs x = open_theirs(path("wide/model.safetensors"));
    const struct st_entry *e = safetensors_find(x.st, "transformer.h.0.mlp.c_fc.weight");
    float v;
    assert_int_equal(e->shape[0], 36);
    assert_int_equal(safetensors_read_floats(x.st, e, 7 * 300000 + 299999, 1, &v, NULL), 0);
    assert_true(v == ((const float *)fc->data)[(size_t)299999 * 36 + 7]);
    close_theirs(&x);
    hf_model_free(back);
    hf_model_free(o);
}

/* ------------------------------------------------------------------------------------------ conversion */

static float half_value(unsigned v)
{
    double m = v & 0x3ff, s = v & 0x8000 ? -1 : 1;
    int e = (int)(v >> 10 & 0x1f);

    if (e == 0x1f)
        return m != 0 ? NAN : (float)(s * INFINITY);
    return (float)(s * (e ? ldexp(1024 + m, e - 25) : ldexp(m, -24)));
}

/* All 65536 values of a type, as floats. */
static float *all_halves(const char *dtype)
{
    uint16_t *v = malloc(65536 * 2);
    float *ret = malloc(65536 * sizeof *ret);
    struct safetensors *st;
    char header[128];
    int fd = memfd_create("test", MFD_CLOEXEC);
    uint64_t n =
        (uint64_t)snprintf(header, sizeof header,
                           "{\"a\":{\"dtype\":\"%s\",\"shape\":[65536],\"data_offsets\":[0,131072]}}", dtype);

    for (unsigned i = 0; i < 65536; i++)
        v[i] = (uint16_t)i;
    assert_int_equal(write(fd, &n, 8), 8);
    assert_int_equal(write(fd, header, n), n);
    assert_int_equal(write(fd, v, 131072), 131072);
    assert_int_equal(safetensors_open(fd, "x", &st, NULL), 0);
    assert_int_equal(safetensors_read_floats(st, safetensors_at(st, 0), 0, 1, ret, NULL), 0);
    assert_int_equal(safetensors_read_floats(st, safetensors_at(st, 0), 1, 65535, ret + 1, NULL), 0);
    assert_int_equal(safetensors_read_floats(st, safetensors_at(st, 0), 65536, 0, NULL, NULL), 0);
    safetensors_close(st);
    close(fd);
    free(v);
    return ret;
}

static void test_every_half_is_exact(void **state)
{
    float *f16 = all_halves("F16"), *bf16 = all_halves("BF16");

    (void)state;
    for (unsigned i = 0; i < 65536; i++) {
        uint32_t bits, want = i << 16;
        float v = half_value(i);
        memcpy(&bits, &bf16[i], 4);
        assert_int_equal(bits, want);
        memcpy(&bits, &f16[i], 4);
        if (isnan(v))
            assert_int_equal(bits, (i & 0x8000) << 16 | 0x7f800000u | (i & 0x3ff) << 13);
        else
            assert_memory_equal(&f16[i], &v, 4);
    }
    free(f16);
    free(bf16);
}

static void test_only_floats_are_read_as_floats(void **state)
{
    static const char header[] = "{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}";
    uint64_t n = sizeof header - 1;
    int fd = memfd_create("test", MFD_CLOEXEC);
    struct safetensors *st;
    struct st_map map;
    struct err err;
    float v;

    (void)state;
    assert_int_equal(write(fd, &n, 8), 8);
    assert_int_equal(write(fd, header, n), n);
    assert_int_equal(write(fd, "12345678", 8), 8);
    assert_int_equal(safetensors_open(fd, "x", &st, NULL), 0);
    assert_int_equal(safetensors_read_floats(st, safetensors_at(st, 0), 0, 1, &v, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "\"a\" is F64"));
    assert_int_equal(safetensors_map(st, &map, &err), -EINVAL);
    safetensors_close(st);
    close(fd);
}

/* ------------------------------------------------------------------------------------------ names */

static void test_names_without_prefix_are_read(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct changed *c = begin_change(llama ? &small_llama : &small_gpt2);
        for (size_t i = 0; i < c->n; i++)
            if (strncmp(c->at[i].name, "lm_head", 7) != 0)
                c->at[i].name = strchr(c->at[i].name, '.') + 1;
        end_change(c);
        struct hf_model *back = load(path("d"));
        check_same(c->ours, back);
        hf_model_free(back);
        free_change(c);
        assert_int_equal(fs_remove_tree(AT_FDCWD, path("d")), 0);
    }
}

static float constants[16];

static void add_tensor(struct changed *c, const char *name, uint64_t a, uint64_t b, float *data)
{
    c->at[c->n++] = (struct st_tensor){.name = name,
                                       .rank = b   ? 2
                                               : a ? 1
                                                   : 0,
                                       .shape = {a, b},
                                       .data = data};
}

static void test_constants_are_ignored(void **state)
{
    (void)state;
    struct changed *c = begin_change(&small_gpt2);
    add_tensor(c, "transformer.h.0.attn.bias", 4, 4, constants);
    add_tensor(c, "h.1.attn.bias", 4, 4, constants);
    add_tensor(c, "transformer.h.1.attn.masked_bias", 0, 0, constants);
    end_change(c);
    hf_model_free(load(path("d")));
    free_change(c);
    assert_int_equal(fs_remove_tree(AT_FDCWD, path("d")), 0);
    c = begin_change(&small_llama);
    add_tensor(c, "model.layers.1.self_attn.rotary_emb.inv_freq", 1, 0, constants);
    add_tensor(c, "model.rotary_emb.inv_freq", 1, 0, constants);
    end_change(c);
    hf_model_free(load(path("d")));
    free_change(c);
}

static void test_constants_of_layers_that_are_not_there_are_unknown(void **state)
{
    struct changed *c = begin_change(&small_gpt2);

    (void)state;
    add_tensor(c, "transformer.h.2.attn.bias", 4, 4, constants);
    end_change(c);
    check_refused(path("d"), -EINVAL, path("d/model.safetensors"),
                  "\"transformer.h.2.attn.bias\" [4,4] is unknown");
    free_change(c);
}

static void test_second_copy_of_a_tied_matrix_must_be_the_same(void **state)
{
    struct changed *c = begin_change(&small_gpt2);
    struct st_tensor *wte = change(c, "transformer.wte.weight");
    float other[30];
    struct hf *f;
    struct err err;

    (void)state;
    add_tensor(c, "lm_head.weight", 5, 6, wte->data);
    write_tensors(path("same"), c->at, c->n);
    memcpy(other, wte->data, sizeof other);
    other[29] = -other[29];
    c->at[c->n - 1].data = other;
    end_change(c);
    assert_int_equal(hf_open(path("d"), &f, NULL), 0);
    assert_int_equal(hf_load(f, c->ours->at, c->ours->n, &err), -EINVAL);
    assert_string_equal(err.path, path("d/model.safetensors"));
    assert_non_null(strstr(err.msg, "tie_word_embeddings"));
    hf_close(f);
    assert_int_equal(rename(path("same"), path("d/model.safetensors")), 0);
    struct hf_model *back = load(path("d"));
    check_same(back, c->ours);
    hf_model_free(back);
    free_change(c);
}

static void test_unknown_tensors_are_named(void **state)
{
    struct changed *c = begin_change(&small_llama);

    (void)state;
    add_tensor(c, "model.layers.0.self_attn.q_proj.bias", 8, 0, constants);
    end_change(c);
    check_refused(path("d"), -EINVAL, path("d/model.safetensors"),
                  "\"model.layers.0.self_attn.q_proj.bias\" [8] is unknown: a llama model of 2 layers");
    free_change(c);
}

static void test_missing_tensors_are_named(void **state)
{
    struct changed *c = begin_change(&small_llama);

    (void)state;
    change(c, "lm_head.weight")->name = "lm_head.weights";
    end_change(c);
    check_refused(path("d"), -EINVAL, path("d"),
                  "there is no tensor \"lm_head.weight\" in its model.safetensors; by config.json it must "
                  "have one, [5,8]");
    free_change(c);
}

static void test_other_shapes_are_named(void **state)
{
    struct changed *c = begin_change(&small_gpt2);
    struct st_tensor *t = change(c, "transformer.h.1.mlp.c_fc.weight");

    (void)state;
    t->shape[0] = 10;
    t->shape[1] = 6; /* as a Linear has it */
    end_change(c);
    check_refused(path("d"), -EINVAL, path("d/model.safetensors"),
                  "\"transformer.h.1.mlp.c_fc.weight\" is [10,6], but by config.json it must be [6,10]");
    free_change(c);
}

static void test_a_tensor_by_both_of_its_names_is_refused(void **state)
{
    struct changed *c = begin_change(&small_gpt2);

    (void)state;
    add_tensor(c, "ln_f.bias", 6, 0, constants);
    end_change(c);
    check_refused(path("d"), -EINVAL, path("d/model.safetensors"),
                  "both \"transformer.ln_f.bias\" and \"ln_f.bias\"");
    free_change(c);
}

/* The header of a file gets I32, which has the same size, as the type of its first F32 tensor. The file must
 * be refused. */
static void test_other_dtypes_are_refused(void **state)
{
    struct changed *c = begin_change(&small_gpt2);
    char *text, *at;
    size_t bytes;

    (void)state;
    end_change(c);
    text = read_file(path("d/model.safetensors"), &bytes);
    at = memmem(text, bytes, "\"F32\"", 5);
    memcpy(at, "\"I32\"", 5);
    put_file("d", "model.safetensors", text, bytes);
    check_refused(path("d"), -EINVAL, path("d/model.safetensors"),
                  "\"transformer.wte.weight\" is I32; save the model in F32, F16 or BF16");
    free(text);
    free_change(c);
}

static void test_other_tensors_than_those_of_the_model_are_refused(void **state)
{
    struct hf_model *o = random_model(&small_gpt2), *other;
    struct transformer t = small_gpt2;
    struct err err;
    struct hf *f;

    (void)state;
    save_good(path("d"), o, 0);
    assert_int_equal(hf_open(path("d"), &f, NULL), 0);
    assert_int_equal(hf_load(f, o->at, o->n - 1, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "the tensor \"layers.4.bias\" of this model is missing"));
    t.hidden = 11;
    other = hf_model_make(&t);
    assert_int_equal(hf_load(f, other->at, other->n, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "\"layers.2.mlp.fc.weight\" is [11,6], but in this model it is [10,6]"));
    hf_model_free(other);
    t = small_gpt2;
    t.tied = false;
    other = hf_model_make(&t);
    assert_int_equal(hf_load(f, other->at, other->n, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "29 tensors"));
    assert_int_equal(save(path("e"), other, 0, false, NULL, NULL), 0);
    other->t.tied = true;
    assert_int_equal(save(path("f"), other, 0, false, NULL, &err), -EINVAL);
    assert_string_equal(err.path, "the model");
    assert_false(exists(path("f")));
    hf_model_free(other);
    hf_close(f);
    hf_model_free(o);
}

/* ----------------------------------------------------------------------------- folders that are not whole */

static void test_what_is_not_a_folder_is_refused(void **state)
{
    (void)state;
    check_refused(path("none"), -ENOENT, path("none"), "No such file");
    put_text(".", "file", "");
    check_refused(path("file"), -ENOTDIR, path("file"), "Not a directory");
    mkdir(path("d"), 0777);
    check_refused(path("d"), -ENOENT, path("d"), "has no config.json");
    put_text("d", "config.json", "{\"model_type\": \"bert\"}");
    check_refused(path("d"), -EOPNOTSUPP, path("d/config.json"), "\"bert\"");
    put_text("d", "config.json", "{\"model_type\": ");
    check_refused(path("d"), -EINVAL, path("d/config.json:1:16"), "ends too early");
    put_text("d", "config.json", "{\"model_type\": \"gpt2\"}");
    check_refused(path("d"), -ENOENT, path("d"), "neither model.safetensors nor");
    put_text("d", "pytorch_model.bin", "x");
    check_refused(path("d"), -ENOENT, path("d"),
                  "has its weights in pytorch_model.bin, a format that is not supported");
    put_text("d", "model.safetensors", "x");
    check_refused(path("d"), -EBADMSG, path("d/model.safetensors"), "at least 8");
    put_text("d", "model.safetensors.index.json", "{}");
    check_refused(path("d"), -EINVAL, path("d"), "both");
    unlink(path("d/model.safetensors"));
    check_refused(path("d"), -EINVAL, path("d/model.safetensors.index.json"), "weight_map is missing");
    unlink(path("d/config.json"));
    assert_int_equal(mkfifo(path("d/config.json"), 0666), 0);
    check_refused(path("d"), -EINVAL, path("d/config.json"), "Invalid argument");
}

static void test_links_are_followed(void **state)
{
    struct hf_model *o = random_model(&small_gpt2), *back;

    (void)state;
    save_good(path("blobs"), o, 0);
    mkdir(path("snapshot"), 0777);
    assert_int_equal(symlink("../blobs/config.json", path("snapshot/config.json")), 0);
    assert_int_equal(symlink("../blobs/model.safetensors", path("snapshot/model.safetensors")), 0);
    back = load(path("snapshot"));
    check_same(o, back);
    hf_model_free(back);
    hf_model_free(o);
}

/* Replaces the first `from` in the index of "d". */
static void edit_index(const char *from, const char *to)
{
    size_t bytes;
    char *text = read_file(path("d/model.safetensors.index.json"), &bytes), *at = strstr(text, from);
    struct strbuf b = {0};

    assert_non_null(at);
    strbuf_addn(&b, text, (size_t)(at - text));
    strbuf_add(&b, to);
    strbuf_add(&b, at + strlen(from));
    put_text("d", "model.safetensors.index.json", b.at);
    strbuf_finish(&b);
    free(text);
}

static void test_wrong_indexes_are_refused(void **state)
{
    static const struct {
        const char *from, *to, *part;
    } cases[] = {
        {"\"total_size\": ", "\"total_size\": 1", "metadata.total_size is 1"},
        {"\"total_size\": ", "\"total_size\": -", "metadata.total_size: must be a whole number"},
        {"model-00001-of", "../model-00001-of", "plain name"},
        {"model-00001-of", "/model-00001-of", "plain name"},
        {"model-00001-of-", ".model-00001-of-", "plain name"},
        {".safetensors\"", ".bin\"", "plain name"},
        {"\"model-00001-of-00002.safetensors\"", "3", "\"transformer.wte.weight\" is a number"},
        {"model-00001-of", "model-00002-of",
         "says that \"transformer.wte.weight\" is in model-00002-of-00002.safetensors, but"},
        {"transformer.wte.weight", "transformer.xte.weight", "says that \"transformer.xte.weight\""},
        {"weight_map", "weight_maps", "weight_map is missing"},
        {"\"weight_map\": {", "\"weight_map\": {\"a\\u202e\": \"x.safetensors\", ", "contains U+202E"},
        {"\"weight_map\": {", "\"weight_map\": {}, \"x\": {", "weight_map is missing"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hf_model *o = random_model(&small_gpt2);
        save_good(path("d"), o, 2000);
        edit_index(cases[i].from, cases[i].to);
        check_refused(path("d"), -EINVAL, path("d/model.safetensors.index.json"), cases[i].part);
        assert_int_equal(fs_remove_tree(AT_FDCWD, path("d")), 0);
        hf_model_free(o);
    }
}

static void test_shards_and_index_must_agree(void **state)
{
    struct hf_model *o = random_model(&small_gpt2);

    (void)state;
    save_good(path("d"), o, 2000);
    edit_index("\"total_size\": ", "\"total_sizes\": ");
    hf_model_free(load(path("d")));
    edit_index("    \"transformer.wpe.weight\": \"model-00001-of-00002.safetensors\",\n", "");
    check_refused(path("d"), -EINVAL, path("d/model.safetensors.index.json"),
                  "does not list \"transformer.wpe.weight\" for model-00001-of-00002.safetensors");
    assert_int_equal(rename(path("d/model-00002-of-00002.safetensors"), path("d/x")), 0);
    check_refused(path("d"), -ENOENT, path("d/model-00002-of-00002.safetensors"), "cannot open");
    hf_model_free(o);
}

/* --------------------------------------------------------------------------------------- where exports go */

static void check_not_saved(const char *dir, const struct hf_model *o, bool replace, int code,
                            const char *part)
{
    struct err err = {0};
    int before = entries(root), r = save(dir, o, 0, replace, NULL, &err);

    if (r != code || !strstr(err.msg, part) || strcmp(err.path, dir) != 0)
        fail_msg("expected %d \"%s\", found %d at %s: %s", code, part, r, err.path, err.msg);
    assert_int_equal(entries(root), before);
}

static void test_nothing_but_an_export_is_replaced(void **state)
{
    struct hf_model *o = random_model(&small_gpt2), *other = random_model(&small_llama), *back;

    (void)state;
    mkdir(path("empty"), 0777);
    save_good(path("empty"), o, 0);
    save_good(path("slash/"), o, 0);
    assert_true(exists(path("slash/config.json")));
    check_not_saved(path("empty"), o, false, -EEXIST,
                    "exists already and is an export; choose another folder, or give --force");
    assert_int_equal(save(path("empty"), other, 500, true, NULL, NULL), 0);
    assert_false(exists(path("empty/model.safetensors")));
    back = load(path("empty"));
    check_same(back, other);
    hf_model_free(back);
    assert_int_equal(save(path("empty"), o, 0, true, NULL, NULL), 0);
    assert_int_equal(entries(path("empty")), 2);
    assert_int_equal(entries(root), 2);

    put_text("empty", "tokenizer.json", "{}");
    check_not_saved(path("empty"), o, true, -EEXIST,
                    "contains tokenizer.json, which is not part of an export");
    mkdir(path("foreign"), 0777);
    put_text("foreign", "config.json", "{}");
    write_tensors(path("foreign/model.safetensors"), o->at, o->n);
    check_not_saved(path("foreign"), o, true, -EEXIST, "contains model.safetensors,");
    put_text(".", "file", "");
    check_not_saved(path("file"), o, true, -EEXIST, "is not a folder");
    assert_int_equal(symlink("empty", path("link")), 0);
    check_not_saved(path("link"), o, true, -EEXIST, "is not a folder");
    check_not_saved(path("none/dir"), o, true, -EINVAL, "No such file");
    check_not_saved(path(".."), o, true, -EINVAL, "not the name of a folder");
    check_not_saved("/", o, true, -EINVAL, "not the name of a folder");
    hf_model_free(o);
    hf_model_free(other);
}

static void test_models_that_transformers_lacks_are_not_written(void **state)
{
    struct transformer t = small_gpt2;
    struct hf_model *o;

    (void)state;
    t.kv_heads = 1;
    o = random_model(&t);
    check_not_saved(path("d"), o, false, -EINVAL, "1 key-value heads for 3 heads");
    hf_model_free(o);
}

/* The disk becomes full at every possible point of an export. Afterwards there must be nothing, or what was
 * there before. */
static void test_failed_export_leaves_nothing(void **state)
{
    struct hf_model *o = random_model(&small_gpt2), *back;
    struct rlimit old, limit;
    struct hf_saved saved;
    struct err err;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(save(path("there"), o, 0, false, &saved, NULL), 0);
    for (rlim_t most = 0; most < saved.bytes; most += 400) {
        limit = (struct rlimit){most, old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        int r = save(path("new"), o, 0, false, NULL, &err),
            again = save(path("there"), o, 0, true, NULL, NULL);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(r, -EFBIG);
        assert_int_equal(again, -EFBIG);
        assert_string_equal(err.path, path(most < 800 ? "new/config.json" : "new/model.safetensors"));
        assert_int_equal(entries(root), 1);
        back = load(path("there"));
        check_same(o, back);
        hf_model_free(back);
    }
    hf_model_free(o);
}

#define IN_ROOT(name) cmocka_unit_test_setup_teardown(name, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_of_transformers_is_read),
        cmocka_unit_test(test_llama_of_transformers_is_read),
        cmocka_unit_test(test_shards_in_bf16_are_read),
        IN_ROOT(test_what_was_read_is_written_as_it_was),
        IN_ROOT(test_shards_of_any_size_read_back),
        IN_ROOT(test_untied_gpt2_and_tied_llama_read_back),
        IN_ROOT(test_wide_models_read_back),
        cmocka_unit_test(test_every_half_is_exact),
        cmocka_unit_test(test_only_floats_are_read_as_floats),
        IN_ROOT(test_names_without_prefix_are_read),
        IN_ROOT(test_constants_are_ignored),
        IN_ROOT(test_constants_of_layers_that_are_not_there_are_unknown),
        IN_ROOT(test_second_copy_of_a_tied_matrix_must_be_the_same),
        IN_ROOT(test_unknown_tensors_are_named),
        IN_ROOT(test_missing_tensors_are_named),
        IN_ROOT(test_other_shapes_are_named),
        IN_ROOT(test_a_tensor_by_both_of_its_names_is_refused),
        IN_ROOT(test_other_dtypes_are_refused),
        IN_ROOT(test_other_tensors_than_those_of_the_model_are_refused),
        IN_ROOT(test_what_is_not_a_folder_is_refused),
        IN_ROOT(test_links_are_followed),
        IN_ROOT(test_wrong_indexes_are_refused),
        IN_ROOT(test_shards_and_index_must_agree),
        IN_ROOT(test_nothing_but_an_export_is_replaced),
        IN_ROOT(test_models_that_transformers_lacks_are_not_written),
        IN_ROOT(test_failed_export_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
