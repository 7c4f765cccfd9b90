/* Implements the functions that fill in struct err.
 *
 * They use fixed buffers and allocate nothing, because the failure may be that memory ran out. The text is
 * built in local variables and copied last, so a caller may quote the old message in the new one:
 * `err_set(err, r, "while reading x: %s", err->msg)`.
 *
 * Messages quote names and contents of files, so err_setv scrubs the message. It does not scrub the path,
 * because a program that reads --json output wants to open that very file. err_text scrubs the path. Any
 * thread may call these functions.
 */
#include "base/err.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

int err_setv(struct err *err, int code, const char *path, const char *fmt, va_list ap)
{
    /* `msg` is 8 bytes longer than err->msg. If vsnprintf must cut a text, the text in `msg` is still too
     * long for err->msg. utf8_scrub then cuts it once more and appends "...". */
    char msg[sizeof err->msg + 8], where[sizeof err->path];

    assert(code < 0);
    if (!err)
        return code;
    if (vsnprintf(msg, sizeof msg, fmt, ap) < 0)
        msg[0] = '\0';
    utf8_copy(where, sizeof where, path ? path : "");
    err->code = code;
    strcpy(err->path, where);
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
