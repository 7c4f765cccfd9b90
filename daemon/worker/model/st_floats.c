/* Gives access to the tensors of a safetensors file as floats: converts them while reading, or maps them into
 * memory.
 *
 * Every F16 and BF16 number is also an F32 number, so the conversion is exact. It uses integer operations,
 * because floating point operations may change the payload of a NaN. The two-byte elements are read into the
 * upper half of the caller's memory and converted from front to back, so that no element is overwritten
 * before it is converted.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/fs.h"
#include "daemon/worker/model/safetensors.h"
#include "daemon/worker/model/st_header.h"
#include "kernels/half.h"

/* ------------------------------------------------------------------------------------------ converting */

/* Converts `n` two-byte elements to four-byte floats in place. Before the call, the elements are in the upper
 * half of the array `at`. Afterwards the floats fill the whole array. The loop runs from front to back, so
 * each float overwrites only elements that were already converted. */
static void spread(float *at, uint64_t n, enum dtype dtype)
{
    const char *from = (const char *)at + n * sizeof(uint16_t);

    for (uint64_t i = 0; i < n; i++) {
        uint16_t v;
        uint32_t bits;
        memcpy(&v, from + i * sizeof v, sizeof v);
        bits = dtype == DTYPE_F16 ? f16_bits(v) : bf16_bits(v);
        memcpy(&at[i], &bits, sizeof bits);
    }
}

int safetensors_read_floats(const struct safetensors *f, const struct st_entry *e, uint64_t first, uint64_t n,
                            float *ret, struct err *err)
{
    uint64_t size = dtype_sizes[e->dtype];
    int r;

    if (e->dtype != DTYPE_F32 && e->dtype != DTYPE_F16 && e->dtype != DTYPE_BF16)
        return err_set_at(err, -EINVAL, f->file,
                          "tensor \"%s\" is %s; only F32, F16 and BF16 can be read as floats", e->name,
                          dtype_names[e->dtype]);
    assert(first <= (e->end - e->begin) / size && n <= (e->end - e->begin) / size - first);
    if (n == 0)
        return 0;
    r = fs_pread_all(f->fd, (char *)ret + n * (sizeof(float) - size), n * size,
                     f->data_begin + e->begin + first * size);
    if (r < 0)
        return fs_fail(err, r, NULL, f->file, "read");
    if (e->dtype != DTYPE_F32)
        spread(ret, n, e->dtype);
    return 0;
}

/* ------------------------------------------------------------------------------------------ mapping */

static int check_mappable(const struct safetensors *f, struct err *err)
{
    for (size_t i = 0; i < f->header.n_entries; i++) {
        const struct st_entry *e = &f->header.entries[i];
        if (e->dtype != DTYPE_F32)
            return err_set_at(err, -EINVAL, f->file, "tensor \"%s\" is %s, but F32 is needed", e->name,
                              dtype_names[e->dtype]);
    }
    if (f->data_begin % sizeof(float) != 0)
        return err_set_at(err, -EINVAL, f->file,
                          "its data begins at byte %" PRIu64
                          ", not at a multiple of 4; write it again with a padded header",
                          f->data_begin);
    return 0;
}

int safetensors_map(const struct safetensors *f, struct st_map *ret, struct err *err)
{
    size_t n = f->header.n_entries;
    struct st_map m = {.n = n};
    int r = check_mappable(f, err);

    if (r < 0)
        return r;
    m.bytes = f->data_begin + (n > 0 ? f->header.entries[n - 1].end : 0);
    m.tensors = calloc(n + 1, sizeof *m.tensors);
    if (!m.tensors)
        return err_set_at(err, -ENOMEM, f->file, "no memory for a list of %zu tensors", n);
    m.at = mmap(NULL, m.bytes, PROT_READ, MAP_PRIVATE, f->fd, 0);
    if (m.at == MAP_FAILED) {
        r = -errno;
        free(m.tensors);
        return fs_fail(err, r, NULL, f->file, "map");
    }
    for (size_t i = 0; i < n; i++) {
        const struct st_entry *e = &f->header.entries[i];
        struct st_tensor *t = &m.tensors[i];
        *t = (struct st_tensor){.name = e->name, .dtype = e->dtype, .rank = e->rank};
        memcpy(t->shape, e->shape, sizeof t->shape);
        t->data = (char *)m.at + f->data_begin + e->begin;
    }
    *ret = m;
    return 0;
}

void st_map_finish(struct st_map *m)
{
    if (m->at)
        munmap(m->at, m->bytes);
    free(m->tensors);
    *m = (struct st_map){0};
}
