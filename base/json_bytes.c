/* Parses sizes as people write them: "9GB", "512MiB", "1.5GiB", "9e9". The arithmetic is exact: "0.1GB" is
 * 100000000 bytes. A size that is not a whole number of bytes is refused. The functions keep no state, so any
 * thread may call them.
 */
#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

#define EXAMPLES  "write bytes as 1000000, or a size such as \"9GB\", \"512MiB\" or \"1.5GiB\""
#define MAX_BYTES JSON_MAX_INTEGER

/* The mantissa has at most 19 digits, so it fits into 64 bits. The product of the mantissa and the largest
 * unit, 2^40, fits into 128 bits. */
enum { MAX_DIGITS = 19, MAX_EXPONENT = 9999 };

static const struct {
    const char *name;
    uint64_t bytes;
} units[] = {
    {"", 1},
    {"B", 1},
    {"GB", UINT64_C(1000000000)},
    {"GiB", UINT64_C(1) << 30},
    {"KB", 1000},
    {"KiB", UINT64_C(1) << 10},
    {"MB", 1000000},
    {"MiB", UINT64_C(1) << 20},
    {"TB", UINT64_C(1000000000000)},
    {"TiB", UINT64_C(1) << 40},
    {"kB", 1000},
};

/* The decimal number mantissa * 10^exponent. For example, "1.5" is 15 * 10^-1. The parser adds one digit
 * after another to the mantissa. */
struct decimal {
    uint64_t mantissa;
    int digits; /* significant digits so far */
    int exponent;
};

static bool is_decimal_digit(char c)
{
    return isdigit((unsigned char)c);
}

/* Appends the digit `c` to the mantissa. Returns false if the mantissa would have more than MAX_DIGITS
 * digits. */
static bool add_digit(struct decimal *d, char c)
{
    if (d->mantissa > 0 || c != '0')
        d->digits++;
    if (d->digits > MAX_DIGITS)
        return false;
    d->mantissa = d->mantissa * 10 + (uint64_t)(c - '0');
    return true;
}

/* Reads an exponent such as "e9" or "e-2" and returns the text after it. If no digits follow the "e", returns
 * `s` unchanged. The caller then refuses the "e" as an unknown unit. */
static const char *read_exponent(const char *s, struct decimal *d)
{
    const char *p = s;
    int sign = 1, v = 0;

    if (*p != 'e' && *p != 'E')
        return s;
    p++;
    if (*p == '+' || *p == '-')
        sign = *p++ == '-' ? -1 : 1;
    if (!is_decimal_digit(*p))
        return s;
    for (; is_decimal_digit(*p); p++)
        v = v * 10 + (*p - '0') > MAX_EXPONENT ? MAX_EXPONENT : v * 10 + (*p - '0');
    d->exponent += sign * v;
    return p;
}

/* Reads a number such as "1.5e3" and returns the text after it. Returns NULL if `s` does not start with a
 * number or the number has too many digits. */
static const char *read_number(const char *s, struct decimal *d)
{
    if (!is_decimal_digit(*s))
        return NULL;
    for (; is_decimal_digit(*s); s++)
        if (!add_digit(d, *s))
            return NULL;
    if (*s == '.') {
        s++;
        if (!is_decimal_digit(*s))
            return NULL;
        for (; is_decimal_digit(*s); s++, d->exponent--)
            if (!add_digit(d, *s))
                return NULL;
    }
    return read_exponent(s, d);
}

static bool find_unit(const char *s, uint64_t *ret)
{
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(s, units[i].name) == 0) {
            *ret = units[i].bytes;
            return true;
        }
    }
    return false;
}

/* Multiplies the number by `unit` and stores the product in *ret. Returns -EDOM if the product is not a
 * whole number, and -ERANGE if it is larger than MAX_BYTES. */
static int scale(const struct decimal *d, uint64_t unit, uint64_t *ret)
{
    unsigned __int128 v = (unsigned __int128)d->mantissa * unit;
    int e = d->exponent;

    for (; e < 0 && v > 0; e++) {
        if (v % 10 != 0)
            return -EDOM;
        v /= 10;
    }
    for (; e > 0 && v > 0 && v <= MAX_BYTES; e--)
        v *= 10;
    if (v > MAX_BYTES)
        return -ERANGE;
    *ret = (uint64_t)v;
    return 0;
}

int json_parse_bytes(const char *text, const char *path, uint64_t *ret, struct err *err)
{
    struct decimal d = {0};
    const char *rest = read_number(text, &d);
    char shown[64];
    uint64_t unit;

    utf8_copy(shown, sizeof shown, text);
    if (!rest)
        return err_set_at(err, -EINVAL, path, "\"%s\" is not a size; " EXAMPLES, shown);
    while (*rest == ' ')
        rest++;
    if (!find_unit(rest, &unit))
        return err_set_at(
            err, -EINVAL, path,
            "\"%s\" has no known unit; use B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB "
            "(powers of 1024), as in \"9GB\"",
            shown);
    switch (scale(&d, unit, ret)) {
    case 0:
        return 0;
    case -EDOM:
        return err_set_at(err, -EINVAL, path, "\"%s\" is not a whole number of bytes; " EXAMPLES, shown);
    default:
        return err_set_at(err, -EINVAL, path, "\"%s\" is 2^53 bytes (8 PiB) or more; " EXAMPLES, shown);
    }
}
