/* Implements the option tables of opts.h. Tutti does not use getopt for three reasons. The tables of getopt
 * have no help texts. An environment variable changes the order in which getopt returns words. getopt accepts
 * abbreviations, which stop working when an option is added. */
#include "base/opts.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static int find(const struct opt *opts, const char *name, size_t bytes)
{
    for (int i = 0; opts != NULL && opts[i].name != NULL; i++)
        if (strlen(opts[i].name) == bytes && strncmp(opts[i].name, name, bytes) == 0)
            return i;
    return -1;
}

static int find_letter(const struct opt *opts, char letter)
{
    for (int i = 0; opts != NULL && opts[i].name != NULL; i++)
        if (opts[i].letter == letter)
            return i;
    return -1;
}

/* Reports the unknown option `word`, and suggests the option with the most similar name, if there is one. */
static int refuse(const struct args *a, const char *word, size_t name_bytes, struct err *err)
{
    const char *names[2 * OPTS_MAX];
    char name[64] = "";
    int n = 0;
    for (int i = 0; a->opts != NULL && a->opts[i].name != NULL; i++)
        names[n++] = a->opts[i].name;
    for (int i = 0; a->common != NULL && a->common[i].name != NULL; i++)
        names[n++] = a->common[i].name;
    if (name_bytes < sizeof name)
        memcpy(name, word + 2, name_bytes);
    const char *near = name_bytes > 0 ? json_did_you_mean(name, names, n) : NULL;
    return err_set(err, -EINVAL, "unknown option %s%s%s%s", word, near != NULL ? "; did you mean --" : "",
                   near != NULL ? near : "", near != NULL ? "?" : "");
}

/* Finds an option by its letter, or by its name if `letter` is 0. Increments the option's counter in `times`.
 * Sets *ret_slot to the place where the option's value is stored. Returns NULL if there is no such option. */
static const struct opt *find_row(struct args *a, const char *name, size_t bytes, char letter,
                                  const char ***ret_slot)
{
    const struct opt *tables[] = {a->opts, a->common};
    for (int t = 0; t < 2; t++) {
        int i = letter != 0 ? find_letter(tables[t], letter) : find(tables[t], name, bytes);
        if (i < 0)
            continue;
        assert(i < OPTS_MAX);
        *ret_slot = t == 0 ? &a->given[i] : &a->given_common[i];
        if (t == 0 && a->times[i] < UINT8_MAX)
            a->times[i]++;
        return &tables[t][i];
    }
    return NULL;
}

/* Parses a word that begins with "--", such as "--output=DIR". If the value is the next word, as in
 * "--output DIR", advances *i past it. */
static int take_long(struct args *a, int argc, char **argv, int *i, struct err *err)
{
    const char *word = argv[*i], **slot;
    size_t bytes = strcspn(word + 2, "=");
    const char *value = word[2 + bytes] == '=' ? word + 3 + bytes : NULL;
    const struct opt *o = find_row(a, word + 2, bytes, 0, &slot);
    if (o == NULL)
        return refuse(a, word, bytes, err);
    if (o->value == NULL && value != NULL)
        return err_set(err, -EINVAL, "--%s takes no value", o->name);
    if (o->value != NULL && value == NULL) {
        if (*i + 1 >= argc)
            return err_set(err, -EINVAL, "--%s needs a value: --%s %s", o->name, o->name, o->value);
        value = argv[++*i];
    }
    *slot = value != NULL ? value : "";
    return 0;
}

/* Parses a word of short options, such as "-aq" or "-oVALUE". If the value is the next word, as in "-o
 * VALUE", advances *i past it. */
static int take_letters(struct args *a, int argc, char **argv, int *i, struct err *err)
{
    const char *word = argv[*i];
    for (const char *p = word + 1; *p != '\0'; p++) {
        const char **slot;
        const struct opt *o = find_row(a, NULL, 0, *p, &slot);
        if (o == NULL)
            return refuse(a, word, 0, err);
        *slot = "";
        if (o->value == NULL)
            continue;
        if (p[1] == '\0' && *i + 1 >= argc)
            return err_set(err, -EINVAL, "-%c needs a value: -%c %s", *p, *p, o->value);
        *slot = p[1] != '\0' ? p + 1 : argv[++*i];
        return 0;
    }
    return 0;
}

int opts_parse(const struct opt *opts, const struct opt *common, int argc, char **argv, bool first_only,
               struct args *ret, struct err *err)
{
    int i = 0, r = 0;
    *ret = (struct args){.opts = opts, .common = common, .rest = argv};
    for (; i < argc && r == 0; i++) {
        char *word = argv[i];
        if (strcmp(word, "--") == 0) {
            i++;
            break;
        }
        if (strncmp(word, "--", 2) == 0)
            r = take_long(ret, argc, argv, &i, err);
        else if (word[0] == '-' && word[1] != '\0') /* "-" alone means standard input */
            r = take_letters(ret, argc, argv, &i, err);
        else if (first_only)
            break;
        else
            argv[ret->n_rest++] = word;
    }
    for (; i < argc && r == 0; i++)
        argv[ret->n_rest++] = argv[i];
    return r;
}

const char *opts_get(const struct args *a, const char *name)
{
    int i = find(a->opts, name, strlen(name));
    if (i >= 0)
        return a->given[i];
    i = find(a->common, name, strlen(name));
    assert(i >= 0);
    return a->given_common[i];
}

bool opts_has(const struct args *a, const char *name)
{
    return opts_get(a, name) != NULL;
}

void opts_help(const struct opt *opts, struct strbuf *b)
{
    for (const struct opt *o = opts; o != NULL && o->name != NULL; o++) {
        struct strbuf left = {0};
        strbuf_addf(&left, "  %c%c%s--%s", o->letter != 0 ? '-' : ' ', o->letter != 0 ? o->letter : ' ',
                    o->letter != 0 ? ", " : "  ", o->name);
        if (o->value != NULL)
            strbuf_addf(&left, " %s", o->value);
        strbuf_addf(b, "%-28s  %s\n", left.at, o->help);
        strbuf_finish(&left);
    }
}

int opts_number(const char *text, const char *what, uint64_t least, uint64_t most, uint64_t *ret,
                struct err *err)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno != 0 || text[0] < '0' || text[0] > '9' || *end != '\0' || v < least || v > most)
        return err_set(err, -EINVAL, "%s: expected a whole number from %llu to %llu, found \"%s\"", what,
                       (unsigned long long)least, (unsigned long long)most, text);
    *ret = v;
    return 0;
}
