/* The shapes of the ten digits. Each digit has several styles, and a style consists of strokes of a pen. */
#ifndef DIGITS_GLYPHS_H
#define DIGITS_GLYPHS_H

#include <stdbool.h>
#include <stdint.h>

enum { GLYPH_CLASSES = 10, GLYPH_STYLES = 4, GLYPH_MAX_STROKES = 4, GLYPH_MAX_POINTS = 15 };

/* A pen stroke: points in a box of 100 x 100, where y grows downwards. A curved stroke is a smooth line
 * through all its points. A straight stroke has a corner at each point. A curve that ends where it begins is
 * closed without a corner. */
struct stroke {
    bool curved;
    uint8_t points; /* 0: no such stroke */
    int8_t at[GLYPH_MAX_POINTS][2];
};

struct glyph {
    struct stroke strokes[GLYPH_MAX_STROKES];
};

extern const struct glyph glyphs[GLYPH_CLASSES][GLYPH_STYLES];

#endif
