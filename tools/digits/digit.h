/* One image of a handwritten-looking digit: a pure function of seed, split and index, the same on every
 * machine. Any thread.
 */
#ifndef DIGITS_DIGIT_H
#define DIGITS_DIGIT_H

#include <stdint.h>

enum { DIGIT_SIDE = 28, DIGIT_PIXELS = DIGIT_SIDE * DIGIT_SIDE };
enum digit_split { DIGIT_TRAIN, DIGIT_TEST, DIGIT_SPLIT_COUNT };

/* 0 to 9. Of the indices 10k to 10k+9 each has another: a set is as balanced as its size allows, and the
 * images of a smaller set are the first of a larger one. */
int digit_label(uint64_t seed, enum digit_split split, uint32_t index);

/* Ink is bright, paper is dark. */
void digit_draw(uint64_t seed, enum digit_split split, uint32_t index, uint8_t ret_pixels[DIGIT_PIXELS]);

#endif
