/* A failure that a person will read: an error code, a sentence, and the place of the failure in a JSON
 * document or in the file system.
 *
 * Functions return 0 or a negative errno. A function whose failure is shown to a person takes `struct err
 * *err` as its last argument. It fills in `err` on failure only, and allocates no memory for that. `err`
 * may be NULL when the caller does not want the message.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdarg.h>

struct err {
    int code; /* a negative errno; 0 when nothing failed */
    /* The place of the failure: a JSON path such as "train.micro_batch", or a file name. Empty if there is no
     * such place. The path may contain control characters, so use err_text to show it. */
    char path[1024];
    /* A sentence that says what happened and what to do about it. The text is on one line and contains no
     * character that could control a terminal. */
    char msg[768];
};

/* err_set, err_set_at and err_setv record a failure in `err`. They return `code`, so a caller can write
 * `return err_set(err, -EINVAL, ...)`. err_set leaves the path empty. */
int err_set(struct err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int err_set_at(struct err *err, int code, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int err_setv(struct err *err, int code, const char *path, const char *fmt, va_list ap);

/* Writes "path: msg" to `buf`, or only "msg" if there is no path, and returns `buf`. The text is on one line
 * and safe to show on a terminal. */
const char *err_text(const struct err *err, char *buf, unsigned long size);

#endif
