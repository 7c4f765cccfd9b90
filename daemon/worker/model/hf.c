/* Reads a Hugging Face folder.
 *
 * hf_open reads config.json, which gives the model and the list of tensors that it must have (hf_names.h). It
 * opens the weight file, or the index and its shards, and checks their headers (safetensors.h). Every tensor
 * of the list must be in the files with the right shape and dtype, and every tensor in the files must be in
 * the list or be a known constant.
 *
 * hf_load reads tensors with pread, not through a mapping, so that a truncated file or a failing disk gives
 * an error with the name of the file instead of a SIGBUS. Tensors go straight into the caller's memory;
 * transposed ones are read and transposed a block of rows at a time.
 */
#include "daemon/worker/model/hf.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/fs.h"
#include "daemon/spec/hf_config.h"
#include "daemon/worker/model/hf_index.h"
#include "daemon/worker/model/hf_names.h"

#define CONFIG     "config.json"
#define SINGLE     "model.safetensors"
#define INDEX      "model.safetensors.index.json"
#define CONFIG_MAX (1u << 20)

/* An open weight file of the folder. */
struct hf_file {
    int fd;
    char *name;
    struct safetensors *st;
    /* used[i] is true if the model uses tensor number i of the file. */
    bool *used;
};

/* A tensor in one of the files. */
struct file_tensor {
    const struct hf_file *file;
    const struct st_entry *entry; /* NULL if there is no such tensor */
};

struct hf {
    char *dir; /* path of the folder */
    int fd;    /* the open folder */
    struct transformer t;
    struct hf_names names;
    struct hf_file *files;
    size_t n_files;
    struct file_tensor *sources; /* for each link: its tensor */
    /* The output matrix of a model with tied weights. Some folders store this matrix although it equals the
     * embedding. */
    struct file_tensor head;
};

/* ------------------------------------------------------------------------------------------ files */

/* Opens a regular file like fs_open_read, but follows symbolic links, because the files in the Hugging Face
 * cache are symbolic links. */
static int open_following_links(int dir, const char *name, uint64_t *ret_bytes)
{
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), r = -EINVAL;
    struct stat st;

    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0)
        r = -errno;
    else if (S_ISREG(st.st_mode)) {
        *ret_bytes = (uint64_t)st.st_size;
        return fd;
    }
    close(fd);
    return r;
}

static int read_text(const struct hf *f, const char *name, uint64_t max, char **ret, size_t *ret_bytes,
                     struct err *err)
{
    uint64_t bytes = 0;
    int fd = open_following_links(f->fd, name, &bytes), r = fd < 0 ? fd : bytes > max ? -EFBIG : 0;
    char *text = r == 0 ? malloc(bytes + 1) : NULL;

    if (r == 0)
        r = text ? fs_pread_all(fd, text, bytes, 0) : -ENOMEM;
    if (fd >= 0)
        close(fd);
    if (r < 0) {
        free(text);
        return fs_fail(err, r, f->dir, name, "read");
    }
    text[bytes] = '\0';
    *ret = text;
    *ret_bytes = bytes;
    return 0;
}

static bool exists(const struct hf *f, const char *name)
{
    return faccessat(f->fd, name, F_OK, 0) == 0;
}

static int read_config(struct hf *f, struct err *err)
{
    char *text = NULL, path[FS_PATH_BYTES];
    size_t bytes = 0;
    int r;

    if (!exists(f, CONFIG))
        return err_set_at(err, -ENOENT, f->dir,
                          "has no " CONFIG "; the folder of a model needs it beside the weights");
    r = read_text(f, CONFIG, CONFIG_MAX, &text, &bytes, err);
    if (r < 0)
        return r;
    fs_path(path, sizeof path, f->dir, CONFIG);
    r = hf_config_parse(text, bytes, path, &f->t, err);
    free(text);
    return r;
}

/* Opens the weight file `name` and appends it to f->files. The array must already have space for one more
 * file. */
