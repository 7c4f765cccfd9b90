/* Implements safetensors.h: writes and reads safetensors files.
 *
 * When a file is written, the header is built from the list of tensors and padded so that the data begin at a
 * multiple of 8. Header and data pass through struct sink in blocks; each block is written and checksummed
 * while it is in the cache. Transposed tensors are transposed block by block on the way.
 *
 * When a file is opened, safetensors_open checks that all names differ, that sizes agree with types and
 * shapes, and that the offsets cover the data from its start to the end of the file without gaps or overlaps.
 * After that, reading a tensor is one pread of a range that is known to exist.
 */
#include "daemon/worker/model/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "base/crc32c.h"
#include "base/fs.h"
#include "base/strbuf.h"
#include "daemon/worker/model/st_header.h"
#include "kernels/half.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors data is little-endian, and this code writes memory as it is"
#endif

/* Computes the number of bytes in a tensor of this shape. Returns false if the number overflows 64 bits. */
static bool shape_bytes(uint32_t rank, const uint64_t *shape, enum dtype dtype, uint64_t *ret)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < rank; i++)
        if (!checked_mul(n, shape[i], &n))
            return false;
    return dtype_bytes(dtype, n, ret);
}

/* ------------------------------------------------------------------------------------------ writing */

/* The file that is being written. */
struct sink {
    int fd;
    uint64_t bytes; /* number of bytes written so far */
    uint32_t crc;   /* CRC-32C of these bytes */
};

/* Writes `bytes` bytes to the file and adds them to its checksum, block by block. */
static int put(struct sink *s, const void *p, uint64_t bytes)
{
    const char *at = p;

    while (bytes > 0) {
        uint64_t n = bytes < FS_BLOCK_BYTES ? bytes : FS_BLOCK_BYTES;
        int r = fs_write_all(s->fd, at, n);
        if (r < 0)
            return r;
        s->crc = crc32c(s->crc, at, n);
        s->bytes += n;
        at += n;
        bytes -= n;
    }
    return 0;
}

/* Returns the type of the elements of a tensor in memory. */
static enum dtype memory_dtype(const struct st_tensor *t)
{
    return t->rounded ? DTYPE_F32 : t->dtype;
}

/* Copies `n` elements of `size` bytes from a dense array. Element i goes to position i * `step` of the array
 * `to`. The two usual sizes have separate loops, because a memcpy of a constant size is fast: one load and
 * one store. */
static void spread_elements(char *to, uint64_t step, const char *from, uint64_t n, uint64_t size)
{
    if (size == sizeof(uint32_t))
        for (uint64_t i = 0; i < n; i++)
            memcpy(to + i * step * sizeof(uint32_t), from + i * sizeof(uint32_t), sizeof(uint32_t));
    else if (size == sizeof(uint16_t))
        for (uint64_t i = 0; i < n; i++)
            memcpy(to + i * step * sizeof(uint16_t), from + i * sizeof(uint16_t), sizeof(uint16_t));
    else
        for (uint64_t i = 0; i < n; i++)
            memcpy(to + i * step * size, from + i * size, size);
}

/* Writes `n` elements of a tensor. If its memory contains floats, the function rounds them block by block. */
static int put_elements(struct sink *s, const struct st_tensor *t, const void *p, uint64_t n)
{
    const uint64_t most = FS_BLOCK_BYTES / dtype_size(t->dtype);
    const float *from = p;
    char *block;
    int r;

    if (!t->rounded)
        return put(s, p, n * dtype_size(t->dtype));
    block = malloc(FS_BLOCK_BYTES);
    r = block ? 0 : -ENOMEM;
    while (r == 0 && n > 0) {
        uint64_t some = n < most ? n : most;
        half_round(t->dtype, from, block, some);
        r = put(s, block, some * dtype_size(t->dtype));
        from += some;
        n -= some;
    }
    free(block);
    return r;
}

/* Writes a tensor that is transposed in memory, so that a row of the file is a column in memory. The function
 * collects as many rows as fit into a block before it writes them. In this way it reads neighbouring elements
 * of the memory together, which is faster. */
static int put_transposed(struct sink *s, const struct st_tensor *t)
{
    uint64_t rows = t->shape[0], columns = t->shape[1], size = dtype_size(memory_dtype(t)),
             row_bytes = columns * size, most;
    char *block;
    int r;

    if (rows == 0 || columns == 0)
        return 0;
    most = row_bytes < FS_BLOCK_BYTES ? FS_BLOCK_BYTES / row_bytes : 1;
    block = malloc(most * row_bytes);
    r = block ? 0 : -ENOMEM;
    for (uint64_t first = 0; r == 0 && first < rows; first += most) {
        uint64_t n = rows - first < most ? rows - first : most;
        for (uint64_t c = 0; c < columns; c++)
            spread_elements(block + c * size, columns, (const char *)t->data + (c * rows + first) * size, n,
                            size);
        r = put_elements(s, t, block, n * columns);
    }
    free(block);
    return r;
}

