/* Each command describes its options in a table. The parser, the help text and the "did you mean" messages
 * all use the rows of this table. */
#ifndef BASE_OPTS_H
#define BASE_OPTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strbuf.h"

#define OPTS_MAX 96 /* rows of one table */

/* One row of a table of options, which describes one option. The row after the last option has the name
 * NULL. */
struct opt {
    const char *name; /* the long name without the dashes */
    char letter;      /* the short name; 0: none */
    /* The name of the option's value in the help, for example "FILE" in "--output FILE". This pointer is NULL
     * if the option takes no value. */
    const char *value;
    const char *help; /* one line for the help */
};

/* Parsed arguments. The strings point into argv. */
struct args {
    const struct opt *opts;   /* the command's table; may be NULL */
    const struct opt *common; /* options that all commands accept */
    /* The values of the options, one for each row of the tables `opts` and `common`. NULL means that the
     * option was not given. If an option takes no value and was given, its value is "". */
    const char *given[OPTS_MAX], *given_common[OPTS_MAX];
    /* The number of times that each option of the table `opts` was given. The count stops at 255. */
    unsigned char times[OPTS_MAX];
    char **rest; /* words that are not options */
    int n_rest;
};

/* Parses argv into *ret. Options may come anywhere before "--". Words that are not options are moved to the
 * front of argv. If `first_only` is true, parsing stops at the first word that is not an option. Returns
 * -EINVAL for an unknown option or a missing value. */
int opts_parse(const struct opt *opts, const struct opt *common, int argc, char **argv, bool first_only,
               struct args *ret, struct err *err);

/* Returns the value of the option `name`, or NULL if the option was not given. One of the two tables must
 * contain this name. */
const char *opts_get(const struct args *a, const char *name);
/* Returns true if the option `name` was given on the command line. */
bool opts_has(const struct args *a, const char *name);

/* Appends one line of help for each option of the table. `opts` may be NULL. */
void opts_help(const struct opt *opts, struct strbuf *b);

/* Parses a whole decimal number from `least` to `most`. Returns -EINVAL for any other text. The error
 * message calls the number `what`, for example "job id". */
int opts_number(const char *text, const char *what, uint64_t least, uint64_t most, uint64_t *ret,
                struct err *err);

#endif
