/* Implements guarded blocks: mapped memory between two pages that nobody may access.
 *
 *     | guard page | slack | block ............................ | guard page |
 *                          ^ base                               ^ base + bytes
 *
 * The block ends at the start of the rear guard page, because a wrong plan or a wrong size typically runs
 * past the end. Therefore the block usually does not begin at a page boundary. The slack in front of it,
 * less than a page, holds a pattern that guarded_intact checks.
 *
 * Pages are not touched in advance. A plan may use less than the capacity, and several virtual devices on
 * a workstation may together be larger than the free memory. MADV_HUGEPAGE makes the first touch cheap, 2
 * MiB at a time. A block lives until its devset closes, so this cost occurs once.
 *
 * This file has no state. Any thread may call its functions.
 */
#include "kernels/cpu/guarded.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"

#define CANARY 0xA5

static uint8_t *slack_start(const struct guarded *g)
{
    return g->map + sysconf(_SC_PAGESIZE);
}

int guarded_init(struct guarded *g, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), body, total;

    if (!checked_add(bytes, 3 * page, &total)) /* so that nothing below overflows */
        return -ENOMEM;
    body = round_up(bytes, page);
    total = body + 2 * page;

    /* First reserve the whole range without access. This takes no memory. Then mprotect makes the middle of
     * the range accessible, and mprotect fails if the machine has too little memory. */
    uint8_t *map = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return -ENOMEM;
    if (mprotect(map + page, body, PROT_READ | PROT_WRITE) != 0) {
        munmap(map, total);
        return -ENOMEM;
    }
    /* Ask for huge pages, because with them the first access to the memory is faster. Ignore an error,
     * because the block works without huge pages. */
    madvise(map + page, body, MADV_HUGEPAGE);

    *g = (struct guarded){
        .base = map + page + (body - bytes), .bytes = bytes, .map = map, .map_bytes = (size_t)total};
    memset(slack_start(g), CANARY, body - bytes);
    return 0;
}

void guarded_finish(struct guarded *g)
{
    if (g->map)
        munmap(g->map, g->map_bytes);
    memset(g, 0, sizeof *g);
}

bool guarded_intact(const struct guarded *g)
{
    for (const uint8_t *p = slack_start(g); p < g->base; p++)
        if (*p != CANARY)
            return false;
    return true;
}
