/* Makes a state directory with the history of many jobs, for the benchmark `tools/bench daemon`. Every job is
 * done. It has a curve and a report of the usual length, a key, and three events. Usage: bench_history DIR
 * JOBS
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/job_json.h"
#include "daemon/state.h"

#define UNITS_AT_ONCE 500

static void die(void *ctx, const char *why)
{
    (void)ctx;
    fprintf(stderr, "bench_history: %s\n", why);
    exit(1);
}

static char *make_curve(void)
{
    struct strbuf b = {0};
    for (int i = 0; i < 200; i++)
        strbuf_addf(&b, "%s[%d,%.6f]", i == 0 ? "[" : ",", 10 * i, 2.5 / (1 + i));
    strbuf_add(&b, "]");
    return b.at;
}

static void put(struct state *s, struct job *j, uint64_t now_ms)
{
    struct strbuf body = {0}, status = {0};
    char key[64], line[160];
    struct state_unit *u = state_begin(s);
    j->submitted_ms = j->started_ms = now_ms - 3000;
    j->ended_ms = now_ms;
    job_body_json(j, &body);
    job_status_json(j, &status);
    snprintf(key, sizeof key, "0:key-%" PRIu64, j->id);
    state_put_job(u, &(struct state_job){
                         .id = j->id,
                         .key = key,
                         .body = body.at,
                         .spec = "{\"schema\":\"job/v1\",\"name\":\"bench\",\"model\":{\"type\":\"mlp\","
                                 "\"input\":8,\"hidden\":[16],\"classes\":4}}",
                         .status = status.at,
                         .ended_ms = j->ended_ms});
    for (uint64_t k = 0; k < 3; k++) {
        snprintf(line, sizeof line,
                 "{\"jsonrpc\":\"2.0\",\"method\":\"event\",\"params\":{\"seq\":%" PRIu64 ",\"job\":%" PRIu64
                 ",\"event\":\"ended\",\"time_ms\":%" PRIu64 "}}\n",
                 3 * j->id + k, j->id, now_ms);
        state_put_event(u, &(struct state_event){3 * j->id + k, j->id, line});
    }
    state_commit(u, false, NULL, NULL);
    strbuf_finish(&body);
    strbuf_finish(&status);
}

int main(int argc, char **argv)
{
    uv_loop_t *loop = uv_default_loop();
    struct state *s;
    struct err err = {0};
    if (argc != 3 ||
        state_open(&(struct state_config){.loop = loop, .dir = argv[1], .die = die}, &s, &err) < 0) {
        fprintf(stderr, "usage: bench_history DIR JOBS: %s\n", err.msg);
        return 1;
    }
    struct job j = {.name = (char *)"bench",
                    .user = (char *)"bench",
                    .dir = (char *)"/",
                    .output = (char *)"/out",
                    .reason = (char *)"",
                    .ask = {1, 1, 0, 0, 0},
                    .state = JOB_DONE,
                    .step = 2000,
                    .total_steps = 2000,
                    .loss = 0.0125,
                    .samples_per_s = 1000,
                    .eta_s = NAN,
                    .said = {.curve = make_curve(), .report = (char *)"{\"loss\":0.0125,\"steps\":2000}"}};
    uint64_t now_ms = (uint64_t)time(NULL) * 1000, n = strtoull(argv[2], NULL, 10);
    for (j.id = 1; j.id <= n; j.id++) {
        put(s, &j, now_ms - 2 * (uint64_t)86400000);
        while (j.id % UNITS_AT_ONCE == 0 && !state_idle(s))
            uv_run(loop, UV_RUN_ONCE);
    }
    state_close(s);
    free(j.said.curve);
    return 0;
}
