/* Functions that make images of digits that look handwritten. An image depends only on `seed`, `split` and
 * `index`, and is the same on every machine. Any thread may call these functions. */
#ifndef DIGITS_DIGIT_H
#define DIGITS_DIGIT_H

#include <stdint.h>

enum { DIGIT_SIDE = 28, DIGIT_PIXELS = DIGIT_SIDE * DIGIT_SIDE };
enum digit_split { DIGIT_TRAIN, DIGIT_TEST, DIGIT_SPLIT_COUNT };

/* Returns the label of an image, from 0 to 9. The ten images with the indices 10k to 10k+9 have ten different
 * labels, so every label is about equally frequent in a set. A smaller set is equal to the beginning of a
 * larger set. */
int digit_label(uint64_t seed, enum digit_split split, uint32_t index);

/* Draws the image. Ink is bright (towards 255), and paper is dark. */
void digit_draw(uint64_t seed, enum digit_split split, uint32_t index, uint8_t ret_pixels[DIGIT_PIXELS]);

#endif
