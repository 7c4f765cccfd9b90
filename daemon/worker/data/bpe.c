/* Implements the tokenizer of bpe.h.
 *
 * The files of a tokenizer write every byte as a character: a printable Latin-1 character stands for its own
 * byte, and the characters from U+0100 on stand for the remaining bytes in ascending order. The loader
 * converts these characters back to bytes, so that the rest of this file only sees bytes.
 *
 * Two hash tables with open addressing make encoding fast: one maps bytes to a token id, the other maps a
 * pair of ids to its merge. Merging the tokens of a word only needs ids.
 */
#include "daemon/worker/data/bpe.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/json.h"
#include "base/utf8.h"

#define VOCAB    "vocab.json"
#define MERGES   "merges.txt"
#define FILE_MAX (64u << 20)

/* The bytes of one token. */
struct token {
    char *at; /* NULL if no token has this id */
    size_t n;
};

/* One merge rule of the tokenizer: which token replaces a given pair of neighbouring tokens. */
struct merge {
    /* The pair of tokens: the id of the left token is in the upper 32 bits, and the id of the right token is
     * in the lower 32 bits. */
    uint64_t pair;
    /* The line number of the merge in merges.txt, starting at 1. 0 marks an empty slot of the hash table. */
    uint32_t rank;
    int32_t id; /* token that replaces the pair */
};

struct bpe {
    struct token *tokens; /* [vocab], one for each id */
    uint32_t vocab;
    /* A hash table of `n_slots` token ids that finds a token by its bytes. -1 marks an empty slot. */
    int32_t *by_bytes;
    struct merge *merges;          /* [n_merge_slots] hash table */
    size_t n_slots, n_merge_slots; /* powers of two */
    struct arena *arena;           /* holds the bytes of all tokens */
    /* bytes[c] is the id of the token that consists of the single byte c, or -1 if the vocabulary has no such
     * token. */
    int32_t bytes[256];
};

/* ---- files ---- */

bool bpe_is_there(const char *dir)
{
    char path[FS_PATH_BYTES];
    fs_path(path, sizeof path, dir, VOCAB);
    bool vocab = access(path, F_OK) == 0;
    fs_path(path, sizeof path, dir, MERGES);
    return vocab && access(path, F_OK) == 0;
}

/* Reads a whole file and adds a NUL at the end. The caller frees the memory. Symbolic links are followed,
 * because the files in the Hugging Face cache are symbolic links. */
static int read_file(const char *path, char **ret, size_t *ret_bytes, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), r = 0;
    struct stat st;
    if (fd < 0)
        return fs_fail(err, -errno, NULL, path, "open");
    if (fstat(fd, &st) < 0)
        r = -errno;
    else if (!S_ISREG(st.st_mode))
        r = -EINVAL;
    else if (st.st_size > FILE_MAX)
        r = -EFBIG;
    char *text = r == 0 ? malloc((size_t)st.st_size + 1) : NULL;
    if (r == 0)
        r = text == NULL ? -ENOMEM : fs_pread_all(fd, text, (uint64_t)st.st_size, 0);
    close(fd);
    if (r < 0) {
        free(text);
        return fs_fail(err, r, NULL, path, "read");
    }
    text[st.st_size] = '\0';
    *ret = text;
    *ret_bytes = (size_t)st.st_size;
    return 0;
}

/* ---- how the files write bytes ---- */

static bool stands_for_itself(uint32_t c)
{
    return (c >= '!' && c <= '~') || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
}

/* Returns the byte that the character `c` stands for in vocab.json and merges.txt. These files write each
 * byte as one printable character. Returns -1 if `c` stands for no byte. */
static int byte_of(uint32_t c)
{
    uint32_t next = 0x100;
    if (stands_for_itself(c))
        return (int)c;
    for (uint32_t byte = 0; byte < 256; byte++)
        if (!stands_for_itself(byte) && next++ == c)
            return (int)byte;
    return -1;
}

/* Decodes one UTF-8 character of `n` bytes. Returns 0 for a character of three or more bytes, because
 * tokenizer files never write a byte as such a character. */
static uint32_t decode_char(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    return n == 1 ? p[0] : n == 2 ? (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f) : 0;
}

