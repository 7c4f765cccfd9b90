/* Formats tables so that they fit the terminal. If a table is too wide, the least important columns are left
 * out, and other columns become narrower. Output to a file or a pipe may have any width. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/vec.h"
#include "client/show.h"

#define GAP         2
#define COLUMNS_MAX 16

struct cell {
    char *text; /* scrubbed */
    enum ink ink;
};

struct show_table {
    const struct column *columns;
    int n;
    VEC(struct cell) cells;
};

struct show_table *show_table_create(const struct column *columns, int n)
{
    struct show_table *t = xcalloc(1, sizeof *t);
    t->columns = columns;
    t->n = n < COLUMNS_MAX ? n : COLUMNS_MAX;
    return t;
}

void show_table_destroy(struct show_table *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->cells.n; i++)
        free(t->cells.at[i].text);
    vec_free(&t->cells);
    free(t);
}

void show_table_cell(struct show_table *t, const struct style *s, enum ink ink, const char *foreign_text)
{
    struct strbuf b = {0};
    strbuf_add(&b, "");
    show_text(&b, s, foreign_text);
    vec_push(&t->cells, (struct cell){b.at, ink});
}

/* Sets widths[i] to the width of the widest cell of column i. */
static void measure(const struct show_table *t, int *widths)
{
    for (int c = 0; c < t->n; c++)
        widths[c] = show_columns(t->columns[c].title);
    for (size_t i = 0; i < t->cells.n; i++) {
        int w = show_columns(t->cells.at[i].text), c = (int)(i % (size_t)t->n);
        if (w > widths[c])
            widths[c] = w;
    }
}

/* Returns the total width of the table. Columns with the width 0 are left out, together with the gaps beside
 * them. */
static int total(const struct show_table *t, const int *widths)
{
    int sum = 0;
    for (int c = 0; c < t->n; c++)
        sum += widths[c] > 0 ? widths[c] + GAP : 0;
    return sum > 0 ? sum - GAP : 0;
}

/* Makes the widest column narrower, by at most `excess`. Returns false if no column may become narrower. */
static bool shrink_one(const struct show_table *t, int *widths, int excess)
{
    int widest = -1;
    for (int c = 0; c < t->n; c++)
        if (t->columns[c].least > 0 && widths[c] > t->columns[c].least &&
            (widest < 0 || widths[c] > widths[widest]))
            widest = c;
    if (widest < 0)
        return false;
    int spare = widths[widest] - t->columns[widest].least;
    widths[widest] -= spare < excess ? spare : excess;
    return true;
}

/* Leaves out the column with the highest `drop`. Returns false if no column may be left out. */
static bool drop_one(const struct show_table *t, int *widths)
{
    int first = -1;
    for (int c = 0; c < t->n; c++)
        if (widths[c] > 0 && t->columns[c].drop > 0 &&
            (first < 0 || t->columns[c].drop > t->columns[first].drop))
            first = c;
    if (first < 0)
        return false;
    widths[first] = 0;
    return true;
}

/* Makes the table fit into `width` columns of the terminal. First leaves out columns of the table, and then
 * makes the remaining columns narrower. */
static void fit(const struct show_table *t, int *widths, int width)
{
    for (;;) {
        int least[COLUMNS_MAX];
        for (int c = 0; c < t->n; c++)
            least[c] =
                t->columns[c].least > 0 && t->columns[c].least < widths[c] ? t->columns[c].least : widths[c];
        if (total(t, least) <= width || !drop_one(t, widths))
            break;
    }
    while (total(t, widths) > width)
        if (!shrink_one(t, widths, total(t, widths) - width))
            break;
}

/* Appends one row of the table. If `row` is SIZE_MAX, appends the row with the titles of the columns. */
static void print_row(const struct show_table *t, const struct style *s, struct strbuf *b, const int *widths,
                      size_t row)
{
    int last = t->n - 1;
    while (last >= 0 && widths[last] == 0)
        last--;
    for (int c = 0; c <= last; c++) {
        bool title = row == SIZE_MAX;
        const struct cell *cell = title ? NULL : &t->cells.at[row * (size_t)t->n + (size_t)c];
        const char *text = title ? t->columns[c].title : cell->text;
        if (widths[c] == 0)
            continue;
        strbuf_add(b, show_ink(s, title ? INK_DIM : cell->ink));
        int columns = show_columns(text);
        /* The last column is not padded, so that no line ends in blanks. */
        bool bare = c == last && !t->columns[c].right && columns < widths[c];
        show_cell(b, s, text, bare ? columns : widths[c], t->columns[c].right);
        if (title || cell->ink != INK_NONE)
            strbuf_add(b, show_plain(s));
        strbuf_addf(b, "%*s", c < last ? GAP : 0, "");
    }
    while (b->n > 0 && b->at[b->n - 1] == ' ')
        b->at[--b->n] = '\0';
    strbuf_add(b, "\n");
}

void show_table_print(const struct show_table *t, const struct style *s, struct strbuf *b)
{
    int widths[COLUMNS_MAX];
    measure(t, widths);
    if (s->width > 0)
        fit(t, widths, s->width);
    print_row(t, s, b, widths, SIZE_MAX);
    for (size_t row = 0; row < t->cells.n / (size_t)t->n; row++)
        print_row(t, s, b, widths, row);
}
