/* Options of a command as a table: parsing, "did you mean", and the help text come from the same rows. */
#ifndef CLIENT_OPTS_H
#define CLIENT_OPTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strbuf.h"

#define OPTS_MAX 40

struct opt {
    const char *name;  /* without the dashes; NULL ends a table */
    char letter;       /* 0: none */
    const char *value; /* what the help calls its value; NULL: it takes none */
    const char *help;
};

struct args {
    const struct opt *opts, *common;
    const char *given[OPTS_MAX],
        *given_common[OPTS_MAX]; /* the value, or "" of one that takes none; NULL: absent */
    char **rest;                 /* what is no option, in order, in argv's own memory */
    int n_rest;
};

/* Takes argv apart, options and words in any order; "--" ends the options. `first_only`: ends at the first
 * word, which is then rest[0] with everything behind it. Moves the words to the front of argv. -EINVAL for
 * what is unknown. */
int opts_parse(const struct opt *opts, const struct opt *common, int argc, char **argv, bool first_only,
               struct args *ret, struct err *err);

/* The value of an option; NULL when it was not given. The name must be in a table. */
const char *opts_get(const struct args *a, const char *name);
bool opts_has(const struct args *a, const char *name);

/* Rows for the help text. */
void opts_help(const struct opt *opts, struct strbuf *b);

/* A number from an argument: whole, decimal, `least` to `most`. `what` goes into the message. */
int opts_number(const char *text, const char *what, uint64_t least, uint64_t most, uint64_t *ret,
                struct err *err);

#endif
