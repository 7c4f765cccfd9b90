/* Formats text and numbers for people. Unsafe characters are replaced by escapes before the width of the text
 * is measured, so the width includes the escapes. In a UTF-8 locale, wcwidth gives the width of a character.
 * In other locales all text is ASCII, and every byte takes one column.
 */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <wchar.h>

#include "base/utf8.h"
#include "client/show.h"

static const char *const inks[INK_COUNT] = {
    [INK_NONE] = "",          [INK_DIM] = "\033[2m",     [INK_BOLD] = "\033[1m",  [INK_RED] = "\033[31m",
    [INK_GREEN] = "\033[32m", [INK_YELLOW] = "\033[33m", [INK_BLUE] = "\033[34m", [INK_CYAN] = "\033[36m",
};

const char *show_ink(const struct style *s, enum ink ink)
{
    return s->color ? inks[ink] : "";
}

const char *show_plain(const struct style *s)
{
    return s->color ? "\033[0m" : "";
}

enum ink show_state_ink(const char *state)
{
    static const struct {
        const char *state;
        enum ink ink;
    } table[] = {{"cancelled", INK_YELLOW}, {"done", INK_GREEN},   {"failed", INK_RED},
                 {"queued", INK_BLUE},      {"running", INK_CYAN}, {"stopping", INK_YELLOW}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].state, state) == 0)
            return table[i].ink;
    return INK_NONE;
}

/* ---- foreign text ---- */

/* Appends `text`, with every character that is not ASCII replaced by an escape. */
static void add_ascii(struct strbuf *b, const char *text)
{
    char shown[UTF8_SHOWN_BYTES];
    for (size_t left = strlen(text), n; left > 0; text += n, left -= n) {
        size_t bytes = utf8_char_bytes(text, left);
        n = utf8_show(text, left, shown);
        if (bytes > 1)
            utf8_escape(utf8_decode(text, bytes), shown);
        strbuf_add(b, shown);
    }
}

void show_text(struct strbuf *b, const struct style *s, const char *text)
{
    if (s->utf8)
        strbuf_add_text(b, text);
    else
        add_ascii(b, text);
}

void show_log_text(struct strbuf *b, const char *text)
{
    while (*text != '\0') {
        size_t n = strcspn(text, "\n"), end = text[n] == '\n';
        bool crlf = end && n > 0 && text[n - 1] == '\r';
        strbuf_add_textn(b, text, n - crlf, STRBUF_LINES);
        strbuf_addn(b, "\n", end);
        text += n + end;
    }
}

/* Returns the number of bytes of the character at `p`, and stores its width in columns in *ret. A colour
 * sequence counts as one character with the width 0. */
static size_t next_char(const char *p, int *ret)
{
    mbstate_t state = {0};
    wchar_t wide;
    if (*p == '\033') {
        const char *end = strchr(p, 'm');
        *ret = 0;
        return end != NULL ? (size_t)(end - p) + 1 : strlen(p);
    }
    size_t n = utf8_char_bytes(p, strlen(p));
    *ret = 1;
    if (n == 0)
        return 1;
    if (n > 1 && mbrtowc(&wide, p, n, &state) == n && wcwidth(wide) >= 0)
        *ret = wcwidth(wide);
    return n;
}

int show_columns(const char *text)
{
    int columns = 0, n;
    while (*text != '\0') {
        text += next_char(text, &n);
        columns += n;
    }
    return columns;
}

void show_cell(struct strbuf *b, const struct style *s, const char *text, int columns, bool right)
{
    int have = show_columns(text), mark = s->unicode ? 1 : columns > 3 ? 2 : columns > 1, used = 0, n;
    if (have <= columns) {
        if (right)
            strbuf_addf(b, "%*s%s", columns - have, "", text);
        else
            strbuf_addf(b, "%s%*s", text, columns - have, "");
        return;
    }
    if (mark > columns)
        mark = columns;
    for (;;) {
        size_t bytes = next_char(text, &n);
        if (used + n > columns - mark)
            break;
        strbuf_addn(b, text, bytes);
        text += bytes;
        used += n;
    }
    if (mark > 0)
        strbuf_add(b, s->unicode ? "\u2026" : mark == 2 ? ".." : ".");
    strbuf_addf(b, "%*s", columns - used - mark, "");
}

/* ---- numbers ---- */

void show_duration(struct strbuf *b, double seconds)
{
    if (!isfinite(seconds) || seconds < 0 || seconds > 1e11) {
        strbuf_add(b, "?");
        return;
    }
    unsigned long long s = (unsigned long long)(seconds + 0.5);
    if (seconds > 0 && seconds < 0.0995)
        strbuf_addf(b, "%.*f ms", seconds < 0.00995 ? 1 : 0, seconds * 1e3);
    else if (seconds < 9.95)
        strbuf_addf(b, "%.1f s", seconds);
    else if (s < 60)
        strbuf_addf(b, "%llu s", s);
    else if (s < 3600)
        strbuf_addf(b, "%llum%02llus", s / 60, s % 60);
    else if (s < 86400)
        strbuf_addf(b, "%lluh%02llum", s / 3600, s % 3600 / 60);
    else
        strbuf_addf(b, "%llud%02lluh", s / 86400, s % 86400 / 3600);
}

void show_count(struct strbuf *b, double n)
{
    static const char units[] = " kMGTP";
    int u = 0;
    if (!isfinite(n)) {
        strbuf_add(b, "?");
        return;
    }
    if (fabs(n) < 9999.5) {
        strbuf_addf(b, "%.*f", fabs(n) < 10 && n != floor(n) ? 1 : 0, n);
        return;
    }
    while (fabs(n) >= 999.5 && u < 5) {
        n /= 1000;
        u++;
    }
    strbuf_addf(b, "%.*f%c", fabs(n) < 9.995 ? 2 : fabs(n) < 99.95 ? 1 : 0, n, units[u]);
}

void show_time(struct strbuf *b, uint64_t ms)
{
    time_t t = (time_t)(ms / 1000);
    struct tm tm;
    char text[64];
    if (localtime_r(&t, &tm) != NULL && strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &tm) > 0)
        strbuf_add(b, text);
    else
        strbuf_add(b, "?");
}

void show_percent(struct strbuf *b, double share)
{
    if (!isfinite(share))
        strbuf_add(b, "? %");
    else
        strbuf_addf(b, "%.1f %%", 100 * share);
}

void show_loss(struct strbuf *b, double loss)
{
    if (!isfinite(loss))
        strbuf_add(b, "?");
    else if (loss != 0 && (fabs(loss) < 1e-3 || fabs(loss) >= 1e5))
        strbuf_addf(b, "%.3e", loss);
    else
        strbuf_addf(b, "%.*f", fabs(loss) < 10 ? 4 : fabs(loss) < 100 ? 3 : 1, loss);
}

void show_ratio(struct strbuf *b, double ratio)
{
    if (isfinite(ratio))
        strbuf_addf(b, "%.*fx", ratio < 100 ? 2 : 0, ratio);
    else
        strbuf_add(b, "?");
}
