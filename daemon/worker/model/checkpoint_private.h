/* What the parts of checkpoint*.c share. */
#ifndef DAEMON_WORKER_MODEL_CHECKPOINT_PRIVATE_H
#define DAEMON_WORKER_MODEL_CHECKPOINT_PRIVATE_H

#include "base/arena.h"
#include "base/strbuf.h"
#include "daemon/worker/model/checkpoint.h"

#define CHECKPOINTS "checkpoints" /* in the output directory */
#define STATE_FILE  "state.json"  /* in a checkpoint */

/* ---- state.json: checkpoint_state.c ---- */

enum { FILE_MODEL, FILE_OPTIMIZER, FILE_COUNT };
extern const char *const checkpoint_files[FILE_COUNT];

struct file_sum {
    uint64_t bytes;
    uint32_t crc;
};

struct state {
    struct checkpoint_info info;
    struct file_sum files[FILE_COUNT];
    struct arena *arena; /* the texts of info */
};

void checkpoint_state_print(struct strbuf *b, const struct checkpoint_data *data,
                            const struct file_sum files[FILE_COUNT]);
/* Reads state.json of an open checkpoint directory, whose name is `dir`, and checks its own checksum.
 * -EBADMSG for damage, a missing file included. */
int checkpoint_state_load(int dirfd, const char *dir, struct state *ret, struct err *err);
void checkpoint_state_finish(struct state *s); /* takes a zeroed one */

/* ---- the directory: checkpoint_dir.c ---- */

#define STEP_NAME_BYTES 48
void step_name(char buf[STEP_NAME_BYTES], uint64_t step, const char *suffix); /* "step-12" + suffix */

/* Steps that have a directory, ascending; malloc'ed. -ENOENT when `checkpoints` is not there. */
int list_steps(const struct outdir *out, uint64_t **ret, size_t *ret_n, struct err *err);

/* `checkpoints`, made when it is not there. A descriptor. */
int open_checkpoints(const struct outdir *out, struct err *err);

#endif
