/* Reads the input as a tokenizer and a text: vocab.json, merges.txt and the text, separated by zero bytes. If
 * the tokenizer is accepted, encoding the text must give token ids below the vocabulary size whose bytes
 * concatenate to the text, or must fail because a byte of the text has no token. */
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

#include "daemon/worker/data/bpe.h"

#define MOST_TEXT 4096

static char folder[32]; /* made by the first input, removed at exit */

static void path_of(char ret[64], const char *name)
{
    snprintf(ret, 64, "%s/%s", folder, name);
}

static void remove_folder(void)
{
    char path[64];
    path_of(path, "vocab.json");
    unlink(path);
    path_of(path, "merges.txt");
    unlink(path);
    rmdir(folder);
}

static void write_file(const char *name, const uint8_t *data, size_t bytes)
{
    char path[64];
    path_of(path, name);
    FILE *f = fopen(path, "we");
    HOLDS(f != NULL);
    HOLDS(bytes == 0 || fwrite(data, 1, bytes, f) == bytes);
    HOLDS(fclose(f) == 0);
}

/* Up to the next zero byte, or to the end. */
static size_t part(const uint8_t **at, size_t *left)
{
    const uint8_t *end = memchr(*at, 0, *left);
    size_t n = end != NULL ? (size_t)(end - *at) : *left, taken = end != NULL ? n + 1 : n;
    *at += taken;
    *left -= taken;
    return n;
}

static void check_text(const struct bpe *b, uint32_t vocab, const char *text, size_t bytes)
{
    struct bpe_ids ids = {0};
    struct err err = {0};
    int r = bpe_encode(b, text, bytes, &ids, &err);
    if (r < 0)
        check_failure(r, &err);
    size_t at = 0;
    for (size_t i = 0; r == 0 && i < ids.list.n; i++) {
        size_t n = 0;
        HOLDS(ids.list.at[i] >= 0 && (uint32_t)ids.list.at[i] < vocab);
        const char *token = bpe_bytes(b, (uint32_t)ids.list.at[i], &n);
        HOLDS(token != NULL && n >= 1 && n <= bytes - at);
        HOLDS(memcmp(token, text + at, n) == 0);
        at += n;
    }
    HOLDS(r < 0 || at == bytes);
    vec_free(&ids.list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint32_t vocab = 400;
    struct bpe *b = NULL;
    struct err err = {0};
    if (folder[0] == '\0') {
        strcpy(folder, "/tmp/fuzz_bpe.XXXXXX");
        HOLDS(mkdtemp(folder) != NULL);
        HOLDS(atexit(remove_folder) == 0);
    }
    const uint8_t *at = data;
    size_t left = bytes;
    for (int i = 0; i < 2; i++) {
        const uint8_t *begin = at;
        write_file(i == 0 ? "vocab.json" : "merges.txt", begin, part(&at, &left));
    }
    int r = bpe_open(folder, vocab, &b, &err);
    if (r < 0) {
        HOLDS(b == NULL);
        check_failure(r, &err);
        return 0;
    }
    check_text(b, vocab, (const char *)at, left < MOST_TEXT ? left : MOST_TEXT);
    HOLDS(bpe_bytes(b, vocab, &left) == NULL);
    bpe_close(b);
    return 0;
}
