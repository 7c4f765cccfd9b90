/* Writes and reads safetensors files. A file is written from front to back, and its checksum is computed on
 * the way. Tensors are read one by one into the caller's memory, or the file is mapped. Neither side holds a
 * copy of a tensor, so a file may be larger than memory.
 *
 * The reader does not trust the file. safetensors_open checks the header's size and syntax, names, types,
 * shapes, offsets, and the size of the file before any tensor can be read. An open file belongs to one
 * thread.
 */
#ifndef DAEMON_WORKER_MODEL_SAFETENSORS_H
#define DAEMON_WORKER_MODEL_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/dtype.h"

#define SAFETENSORS_MAX_RANK   8
#define SAFETENSORS_MAX_HEADER 100000000u

/* A tensor in the caller's memory, dense and in row-major order. */
struct st_tensor {
    const char *name;
    enum dtype dtype;
    uint32_t rank; /* number of dimensions */
    uint64_t shape[SAFETENSORS_MAX_RANK];
    void *data;
    /* True if the memory contains the transpose of the tensor, [shape[1]][shape[0]]. Allowed only when a
     * tensor with two dimensions is written. */
    bool transposed;
    /* True if the memory contains floats. They are rounded to the tensor's type, BF16 or F16, when the tensor
     * is written. Not allowed when a tensor is read. */
    bool rounded;
};

/* One key and its value in the member "__metadata__" of a safetensors file. */
struct st_meta {
    const char *key, *value;
};

/* Writes a whole safetensors file to `fd` at the current position, without a sync. Error messages call the
 * file `file`. *ret_bytes receives the length of the file, and *ret_crc its CRC-32C. Both pointers may be
 * NULL. Returns -ERANGE with a message that names the tensor if a finite float is too large for F16. */
int safetensors_write(int fd, const char *file, const struct st_tensor *tensors, size_t n,
                      const struct st_meta *meta, size_t n_meta, uint64_t *ret_bytes, uint32_t *ret_crc,
                      struct err *err);

/* The description of one tensor in the header of a safetensors file. */
struct st_entry {
    const char *name;
    enum dtype dtype;
    uint32_t rank;
    uint64_t shape[SAFETENSORS_MAX_RANK];
    /* The range of the tensor's bytes in the file. Offset 0 is the start of the data, after the header. */
    uint64_t begin, end;
};

/* An open file. */
struct safetensors;

/* Opens the safetensors file behind `fd` and checks its header. The caller owns `fd` and keeps it open until
 * safetensors_close. Error messages call the file `file`; this string is copied. Returns -EBADMSG if the file
 * is damaged or is not a safetensors file. */
int safetensors_open(int fd, const char *file, struct safetensors **ret, struct err *err);

/* Frees the object `f`, but does not close its file descriptor. `f` may be NULL. */
void safetensors_close(struct safetensors *f);

/* Returns the number of tensors in the safetensors file. */
size_t safetensors_count(const struct safetensors *f);

/* Returns tensor number `i`, in the order in which the file stores the data. `i` must be less than
 * safetensors_count. */
const struct st_entry *safetensors_at(const struct safetensors *f, size_t i);

/* Returns the description of the tensor `name`, or NULL if the file has no such tensor. */
const struct st_entry *safetensors_find(const struct safetensors *f, const char *name);

/* Returns the value of `key` in the metadata of the file, or NULL if the metadata do not have this key. */
const char *safetensors_meta(const struct safetensors *f, const char *key);

/* Reads the bytes of the tensor `e` into `ret`, without conversion. `ret` must have space for e->end -
 * e->begin bytes. */
int safetensors_read(const struct safetensors *f, const struct st_entry *e, void *ret, struct err *err);

/* Reads the tensor with the name t->name into t->data. Returns -ENOENT if the file does not have this tensor.
 * Returns -EINVAL if the tensor has another type or another shape than `t`. */
int safetensors_read_tensor(const struct safetensors *f, const struct st_tensor *t, struct err *err);

/* Reads the tensor with the name t->name into t->data, like safetensors_read_tensor. But if `t` is BF16 or
 * F16 and the tensor in the file is F32, rounds its elements to the type of `t`. */
int safetensors_read_rounded(const struct safetensors *f, const struct st_tensor *t, struct err *err);

/* Reads `n` elements of the tensor `e` as floats, starting at element `first`. The conversion to float is
 * exact, even for a NaN. Returns -EINVAL unless the tensor is F32, F16 or BF16. */
int safetensors_read_floats(const struct safetensors *f, const struct st_entry *e, uint64_t first, uint64_t n,
                            float *ret, struct err *err);

/* A safetensors file that is mapped into memory, with a list of its tensors. The memory is read-only. */
struct st_map {
    struct st_tensor *tensors;
    size_t n;       /* number of tensors */
    void *at;       /* the mapping */
    uint64_t bytes; /* size of the mapping */
};

/* Maps all tensors of a file into memory. The tensors must be F32. Use this function only for files that this
 * program wrote, because reading a mapped file that was truncated kills the process. */
int safetensors_map(const struct safetensors *f, struct st_map *ret, struct err *err);

/* Unmaps the file and frees the list of tensors. A zero-initialized struct is also allowed. */
void st_map_finish(struct st_map *m);

/* Writes a shape such as "[3,4]" to `buf`, for error messages. A text that does not fit is cut off. */
void st_shape_text(char *buf, size_t size, uint32_t rank, const uint64_t *shape);

#endif