static int add_file(struct hf *f, const char *name, struct err *err)
{
    struct hf_file *file = &f->files[f->n_files];
    char path[FS_PATH_BYTES];
    uint64_t bytes = 0;
    int fd = open_following_links(f->fd, name, &bytes), r;

    if (fd < 0)
        return fs_fail(err, fd, f->dir, name, "open");
    *file = (struct hf_file){.fd = fd, .name = strdup(name)};
    f->n_files++;
    fs_path(path, sizeof path, f->dir, name);
    r = file->name ? safetensors_open(fd, path, &file->st, err) : err_set(err, -ENOMEM, "no memory");
    if (r < 0)
        return r;
    file->used = calloc(safetensors_count(file->st) + 1, sizeof *file->used);
    return file->used ? 0 : err_set_at(err, -ENOMEM, path, "no memory");
}

/* ------------------------------------------------------------------------------------------ shards */

/* Checks that each tensor of the index is in the weight file that the index names for it. Also checks that
 * the sizes of the tensors add up to metadata.total_size. */
static int check_listed(const struct hf *f, const struct hf_index *x, const char *path, struct err *err)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < x->n; i++) {
        const struct hf_file *file = &f->files[x->entries[i].file];
        const struct st_entry *e = safetensors_find(file->st, x->entries[i].tensor);
        if (!e)
            return err_set_at(err, -EINVAL, path,
                              "says that \"%s\" is in %s, but that file has no such tensor",
                              x->entries[i].tensor, file->name);
        bytes += e->end - e->begin;
    }
    if (x->has_bytes && x->bytes != bytes)
        return err_set_at(err, -EINVAL, path,
                          "metadata.total_size is %" PRIu64 ", but the tensors of the files have %" PRIu64
                          " bytes",
                          x->bytes, bytes);
    return 0;
}

/* Checks that the index lists every tensor that is in the weight files. */
static int check_unlisted(const struct hf *f, const struct hf_index *x, const char *path, struct err *err)
{
    for (size_t i = 0; i < f->n_files; i++) {
        for (size_t k = 0; k < safetensors_count(f->files[i].st); k++) {
            const char *tensor = safetensors_at(f->files[i].st, k)->name;
            const struct hf_index_entry *e = hf_index_find(x, tensor);
            if (!e || e->file != i)
                return err_set_at(err, -EINVAL, path, "does not list \"%s\" for %s, but that file has it",
                                  tensor, f->files[i].name);
        }
    }
    return 0;
}

static int open_shards(struct hf *f, struct err *err)
{
    struct hf_index x = {0};
    char *text = NULL, path[FS_PATH_BYTES];
    size_t bytes = 0;
    int r = read_text(f, INDEX, JSON_MAX_BYTES, &text, &bytes, err);

    if (r < 0)
        return r;
    fs_path(path, sizeof path, f->dir, INDEX);
    r = hf_index_parse(text, bytes, path, &x, err);
    free(text);
    if (r < 0)
        return r;
    f->files = calloc(x.n_files, sizeof *f->files);
    if (!f->files)
        r = err_set_at(err, -ENOMEM, path, "no memory for a list of %zu files", x.n_files);
    for (size_t i = 0; r == 0 && i < x.n_files; i++)
        r = add_file(f, x.files[i], err);
    if (r == 0)
        r = check_listed(f, &x, path, err);
    if (r == 0)
        r = check_unlisted(f, &x, path, err);
    hf_index_finish(&x);
    return r;
}

static int open_single(struct hf *f, struct err *err)
{
    f->files = calloc(1, sizeof *f->files);
    return f->files ? add_file(f, SINGLE, err) : err_set(err, -ENOMEM, "no memory");
}

static int fail_without_weights(const struct hf *f, struct err *err)
{
    static const char *const others[] = {"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5",
                                         "flax_model.msgpack"};

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (exists(f, others[i]))
            return err_set_at(
                err, -ENOENT, f->dir,
                "has its weights in %s, a format that is not supported; load the folder with transformers "
                "and call save_pretrained to convert them to safetensors",
                others[i]);
    return err_set_at(err, -ENOENT, f->dir, "has neither " SINGLE " nor " INDEX);
}

