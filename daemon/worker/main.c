/* tutti-worker: runs one verb, such as --run JOB.json, in the foreground.
 *
 * Splits the command line into options, finds the verb among them, stores the values of the other options,
 * and calls the verb. verbs.h describes the tables behind this, and the order of the steps.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/print.h"
#include "base/strbuf.h"
#include "daemon/worker/report.h"
#include "daemon/worker/verbs.h"

#define MAX_OPTIONS 96 /* options of all verbs, and the verbs themselves */
#define MAX_GIVEN   128

/* An option that the command line gives. */
struct given_option {
    const char *name;  /* without the dashes */
    const char *value; /* NULL: the option takes none */
};

/* The command line, split into its options. */
struct command_line {
    struct given_option given[MAX_GIVEN];
    int n;
    bool help, version; /* --help or --version was given; the words after it were ignored */
};

/* ---- splitting ---- */

/* All options of all verbs, each name once, in the form of getopt_long. */
struct known_options {
    struct option list[MAX_OPTIONS + 1];
    int n;
};

static void add_known(struct known_options *k, const char *name, bool has_value)
{
    for (int i = 0; i < k->n; i++)
        if (strcmp(k->list[i].name, name) == 0)
            return;
    assert(k->n < MAX_OPTIONS);
    k->list[k->n++] = (struct option){.name = name, .has_arg = has_value ? required_argument : no_argument};
}

static void add_known_rows(struct known_options *k, const struct option_table *table)
{
    for (const struct worker_option *row = table->rows; row->name != NULL; row++)
        add_known(k, row->name, row->value != NULL);
}

static void collect_known(struct known_options *k)
{
    *k = (struct known_options){0};
    for (int i = 0; i < VERB_COUNT; i++) {
        add_known(k, worker_verbs[i]->word.name, worker_verbs[i]->word.value != NULL);
        for (int t = 0; worker_verbs[i]->tables[t] != NULL; t++)
            add_known_rows(k, worker_verbs[i]->tables[t]);
    }
    add_known_rows(k, &where_table);
    add_known_rows(k, &common_table);
    add_known(k, "help", false);
    add_known(k, "version", false);
}

/* Reports an unknown option, or an option without its value. `id` is what getopt_long returned. */
static int refuse_word(const struct known_options *k, int id, const char *word, struct err *err)
{
    const char *names[MAX_OPTIONS], *near;
    if (id == ':')
        return err_set(err, -EINVAL, "%s needs a value; see tutti-worker --help", word);
    for (int i = 0; i < k->n; i++)
        names[i] = k->list[i].name;
    near = strncmp(word, "--", 2) == 0 ? json_did_you_mean(word + 2, names, k->n) : NULL;
    return err_set(err, -EINVAL, "unknown option %s%s%s%s; see tutti-worker --help", word,
                   near ? "; did you mean --" : "", near ? near : "", near ? "?" : "");
}

static int split(int argc, char **argv, struct command_line *ret, struct err *err)
{
    struct known_options known;
    int id, index;
    collect_known(&known);
    *ret = (struct command_line){0};
    opterr = 0;
    while ((id = getopt_long(argc, argv, ":", known.list, &index)) != -1) {
        if (id != 0)
            return refuse_word(&known, id, argv[optind - 1], err);
        const char *name = known.list[index].name;
        ret->help = strcmp(name, "help") == 0;
        ret->version = strcmp(name, "version") == 0;
        if (ret->help || ret->version)
            return 0;
        if (ret->n == MAX_GIVEN)
            return err_set(err, -EINVAL, "there are more than %d options", MAX_GIVEN);
        ret->given[ret->n++] = (struct given_option){name, optarg};
    }
    if (optind < argc)
        return err_set(err, -EINVAL, "unexpected argument \"%s\"; see tutti-worker --help", argv[optind]);
    return 0;
}

/* ---- the verb and its options ---- */

