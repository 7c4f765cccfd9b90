/* Base64 (RFC 4648, with padding): bytes in JSON texts. */
#ifndef BASE_BASE64_H
#define BASE_BASE64_H

#include <stddef.h>

#include "base/strbuf.h"

void base64_add(struct strbuf *b, const void *data, size_t bytes);
/* Decodes a whole text. Returns the number of bytes, at most 3 for every 4 characters, or -EINVAL. `ret` may be the text. */
long base64_decode(const char *text, size_t chars, void *ret);

#endif
