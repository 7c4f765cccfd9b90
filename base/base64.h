/* Base64 (RFC 4648, with padding). It is used to put binary data into JSON strings. */
#ifndef BASE_BASE64_H
#define BASE_BASE64_H

#include <stddef.h>

#include "base/strbuf.h"

/* Encodes the `bytes` bytes at `data` as base64 and appends the text to `b`. */
void base64_add(struct strbuf *b, const void *data, size_t bytes);
/* Decodes `chars` characters of base64 into `ret`. Returns the number of bytes, or -EINVAL when `text` is
 * not base64. `ret` needs 3 bytes for every 4 characters, and may be `text` itself. */
long base64_decode(const char *text, size_t chars, void *ret);

#endif