/* Checks that no finite element of a tensor becomes infinite when it is rounded to F16. */
static int check_range(const char *file, const struct st_tensor *t, uint64_t n, struct err *err)
{
    const float *v = t->data;

    for (uint64_t i = 0; t->rounded && t->dtype == DTYPE_F16 && i < n; i++)
        if (isfinite(v[i]) && (f16_from_float(v[i]) & 0x7fffu) == 0x7c00u)
            return err_set_at(err, -ERANGE, file,
                              "tensor \"%s\" has the element %.9g, but the largest number of F16 is 65504; "
                              "choose bf16 or f32",
                              t->name, (double)v[i]);
    return 0;
}

static void add_metadata(struct strbuf *b, const struct st_meta *meta, size_t n)
{
    strbuf_add(b, "\"__metadata__\":{");
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            strbuf_add(b, ",");
        strbuf_add_json(b, meta[i].key);
        strbuf_add(b, ":");
        strbuf_add_json(b, meta[i].value);
    }
    strbuf_add(b, "}");
}

static void add_tensor(struct strbuf *b, const struct st_tensor *t, uint64_t begin, uint64_t end)
{
    if (b->n > 1)
        strbuf_add(b, ",");
    strbuf_add_json(b, t->name);
    strbuf_addf(b, ":{\"dtype\":\"%s\",\"shape\":[", dtype_names[t->dtype]);
    for (uint32_t i = 0; i < t->rank; i++)
        strbuf_addf(b, "%s%" PRIu64, i > 0 ? "," : "", t->shape[i]);
    strbuf_addf(b, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, end);
}

/* Appends the header of the file to `b`, and pads it with spaces to a multiple of 8 bytes, so that the data
 * are aligned. */
static int build_header(struct strbuf *b, const struct st_tensor *tensors, size_t n,
                        const struct st_meta *meta, size_t n_meta)
{
    uint64_t at = 0, bytes;

    strbuf_add(b, "{");
    if (n_meta > 0)
        add_metadata(b, meta, n_meta);
    for (size_t i = 0; i < n; i++) {
        assert(tensors[i].rank <= SAFETENSORS_MAX_RANK && (!tensors[i].transposed || tensors[i].rank == 2));
        if (!shape_bytes(tensors[i].rank, tensors[i].shape, tensors[i].dtype, &bytes) ||
            !checked_add(at, bytes, &bytes))
            return -EOVERFLOW;
        add_tensor(b, &tensors[i], at, bytes);
        at = bytes;
    }
    strbuf_add(b, "}");
    while (b->n % 8 != 0)
        strbuf_add(b, " ");
    return b->n > SAFETENSORS_MAX_HEADER ? -EFBIG : 0;
}

int safetensors_write(int fd, const char *file, const struct st_tensor *tensors, size_t n,
                      const struct st_meta *meta, size_t n_meta, uint64_t *ret_bytes, uint32_t *ret_crc,
                      struct err *err)
{
    struct strbuf b = {0};
    struct sink s = {.fd = fd};
    uint64_t length;
    int r = build_header(&b, tensors, n, meta, n_meta);

    length = b.n;
    if (r == 0)
        r = put(&s, &length, sizeof length);
    if (r == 0)
        r = put(&s, b.at, b.n);
    strbuf_finish(&b);
    for (size_t i = 0; r == 0 && i < n; i++) {
        uint64_t bytes = 0;
        /* build_header has checked that the size does not overflow. */
        shape_bytes(tensors[i].rank, tensors[i].shape, tensors[i].dtype, &bytes);
        const uint64_t count = dtype_elements(tensors[i].dtype, bytes);
        const int range = check_range(file, &tensors[i], count, err);
        if (range < 0)
            return range;
        r = tensors[i].transposed ? put_transposed(&s, &tensors[i])
                                  : put_elements(&s, &tensors[i], tensors[i].data, count);
    }
    if (r < 0)
        return fs_fail(err, r, NULL, file, "write");
    if (ret_bytes)
        *ret_bytes = s.bytes;
    if (ret_crc)
        *ret_crc = s.crc;
    return 0;
}

/* ------------------------------------------------------------------------------------------ reading */

