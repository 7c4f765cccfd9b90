/* Reads the input as a safetensors file. An accepted file must have distinct names, its tensors must cover
 * the data up to the end of the file without gaps, and every byte must be readable. BF16 values that are read
 * as floats must keep their bytes.
 *
 * Each input is tried twice: as it is, and as a header and data to which the target adds the header's length,
 * because a fuzzer rarely keeps the length right. In the second case the header ends before the first zero
 * byte.
 */
#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include "daemon/worker/model/safetensors.h"

static void check_entry(const struct safetensors *f, const struct st_entry *e, const uint8_t *data)
{
    uint64_t bytes = dtype_sizes[e->dtype], n;
    for (uint32_t i = 0; i < e->rank; i++)
        HOLDS(!__builtin_mul_overflow(bytes, e->shape[i], &bytes));
    HOLDS(e->rank <= SAFETENSORS_MAX_RANK && bytes == e->end - e->begin);
    HOLDS(safetensors_find(f, e->name) == e);
    uint8_t *copy = malloc(bytes + 1);
    HOLDS(safetensors_read(f, e, copy, NULL) == 0 && memcmp(copy, data + e->begin, bytes) == 0);
    free(copy);
    n = bytes / dtype_sizes[e->dtype];
    float *floats = malloc(n * sizeof *floats + 1);
    struct err err = {0};
    int r = safetensors_read_floats(f, e, 0, n, floats, &err);
    HOLDS((r == 0) == (e->dtype == DTYPE_F32 || e->dtype == DTYPE_F16 || e->dtype == DTYPE_BF16));
    if (r < 0)
        check_failure(r, &err);
    for (uint64_t i = 0; r == 0 && e->dtype == DTYPE_BF16 && i < n; i++)
        HOLDS(memcmp((char *)&floats[i] + 2, data + e->begin + 2 * i, 2) == 0);
    free(floats);
}

static void check_file(const struct safetensors *f, const uint8_t *all, size_t bytes)
{
    size_t n = safetensors_count(f);
    uint64_t header, at = 0;
    struct st_map map;
    memcpy(&header, all, sizeof header);
    HOLDS(header <= bytes - 8 && all[8] == '{');
    for (size_t i = 0; i < n; i++) {
        HOLDS(safetensors_at(f, i)->begin == at);
        at = safetensors_at(f, i)->end;
        check_entry(f, safetensors_at(f, i), all + 8 + header);
    }
    HOLDS(8 + header + at == bytes);
    if (safetensors_map(f, &map, NULL) == 0) {
        HOLDS(map.n == n && map.bytes == bytes && memcmp(map.at, all, bytes) == 0);
        st_map_finish(&map);
    }
}

static void try(const uint8_t *data, size_t bytes)
{
    static int fd = -1;
    struct safetensors *f = NULL;
    struct err err = {0};
    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    HOLDS(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
    int r = safetensors_open(fd, "fuzz", &f, &err);
    if (r < 0) {
        HOLDS(f == NULL);
        check_failure(r, &err);
        return;
    }
    check_file(f, data, bytes);
    safetensors_close(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *end = bytes > 0 ? memchr(data, 0, bytes) : NULL;
    uint64_t header = end != NULL ? (uint64_t)(end - data) : bytes;
    uint8_t *file = malloc(bytes + 8);
    try(data, bytes);
    memcpy(file, &header, 8);
    memcpy(file + 8, data, bytes);
    try(file, bytes + 8);
    free(file);
    return 0;
}