static bool is_given(const void *line, const char *name)
{
    const struct command_line *c = line;
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->given[i].name, name) == 0)
            return true;
    return false;
}

/* Finds the verb on the command line. Sets *ret to NULL when there is none, and returns -EINVAL when there
 * are several. */
static int find_verb(const struct command_line *c, const struct worker_verb **ret, struct err *err)
{
    *ret = NULL;
    for (int i = 0; i < c->n; i++) {
        const struct worker_verb *v = verb_find(c->given[i].name);
        if (v == NULL)
            continue;
        if (*ret != NULL) {
            struct strbuf b = {0};
            verb_add_names(&b, "and");
            err_set(err, -EINVAL, "only one of %s can be given, found --%s and --%s", b.at, (*ret)->word.name,
                    v->word.name);
            strbuf_finish(&b);
            return -EINVAL;
        }
        *ret = v;
    }
    return 0;
}

static int store_options(const struct command_line *c, const struct worker_verb *v, struct verb_options *o,
                         struct err *err)
{
    int r = 0;
    if (v->set_defaults != NULL)
        v->set_defaults(o);
    for (int i = 0; r == 0 && i < c->n; i++) {
        const struct given_option *g = &c->given[i];
        bool is_verb = strcmp(g->name, v->word.name) == 0;
        const struct worker_option *row = is_verb ? &v->word : verb_find_option(v, g->name);
        if (row == NULL)
            r = verb_refuse_option(v, g->name, err);
        else if (!is_verb || g->value != NULL)
            r = options_store(row, g->value, o, err);
    }
    /* A topology file names its own backend. Without one, $TUTTI_BACKEND gives the default. */
    if (r == 0 && !is_given(c, "backend") && o->job.machine == NULL)
        r = discover_default(&o->job.backend, err);
    return r == 0 ? verb_check_options(v, o, is_given, c, err) : r;
}

/* ---- the program ---- */

/* Opens those of the descriptors 0, 1 and 2 that are closed. Otherwise a file of the job could get one of
 * these numbers, and messages would be written into it. */
static void open_standard_descriptors(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

/* Looks for --json before the command line is split, because mistakes found while splitting are reported
 * as JSON too. */
static bool asks_for_json(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--json") == 0)
            return true;
    return false;
}

static int print_version(void)
{
    struct strbuf b = {0};
    strbuf_add(&b, "tutti-worker " TUTTI_VERSION "\n");
    return print_buffer(&b);
}

static int print_help(void)
{
    struct strbuf b = {0};
    verb_add_help(&b);
    return print_buffer(&b);
}

/* Reports that no verb was given: people get the whole help, programs a short message as JSON. */
static int report_no_verb(const struct verb_options *o)
{
    struct err err = {0};
    struct strbuf b = {0};
    int code = EXIT_INVALID;
    if (o->json) {
        verb_add_names(&b, "or");
        err_set(&err, -EINVAL, "one of %s is needed; see tutti-worker --help", b.at);
        code = report_error(o, err.code, &err, 0, true);
    } else {
        verb_add_help(&b);
        print_error("%s", b.at);
    }
    strbuf_finish(&b);
    return code;
}

int main(int argc, char **argv)
{
    struct verb_options o = {.job = {.policy = -1, .update = -1}, .json = asks_for_json(argc, argv)};
    const struct worker_verb *verb = NULL;
    struct command_line line;
    struct err err = {0};
    open_standard_descriptors();
    log_init(LOG_INFO, getenv("JOURNAL_STREAM") != NULL);
    int r = split(argc, argv, &line, &err);
    if (line.help)
        return print_help();
    if (line.version)
        return print_version();
    if (r == 0)
        r = find_verb(&line, &verb, &err);
    if (r == 0 && verb == NULL)
        return report_no_verb(&o);
    if (r == 0)
        r = store_options(&line, verb, &o, &err);
    return r < 0 ? report_error(&o, r, &err, 0, true) : verb->run(&o);
}
