/* What the parts of the spec reader share. Private to spec*.c. */
#ifndef DAEMON_SPEC_SPEC_PRIVATE_H
#define DAEMON_SPEC_SPEC_PRIVATE_H

#include "base/json.h"
#include "daemon/spec/spec.h"
#include "daemon/spec/transformer.h"

struct spec_reader {
    struct spec *s;
    const struct spec_options *options;
    struct err *err;
};

/* ---- takers: as json_take_*, with limits. Failures go to the object. ---- */

/* A whole number in min..max. */
bool spec_take_u64(struct json_obj *o, const char *key, enum json_need need, uint64_t min, uint64_t max,
                   uint64_t *ret);
bool spec_take_u32(struct json_obj *o, const char *key, enum json_need need, uint32_t min, uint32_t max,
                   uint32_t *ret);
/* The same or "auto", which leaves *ret as it was. */
bool spec_take_auto_u32(struct json_obj *o, const char *key, uint32_t min, uint32_t max, uint32_t *ret);
bool spec_take_auto_bytes(struct json_obj *o, const char *key, uint64_t *ret);

/* Which numbers a key allows. Most become float32, so the limits hold after rounding to it. */
enum spec_range {
    SPEC_POSITIVE,         /* above 0 */
    SPEC_POSITIVE_OR_NULL, /* the same; the caller has dealt with null */
    SPEC_NOT_NEGATIVE,     /* 0 or above */
    SPEC_FRACTION,         /* 0 <= v < 1 */
    SPEC_RATIO,            /* 0 <= v <= 1 */
};
/* 0, or -EINVAL at `path` with the limits, the value, and, where only rounding to float32 breaks them,
 * that. */
int spec_check_float(double v, enum spec_range range, const char *path, struct err *err);
/* A number in a range. */
bool spec_take_float(struct json_obj *o, const char *key, enum json_need need, enum spec_range range,
                     double *ret);

/* One of `names`; one of `later` is refused with "not yet". Both NULL-terminated. */
bool spec_take_choice(struct json_obj *o, const char *key, enum json_need need, const char *const *names,
                      const char *const *later, int *ret);
/* Refuses a key that the schema knows and this version does not do. */
void spec_refuse_key(struct json_obj *o, const char *key, const char *words);

/* A path of the user's, resolved, in the spec's arena. */
bool spec_take_path(const struct spec_reader *r, struct json_obj *o, const char *key, enum json_need need,
                    const char **ret);
/* One such path, or an array of them. */
bool spec_take_paths(const struct spec_reader *r, struct json_obj *o, const char *key, enum json_need need,
                     struct spec_paths *ret);

/* ---- initial values: spec_init.c ---- */

/* Sets the initial values of a layer of a chain: those of `init`, or of the layer's own key "init", which
 * `o` is asked for. */
void spec_take_layer_init(const struct spec_reader *r, struct json_obj *o, struct layer *l);
/* Sets those of `init` alone, for a layer that has no keys of its own. */
void spec_set_layer_init(const struct spec *s, struct layer *l);
/* Refuses keys of `init` that change nothing in this model. */
int spec_check_init(const struct spec *s, struct err *err);

/* ---- sections ---- */

int spec_read_init(const struct spec_reader *r, const struct json *node);  /* spec_init.c */
int spec_read_model(const struct spec_reader *r, const struct json *node); /* spec_model.c; init was read */
/* spec_transformer.c: {"type":"gpt2"|"llama", ...}; {"from": dir} and {"config": {...}} */
int spec_read_transformer(const struct spec_reader *r, const struct json *node, enum transformer_arch arch);
int spec_read_hf(const struct spec_reader *r, const struct json *node);
int spec_read_data(const struct spec_reader *r,
                   const struct json *node); /* spec_data.c; the model was read */
int spec_read_train(const struct spec_reader *r, const struct json *node); /* spec_sections.c, all below */
int spec_read_optimizer(const struct spec_reader *r, const struct json *node);
int spec_read_schedule(const struct spec_reader *r, const struct json *node);
int spec_read_eval(const struct spec_reader *r, const struct json *node);
int spec_read_checkpoint(const struct spec_reader *r, const struct json *node);
int spec_read_resources(const struct spec_reader *r, const struct json *node);
int spec_read_memory(const struct spec_reader *r, const struct json *node);
int spec_read_queue(const struct spec_reader *r, const struct json *node);

#endif