static int open_weights(struct hf *f, struct err *err)
{
    bool single = exists(f, SINGLE), index = exists(f, INDEX);

    if (single && index)
        return err_set_at(err, -EINVAL, f->dir,
                          "has both " SINGLE " and " INDEX "; remove the one that is out of date");
    return single ? open_single(f, err) : index ? open_shards(f, err) : fail_without_weights(f, err);
}

/* ------------------------------------------------------------------------------------------ tensors */

/* Finds the tensor `name` in the weight files. At most one file has the tensor, because the index lists each
 * tensor only once. */
static struct file_tensor find(const struct hf *f, const char *name)
{
    for (size_t i = 0; i < f->n_files; i++) {
        const struct st_entry *e = safetensors_find(f->files[i].st, name);
        if (e)
            return (struct file_tensor){&f->files[i], e};
    }
    return (struct file_tensor){0};
}

/* Marks the tensor `p` as used by the model. check_unclaimed later refuses files with unused tensors. */
static void claim(const struct file_tensor *p)
{
    p->file->used[p->entry - safetensors_at(p->file->st, 0)] = true;
}

static int fail_at(const struct hf *f, const struct file_tensor *p, int code, const char *what,
                   struct err *err)
{
    char path[FS_PATH_BYTES];

    fs_path(path, sizeof path, f->dir, p->file->name);
    return err_set_at(err, code, path, "%s", what);
}

static int check_tensor(const struct hf *f, const struct file_tensor *p, uint32_t rank, const uint64_t *shape,
                        struct err *err)
{
    const struct st_entry *e = p->entry;
    char what[640], needed[64], found[192];
    bool fits = e->rank == rank && memcmp(e->shape, shape, rank * sizeof shape[0]) == 0;

    if (fits && (e->dtype == DTYPE_F32 || e->dtype == DTYPE_F16 || e->dtype == DTYPE_BF16))
        return 0;
    st_shape_text(needed, sizeof needed, rank, shape);
    st_shape_text(found, sizeof found, e->rank, e->shape);
    if (fits)
        snprintf(what, sizeof what,
                 "tensor \"%.300s\" is %s; save the model in F32, F16 or BF16, the supported types", e->name,
                 dtype_names[e->dtype]);
    else
        snprintf(what, sizeof what, "tensor \"%.300s\" is %s, but by " CONFIG " it must be %s", e->name,
                 found, needed);
    return fail_at(f, p, -EINVAL, what, err);
}

/* Finds the Hugging Face tensor of link `l` in the weight files and checks its shape. Some folders omit the
 * prefix of tensor names, such as "transformer.", so the function tries the name with and without the
 * prefix. */
static int find_link(const struct hf *f, const struct hf_link *l, struct file_tensor *ret, struct err *err)
{
    struct file_tensor p = find(f, l->name),
                       plain = l->plain != l->name ? find(f, l->plain) : (struct file_tensor){0};
    char what[320];

    if (p.entry && plain.entry) {
        snprintf(what, sizeof what, "has both \"%s\" and \"%s\", which are the same tensor; remove one",
                 l->name, l->plain);
        return fail_at(f, &plain, -EINVAL, what, err);
    }
    if (!p.entry)
        p = plain;
    if (!p.entry) {
        char needed[64];
        st_shape_text(needed, sizeof needed, l->rank, l->shape);
        return err_set_at(err, -EINVAL, f->dir,
                          "there is no tensor \"%s\" in its %s; by " CONFIG " it must have one, %s", l->name,
                          f->n_files > 1 ? "shards" : SINGLE, needed);
    }
    claim(&p);
    *ret = p;
    return check_tensor(f, &p, l->rank, l->shape, err);
}

/* Finds the output matrix of a model with tied weights. Some folders store this matrix although it equals the
 * embedding. */
static int find_tied_head(struct hf *f, struct err *err)
{
    const uint64_t shape[2] = {f->t.vocab, f->t.width};

    f->head = f->t.tied ? find(f, HF_HEAD) : (struct file_tensor){0};
    if (!f->head.entry)
        return 0;
    claim(&f->head);
    return check_tensor(f, &f->head, 2, shape, err);
}

