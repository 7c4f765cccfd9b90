/* Reads the input as a job on disk: its body, a line break, its status. An accepted job must give the same
 * texts when it is written, read back and written again.
 *
 * In the daemon the checksum of a row is checked first. This target skips the checksum so that the fuzzer
 * reaches the parser.
 */
#include "tests/fuzz/fuzz.h"

#include <math.h>

#include "daemon/job_json.h"

static void free_texts(struct job *j)
{
    char *const texts[] = {j->key, j->name, j->user, j->dir, j->output, j->reason, j->error};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        free(texts[i]);
}

static int read_job(const char *body, const char *status, struct job *ret, struct err *err)
{
    *ret = (struct job){.loss = NAN, .samples_per_s = NAN, .eta_s = NAN};
    return job_from_disk(&(struct state_job){5, NULL, body, "{}", status}, ret, err);
}

static struct daemon idle;

static void check_job(const struct job *j)
{
    struct strbuf body = {0}, status = {0}, body2 = {0}, status2 = {0}, shown = {0};
    struct json *doc = NULL;
    struct job back;
    HOLDS(j->state < JOB_STATE_COUNT && j->lease.n_devices <= DEVICE_MAX);
    job_body_json(j, &body);
    job_status_json(j, &status);
    HOLDS(read_job(body.at, status.at, &back, NULL) == 0);
    job_body_json(&back, &body2);
    job_status_json(&back, &status2);
    HOLDS(strcmp(body.at, body2.at) == 0 && strcmp(status.at, status2.at) == 0);
    job_short_json(&idle, j, &shown);
    strbuf_add(&shown, "}");
    HOLDS(json_parse(shown.at, shown.n, "short", false, &doc, NULL) == 0);
    json_free(doc);
    free_texts(&back);
    strbuf_finish(&body);
    strbuf_finish(&status);
    strbuf_finish(&body2);
    strbuf_finish(&status2);
    strbuf_finish(&shown);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1), *status;
    struct job j;
    struct err err = {0};
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    status = strchr(text, '\n');
    if (status != NULL) {
        *status++ = '\0';
        int r = read_job(text, status, &j, &err);
        if (r < 0)
            check_failure(r, &err);
        else
            check_job(&j);
        free_texts(&j);
    }
    free(text);
    return 0;
}
