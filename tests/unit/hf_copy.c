/* Reads a Hugging Face folder and writes it to another folder: hf_copy FROM TO [SHARD_BYTES]. tools/check-hf
 * then reads the result with the transformers package. */
#include "daemon/worker/model/hf.h"
#include "tests/unit/hf_model.h"

static int copy(const char *from, const char *to, uint64_t shard_bytes, struct err *err)
{
    struct hf_save_options options = {.shard_bytes = shard_bytes};
    struct hf_saved saved = {0};
    struct hf *f = NULL;
    int r = hf_open(from, &f, err);
    if (r < 0)
        return r;
    struct hf_model *m = hf_model_make(hf_transformer(f));
    r = hf_load(f, m->at, m->n, err);
    if (r == 0)
        r = hf_save(to, &m->t, m->at, m->n, from, &options, &saved, err);
    if (r == 0)
        printf("%zu tensors in %zu files\n", saved.tensors, saved.files);
    hf_model_free(m);
    hf_close(f);
    return r;
}

int main(int argc, char **argv)
{
    struct err err = {0};
    char text[2048];
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: hf_copy FROM TO [SHARD_BYTES]\n");
        return 2;
    }
    if (copy(argv[1], argv[2], argc == 4 ? strtoull(argv[3], NULL, 10) : 0, &err) == 0)
        return 0;
    fprintf(stderr, "%s\n", err_text(&err, text, sizeof text));
    return 1;
}
