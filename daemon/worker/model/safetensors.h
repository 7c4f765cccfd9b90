/* safetensors files: written in one stream with the checksum on the way, read tensor by tensor into the
 * caller's memory, or mapped. Neither side ever holds a copy of a tensor, so a file may be larger than memory.
 *
 * The reader takes nothing on trust: header size, JSON, names, types, shapes, offsets (which must tile the
 * data) and the size of the file are checked by safetensors_open, before anything is given out. A file object
 * belongs to one thread.
 */
#ifndef DAEMON_WORKER_MODEL_SAFETENSORS_H
#define DAEMON_WORKER_MODEL_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define SAFETENSORS_MAX_RANK   8
#define SAFETENSORS_MAX_HEADER 100000000u

enum st_dtype {
    ST_BOOL,
    ST_U8,
    ST_I8,
    ST_I16,
    ST_U16,
    ST_F16,
    ST_BF16,
    ST_I32,
    ST_U32,
    ST_F32,
    ST_F64,
    ST_I64,
    ST_U64,
    ST_DTYPE_COUNT
};
extern const char *const st_dtype_names[ST_DTYPE_COUNT];
extern const uint32_t st_dtype_bytes[ST_DTYPE_COUNT];

/* What the caller owns: a dense, row-major F32 tensor in memory. */
struct st_tensor {
    const char *name;
    uint32_t rank;
    uint64_t shape[SAFETENSORS_MAX_RANK];
    float *data;
    bool transposed; /* writing only, rank 2: in memory it is [shape[1]][shape[0]] */
};

struct st_meta {
    const char *key, *value;
};

/* Writes the whole file to fd from its current position. `file` is its name in messages. The result, where
 * wanted, is the size and CRC-32C of all bytes. Does not sync. */
int safetensors_write(int fd, const char *file, const struct st_tensor *tensors, size_t n,
                      const struct st_meta *meta, size_t n_meta, uint64_t *ret_bytes, uint32_t *ret_crc,
                      struct err *err);

/* A tensor in a file. */
struct st_entry {
    const char *name;
    enum st_dtype dtype;
    uint32_t rank;
    uint64_t shape[SAFETENSORS_MAX_RANK];
    uint64_t begin, end; /* bytes from the start of the data */
};

struct safetensors;

/* Reads and checks the header. The file object does not own fd, which must stay open; `file` is copied. */
int safetensors_open(int fd, const char *file, struct safetensors **ret, struct err *err);
void safetensors_close(struct safetensors *f); /* takes NULL */

size_t safetensors_count(const struct safetensors *f);
const struct st_entry *safetensors_at(const struct safetensors *f, size_t i); /* in order of the data */
const struct st_entry *safetensors_find(const struct safetensors *f, const char *name); /* NULL when absent */
const char *safetensors_meta(const struct safetensors *f, const char *key);             /* NULL when absent */

/* The bytes of an entry, end - begin of them, as they are in the file. */
int safetensors_read(const struct safetensors *f, const struct st_entry *e, void *ret, struct err *err);

/* Reads the F32 tensor of that name and exactly that shape into t->data. -ENOENT, -EINVAL: what differs. */
int safetensors_read_tensor(const struct safetensors *f, const struct st_tensor *t, struct err *err);

/* `n` elements of an F32, F16 or BF16 entry from element `first` on, as floats: all three are exact, with the bits of a
 * NaN kept. -EINVAL for any other dtype. */
int safetensors_read_floats(const struct safetensors *f, const struct st_entry *e, uint64_t first, uint64_t n,
                            float *ret, struct err *err);

/* All tensors of a file where they are: mapped, for reading only, until st_map_finish. All must be F32. Somebody who cuts
 * the file short meanwhile ends this process (SIGBUS): for files of our own. */
struct st_map {
    struct st_tensor *tensors;
    size_t n;
    void *at;
    uint64_t bytes;
};
int safetensors_map(const struct safetensors *f, struct st_map *ret, struct err *err);
void st_map_finish(struct st_map *m); /* takes a zeroed one */

/* "[3,4]", for messages; cut to fit. */
void st_shape_text(char *buf, size_t size, uint32_t rank, const uint64_t *shape);

#endif
