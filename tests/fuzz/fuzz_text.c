/* Reads the input as text from an untrusted source. Displayed text must be clean, and must not change when it
 * is scrubbed again, for any size of the buffer. Text that needs no scrubbing must stay unchanged. Its JSON
 * must be clean and read back as the same text.
 *
 * The first byte is the size of the buffer, and the rest is the text.
 */
#include "tests/fuzz/fuzz.h"

#include "base/strbuf.h"

static void check_lines(const char *text, size_t n)
{
    struct strbuf once = {0}, twice = {0};
    strbuf_add_textn(&once, text, n, STRBUF_LINES);
    strbuf_add_textn(&twice, once.at, once.n, STRBUF_LINES);
    HOLDS(once.n == twice.n && memcmp(once.at, twice.at, once.n) == 0);
    HOLDS(strlen(once.at) == once.n);
    for (size_t i = 0; i < once.n; i++)
        if (once.at[i] == '\n' || once.at[i] == '\t')
            once.at[i] = ' ';
    check_shown(once.at);
    strbuf_finish(&once);
    strbuf_finish(&twice);
}

static void check_line(const char *text, size_t room)
{
    struct strbuf b = {0};
    char buf[256], again[256], found[UTF8_NAME_BYTES];
    strbuf_add_text(&b, text);
    check_shown(b.at);
    HOLDS(utf8_find_unsafe(text, found) == (strcmp(b.at, text) != 0));
    utf8_scrub(buf, room, text);
    if (room > 0) {
        HOLDS(strlen(buf) < room);
        check_shown(buf);
        utf8_scrub(again, sizeof again, buf);
        HOLDS(strcmp(buf, again) == 0);
        HOLDS(b.n >= room || strcmp(buf, b.at) == 0);
    }
    strbuf_finish(&b);
}

static void check_json(const char *text, size_t n)
{
    struct strbuf b = {0};
    struct json *doc = NULL;
    strbuf_add_jsonn(&b, text, n);
    check_shown(b.at);
    HOLDS(json_parse(b.at, b.n, "text", false, &doc, NULL) == 0);
    check_printed(doc);
    json_free(doc);
    strbuf_finish(&b);
}

/* However the text is cut into two pieces, whole characters of the first and the rest are the text. */
static void check_pieces(const char *text, size_t n, size_t cut)
{
    size_t whole = utf8_whole_bytes(text, cut < n ? cut : n);
    struct strbuf pieces = {0}, all = {0};
    HOLDS(whole <= n && (cut < n ? cut : n) - whole <= 3);
    strbuf_add_textn(&pieces, text, whole, STRBUF_LINES);
    strbuf_add_textn(&pieces, text + whole, n - whole, STRBUF_LINES);
    strbuf_add_textn(&all, text, n, STRBUF_LINES);
    HOLDS(strcmp(pieces.at, all.at) == 0);
    strbuf_finish(&pieces);
    strbuf_finish(&all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return 0;
    size_t n = bytes - 1;
    char *text = malloc(n + 1);
    memcpy(text, data + 1, n);
    text[n] = '\0';
    check_lines(text, n);
    check_line(text, data[0]);
    check_json(text, n);
    check_pieces(text, n, data[0]);
    free(text);
    return 0;
}