/* Replaces the characters of `text`, which comes from a tokenizer file, by the bytes that they stand for.
 * Returns the number of bytes. Returns -1 if a character stands for no byte. In that case `text` is partly
 * overwritten. */
static ptrdiff_t to_bytes(char *text, size_t n)
{
    size_t to = 0;
    for (size_t i = 0; i < n;) {
        size_t length = utf8_char_bytes(text + i, n - i);
        int byte = byte_of(decode_char(text + i, length));
        if (length == 0 || byte < 0)
            return -1;
        text[to++] = (char)byte;
        i += length;
    }
    return (ptrdiff_t)to;
}

/* ---- tables ---- */

/* Returns the number of slots for a hash table with `n` entries. The number is a power of two, and at least
 * half of the slots stay empty. */
static size_t slots_for(size_t n)
{
    size_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    return slots;
}

static uint64_t hash_bytes(const char *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)p[i]) * 0x100000001b3ull;
    return h ^ h >> 29;
}

static uint64_t hash_pair(uint64_t pair)
{
    pair = (pair ^ pair >> 31) * 0x9E3779B97F4A7C15ull;
    return pair ^ pair >> 29;
}

/* Returns the slot of the token that consists of the `n` bytes at `p`. If there is no such token, returns the
 * empty slot in which it can be stored. */
static int32_t *slot_of(const struct bpe *b, const char *p, size_t n)
{
    size_t at = hash_bytes(p, n) & (b->n_slots - 1);
    for (;; at = (at + 1) & (b->n_slots - 1)) {
        int32_t id = b->by_bytes[at];
        if (id < 0 || (b->tokens[id].n == n && memcmp(b->tokens[id].at, p, n) == 0))
            return &b->by_bytes[at];
    }
}

static struct merge *merge_of(const struct bpe *b, uint64_t pair)
{
    size_t at = hash_pair(pair) & (b->n_merge_slots - 1);
    while (b->merges[at].rank > 0 && b->merges[at].pair != pair)
        at = (at + 1) & (b->n_merge_slots - 1);
    return &b->merges[at];
}

int64_t bpe_find(const struct bpe *b, const char *text, size_t bytes)
{
    return *slot_of(b, text, bytes);
}

const char *bpe_bytes(const struct bpe *b, uint32_t id, size_t *ret_bytes)
{
    if (id >= b->vocab || b->tokens[id].at == NULL)
        return NULL;
    *ret_bytes = b->tokens[id].n;
    return b->tokens[id].at;
}

/* ---- vocab.json ---- */

/* Adds the token of one member of vocab.json, such as "the": 262. If a character of the token's text stands
 * for no byte, the token is a special token, and its text is stored unchanged. */
static int add_token(struct bpe *b, const struct json *member, const char *path, struct err *err)
{
    const char *key = json_key(member);
    char shown[96];
    uint64_t id = 0;
    utf8_copy(shown, sizeof shown, key);
    if (json_u64(member, path, &id, NULL) < 0 || id >= b->vocab)
        return err_set_at(err, -EINVAL, path,
                          "the id of \"%s\" is not a number below %" PRIu32
                          ", the model's vocabulary; is this the tokenizer of another model?",
                          shown, b->vocab);
    if (b->tokens[id].at != NULL)
        return err_set_at(err, -EINVAL, path,
                          "\"%s\" has the id %" PRIu64 ", but another token has the same id", shown, id);
    struct token *t = &b->tokens[id];
    t->n = strlen(key);
    t->at = arena_memdup(b->arena, key, t->n + 1);
    ptrdiff_t bytes = to_bytes(t->at, t->n);
    if (bytes < 0)
        memcpy(t->at, key, t->n + 1);
    else
        t->n = (size_t)bytes;
    int32_t *slot = slot_of(b, t->at, t->n);
    if (*slot < 0)
        *slot = (int32_t)id;
    return 0;
}

