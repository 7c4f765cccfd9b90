/* Recognizes well-formed UTF-8 (the table of RFC 3629), and makes text safe to show.
 *
 * Messages quote keys and file names that a stranger chose, and such text can do harm. A terminal obeys
 * escape sequences. A bidirectional override makes a line look like another line. A line break can forge a
 * line of a log. utf8_is_unsafe is the only list of such characters: names may not contain them, and JSON
 * output escapes them. utf8_show is the only function that decides how such a character is shown; err, log,
 * strbuf_add_text and base/print use it.
 *
 * The functions are pure, and any thread may call them.
 */
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

/* Returns true if `c` is a continuation byte, which is the second, third or fourth byte of a UTF-8
 * character. */
static bool continues(unsigned char c)
{
    return (c & 0xC0) == 0x80;
}

/* Returns false if UTF-8 forbids a character that starts with these two bytes. UTF-8 forbids encodings that
 * are longer than necessary, surrogates, and characters above U+10FFFF. */
static bool second_byte_fits(unsigned char first, unsigned char second)
{
    switch (first) {
    case 0xE0:
        return second >= 0xA0;
    case 0xED:
        return second <= 0x9F;
    case 0xF0:
        return second >= 0x90;
    case 0xF4:
        return second <= 0x8F;
    default:
        return true;
    }
}

size_t utf8_char_bytes(const void *s, size_t n)
{
    const unsigned char *p = s;
    size_t want;

    if (n == 0)
        return 0;
    if (p[0] < 0x80)
        return 1;
    if (p[0] >= 0xC2 && p[0] <= 0xDF)
        want = 2;
    else if (p[0] >= 0xE0 && p[0] <= 0xEF)
        want = 3;
    else if (p[0] >= 0xF0 && p[0] <= 0xF4)
        want = 4;
    else
        return 0;
    if (n < want || !second_byte_fits(p[0], p[1]))
        return 0;
    for (size_t i = 1; i < want; i++)
        if (!continues(p[i]))
            return 0;
    return want;
}

void utf8_copy(char *dst, size_t size, const char *src)
{
    static const char mark[] = "...";
    size_t n, keep;

    if (size == 0)
        return;
    n = strnlen(src, size);
    if (n < size) {
        memcpy(dst, src, n + 1);
        return;
    }
    keep = size > sizeof mark ? size - sizeof mark : 0;
    while (keep > 0 && continues((unsigned char)src[keep]))
        keep--;
    memcpy(dst, src, keep);
    n = size - 1 - keep < sizeof mark - 1 ? size - 1 - keep : sizeof mark - 1;
    memcpy(dst + keep, mark, n);
    dst[keep + n] = '\0';
}

uint32_t utf8_decode(const void *s, size_t bytes)
{
    static const unsigned char lead_mask[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    const unsigned char *p = s;
    uint32_t c = p[0] & lead_mask[bytes];

    for (size_t i = 1; i < bytes; i++)
        c = c << 6 | (p[i] & 0x3F);
    return c;
}

size_t utf8_whole_bytes(const char *s, size_t n)
{
    for (size_t tail = 1; tail <= 3 && tail <= n; tail++) {
        unsigned char c = (unsigned char)s[n - tail];
        size_t want = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
        if (!continues(c))
            return want > tail ? n - tail : n;
    }
    return n;
}

bool utf8_is_unsafe(uint32_t c)
{
    static const struct {
        uint32_t first, last;
    } ranges[] = {
        {0x0000, 0x001F},   /* C0: ESC, BEL, backspace, line breaks */
        {0x007F, 0x009F},   /* DEL and C1, such as CSI */
        {0x00AD, 0x00AD},   /* soft hyphen */
        {0x061C, 0x061C},   /* Arabic letter mark */
        {0x180E, 0x180E},   /* Mongolian vowel separator, which is invisible */
        {0x200B, 0x200B},   /* zero width space */
        {0x200E, 0x200F},   /* left-to-right and right-to-left marks */
        {0x2028, 0x202E},   /* separators, directional embeddings and overrides */
        {0x2060, 0x206F},   /* word joiner, invisible operators, directional isolates */
        {0xFEFF, 0xFEFF},   /* byte order mark */
        {0xFFF9, 0xFFFB},   /* interlinear annotations */
        {0xFFFE, 0xFFFF},   /* not characters; XML forbids them */
        {0xE0000, 0xE007F}, /* tags, which are invisible */
    };

    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (c >= ranges[i].first && c <= ranges[i].last)
            return true;
    return false;
}

bool utf8_find_unsafe(const char *s, char ret[UTF8_NAME_BYTES])
{
    for (size_t left = strlen(s), n; left > 0; s += n, left -= n) {
        n = utf8_char_bytes(s, left);
        if (n == 0) {
            snprintf(ret, UTF8_NAME_BYTES, "byte 0x%02X", (unsigned char)*s);
            return true;
        }
        if (utf8_is_unsafe(utf8_decode(s, n))) {
            snprintf(ret, UTF8_NAME_BYTES, "U+%04X", (unsigned)utf8_decode(s, n));
            return true;
        }
    }
    return false;
}

void utf8_escape(uint32_t c, char ret[UTF8_SHOWN_BYTES])
{
    if (c == '\n' || c == '\r' || c == '\t')
        snprintf(ret, UTF8_SHOWN_BYTES, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    else
        snprintf(ret, UTF8_SHOWN_BYTES, c > 0xFFFF ? "\\U%08x" : "\\u%04x", (unsigned)c);
}

size_t utf8_show(const char *s, size_t n, char ret[UTF8_SHOWN_BYTES])
{
    size_t bytes = utf8_char_bytes(s, n);

    if (bytes == 0) {
        snprintf(ret, UTF8_SHOWN_BYTES, "\\x%02x", (unsigned char)*s);
        return 1;
    }
    if (utf8_is_unsafe(utf8_decode(s, bytes))) {
        utf8_escape(utf8_decode(s, bytes), ret);
        return bytes;
    }
    memcpy(ret, s, bytes);
    ret[bytes] = '\0';
    return bytes;
}

void utf8_scrub(char *dst, size_t size, const char *src)
{
    static const char mark[] = "...";
    size_t left = strlen(src), n = 0;
    /* The number of output bytes that are kept if the text must be cut. The buffer has space for "..." after
     * these bytes. */
    size_t keep = 0;
    char shown[UTF8_SHOWN_BYTES];

    if (size == 0)
        return;
    while (left > 0) {
        size_t eaten = utf8_show(src, left, shown), length = strlen(shown);
        if (n + length >= size) {
            n = keep;
            length = size - 1 - n < sizeof mark - 1 ? size - 1 - n : sizeof mark - 1;
            memcpy(dst + n, mark, length);
            n += length;
            break;
        }
        memcpy(dst + n, shown, length);
        n += length;
        if (n + sizeof mark <= size)
            keep = n;
        src += eaten;
        left -= eaten;
    }
    dst[n] = '\0';
}
