/* Implements sort_array as a bottom-up merge sort. Short sequences are sorted by insertion and then merged
 * in pairs. Two sequences that are already in order need only one comparison, so nearly sorted input is
 * fast. Any thread may call sort_array. */
#include "base/sort.h"

#include <stdbool.h>
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"

#define RUN 8 /* elements that are sorted by insertion */

struct sorter {
    size_t size; /* bytes of an element */
    int (*compare)(const void *a, const void *b);
};

/* Sorts the `n` elements at `a` by insertion. `hole` is a buffer for one element. */
static void insert_run(const struct sorter *s, unsigned char *a, size_t n, unsigned char *hole)
{
    for (size_t i = 1; i < n; i++) {
        size_t to = i;
        while (to > 0 && s->compare(a + (to - 1) * s->size, a + i * s->size) > 0)
            to--;
        if (to == i)
            continue;
        memcpy(hole, a + i * s->size, s->size);
        memmove(a + (to + 1) * s->size, a + to * s->size, (i - to) * s->size);
        memcpy(a + to * s->size, hole, s->size);
    }
}

/* Merges the n_left sorted elements at `a` with the n_right sorted elements that follow them. The result is
 * written to `to`. */
static void merge(const struct sorter *s, const unsigned char *a, size_t n_left, size_t n_right,
                  unsigned char *to)
{
    const unsigned char *left = a, *mid = a + n_left * s->size, *right = mid, *end = mid + n_right * s->size;
    bool ordered = n_right == 0 || s->compare(mid - s->size, mid) <= 0;
    while (!ordered && left < mid && right < end) {
        const unsigned char **least = s->compare(left, right) <= 0 ? &left : &right;
        memcpy(to, *least, s->size);
        *least += s->size;
        to += s->size;
        bounded_poll();
    }
    memcpy(to, left, (size_t)(mid - left));
    memcpy(to + (mid - left), right, (size_t)(end - right));
}

/* Merges each pair of neighbouring sorted sequences of `from` into one sequence of `to`. Each sequence in
 * `from` has `width` elements. */
static void merge_all(const struct sorter *s, const unsigned char *from, size_t n, size_t width,
                      unsigned char *to)
{
    for (size_t at = 0; at < n; at += 2 * width) {
        size_t left = n - at < width ? n - at : width, rest = n - at - left;
        merge(s, from + at * s->size, left, rest < width ? rest : width, to + at * s->size);
        bounded_poll();
    }
}

void sort_array(void *base, size_t n, size_t size, int (*compare)(const void *a, const void *b))
{
    const struct sorter s = {size, compare};
    if (n < 2)
        return;
    unsigned char *from = base, *scratch = xmalloc(n * size), *to = scratch;
    for (size_t at = 0; at < n; at += RUN) {
        insert_run(&s, from + at * size, n - at < RUN ? n - at : RUN, scratch);
        bounded_poll();
    }
    for (size_t width = RUN; width < n; width *= 2) {
        merge_all(&s, from, n, width, to);
        unsigned char *swap = from;
        from = to;
        to = swap;
    }
    if (from != base)
        memcpy(base, from, n * size);
    xfree(scratch);
}
