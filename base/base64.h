/* Base64 (RFC 4648, with padding). It is used to put binary data into JSON strings. */
#ifndef BASE_BASE64_H
#define BASE_BASE64_H

#include <stddef.h>

#include "base/strbuf.h"

/* Encodes the `bytes` bytes at `data` as base64 and appends the text to `b`. */
void base64_add(struct strbuf *b, const void *data, size_t bytes);
/* Decodes the `chars` characters at `text` into `ret`, which must have space for 3 bytes per 4 characters.
 * Returns the number of bytes written, or -EINVAL when `text` is not base64. `ret` may be `text`, because
 * decoding in place is safe. */
long base64_decode(const char *text, size_t chars, void *ret);

#endif
