/* What a person reads when something fails: a code, a sentence, and the place in the JSON or file.
 *
 * Functions return 0 or a negative errno. Those whose failure a person will read take a last argument
 * `struct err *err`, filled only on failure and never allocating. `err` may be NULL: nothing is recorded.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdarg.h>

struct err {
    int code;        /* negative errno, 0 when nothing failed */
    char path[1024]; /* JSON path ("train.micro_batch") or file name, not scrubbed; empty: neither applies */
    char msg[768];   /* what happened and what to do about it; safe to show, on one line */
};

/* Each records the failure and returns `code`, so that a caller can write `return err_set(err, -EINVAL,
 * ...)`. */
int err_set(struct err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int err_set_at(struct err *err, int code, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int err_setv(struct err *err, int code, const char *path, const char *fmt, va_list ap);

/* "path: msg", or "msg" without a path, safe to show and on one line; valid until err changes. Never NULL. */
const char *err_text(const struct err *err, char *buf, unsigned long size);

#endif
