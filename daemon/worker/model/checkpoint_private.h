/* Declarations that checkpoint.c, checkpoint_dir.c, checkpoint_state.c and weights.c share. No other file
 * includes this header. */
#ifndef DAEMON_WORKER_MODEL_CHECKPOINT_PRIVATE_H
#define DAEMON_WORKER_MODEL_CHECKPOINT_PRIVATE_H

#include "base/arena.h"
#include "base/strbuf.h"
#include "daemon/worker/model/checkpoint.h"

#define CHECKPOINTS "checkpoints" /* directory in the output directory */
#define STATE_FILE  "state.json"  /* file in a checkpoint */

/* ---- state.json: checkpoint_state.c ---- */

/* The files with tensors in a checkpoint. A checkpoint has FILE_METHOD only if the training method has added
 * layers to the model. */
enum { FILE_MODEL, FILE_OPTIMIZER, FILE_METHOD, FILE_COUNT };
extern const char *const checkpoint_files[FILE_COUNT];

/* Size and CRC-32C of a file. */
struct file_sum {
    uint64_t bytes;
    uint32_t crc;
};

/* The content of a checkpoint's state.json. checkpoint_state_load fills the struct in, and
 * checkpoint_state_finish frees it. */
struct checkpoint_state {
    struct checkpoint_info info;
    struct file_sum files[FILE_COUNT];
    uint32_t n_files;    /* number of files: FILE_COUNT, or one fewer without FILE_METHOD */
    struct arena *arena; /* holds what info points to */
};

/* Appends the text of state.json to `b`. `files` contains the sizes and the checksums of the checkpoint's
 * other files. */
void checkpoint_state_print(struct strbuf *b, const struct checkpoint_data *data,
                            const struct file_sum files[FILE_COUNT]);

/* Reads state.json from the open checkpoint directory `dirfd`. `dir` is the name of that directory, for
 * messages. Returns -EBADMSG if the file is missing, damaged or has a wrong checksum. */
int checkpoint_state_load(int dirfd, const char *dir, struct checkpoint_state *ret, struct err *err);

/* Frees the strings of the struct. A zero-initialized struct is also allowed. */
void checkpoint_state_finish(struct checkpoint_state *s);

/* ---- the directory: checkpoint_dir.c ---- */

#define STEP_NAME_BYTES 48

/* Writes the name of the checkpoint directory of training step `step` to `buf`, such as "step-12", followed
 * by `suffix`. */
void step_name(char buf[STEP_NAME_BYTES], uint64_t step, const char *suffix);

/* Lists all training steps that have a checkpoint directory, in ascending order. The caller frees *ret.
 * Returns -ENOENT if there is no directory `checkpoints`. */
int list_steps(const struct outdir *out, uint64_t **ret, size_t *ret_n, struct err *err);

/* Opens the directory `checkpoints` of the output, and creates it if it does not exist. Returns a file
 * descriptor or a negative errno. */
int open_checkpoints(const struct outdir *out, struct err *err);

#endif
