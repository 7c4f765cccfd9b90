/* Draws the live display of a job: a progress bar, some numbers, the curve, and the last evaluations. On a
 * small terminal, the curve becomes smaller or is left out. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/view.h"

#define CURVE_ROWS 10
#define LEAST_ROWS 4 /* fewest rows of a useful curve */
/* Number of lines that the display needs besides the curve: bar, figures (2), axis (2), evaluations, and two
 * lines of earlier output. */
#define OTHER_LINES  8
#define WIDTH_MAX    120
#define NAME_COLUMNS 20

#define GAP "   "

/* A line that is built from parts, such as "loss 0.25". A part that does not fit on the current line begins a
 * new line. A part that is wider than a whole line is left out. */
struct line {
    struct strbuf *b;
    int width; /* columns of a line */
    int used;  /* columns used on the current line */
};

static void add_part(struct line *l, const char *text)
{
    int columns = show_columns(text);
    if (columns > l->width)
        return;
    bool fits = l->used + (int)strlen(GAP) + columns <= l->width;
    strbuf_addf(l->b, "%s%s", l->used == 0 ? "" : fits ? GAP : "\n", text);
    l->used = (l->used > 0 && fits ? l->used + (int)strlen(GAP) : 0) + columns;
}

/* Adds a part and frees it. */
static void end_part(struct line *l, struct strbuf *part)
{
    add_part(l, part->at);
    strbuf_finish(part);
}

/* ---- the figures ---- */

static void add_loss(struct line *l, const struct style *s, const struct view *v)
{
    struct strbuf part = {0};
    if (isnan(v->loss))
        return;
    strbuf_addf(&part, "loss %s", show_ink(s, INK_BOLD));
    show_loss(&part, v->loss);
    strbuf_add(&part, show_plain(s));
    end_part(l, &part);
}

static void add_rate(struct line *l, const struct view *v)
{
    struct strbuf part = {0};
    if (isnan(v->samples_per_s))
        return;
    show_count(&part, v->samples_per_s);
    strbuf_add(&part, " samples/s");
    end_part(l, &part);
}

static void add_stall(struct line *l, const struct view *v)
{
    struct strbuf part = {0};
    if (isnan(v->stall_share))
        return;
    strbuf_add(&part, "stalled ");
    show_percent(&part, v->stall_share);
    end_part(l, &part);
}

/* Adds the factor by which the losses of an fp16 job are multiplied. */
static void add_scale(struct line *l, const struct view *v)
{
    struct strbuf part = {0};
    if (isnan(v->loss_scale))
        return;
    strbuf_addf(&part, "scale %.6g", v->loss_scale);
    end_part(l, &part);
}

static void add_moved(struct line *l, const struct view *v)
{
    struct strbuf part = {0};
    if (!v->moved)
        return;
    strbuf_add(&part, "in ");
    strbuf_add_bytes(&part, v->in_bytes);
    strbuf_add(&part, "  out ");
    strbuf_add_bytes(&part, v->out_bytes);
    if (v->peer_bytes > 0) {
        strbuf_add(&part, "  peer ");
        strbuf_add_bytes(&part, v->peer_bytes);
    }
    end_part(l, &part);
}

static void add_figures(struct line *l, const struct style *s, const struct view *v)
{
    add_loss(l, s, v);
    add_scale(l, v);
    add_rate(l, v);
    add_stall(l, v);
    add_moved(l, v);
}

/* ---- the bar ---- */

static double share_of(const struct view *v)
{
    return v->total > 0 ? (double)v->step / (double)v->total : 0;
}

/* Appends the text after the progress bar: the percentage, the number of training steps, such as "141/300",
 * and the time left or the state of the job. */
static void add_position(struct strbuf *b, const struct style *s, const struct view *v)
{
    bool running = strcmp(v->state, "running") == 0;
    strbuf_addf(b, "%3.0f %%  ", floor(100 * fmin(share_of(v), 1)));
    if (v->total > 0)
        strbuf_addf(b, "%" PRIu64 "/%" PRIu64, v->step, v->total);
    else if (running)
        strbuf_add(b, "planning");
    if (!running) {
        strbuf_addf(b, "%s%s", v->total > 0 ? "  " : "", show_ink(s, show_state_ink(v->state)));
        show_text(b, s, v->state);
        strbuf_add(b, show_plain(s));
    } else if (!isnan(v->eta_s) && v->step < v->total) {
        strbuf_add(b, "  ");
        show_duration(b, v->eta_s);
        strbuf_add(b, " left");
    }
}

static void add_bar_line(struct strbuf *b, const struct style *s, const struct view *v, int width)
{
    struct strbuf name = {0}, position = {0};
    strbuf_add(&name, "");
    show_text(&name, s, v->name);
    add_position(&position, s, v);
    int columns = show_columns(name.at), bar;
    if (columns > NAME_COLUMNS)
        columns = NAME_COLUMNS;
    bar = width - columns - show_columns(position.at) - 3;
    /* If the bar would be too narrow, leave out the job's name. */
    if (bar < 8) {
        bar += columns + 1;
        columns = 0;
    }
    if (columns > 0) {
        strbuf_add(b, show_ink(s, INK_BOLD));
        show_cell(b, s, name.at, columns, false);
        strbuf_addf(b, "%s ", show_plain(s));
    }
    if (bar >= 8)
        show_bar(b, s, share_of(v), bar);
    strbuf_add(b, bar >= 8 ? " " : "");
    show_cell(b, s, position.at, show_columns(position.at) < width ? show_columns(position.at) : width - 1,
              false);
    strbuf_addf(b, "%s\n", show_plain(s));
    strbuf_finish(&name);
    strbuf_finish(&position);
}

