/* The program tutti-worker. It runs one verb, such as --run JOB.json, in the foreground: it parses the
 * command line, stores the options and calls the verb. verbs.h describes the tables of verbs and options.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/opts.h"
#include "base/print.h"
#include "base/strbuf.h"
#include "daemon/worker/report.h"
#include "daemon/worker/verbs.h"

/* ---- the options of all verbs ---- */

/* The options of all verbs in one list, in the form that base/opts.h needs. An option that several verbs take
 * is listed only once. */
struct known_options {
    struct opt list[OPTS_MAX + 1];
    int n;
};

static void add_known(struct known_options *k, const char *name, const char *value)
{
    for (int i = 0; i < k->n; i++)
        if (strcmp(k->list[i].name, name) == 0)
            return;
    assert(k->n < OPTS_MAX);
    k->list[k->n++] = (struct opt){.name = name, .value = value};
}

static void add_known_rows(struct known_options *k, const struct option_table *table)
{
    for (const struct worker_option *row = table->rows; row->name != NULL; row++)
        add_known(k, row->name, row->value);
}

static void collect_known(struct known_options *k)
{
    *k = (struct known_options){0};
    for (int i = 0; i < VERB_COUNT; i++) {
        add_known(k, worker_verbs[i]->word.name, worker_verbs[i]->word.value);
        for (int t = 0; worker_verbs[i]->tables[t] != NULL; t++)
            add_known_rows(k, worker_verbs[i]->tables[t]);
    }
    add_known_rows(k, &where_table);
    add_known_rows(k, &common_table);
    add_known(k, "help", NULL);
    add_known(k, "version", NULL);
}

/* Splits the command line into options and their values, without interpreting the values. */
static int split(const struct known_options *k, int argc, char **argv, struct args *ret, struct err *err)
{
    int r = opts_parse(k->list, NULL, argc, argv, false, ret, err);
    if (r < 0)
        return err_set(err, r, "%s; see tutti-worker --help", err->msg);
    if (ret->n_rest > 0)
        return err_set(err, -EINVAL, "unexpected argument \"%s\"; see tutti-worker --help", ret->rest[0]);
    return 0;
}

/* ---- the verb and its options ---- */

static bool is_given(const void *args, const char *name)
{
    return opts_has(args, name);
}

static int refuse_two_verbs(const struct worker_verb *a, const struct worker_verb *b, struct err *err)
{
    struct strbuf names = {0};
    verb_add_names(&names, "and");
    err_set(err, -EINVAL, "only one of %s can be given, found --%s and --%s", names.at, a->word.name,
            b->word.name);
    strbuf_finish(&names);
    return -EINVAL;
}

/* Finds the verb on the command line, such as --run. *ret is NULL if there is no verb. Returns -EINVAL if
 * there are several verbs. */
static int find_verb(const struct args *a, const struct worker_verb **ret, struct err *err)
{
    *ret = NULL;
    for (int i = 0; a->opts[i].name != NULL; i++) {
        const struct worker_verb *v = a->given[i] != NULL ? verb_find(a->opts[i].name) : NULL;
        if (v != NULL && (*ret != NULL || a->times[i] > 1))
            return refuse_two_verbs(*ret != NULL ? *ret : v, v, err);
        if (v != NULL)
            *ret = v;
    }
    return 0;
}

static int store_options(const struct args *a, const struct worker_verb *v, struct verb_options *o,
                         struct err *err)
{
    int r = 0;
    if (v->set_defaults != NULL)
        v->set_defaults(o);
    for (int i = 0; r == 0 && a->opts[i].name != NULL; i++) {
        const char *name = a->opts[i].name;
        bool is_verb = strcmp(name, v->word.name) == 0;
        const struct worker_option *row = is_verb ? &v->word : verb_find_option(v, name);
        if (a->given[i] == NULL || (is_verb && v->word.value == NULL))
            continue;
        r = row != NULL ? options_store(row, a->given[i], o, err) : verb_refuse_option(v, name, err);
    }
    /* A topology file names its backend itself. Without a topology file and without --backend, $TUTTI_BACKEND
     * sets the backend. */
    if (r == 0 && !opts_has(a, "backend") && o->job.machine == NULL)
        r = discover_default(&o->job.backend, err);
    return r == 0 ? verb_check_options(v, o, is_given, a, err) : r;
}

/* ---- the program ---- */

/* Opens the file descriptors 0, 1 and 2 if they are closed. Otherwise a file of the job could get one of
 * these numbers, and messages would be written into that file. */
static void open_standard_descriptors(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

/* Looks for --json before the command line is parsed, so that even a parse error can be printed as JSON. */
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

/* Reports that the command line has no verb. People get the whole help text. With --json, programs get a
 * short message. */
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
    struct verb_options o = {.job = {.policy = -1, .update = -1, .objective = -1},
                             .json = asks_for_json(argc, argv)};
    const struct worker_verb *verb = NULL;
    struct known_options known;
    struct args args;
    struct err err = {0};
    open_standard_descriptors();
    log_init(LOG_INFO, getenv("JOURNAL_STREAM") != NULL);
    collect_known(&known);
    int r = split(&known, argc > 0 ? argc - 1 : 0, argv + 1, &args, &err);
    /* The option --help is handled first, so that it works even if the command line has a mistake. */
    if (opts_has(&args, "help"))
        return print_help();
    if (opts_has(&args, "version"))
        return print_version();
    if (r == 0)
        r = find_verb(&args, &verb, &err);
    if (r == 0 && verb == NULL)
        return report_no_verb(&o);
    if (r == 0)
        r = store_options(&args, verb, &o, &err);
    return r < 0 ? report_error(&o, r, &err, 0, true) : verb->run(&o);
}
