/* Base64 encoding (RFC 4648, with padding). Tutti uses it to put binary data into JSON strings. */
#ifndef BASE_BASE64_H
#define BASE_BASE64_H

#include <stddef.h>

#include "base/strbuf.h"

/* Encodes the `bytes` bytes at `data` as base64 and appends the text to the buffer `b`. */
void base64_add(struct strbuf *b, const void *data, size_t bytes);
/* Decodes the `chars` characters at `text` and writes the bytes to `ret`. Returns the number of bytes, or
 * -EINVAL if `text` is not base64. `ret` needs 3 bytes for every 4 characters. `ret` and `text` may be the
 * same buffer. */
long base64_decode(const char *text, size_t chars, void *ret);

#endif
