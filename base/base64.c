/* Implements base64.h. Decoding is strict: padding is allowed only at the end, and unused bits must be zero.
 * So no two texts decode to the same data. */
#include "base/base64.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_add(struct strbuf *b, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    char out[4 * 256];
    size_t n = 0;
    for (size_t i = 0; i < bytes; i += 3) {
        size_t left = bytes - i;
        uint32_t v =
            (uint32_t)p[i] << 16 | (left > 1 ? (uint32_t)p[i + 1] << 8 : 0) | (left > 2 ? p[i + 2] : 0);
        out[n++] = digits[v >> 18];
        out[n++] = digits[v >> 12 & 63];
        out[n++] = left > 1 ? digits[v >> 6 & 63] : '=';
        out[n++] = left > 2 ? digits[v & 63] : '=';
        if (n == sizeof out || left <= 3) {
            strbuf_addn(b, out, n);
            n = 0;
        }
    }
}

/* Returns the value of the base64 digit `c`, from 0 to 63. Returns -1 if `c` is not a base64 digit. */
static int value_of(char c)
{
    const char *at = c != '\0' ? memchr(digits, c, sizeof digits - 1) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

long base64_decode(const char *text, size_t chars, void *ret)
{
    uint8_t *out = ret;
    size_t n = 0;
    if (chars % 4 != 0)
        return -EINVAL;
    for (size_t i = 0; i < chars; i += 4) {
        bool last = i + 4 == chars;
        int pad = last && text[i + 3] == '=' ? text[i + 2] == '=' ? 2 : 1 : 0;
        uint32_t v = 0;
        for (int k = 0; k < 4; k++) {
            int d = k < 4 - pad ? value_of(text[i + k]) : 0;
            if (d < 0)
                return -EINVAL;
            v = v << 6 | (uint32_t)d;
        }
        if ((pad == 1 && (v & 0xff) != 0) || (pad == 2 && (v & 0xffff) != 0))
            return -EINVAL;
        for (int k = 0; k < 3 - pad; k++)
            out[n++] = (uint8_t)(v >> (16 - 8 * k));
    }
    return (long)n;
}
