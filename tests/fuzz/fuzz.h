/* What the fuzz targets share. A target is LLVMFuzzerTestOneInput: libFuzzer calls it with made-up bytes (tools/fuzz), and
 * replay.c with those of the committed seeds, as an ordinary test. What must hold is checked with HOLDS. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define HOLDS(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                   \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* Text that may be shown to a person: UTF-8, with no character that acts on a terminal or hides. */
static inline void check_shown(const char *s)
{
    for (size_t left = strlen(s), n; left > 0; s += n, left -= n) {
        n = utf8_char_bytes(s, left);
        HOLDS(n > 0);
        HOLDS(!utf8_is_unsafe(utf8_decode(s, n)));
    }
}

static inline void check_failure(int r, const struct err *err)
{
    HOLDS(r < 0 && err->code == r);
    HOLDS(err->msg[0] != '\0');
    char text[sizeof *err];
    check_shown(err->msg);
    check_shown(err_text(err, text, sizeof text));
}

/* What is printed reads back as what was printed. */
static inline void check_printed(const struct json *doc)
{
    char *text = json_print(doc), *again;
    struct json *copy = NULL;
    HOLDS(json_parse(text, strlen(text), "printed", false, &copy, NULL) == 0);
    again = json_print(copy);
    HOLDS(strcmp(text, again) == 0);
    json_free(copy);
    free(again);
    free(text);
}

#endif
