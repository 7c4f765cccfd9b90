/* Reads the input as a model.safetensors.index.json. An accepted index must have distinct tensors, and each
 * tensor must name a file inside the folder. */
#include "tests/fuzz/fuzz.h"

#include "daemon/worker/model/hf_index.h"

static void check_index(const struct hf_index *x)
{
    HOLDS(x->n >= 1 && x->n_files >= 1 && x->n_files <= x->n);
    for (size_t i = 0; i < x->n_files; i++) {
        const char *name = x->files[i];
        HOLDS(strchr(name, '/') == NULL && name[0] != '.' && strlen(name) < 256);
        HOLDS(i == 0 || strcmp(x->files[i - 1], name) < 0);
    }
    for (size_t i = 0; i < x->n; i++) {
        HOLDS(x->entries[i].file < x->n_files);
        HOLDS(i == 0 || strcmp(x->entries[i - 1].tensor, x->entries[i].tensor) < 0);
        HOLDS(hf_index_find(x, x->entries[i].tensor) == &x->entries[i]);
    }
    HOLDS(hf_index_find(x, "no such\ttensor") == NULL);
    HOLDS(!x->has_bytes || x->bytes <= 1ull << 53);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct hf_index x = {0};
    struct err err = {0};
    int r = hf_index_parse((const char *)data, bytes, "fuzz", &x, &err);
    if (r < 0) {
        HOLDS(x.doc == NULL);
        check_failure(r, &err);
        return 0;
    }
    check_index(&x);
    hf_index_finish(&x);
    return 0;
}
