/* Checks the times of a program, measured or predicted. No instruction may end before it begins. A stream
 * must run one instruction at a time, in order. No instruction may begin before all instructions that it
 * waits for have ended. */
#ifndef TESTS_SPANS_H
#define TESTS_SPANS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "scheduler/plan.h"

/* Asserts that the times of consecutive runs of the cycle obey the plan's streams and waits. since_entry[r]
 * is the number of runs since the last entry before run r. NULL means that an entry came directly before the
 * first run and none later. */
static inline void assert_spans_follow_plan(const struct plan *plan, const struct plan_span *spans,
                                            uint32_t runs, const uint32_t *since_entry)
{
    const struct plan_program *p = &plan->programs[PROGRAM_CYCLE];
    uint64_t stream_end[DEVICE_MAX * LANE_COUNT + 1] = {0};

    for (uint32_t run = 0; run < runs; run++) {
        const uint32_t before = since_entry ? since_entry[run] : run;
        for (uint32_t i = 0; i < p->n_instrs; i++) {
            const struct plan_instr *in = &p->instrs[i];
            const struct plan_span *span = &spans[(size_t)run * p->n_instrs + i];
            assert_true(span->start_ns <= span->end_ns);
            assert_true(span->start_ns >= stream_end[in->stream]);
            stream_end[in->stream] = span->end_ns;
            for (uint32_t w = 0; w < in->n_waits; w++) {
                const struct plan_wait *wait = &p->waits[in->wait + w];
                if (wait->distance > run || wait->distance > before)
                    continue;
                const size_t at = (size_t)(run - wait->distance) * p->n_instrs + wait->instr;
                assert_true(span->start_ns >= spans[at].end_ns);
            }
        }
    }
}

#endif