/* Fails if the weight files have a tensor that the model does not use. Known constants, such as masks, are
 * allowed. */
static int check_unclaimed(const struct hf *f, struct err *err)
{
    for (size_t i = 0; i < f->n_files; i++) {
        for (size_t k = 0; k < safetensors_count(f->files[i].st); k++) {
            struct file_tensor p = {&f->files[i], safetensors_at(f->files[i].st, k)};
            char what[640], found[192];
            if (p.file->used[k] || hf_is_constant(&f->t, p.entry->name))
                continue;
            st_shape_text(found, sizeof found, p.entry->rank, p.entry->shape);
            snprintf(what, sizeof what,
                     "tensor \"%.300s\" %s is unknown: a %s model of %" PRIu32
                     " layers has none of that name",
                     p.entry->name, found, transformer_arch_names[f->t.arch], f->t.layers);
            return fail_at(f, &p, -EINVAL, what, err);
        }
    }
    return 0;
}

static int find_tensors(struct hf *f, struct err *err)
{
    int r = 0;

    hf_names_init(&f->names, &f->t);
    f->sources = calloc(f->names.n, sizeof *f->sources);
    if (!f->sources)
        return err_set_at(err, -ENOMEM, f->dir, "no memory for a list of %zu tensors", f->names.n);
    for (size_t i = 0; r == 0 && i < f->names.n; i++)
        r = find_link(f, &f->names.links[i], &f->sources[i], err);
    if (r == 0)
        r = find_tied_head(f, err);
    return r < 0 ? r : check_unclaimed(f, err);
}

/* ------------------------------------------------------------------------------------------ opening */

static int open_folder(struct hf *f, struct err *err)
{
    int r;

    f->fd = open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->fd < 0)
        return fs_fail(err, -errno, NULL, f->dir, "open the folder of a model");
    r = read_config(f, err);
    if (r == 0)
        r = open_weights(f, err);
    return r < 0 ? r : find_tensors(f, err);
}

int hf_open(const char *dir, struct hf **ret, struct err *err)
{
    struct hf *f = calloc(1, sizeof *f);
    int r;

    if (!f || !(f->dir = strdup(dir))) {
        free(f);
        return err_set_at(err, -ENOMEM, dir, "no memory");
    }
    f->fd = -1;
    r = open_folder(f, err);
    if (r < 0)
        hf_close(f);
    else
        *ret = f;
    return r;
}

void hf_close(struct hf *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < f->n_files; i++) {
        safetensors_close(f->files[i].st);
        close(f->files[i].fd);
        free(f->files[i].name);
        free(f->files[i].used);
    }
    free(f->files);
    free(f->sources);
    hf_names_finish(&f->names);
    if (f->fd >= 0)
        close(f->fd);
    free(f->dir);
    free(f);
}

const struct transformer *hf_transformer(const struct hf *f)
{
    return &f->t;
}

/* ------------------------------------------------------------------------------------------ loading */

/* Loads a tensor and transposes it: in the file the tensor is [rows][columns], and in memory it becomes
 * [columns][rows]. */
static int load_transposed(const struct file_tensor *p, uint64_t rows, uint64_t columns, float *to,
                           struct err *err)
{
    uint64_t most = columns < FS_BLOCK_BYTES / sizeof(float) ? FS_BLOCK_BYTES / sizeof(float) / columns : 1;
    float *block = malloc(most * columns * sizeof *block);
    int r = block ? 0 : err_set(err, -ENOMEM, "no memory for a row of %" PRIu64 " elements", columns);

    for (uint64_t first = 0; r == 0 && first < rows; first += most) {
        uint64_t n = rows - first < most ? rows - first : most;
        r = safetensors_read_floats(p->file->st, p->entry, first * columns, n * columns, block, err);
        if (r < 0)
            break;
        for (uint64_t c = 0; c < columns; c++)
            for (uint64_t i = 0; i < n; i++)
                to[c * rows + first + i] = block[i * columns + c];
    }
    free(block);
    return r;
}

