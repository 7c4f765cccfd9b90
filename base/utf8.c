/* Well-formed UTF-8 by the table of RFC 3629, and text made safe to show.
 *
 * Why our own: JSON must refuse what is not UTF-8, and messages quote keys and file names that a stranger
 * chose. A terminal obeys escape sequences and a log reader believes line breaks, so err and log pass
 * everything through utf8_scrub. Pure functions; any thread.
 */
#include "base/utf8.h"

#include <stdbool.h>
#include <string.h>

static bool continues(unsigned char c)
{
    return (c & 0xC0) == 0x80;
}

/* The second byte carries the restrictions: no overlong forms, no surrogates, nothing over U+10FFFF. */
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

/* C0, DEL, and C1 (U+0080 to U+009F: among them a one-character form of ESC [). */
static bool is_control(const unsigned char *p, size_t bytes)
{
    return p[0] < 0x20 || p[0] == 0x7F || (bytes == 2 && p[0] == 0xC2 && p[1] < 0xA0);
}

void utf8_scrub(char *s)
{
    unsigned char *from = (unsigned char *)s, *to = from;
    size_t left = strlen(s);

    while (left > 0) {
        size_t n = utf8_char_bytes(from, left);
        size_t eaten = n ? n : 1;
        if (*from == '\n' || *from == '\r' || *from == '\t') {
            *to++ = ' ';
        } else if (n == 0 || is_control(from, n)) {
            *to++ = '?';
        } else {
            memmove(to, from, n);
            to += n;
        }
        from += eaten;
        left -= eaten;
    }
    *to = '\0';
}
