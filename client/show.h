/* Functions that format data as text and append the text to a strbuf. They use no file descriptor and no
 * clock. A struct style tells them what the terminal can display. Untrusted text, such as a job's name, must
 * go through show_text, which makes it safe to display.
 */
#ifndef CLIENT_SHOW_H
#define CLIENT_SHOW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/curve.h"
#include "base/json.h"
#include "base/strbuf.h"

/* Describes what the output can display. The output is a terminal, a file or a pipe. term_style makes a
 * struct style for a file descriptor. */
struct style {
    bool color;   /* colours may be used */
    bool unicode; /* block and braille characters may be used */
    bool utf8;    /* characters beyond ASCII may be used */
    int width;    /* columns of the terminal; 0: no limit */
};

enum ink { INK_NONE, INK_DIM, INK_BOLD, INK_RED, INK_GREEN, INK_YELLOW, INK_BLUE, INK_CYAN, INK_COUNT };
/* Returns the escape sequence that switches to the colour `ink`, or "" if the style has no colours. */
const char *show_ink(const struct style *s, enum ink ink);
/* Returns the escape sequence that switches back to plain text, or "" if the style has no colours. */
const char *show_plain(const struct style *s);
/* Returns the colour for a job's state, such as green for "done" and red for "failed". */
enum ink show_state_ink(const char *state);

/* ---- text (show_text.c) ---- */

/* Appends untrusted text as a single line. Unsafe characters are replaced by escapes. If the style does not
 * allow UTF-8, all characters that are not ASCII are replaced too. */
void show_text(struct strbuf *b, const struct style *s, const char *text);
/* Appends the text of a log. Newlines and tabs are kept, CR LF becomes a newline, and unsafe characters are
 * replaced by escapes. */
void show_log_text(struct strbuf *b, const char *text);
/* Returns the number of columns that a UTF-8 text takes on a terminal. Escape sequences for colours take no
 * columns. */
int show_columns(const char *text);
/* Appends `text` so that it takes exactly `columns` columns. A longer text is cut and gets a mark. A shorter
 * text is padded with blanks, on the left if `right` is true. */
void show_cell(struct strbuf *b, const struct style *s, const char *text, int columns, bool right);

/* Each of the next six functions appends a number in a form that people can read easily. */
void show_duration(struct strbuf *b, double seconds); /* "1.9 ms", "17 s", "3m05s", "1h02m", "2d03h" */
void show_count(struct strbuf *b, double n);          /* "950", "12.3k", "2.91M" */
void show_time(struct strbuf *b, uint64_t ms);        /* local date and time */
void show_percent(struct strbuf *b, double share);    /* "47.3 %" for 0.473 */
void show_loss(struct strbuf *b, double loss);        /* "0.2500", "1.234e-05" */
void show_ratio(struct strbuf *b, double ratio);      /* "1.25x" */

/* ---- a bar (show_bar.c) ---- */

/* Appends a progress bar of `width` columns, at least 3. `share` says how much of the bar is filled, for
 * example 0.5 for half of it. */
void show_bar(struct strbuf *b, const struct style *s, double share, int width);

/* ---- a curve (show_curve.c) ---- */

struct plot {
    int width;          /* columns, with the indent and the labels */
    int height;         /* lines of text without the axis */
    const char *indent; /* text at the beginning of each line */
};
/* Appends a drawing of the curve. If the curve has fewer than two points or the plot is too small, appends
 * nothing. */
void show_curve(struct strbuf *b, const struct style *s, const struct curve *c, const struct plot *p);

/* ---- a table (show_table.c) ---- */

/* A column of a table. The column is as wide as its widest cell, or narrower if the terminal is too
 * narrow. */
struct column {
    const char *title;
    bool right; /* the cells are aligned to the right */
    int least;  /* least width; 0: it never shrinks */
    /* If the table is too wide, the column with the highest `drop` is left out first. A column with `drop` 0
     * is never left out. */
    int drop;
};
struct show_table;
/* Creates a table with `n` columns, at most 16. The array `columns` must stay valid as long as the table
 * exists. show_table_destroy frees the table. */
struct show_table *show_table_create(const struct column *columns, int n);
void show_table_destroy(struct show_table *t); /* t may be NULL */
/* Adds the next cell to the table. Cells are added row by row, from left to right. The text may come from an
 * untrusted source. */
void show_table_cell(struct show_table *t, const struct style *s, enum ink ink, const char *foreign_text);
/* Appends the titles of the columns and all rows of the table to `b`. */
void show_table_print(const struct show_table *t, const struct style *s, struct strbuf *b);

/* ---- jobs (show_job.c, show_report.c) ---- */

/* Appends the final report of a job that has ended. `job` is the daemon's answer to the method `show`. */
void show_report(struct strbuf *b, const struct style *s, const struct json *job);
/* Appends everything that is known about a job, in the form that `tutti show` prints. */
void show_job(struct strbuf *b, const struct style *s, const struct json *job, uint64_t now_ms);
/* Appends the outcome of a job as one JSON object. The object has the job's id, name, state, steps, error,
 * output, report and exit code. */
void show_outcome_json(struct strbuf *b, const struct json *job);
/* Appends one or two lines that describe the event, without the final newline. Returns false if there is no
 * such line for the event, as for "progress". */
bool show_event(struct strbuf *b, const struct style *s, const struct json *event);

#endif
