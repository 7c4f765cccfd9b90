/* Implements the functions of job_record.h that read or change a single job record. */
#include "daemon/job_record.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

const char *const job_state_names[JOB_STATE_COUNT + 1] = {
    "queued", "running", "stopping", "done", "failed", "cancelled", NULL,
};

bool job_ended(const struct job *j)
{
    return j->state >= JOB_DONE;
}

enum job_state job_visible_state(const struct job *j)
{
    return job_ended(j) && !j->archived ? j->before : j->state;
}

void job_set_text(char **text, const char *to)
{
    char *copy = NULL;
    if (to != NULL) {
        size_t n = strlen(to) + 1;
        copy = memcpy(xmalloc(n), to, n);
    }
    free(*text);
    *text = copy;
}

void job_forget_said(struct job *j)
{
    free(j->said.planned);
    free(j->said.planning);
    free(j->said.progress);
    free(j->said.curve);
    free(j->said.evals);
    free(j->said.report);
    j->said = (struct job_said){0};
}

void job_destroy(struct job *j)
{
    if (j == NULL)
        return;
    job_forget_said(j);
    free(j->key);
    free(j->name);
    free(j->user);
    free(j->dir);
    free(j->output);
    free(j->reason);
    free(j->error);
    free(j->stuck);
    free(j);
}

/* Computes the 64-bit hash FNV-1a over both texts, including their terminating zero bytes. Two 32-bit CRCs
 * with different seeds would be a weaker hash. If one of the CRCs is the same for two texts of equal length,
 * then the other CRC is the same too. */
uint64_t job_spec_hash(const char *spec, const char *dir)
{
    const char *const parts[] = {spec, dir};
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        for (size_t k = 0, n = strlen(parts[i]) + 1; k < n; k++)
            h = (h ^ (unsigned char)parts[i][k]) * 0x100000001b3;
    return h;
}
