/* Contains the table of verbs, finds the options that a verb takes and needs, and prints the help. */
#include "daemon/worker/verbs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define HELP_COLUMNS 110 /* longest line of the help */
/* Column of the help text in which the description of an option begins. */
#define HELP_INDENT 25
/* Column of the help text in which the description of a verb begins, unless the verb's arguments are
 * longer. */
#define FORM_INDENT 40

const struct worker_verb *const worker_verbs[VERB_COUNT] = {
    &verb_check, &verb_export, &verb_plan,   &verb_plan_profile, &verb_probe,
    &verb_rules, &verb_run,    &verb_sample, &verb_serve,        &verb_time,
};

/* ---- looking things up ---- */

const struct worker_verb *verb_find(const char *name)
{
    for (int i = 0; i < VERB_COUNT; i++)
        if (strcmp(worker_verbs[i]->word.name, name) == 0)
            return worker_verbs[i];
    return NULL;
}

static const struct worker_option *find_row(const struct option_table *table, const char *name)
{
    for (const struct worker_option *row = table->rows; row->name != NULL; row++)
        if (strcmp(row->name, name) == 0)
            return row;
    return NULL;
}

static bool has_name(const char *const *names, const char *name)
{
    for (; names != NULL && *names != NULL; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

const struct worker_option *verb_find_option(const struct worker_verb *v, const char *name)
{
    const struct worker_option *row = NULL;
    for (int i = 0; row == NULL && v->tables[i] != NULL; i++)
        row = find_row(v->tables[i], name);
    if (row == NULL && (v->where == where_all || has_name(v->where, name)))
        row = find_row(&where_table, name);
    return row != NULL ? row : find_row(&common_table, name);
}

/* ---- checks ---- */

int verb_refuse_option(const struct worker_verb *v, const char *name, struct err *err)
{
    const char *takers[VERB_COUNT];
    char path[32];
    struct strbuf b = {0};
    int n = 0;
    for (int i = 0; i < VERB_COUNT; i++)
        if (verb_find_option(worker_verbs[i], name) != NULL)
            takers[n++] = worker_verbs[i]->word.name;
    for (int i = 0; i < n; i++)
        strbuf_addf(&b, "%s--%s", i == 0 ? "" : i + 1 < n ? ", " : " and ", takers[i]);
    snprintf(path, sizeof path, "--%s", name);
    err_set_at(err, -EINVAL, path, "does not go with --%s; it goes with %s", v->word.name, b.at);
    strbuf_finish(&b);
    return -EINVAL;
}

static int refuse_missing(const struct worker_verb *v, const char *name, struct err *err)
{
    const struct worker_option *row = verb_find_option(v, name);
    char path[32];
    snprintf(path, sizeof path, "--%s", v->word.name);
    return err_set_at(err, -EINVAL, path, "--%s %s is needed; see tutti-worker --help", name, row->value);
}

int verb_check_options(const struct worker_verb *v, const struct verb_options *o,
                       bool (*given)(const void *line, const char *name), const void *line, struct err *err)
{
    for (int i = 0; v->needs != NULL && v->needs[i] != NULL; i++)
        if (!given(line, v->needs[i]))
            return refuse_missing(v, v->needs[i], err);
    return v->check != NULL ? v->check(o, err) : 0;
}

/* ---- help ---- */

void verb_add_names(struct strbuf *b, const char *conjunction)
{
    for (int i = 0; i < VERB_COUNT; i++) {
        if (i > 0)
            strbuf_add(b, i + 1 < VERB_COUNT ? ", " : " ");
        if (i > 0 && i + 1 == VERB_COUNT)
            strbuf_addf(b, "%s ", conjunction);
        strbuf_addf(b, "--%s", worker_verbs[i]->word.name);
    }
}

static void add_forms(struct strbuf *b)
{
    const char *begin = "usage: ";
    for (int i = 0; i < VERB_COUNT; i++)
        for (const struct verb_form *f = worker_verbs[i]->forms; f->args != NULL; f++) {
            char left[HELP_COLUMNS];
            snprintf(left, sizeof left, "tutti-worker --%s%s%s", worker_verbs[i]->word.name,
                     f->args[0] != '\0' ? " " : "", f->args);
            strbuf_addf(b, "%s%-*s  %s\n", begin, FORM_INDENT, left, f->summary);
            begin = "       ";
        }
}

/* Appends `text` to the help, wrapped between words. The first line continues a line of the help that already
 * has HELP_INDENT columns. */
static void add_wrapped(struct strbuf *b, const char *text)
{
    int column = HELP_INDENT;
    for (const char *p = text; *p != '\0';) {
        int n = (int)strcspn(p, " ");
        if (column > HELP_INDENT && column + 1 + n > HELP_COLUMNS) {
            strbuf_addf(b, "\n%*s", HELP_INDENT, "");
            column = HELP_INDENT;
        }
        column += n + (column > HELP_INDENT);
        strbuf_addf(b, "%s%.*s", column > HELP_INDENT + n ? " " : "", n, p);
        p += n + (p[n] == ' ');
    }
    strbuf_add(b, "\n");
}

static void add_option(struct strbuf *b, const struct worker_option *row)
{
    struct strbuf help = {0};
    char left[64];
    for (int i = 0; row->names != NULL && row->names[i] != NULL; i++)
        strbuf_addf(&help, "%s%s", i > 0 ? ", " : "", row->names[i]);
    strbuf_add(&help, row->help);
    snprintf(left, sizeof left, "--%s%s%s", row->name, row->value != NULL ? " " : "",
             row->value != NULL ? row->value : "");
    strbuf_addf(b, "  %-*s ", HELP_INDENT - 3, left);
    add_wrapped(b, help.at);
    strbuf_finish(&help);
}

static void add_option_table(struct strbuf *b, const struct option_table *table)
{
    strbuf_addf(b, "%s:\n", table->title);
    for (const struct worker_option *row = table->rows; row->name != NULL; row++)
        if (row->help != NULL)
            add_option(b, row);
}

/* Returns whether `verb` is the first verb with this table of options. The help prints a table only once,
 * even if several verbs share it. */
static bool is_first_with(int verb, const struct option_table *table)
{
    for (int i = 0; i < verb; i++)
        for (int k = 0; worker_verbs[i]->tables[k] != NULL; k++)
            if (worker_verbs[i]->tables[k] == table)
                return false;
    return true;
}

void verb_add_help(struct strbuf *b)
{
    add_forms(b);
    strbuf_add(b, "JOB.json may be - for standard input.\n\n");
    add_option_table(b, &where_table);
    for (int i = 0; i < VERB_COUNT; i++)
        for (int k = 0; worker_verbs[i]->tables[k] != NULL; k++)
            if (is_first_with(i, worker_verbs[i]->tables[k]))
                add_option_table(b, worker_verbs[i]->tables[k]);
    add_option_table(b, &common_table);
    strbuf_add(b, "  --help, --version\n");
}
