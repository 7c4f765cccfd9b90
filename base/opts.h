/* The options of a command as a table. Parser, help and "did you mean" use the same rows. */
#ifndef BASE_OPTS_H
#define BASE_OPTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strbuf.h"

#define OPTS_MAX 96 /* rows of one table */

/* One row of a table describes one option. The last row of a table has the name NULL. */
struct opt {
    const char *name; /* the long name without the dashes */
    char letter;      /* the short name; 0: none */
    /* The name of the option's value in the help, such as "FILE". NULL if the option takes no value. */
    const char *value;
    const char *help; /* one line for the help */
};

/* Parsed arguments. The strings point into argv. */
struct args {
    const struct opt *opts;   /* the command's table; may be NULL */
    const struct opt *common; /* options that all commands accept */
    /* The values of the options in both tables. NULL means not given. "" means given, for an option
     * without a value. */
    const char *given[OPTS_MAX], *given_common[OPTS_MAX];
    /* The number of times that each option of `opts` was given, at most 255. */
    unsigned char times[OPTS_MAX];
    char **rest; /* words that are not options */
    int n_rest;
};

/* Parses argv into *ret. Options may come anywhere before "--". Other words move to the front of argv.
 * With `first_only`, parsing stops at the first word that is not an option. Returns -EINVAL for an unknown
 * option or a missing value. */
int opts_parse(const struct opt *opts, const struct opt *common, int argc, char **argv, bool first_only,
               struct args *ret, struct err *err);

/* Returns the value of the option `name`, or NULL when it was not given. A table must contain the name. */
const char *opts_get(const struct args *a, const char *name);
/* Returns true when the option `name` was given. */
bool opts_has(const struct args *a, const char *name);

/* Appends one line of help per option. `opts` may be NULL. */
void opts_help(const struct opt *opts, struct strbuf *b);

/* Parses a whole decimal number from `least` to `most`. Returns -EINVAL for anything else. Messages call
 * it `what`, for example "job id". */
int opts_number(const char *text, const char *what, uint64_t least, uint64_t most, uint64_t *ret,
                struct err *err);

#endif
