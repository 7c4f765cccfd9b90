/* Filling in struct err.
 *
 * Why fixed buffers and no allocation: the failure being reported may be that memory ran out. The text is
 * built in locals and copied last, so a caller may quote the old message in the new one
 * (`err_set(err, r, "while reading x: %s", err->msg)`).
 *
 * The message is for people and is scrubbed when it is set, because messages quote names and contents of
 * files. The path is kept as it is, because programs that read --json want to open that very file; err_text
 * scrubs it. Pure functions on the caller's struct; any thread.
 */
#include "base/err.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

int err_setv(struct err *err, int code, const char *path, const char *fmt, va_list ap)
{
    /* Longer than the field, so that utf8_scrub sees the overflow and marks the cut. */
    char msg[sizeof err->msg + 8], place[sizeof err->path];

    assert(code < 0);
    if (!err)
        return code;
    if (vsnprintf(msg, sizeof msg, fmt, ap) < 0)
        msg[0] = '\0';
    utf8_copy(place, sizeof place, path ? path : "");
    err->code = code;
    strcpy(err->path, place);
    utf8_scrub(err->msg, sizeof err->msg, msg);
    return code;
}

int err_set(struct err *err, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    err_setv(err, code, NULL, fmt, ap);
    va_end(ap);
    return code;
}

int err_set_at(struct err *err, int code, const char *path, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    err_setv(err, code, path, fmt, ap);
    va_end(ap);
    return code;
}

const char *err_text(const struct err *err, char *buf, unsigned long size)
{
    char text[sizeof err->path + sizeof err->msg + 8];
    const char *msg = err->msg[0] ? err->msg : err->code ? strerror(-err->code) : "no error";

    if (size == 0)
        return "";
    snprintf(text, sizeof text, "%s%s%s", err->path, err->path[0] ? ": " : "", msg);
    utf8_scrub(buf, size, text);
    return buf;
}
