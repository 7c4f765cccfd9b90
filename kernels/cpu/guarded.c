/* Guarded blocks: mapped memory between two pages that nobody may touch.
 *
 *     | guard page | slack | block ............................ | guard page |
 *                          ^ base                               ^ base + bytes
 *
 * The block ends where the rear guard begins, because running past the end is the mistake that a wrong plan
 * or a wrong size makes. The price is that the block does not begin on a page; the slack before it, less than
 * a page, holds a pattern that guarded_intact compares.
 *
 * Pages are not touched in advance: a plan may use less than the capacity, and on a workstation several
 * virtual devices may together be larger than the memory that is free. MADV_HUGEPAGE makes the first touch
 * cheap, 2 MiB at a time; the block is kept until the end, so it is paid once.
 *
 * No state, any thread.
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

    if (!checked_add(bytes, 3 * page, &total)) /* no overflow below */
        return -ENOMEM;
    body = round_up(bytes, page);
    total = body + 2 * page;

    /* Reserved without access, then opened: the kernel counts, and may refuse, the opened part only. */
    uint8_t *map = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return -ENOMEM;
    if (mprotect(map + page, body, PROT_READ | PROT_WRITE) != 0) {
        munmap(map, total);
        return -ENOMEM;
    }
    madvise(map + page, body, MADV_HUGEPAGE); /* may not be there; then it is only slower */

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