static int compare_offset(const void *a, const void *b)
{
    const struct st_entry *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int compare_entry_names(const void *a, const void *b)
{
    return strcmp((*(const struct st_entry *const *)a)->name, (*(const struct st_entry *const *)b)->name);
}

static int compare_key(const void *a, const void *b)
{
    return strcmp(((const struct st_meta *)a)->key, ((const struct st_meta *)b)->key);
}

static int read_header(struct safetensors *f, struct err *err)
{
    struct stat st;
    uint64_t length;
    int r;

    if (fstat(f->fd, &st) < 0)
        return fs_fail(err, -errno, NULL, f->file, "read");
    if (st.st_size < 8)
        return err_set_at(err, -EBADMSG, f->file,
                          "not a safetensors file: it has %lld bytes, but at least 8 are needed",
                          (long long)st.st_size);
    r = fs_pread_all(f->fd, &length, sizeof length, 0);
    if (r < 0)
        return fs_fail(err, r, NULL, f->file, "read");
    if (length > SAFETENSORS_MAX_HEADER || length > (uint64_t)st.st_size - 8)
        return err_set_at(err, -EBADMSG, f->file,
                          "not a safetensors file, or cut short: its header claims %" PRIu64
                          " bytes, but the file has %lld after the first 8 (a header has at most %u)",
                          length, (long long)st.st_size - 8, SAFETENSORS_MAX_HEADER);
    f->data_begin = 8 + length;
    f->text = malloc(length + 1);
    if (!f->text)
        return err_set_at(err, -ENOMEM, f->file, "no memory for the header of %" PRIu64 " bytes", length);
    r = fs_pread_all(f->fd, f->text, length, 8);
    if (r < 0)
        return fs_fail(err, r, NULL, f->file, "read");
    return st_header_parse(&f->header, f->text, length, f->file, err);
}

/* Sorts the entries by their offset in the file. Checks that every size in bytes matches the shape, and that
 * there are no gaps between tensors. */
static int check_layout(struct safetensors *f, struct err *err)
{
    struct st_header *h = &f->header;
    uint64_t at = 0, bytes;
    struct stat st;

    if (h->n_entries > 0)
        qsort(h->entries, h->n_entries, sizeof *h->entries, compare_offset);
    for (size_t i = 0; i < h->n_entries; i++) {
        const struct st_entry *e = &h->entries[i];
        if (e->begin != at || e->end < e->begin)
            return err_set_at(err, -EBADMSG, f->file,
                              "damaged header: tensor \"%s\" has data_offsets [%" PRIu64 ", %" PRIu64
                              "], but the one before ends at %" PRIu64 "; gaps and overlaps are not allowed",
                              e->name, e->begin, e->end, at);
        if (!shape_bytes(e->rank, e->shape, e->dtype, &bytes) || bytes != e->end - e->begin)
            return err_set_at(err, -EBADMSG, f->file,
                              "damaged header: tensor \"%s\" has %" PRIu64
                              " bytes by its offsets, but its shape and dtype %s need another number",
                              e->name, e->end - e->begin, dtype_names[e->dtype]);
        at = e->end;
    }
    if (fstat(f->fd, &st) < 0)
        return fs_fail(err, -errno, NULL, f->file, "read");
    if ((uint64_t)st.st_size < f->data_begin || (uint64_t)st.st_size - f->data_begin != at)
        return err_set_at(err, -EBADMSG, f->file,
                          "the header describes %" PRIu64 " bytes of data, but the file has %lld", at,
                          (long long)st.st_size - (long long)f->data_begin);
    return 0;
}

/* Sorts the metadata by key and the entries by name, and checks that no name occurs twice. */
static int check_names(struct safetensors *f, struct err *err)
{
    struct st_header *h = &f->header;

    if (h->n_meta > 0)
        qsort(h->meta, h->n_meta, sizeof *h->meta, compare_key);
    for (size_t i = 1; i < h->n_meta; i++)
        if (strcmp(h->meta[i - 1].key, h->meta[i].key) == 0)
            return err_set_at(err, -EBADMSG, f->file, "damaged header: metadata \"%s\" occurs twice",
                              h->meta[i].key);
    if (h->n_entries == 0)
        return 0;
    f->by_name = calloc(h->n_entries, sizeof(struct st_entry *));
    if (!f->by_name)
        return err_set_at(err, -ENOMEM, f->file, "no memory for the names of %zu tensors", h->n_entries);
    for (size_t i = 0; i < h->n_entries; i++)
        f->by_name[i] = &h->entries[i];
    qsort(f->by_name, h->n_entries, sizeof *f->by_name, compare_entry_names);
    for (size_t i = 1; i < h->n_entries; i++)
        if (strcmp(f->by_name[i - 1]->name, f->by_name[i]->name) == 0)
            return err_set_at(err, -EBADMSG, f->file, "damaged header: tensor \"%s\" occurs twice",
                              f->by_name[i]->name);
    return 0;
}

int safetensors_open(int fd, const char *file, struct safetensors **ret, struct err *err)
{
    struct safetensors *f = calloc(1, sizeof *f);
    int r;

    if (!f || !(f->file = strdup(file))) {
        free(f);
        return err_set_at(err, -ENOMEM, file, "no memory");
    }
    f->fd = fd;
    r = read_header(f, err);
    if (r == 0)
        r = check_layout(f, err);
    if (r == 0)
        r = check_names(f, err);
    if (r < 0) {
        safetensors_close(f);
        return r;
    }
    *ret = f;
    return 0;
}

void safetensors_close(struct safetensors *f)
{
    if (!f)
        return;
    st_header_finish(&f->header);
    free(f->by_name);
    free(f->text);
    free(f->file);
    free(f);
}

size_t safetensors_count(const struct safetensors *f)
{
    return f->header.n_entries;
}

const struct st_entry *safetensors_at(const struct safetensors *f, size_t i)
{
    assert(i < f->header.n_entries);
    return &f->header.entries[i];
}

const struct st_entry *safetensors_find(const struct safetensors *f, const char *name)
{
    struct st_entry key = {.name = name};
    const struct st_entry *want = &key, **found;

    if (f->header.n_entries == 0)
        return NULL;
    found = bsearch(&want, f->by_name, f->header.n_entries, sizeof *f->by_name, compare_entry_names);
    return found ? *found : NULL;
}

const char *safetensors_meta(const struct safetensors *f, const char *key)
{
    struct st_meta want = {.key = key}, *found;

    if (f->header.n_meta == 0)
        return NULL;
    found = bsearch(&want, f->header.meta, f->header.n_meta, sizeof want, compare_key);
    return found ? found->value : NULL;
}

int safetensors_read(const struct safetensors *f, const struct st_entry *e, void *ret, struct err *err)
{
    int r = fs_pread_all(f->fd, ret, e->end - e->begin, f->data_begin + e->begin);

    return r < 0 ? fs_fail(err, r, NULL, f->file, "read") : 0;
}

void st_shape_text(char *buf, size_t size, uint32_t rank, const uint64_t *shape)
{
    int at = snprintf(buf, size, "[");

    for (uint32_t i = 0; i < rank && (size_t)at < size; i++)
        at += snprintf(buf + at, size - (size_t)at, "%s%" PRIu64, i > 0 ? "," : "", shape[i]);
    if ((size_t)at < size)
        snprintf(buf + at, size - (size_t)at, "]");
}

static int fail_shape(const struct safetensors *f, const struct st_entry *e, const struct st_tensor *t,
                      struct err *err)
{
    char found[192], needed[192];

    st_shape_text(found, sizeof found, e->rank, e->shape);
    st_shape_text(needed, sizeof needed, t->rank, t->shape);
    return err_set_at(err, -EINVAL, f->file, "tensor \"%s\" is %s %s in the file, but the model needs %s %s",
                      t->name, dtype_names[e->dtype], found, dtype_names[t->dtype], needed);
}

/* Finds the tensor `t` in the file and checks that it has the shape of `t` and the type `dtype`. */
static int find_tensor(const struct safetensors *f, const struct st_tensor *t, enum dtype dtype,
                       const struct st_entry **ret, struct err *err)
{
    const struct st_entry *e = *ret = safetensors_find(f, t->name);

    if (!e)
        return err_set_at(err, -ENOENT, f->file, "there is no tensor \"%s\" in the file", t->name);
    if (e->dtype != dtype || e->rank != t->rank ||
        memcmp(e->shape, t->shape, t->rank * sizeof t->shape[0]) != 0)
        return fail_shape(f, e, t, err);
    return 0;
}

int safetensors_read_tensor(const struct safetensors *f, const struct st_tensor *t, struct err *err)
{
    const struct st_entry *e;
    int r = find_tensor(f, t, t->dtype, &e, err);

    return r < 0 ? r : safetensors_read(f, e, t->data, err);
}

int safetensors_read_rounded(const struct safetensors *f, const struct st_tensor *t, struct err *err)
{
    const uint64_t most = FS_BLOCK_BYTES / sizeof(float);
    const struct st_entry *e = safetensors_find(f, t->name);
    char *to = t->data;

    if (!e || e->dtype == t->dtype || (t->dtype != DTYPE_BF16 && t->dtype != DTYPE_F16))
        return safetensors_read_tensor(f, t, err);
    int r = find_tensor(f, t, DTYPE_F32, &e, err);
    if (r < 0)
        return r;
    float *block = malloc(FS_BLOCK_BYTES);
    r = block ? 0 : err_set_at(err, -ENOMEM, f->file, "no memory to read tensor \"%s\" with", t->name);
    for (uint64_t at = 0, n = dtype_elements(DTYPE_F32, e->end - e->begin); r == 0 && at < n; at += most) {
        uint64_t some = n - at < most ? n - at : most;
        r = safetensors_read_floats(f, e, at, some, block, err);
        if (r == 0)
            half_round(t->dtype, block, to + at * dtype_size(t->dtype), some);
    }
    free(block);
    return r;
}
