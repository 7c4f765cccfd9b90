/* Declarations that the source files of the spec reader share. Only spec*.c includes this header.
 *
 * spec.c reads the top level of a spec and calls one spec_read_* function for each section. These functions
 * use the spec_take_* functions below, which extend json_take_* by limits and error messages.
 */
#ifndef DAEMON_SPEC_SPEC_PRIVATE_H
#define DAEMON_SPEC_SPEC_PRIVATE_H

#include "base/json.h"
#include "daemon/spec/spec.h"
#include "daemon/spec/transformer.h"

/* The state of the reader while it reads one spec. The struct lives on the stack of the reading function.
 * Every spec_read_* function gets a pointer to the struct. */
struct spec_reader {
    struct spec *s; /* the spec that is being filled in */
    const struct spec_options *options;
    struct err *err;
};

/* ---- taking values out of an object ---- */

/* Each spec_take_* function below takes the value of `key` out of the object `o`, stores the value in *ret
 * and returns true. If an optional key is absent or the value is wrong, the function returns false and leaves
 * *ret unchanged. json_obj_end later returns the first mistake. */

/* Takes the value of `key`, which must be a whole number from `min` to `max`. */
bool spec_take_u64(struct json_obj *o, const char *key, enum json_need need, uint64_t min, uint64_t max,
                   uint64_t *ret);
bool spec_take_u32(struct json_obj *o, const char *key, enum json_need need, uint32_t min, uint32_t max,
                   uint32_t *ret);

/* Takes a whole number from `min` to `max`. If the value is the string "auto", the function returns false and
 * leaves *ret unchanged. */
bool spec_take_auto_u32(struct json_obj *o, const char *key, uint32_t min, uint32_t max, uint32_t *ret);

/* Takes a number of bytes, such as 4096 or "64MiB". If the value is the string "auto", the function returns
 * false and leaves *ret unchanged. */
bool spec_take_auto_bytes(struct json_obj *o, const char *key, uint64_t *ret);

/* The ranges to which a number in a spec can be limited. The number must lie in its range both as the user
 * wrote it and after it is rounded to float32. */
enum spec_range {
    SPEC_POSITIVE, /* above 0 */
    /* A number above 0. The error message also suggests null, but spec_take_float does not accept a null: the
     * caller must handle null itself. */
    SPEC_POSITIVE_OR_NULL,
    SPEC_NOT_NEGATIVE, /* 0 or above */
    SPEC_FRACTION,     /* 0 <= v < 1 */
    SPEC_RATIO,        /* 0 <= v <= 1 */
};

/* Checks that `v` lies in `range`, both before and after it is rounded to float32. If not, returns -EINVAL
 * with an error message that names `path`. */
int spec_check_float(double v, enum spec_range range, const char *path, struct err *err);

/* Takes a number in `range`. */
bool spec_take_float(struct json_obj *o, const char *key, enum json_need need, enum spec_range range,
                     double *ret);

/* Takes a string that must be in the array `names`, and stores the string's index in *ret. A string that is
 * in the array `later` is refused with the message that it is not supported yet. Both arrays end with
 * NULL. */
bool spec_take_choice(struct json_obj *o, const char *key, enum json_need need, const char *const *names,
                      const char *const *later, int *ret);

/* Refuses the key `key`, which is reserved for a later version of Tutti. The error message ends with `words`,
 * which say what this version does instead. */
void spec_refuse_key(struct json_obj *o, const char *key, const char *words);

/* Takes the path of a file. A relative path is resolved against base_dir. The resulting path is in the spec's
 * arena. */
bool spec_take_path(const struct spec_reader *r, struct json_obj *o, const char *key, enum json_need need,
                    const char **ret);

/* Takes one path, or an array of 1 to SPEC_MAX_FILES paths. Relative paths are resolved against base_dir. */
bool spec_take_paths(const struct spec_reader *r, struct json_obj *o, const char *key, enum json_need need,
                     struct spec_paths *ret);

/* ---- initial values: spec_init.c ---- */

/* Reads the standard deviations of the initial weights of one layer. *ret_std becomes the value for the
 * layer's weights. *ret_proj_std becomes the value for the layer's last matrix, "proj". `ret_proj_std` is
 * NULL for a layer without this matrix. The values come from the layer's own key "init". A value that is
 * absent there comes from the section `init` of the spec. */
void spec_take_init(const struct spec_reader *r, struct json_obj *o, float *ret_std, float *ret_proj_std);

/* Works like spec_take_init, but for a layer whose weights are token embeddings or positions. */
void spec_take_embedding_init(const struct spec_reader *r, struct json_obj *o, float *ret_std);

/* Returns -EINVAL if the section `init` contains a key that has no effect on this model, such as
 * embedding_std for a model without an embedding. */
int spec_check_init(const struct spec *s, struct err *err);

/* ---- sections ---- */

/* Each spec_read_* function below reads the section of the spec at `node` into r->s. The function returns 0,
 * or a negative errno with a message in r->err. */

/* spec_init.c */
int spec_read_init(const struct spec_reader *r, const struct json *node);

/* Reads the section `model`. The section `init` must be read first. Defined in spec_model.c. */
int spec_read_model(const struct spec_reader *r, const struct json *node);

/* Reads a model of the form {"type": "gpt2", ...} or {"type": "llama", ...}. Defined in
 * spec_transformer.c. */
int spec_read_transformer(const struct spec_reader *r, const struct json *node, enum transformer_arch arch);

/* Reads a model of the form {"from": DIR} or {"config": {...}}. DIR is a Hugging Face folder. The object
 * after "config" has the content of a config.json. Defined in spec_transformer.c. */
int spec_read_hf(const struct spec_reader *r, const struct json *node);

/* spec_data.c. The model must have been read. */
int spec_read_data(const struct spec_reader *r, const struct json *node);

/* Reads the section `method`. The sections train, optimizer and schedule must be read first, because their
 * values are the defaults of every part of the training. Defined in spec_method.c. */
int spec_read_method(const struct spec_reader *r, const struct json *node);
/* Cuts the model as the method asks, and checks that the method can train this model. All sections must have
 * been read. Does nothing if the spec has no layers, which is so if its model is in a folder that was not
 * opened. Defined in spec_method_cut.c. */
int spec_settle_method(struct spec *s, struct err *err);

/* spec_sections.c */
int spec_read_train(const struct spec_reader *r, const struct json *node);
/* Checks that the micro-batch size and the number of replicas divide the batch, where 0 means "auto".
 * Reports a mistake at the key "micro_batch" or "replicas" of `o`. */
void spec_check_batch(struct json_obj *o, uint32_t batch, uint32_t micro, uint32_t replicas);
int spec_read_optimizer(const struct spec_reader *r, const struct json *node);
int spec_read_schedule(const struct spec_reader *r, const struct json *node);
/* These two functions read an optimizer or a schedule at another place of the spec. `path` names this
 * place. */
int spec_read_optimizer_at(const struct spec_reader *r, const struct json *node, const char *path,
                           struct optimizer *ret, double *ret_lr, bool *ret_no_decay_given);
int spec_read_schedule_at(const struct spec_reader *r, const struct json *node, const char *path,
                          struct spec_rate *ret);
int spec_read_eval(const struct spec_reader *r, const struct json *node);
int spec_read_checkpoint(const struct spec_reader *r, const struct json *node);
int spec_read_resources(const struct spec_reader *r, const struct json *node);
int spec_read_memory(const struct spec_reader *r, const struct json *node);
int spec_read_queue(const struct spec_reader *r, const struct json *node);

#endif