/* ---- all of it ---- */

static void add_eval_line(struct strbuf *b, const struct style *s, const struct view *v, int width)
{
    struct line l = {.b = b, .width = width};
    struct strbuf part = {0};
    if (v->n_evals == 0)
        return;
    strbuf_addf(&part, "%sval accuracy%s ", show_ink(s, INK_DIM), show_plain(s));
    for (int i = 0; i < v->n_evals; i++) {
        bool last = i == v->n_evals - 1;
        strbuf_addf(&part, "%s%s%.2f%s", i > 0 ? (s->unicode ? " \u2192 " : " -> ") : "",
                    last ? show_ink(s, INK_BOLD) : "", 100 * v->accuracies[i], last ? show_plain(s) : "");
    }
    strbuf_add(&part, " %");
    end_part(&l, &part);
    strbuf_addf(&part, "%sat step %" PRIu64 "%s", show_ink(s, INK_DIM), v->eval_step, show_plain(s));
    end_part(&l, &part);
    strbuf_add(b, "\n");
}

/* Appends the losses of the blocks of local updates, or their accuracies. If there are more than `most`
 * blocks, those in the middle are left out. */
static void add_block_figures(struct line *l, const struct style *s, const struct view *v, bool accuracy,
                              int most)
{
    struct strbuf part = {0};
    if (v->n_blocks == 0 || most < 2)
        return;
    strbuf_addf(&part, "%s%s of blocks%s", show_ink(s, INK_DIM), accuracy ? "accuracy" : "loss",
                show_plain(s));
    for (int i = 0; i < v->n_blocks; i++) {
        if (v->n_blocks > most && i == most / 2) {
            strbuf_add(&part, " ..");
            i = v->n_blocks - (most - most / 2);
        }
        strbuf_add(&part, " ");
        if (accuracy && isnan(v->block_accuracy[i]))
            strbuf_add(&part, "-"); /* a loss without accuracy */
        else if (accuracy)
            strbuf_addf(&part, "%.1f", 100 * v->block_accuracy[i]);
        else
            show_loss(&part, v->block_loss[i]);
    }
    strbuf_add(&part, accuracy ? " %" : "");
    end_part(l, &part);
}

/* Returns how many blocks have room in a line of `width` columns. */
static int blocks_in(int width)
{
    return (width - 24) / 8;
}

/* Adds a line with the losses and one with the accuracies of the blocks of local updates. */
static void add_block_lines(struct strbuf *b, const struct style *s, const struct view *v, int width)
{
    for (int i = 0; i < 2 && v->n_blocks > 0; i++) {
        struct line l = {.b = b, .width = width};
        add_block_figures(&l, s, v, i == 1, blocks_in(width));
        strbuf_add(b, l.used > 0 ? "\n" : "");
    }
}

void view_draw(struct strbuf *b, const struct style *s, const struct view *v, int rows)
{
    /* Leave the last column of the terminal empty. A character there may make the terminal wrap the line. */
    int width = s->width > 0 && s->width < WIDTH_MAX ? s->width - 1 : WIDTH_MAX;
    int others = OTHER_LINES + (v->n_blocks > 0 ? 2 : 0);
    int curve_rows = rows - others < CURVE_ROWS ? rows - others : CURVE_ROWS;
    struct line l = {.b = b, .width = width};
    strbuf_add(b, "");
    add_bar_line(b, s, v, width);
    size_t before = b->n;
    if (v->reason[0] != '\0' && strcmp(v->state, "queued") == 0) {
        struct strbuf part = {0};
        show_text(&part, s, v->reason);
        show_cell(b, s, part.at, show_columns(part.at) < width ? show_columns(part.at) : width, false);
        strbuf_finish(&part);
    } else {
        add_figures(&l, s, v);
    }
    if (b->n > before)
        strbuf_add(b, "\n");
    if (curve_rows >= LEAST_ROWS)
        show_curve(b, s, &v->curve, &(struct plot){width, curve_rows, ""});
    if (rows > 5)
        add_block_lines(b, s, v, width);
    if (rows > 3)
        add_eval_line(b, s, v, width);
}

void view_line(struct strbuf *b, const struct style *s, const struct view *v)
{
    struct line l = {.b = b, .width = 10000};
    struct strbuf position = {0};
    strbuf_addf(&position, "step %" PRIu64, v->step);
    if (v->total > 0)
        strbuf_addf(&position, "/%" PRIu64 GAP "%.0f %%", v->total, floor(100 * fmin(share_of(v), 1)));
    end_part(&l, &position);
    add_figures(&l, s, v);
    add_block_figures(&l, s, v, false, VIEW_BLOCKS);
    add_block_figures(&l, s, v, true, VIEW_BLOCKS);
    if (!isnan(v->eta_s) && v->step < v->total) {
        struct strbuf part = {0};
        show_duration(&part, v->eta_s);
        strbuf_add(&part, " left");
        end_part(&l, &part);
    }
}