static int load_link(const struct hf_link *l, const struct file_tensor *p, const struct st_tensor *t,
                     struct err *err)
{
    float *to = (float *)t->data + l->row * hf_link_columns(l);

    assert(t->dtype == DTYPE_F32);
    if (l->transposed)
        return load_transposed(p, l->shape[0], l->shape[1], to, err);
    return safetensors_read_floats(p->file->st, p->entry, 0, l->shape[0] * l->shape[1], to, err);
}

/* Checks that the stored output matrix of a model with tied weights equals the embedding. If they differ, the
 * folder is refused, because nobody can tell which of the two is meant. */
static int check_tied_head(const struct hf *f, const float *embedding, struct err *err)
{
    uint64_t count = (uint64_t)f->t.vocab * f->t.width, most = FS_BLOCK_BYTES / sizeof(float);
    float *block = malloc(FS_BLOCK_BYTES);
    int r = block ? 0 : err_set(err, -ENOMEM, "no memory");

    for (uint64_t at = 0; r == 0 && at < count; at += most) {
        uint64_t n = count - at < most ? count - at : most;
        r = safetensors_read_floats(f->head.file->st, f->head.entry, at, n, block, err);
        if (r == 0 && memcmp(block, embedding + at, n * sizeof *block) != 0)
            r = fail_at(f, &f->head, -EINVAL,
                        "\"" HF_HEAD "\" differs from the input embedding, but by " CONFIG
                        " they are the same; set tie_word_embeddings to false, or remove the tensor",
                        err);
    }
    free(block);
    return r;
}

int hf_load(const struct hf *f, const struct st_tensor *tensors, size_t n, struct err *err)
{
    const struct st_tensor **bound;
    int r = hf_names_bind(&f->names, tensors, n, f->dir, &bound, err);

    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < f->names.n; i++)
        r = load_link(&f->names.links[i], &f->sources[i], bound[i], err);
    if (r == 0 && f->head.entry)
        r = check_tied_head(f, bound[0]->data, err); /* the first link is the embedding */
    free(bound);
    return r;
}

#define PRINT_BLOCKS 64u   /* Number of blocks in a file's fingerprint. */
#define PRINT_BYTES  4096u /* number of bytes in each block */

/* Adds the size of a weight file, and some evenly spread blocks of its content, to the checksum *crc. */
static int add_fingerprint(const struct hf_file *file, uint32_t *crc)
{
    unsigned char block[PRINT_BYTES];
    struct stat st;

    if (fstat(file->fd, &st) < 0)
        return -errno;
    uint64_t bytes = (uint64_t)st.st_size, span = bytes > sizeof block ? bytes - sizeof block : 0;
    *crc = crc32c(*crc, &bytes, sizeof bytes);
    for (uint64_t i = 0; i < PRINT_BLOCKS; i++) {
        uint64_t n = bytes < sizeof block ? bytes : sizeof block;
        int r = fs_pread_all(file->fd, block, n, span * i / (PRINT_BLOCKS - 1));
        if (r < 0)
            return r;
        *crc = crc32c(*crc, block, (size_t)n);
    }
    return 0;
}

/* Computes a checksum that distinguishes folders with different weights. The checksum covers the sizes of the
 * files and some blocks of their content, because reading everything would take too long. */
static int fingerprint(const struct hf *f, uint32_t *ret, struct err *err)
{
    uint32_t crc = 0;

    for (size_t i = 0; i < f->n_files; i++) {
        int r = add_fingerprint(&f->files[i], &crc);
        if (r < 0)
            return fs_fail(err, r, f->dir, f->files[i].name, "read");
    }
    *ret = crc;
    return 0;
}

int hf_read_folder(const char *dir, struct transformer *ret, uint32_t *ret_crc, struct err *err)
{
    struct hf *f;
    int r = hf_open(dir, &f, err);
    if (r < 0)
        return r;
    *ret = *hf_transformer(f);
    r = fingerprint(f, ret_crc, err);
    hf_close(f);
    return r;
}