static int read_vocab(struct bpe *b, const char *path, struct err *err)
{
    char *text = NULL;
    size_t bytes = 0;
    struct json *doc = NULL;
    int r = read_file(path, &text, &bytes, err);
    if (r == 0)
        r = json_parse(text, bytes, path, false, &doc, err);
    if (r == 0 && json_type(doc) != JSON_OBJECT)
        r = err_set_at(err, -EINVAL, path, "expected an object, {token: id}, found %s",
                       json_type_name(json_type(doc)));
    for (const struct json *m = r == 0 ? json_array_first(doc) : NULL; m != NULL && r == 0;
         m = json_array_next(m))
        r = add_token(b, m, path, err);
    json_free(doc);
    free(text);
    for (int i = 0; i < 256; i++)
        b->bytes[i] = *slot_of(b, (const char[]){(char)i}, 1);
    return r;
}

/* ---- merges.txt ---- */

static int fail_line(const char *path, uint32_t line, struct err *err)
{
    return err_set_at(err, -EINVAL, path,
                      "line %" PRIu32 " is not two tokens of " VOCAB " that together make a third one", line);
}

/* Adds the merge of one line of merges.txt, which has two tokens, such as "th e". The two tokens joined
 * together must also be a token. `number` is the line number, for error messages. */
static int add_merge(struct bpe *b, char *line, uint32_t rank, uint32_t number, const char *path,
                     struct err *err)
{
    char *space = strchr(line, ' ');
    ptrdiff_t left = space != NULL ? to_bytes(line, (size_t)(space - line)) : -1,
              right = left > 0 ? to_bytes(space + 1, strlen(space + 1)) : -1;
    if (left <= 0 || right <= 0)
        return fail_line(path, number, err);
    int32_t a = *slot_of(b, line, (size_t)left), c = *slot_of(b, space + 1, (size_t)right);
    memmove(line + left, space + 1, (size_t)right);
    int32_t id = *slot_of(b, line, (size_t)(left + right));
    if (a < 0 || c < 0 || id < 0)
        return fail_line(path, number, err);
    struct merge *m = merge_of(b, (uint64_t)a << 32 | (uint32_t)c);
    if (m->rank == 0)
        *m = (struct merge){(uint64_t)a << 32 | (uint32_t)c, rank, id};
    return 0;
}

static size_t count_lines(const char *text)
{
    size_t n = 1;
    for (; *text != '\0'; text++)
        n += *text == '\n';
    return n;
}

/* Reads merges.txt. If the first line is "#version: 0.2", it is skipped, because it is not a merge. */
static int read_merges(struct bpe *b, const char *path, struct err *err)
{
    char *text = NULL, *save = NULL;
    size_t bytes = 0;
    uint32_t number = 0, rank = 0;
    int r = read_file(path, &text, &bytes, err);
    if (r < 0)
        return r;
    b->n_merge_slots = slots_for(count_lines(text));
    b->merges = calloc(b->n_merge_slots, sizeof *b->merges);
    if (b->merges == NULL)
        r = err_set_at(err, -ENOMEM, path, "no memory for the merges");
    for (char *line = text; r == 0 && line != NULL; line = save) {
        save = strchr(line, '\n');
        if (save != NULL)
            *save++ = '\0';
        line[strcspn(line, "\r")] = '\0';
        number++;
        if (line[0] == '\0' || (number == 1 && strncmp(line, "#version", 8) == 0))
            continue;
        r = add_merge(b, line, ++rank, number, path, err);
    }
    free(text);
    return r;
}

/* ---- opening ---- */

static int load(struct bpe *b, const char *dir, struct err *err)
{
    char path[FS_PATH_BYTES];
    b->n_slots = slots_for(b->vocab);
    b->tokens = calloc(b->vocab, sizeof *b->tokens);
    b->by_bytes = malloc(b->n_slots * sizeof *b->by_bytes);
    if (b->tokens == NULL || b->by_bytes == NULL)
        return err_set(err, -ENOMEM, "no memory for a vocabulary of %" PRIu32, b->vocab);
    memset(b->by_bytes, 0xff, b->n_slots * sizeof *b->by_bytes);
    fs_path(path, sizeof path, dir, VOCAB);
    int r = read_vocab(b, path, err);
    if (r < 0)
        return r;
    fs_path(path, sizeof path, dir, MERGES);
    return read_merges(b, path, err);
}

int bpe_open(const char *dir, uint32_t vocab, struct bpe **ret, struct err *err)
{
    struct bpe *b = calloc(1, sizeof *b);
    if (b == NULL)
        return err_set(err, -ENOMEM, "no memory");
    b->vocab = vocab;
    b->arena = arena_create();
    int r = load(b, dir, err);
    if (r < 0)
        bpe_close(b);
    else
        *ret = b;
    return r;
}

