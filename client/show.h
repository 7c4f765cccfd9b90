/* Rendering: pure functions from data to text, into a strbuf. Nothing here knows a descriptor or a clock;
 * what the terminal can do comes as a struct style. Text from elsewhere is made safe on its way in
 * (show_text). */
#ifndef CLIENT_SHOW_H
#define CLIENT_SHOW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/curve.h"
#include "base/json.h"
#include "base/strbuf.h"

struct style {
    bool color;   /* escape sequences for colour */
    bool unicode; /* blocks and braille to draw with */
    bool utf8;    /* names as they are; else in ASCII */
    int width;    /* columns; 0: as wide as it gets */
};

enum ink { INK_NONE, INK_DIM, INK_BOLD, INK_RED, INK_GREEN, INK_YELLOW, INK_BLUE, INK_CYAN, INK_COUNT };
/* The sequences that switch an ink on and everything off; "" without colour. */
const char *show_ink(const struct style *s, enum ink ink);
const char *show_plain(const struct style *s);
enum ink show_state_ink(const char *state);

/* ---- text (show_text.c) ---- */

/* Foreign text on one line: unsafe characters and bytes that are not UTF-8 are shown as escapes
 * (base/utf8.h); without utf8 all but ASCII. */
void show_text(struct strbuf *b, const struct style *s, const char *text);
/* A log: the same, but it keeps its lines and tabs. A CR before a line's end is left out. */
void show_log_text(struct strbuf *b, const char *text);
/* Columns that UTF-8 text takes, escape sequences not counted. */
int show_columns(const char *text);
/* `text` cut to `columns` (the cut is marked), then padded with blanks: on the left when `right`. */
void show_cell(struct strbuf *b, const struct style *s, const char *text, int columns, bool right);

void show_duration(struct strbuf *b, double seconds); /* "1.9 ms", "17 s", "3m05s", "1h02m", "2d03h" */
void show_count(struct strbuf *b, double n);          /* "950", "12.3k", "2.91M" */
void show_time(struct strbuf *b, uint64_t ms);        /* local date and time */
void show_percent(struct strbuf *b, double share);    /* "47.3 %" */
void show_loss(struct strbuf *b, double loss);        /* four significant digits, no needless exponent */
void show_ratio(struct strbuf *b, double ratio);      /* "1.25x" */

/* ---- a bar (show_bar.c) ---- */

/* Exactly `width` columns (at least 3), `share` of them filled. */
void show_bar(struct strbuf *b, const struct style *s, double share, int width);

/* ---- a curve (show_curve.c) ---- */

struct plot {
    int width, height; /* columns in all, rows of dots; the axis takes two more lines */
    const char *indent;
};
/* Lines ending in '\n'; nothing when there are fewer than two points. */
void show_curve(struct strbuf *b, const struct style *s, const struct curve *c, const struct plot *p);

/* ---- a table (show_table.c) ---- */

struct column {
    const char *title;
    bool right;
    int least; /* columns it may shrink to; 0: it does not */
    int drop;  /* where the screen is narrow the greatest goes first; 0: stays */
};
struct show_table;
struct show_table *show_table_create(const struct column *columns, int n);
void show_table_destroy(struct show_table *t);
/* Cells, row by row from left to right. */
void show_table_cell(struct show_table *t, const struct style *s, enum ink ink, const char *foreign_text);
void show_table_print(const struct show_table *t, const struct style *s, struct strbuf *b);

/* ---- jobs (show_job.c, show_report.c) ---- */

/* The final report, and everything that is known, of a job in long form. */
void show_report(struct strbuf *b, const struct style *s, const struct json *job);
void show_job(struct strbuf *b, const struct style *s, const struct json *job, uint64_t now_ms);
/* {"ok","exit","id","name","state","step","error","report","output"} */
void show_outcome_json(struct strbuf *b, const struct json *job);
/* An event as a line for people (or two), without the last newline; false: it has none (progress, ended). */
bool show_event(struct strbuf *b, const struct style *s, const struct json *event);

#endif
