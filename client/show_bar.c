/* Draws a progress bar. If the terminal can display Unicode, the bar grows by eighths of a character. */
#include <math.h>

#include "client/show.h"

void show_bar(struct strbuf *b, const struct style *s, double share, int width)
{
    static const char *const eighths[] = {"",       "\u258F", "\u258E", "\u258D",
                                          "\u258C", "\u258B", "\u258A", "\u2589"};
    int inner = width > 3 ? width - 2 : 1;
    if (!(share > 0))
        share = 0;
    if (share > 1)
        share = 1;
    /* Round down, so that the bar is full only when everything is done. */
    int steps = (int)floor(share * inner * (s->unicode ? 8 : 1) + 1e-9),
        full = s->unicode ? steps / 8 : steps;
    int part = s->unicode ? steps % 8 : 0, rest = inner - full - (part > 0);
    strbuf_addf(b, "%s%s%s%s", show_ink(s, INK_DIM), s->unicode ? "\u2595" : "[", show_plain(s),
                show_ink(s, INK_CYAN));
    for (int i = 0; i < full; i++)
        strbuf_add(b, s->unicode ? "\u2588" : "#");
    strbuf_addf(b, "%s%*s%s%s%s%s", eighths[part], rest, "", show_plain(s), show_ink(s, INK_DIM),
                s->unicode ? "\u258F" : "]", show_plain(s));
}