void bpe_close(struct bpe *b)
{
    if (b == NULL)
        return;
    free(b->tokens);
    free(b->by_bytes);
    free(b->merges);
    arena_destroy(b->arena);
    free(b);
}

/* ---- words ---- */

enum char_class { SPACE, LETTER, DIGIT, OTHER };

static enum char_class class_of(char c)
{
    unsigned char u = (unsigned char)c;
    if (u == ' ' || (u >= '\t' && u <= '\r'))
        return SPACE;
    if (u >= '0' && u <= '9')
        return DIGIT;
    return u >= 0x80 || (u >= 'a' && u <= 'z') || (u >= 'A' && u <= 'Z') ? LETTER : OTHER;
}

/* Returns the length of the contraction at the start of the text, such as 2 for 's or 3 for 'll. Returns 0 if
 * the text does not start with a contraction. */
static size_t contraction(const char *s, size_t n)
{
    static const char *const all[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strlen(all[i]) <= n && memcmp(s, all[i], strlen(all[i])) == 0)
            return strlen(all[i]);
    return 0;
}

/* Returns how many characters at the start of the text belong to the class `class`, such as letters. */
static size_t run_of(const char *s, size_t n, enum char_class class)
{
    size_t i = 0;
    while (i < n && class_of(s[i]) == class)
        i++;
    return i;
}

/* Returns the number of bytes in the first word of a text. A word may begin with one space. If several spaces
 * precede a word, only the last space belongs to the word, and the other spaces form a word of their own. */
static size_t word_bytes(const char *s, size_t n)
{
    size_t length = contraction(s, n), skip = n > 1 && s[0] == ' ' && class_of(s[1]) != SPACE;
    if (length > 0)
        return length;
    if (class_of(s[skip]) != SPACE)
        return skip + run_of(s + skip, n - skip, class_of(s[skip]));
    length = run_of(s, n, SPACE);
    return length < n && length > 1 ? length - 1 : length;
}

/* Returns the merge to apply next: of all merges that match a pair of neighbouring `ids`, the one with the
 * lowest rank. Returns NULL if no merge matches. */
static const struct merge *find_first_merge(const struct bpe *b, const int32_t *ids, size_t n)
{
    const struct merge *best = NULL;
    for (size_t i = 0; i + 1 < n; i++) {
        const struct merge *m = merge_of(b, (uint64_t)ids[i] << 32 | (uint32_t)ids[i + 1]);
        if (m->rank > 0 && (best == NULL || m->rank < best->rank))
            best = m;
    }
    return best;
}

/* Applies the merge `m` to every matching pair of `ids`, from left to right. Returns the number of ids that
 * remain. */
static size_t join(const struct merge *m, int32_t *ids, size_t n)
{
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        bool pair = i + 1 < n && ((uint64_t)ids[i] << 32 | (uint32_t)ids[i + 1]) == m->pair;
        ids[to++] = pair ? m->id : ids[i];
        i += pair;
    }
    return to;
}

static int encode_word(const struct bpe *b, const char *word, size_t bytes, struct bpe_ids *ret,
                       struct err *err)
{
    size_t first = ret->list.n, n = bytes;
    for (size_t i = 0; i < bytes; i++) {
        int32_t id = b->bytes[(unsigned char)word[i]];
        if (id < 0)
            return err_set(err, -EINVAL, "the vocabulary has no token for the byte 0x%02x",
                           (unsigned char)word[i]);
        vec_push(&ret->list, id);
    }
    int32_t *ids = ret->list.at + first;
    for (const struct merge *m; n > 1 && (m = find_first_merge(b, ids, n)) != NULL;)
        n = join(m, ids, n);
    ret->list.n = first + n;
    return 0;
}

int bpe_encode(const struct bpe *b, const char *text, size_t bytes, struct bpe_ids *ret, struct err *err)
{
    int r = 0;
    for (size_t at = 0, n; r == 0 && at < bytes; at += n) {
        n = word_bytes(text + at, bytes - at);
        r = encode_word(b, text + at, n, ret, err);
    }
    return r;
}
