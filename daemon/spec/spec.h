/* The job spec (schema job/v1 of docs/job): JSON text becomes a validated, plain struct, const once resolved.
 *
 * Order of calls:
 *     spec_load, spec_parse or spec_read    syntax, schema, cross-checks. Opens no file that the spec names; a model's
 *                                           folder is read by the caller's own function (struct spec_options).
 *     dataset_open (data.h)                 which learns the number of samples
 *     spec_resolve                          fixes what was "auto" and changes bits, and the number of steps
 *     spec_lr, spec_due, spec_resolved_json, spec_hash, data_index
 *
 * Not thread-safe while it is built; after spec_resolve it is only read.
 */
#ifndef DAEMON_SPEC_SPEC_H
#define DAEMON_SPEC_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strbuf.h"
#include "daemon/spec/transformer.h"
#include "kernels/layer.h"
#include "scheduler/policy/policy.h"

#define SPEC_MAX_LAYERS 10000u
#define SPEC_MAX_DIM    (1u << 30)    /* elements per row, rows per batch */
#define SPEC_MAX_BYTES  (1ull << 53)  /* any size that is computed from a spec stays below */
#define SPEC_MAX_STEPS  0xffffffffull /* the step is one counter word of the random numbers */
#define SPEC_MAX_FILES  400u          /* of a split: each stays open */

enum spec_schedule { SCHEDULE_CONSTANT, SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_STEP, SCHEDULE_COUNT };
enum data_format { DATA_BYTES, DATA_IDX, DATA_SYNTHETIC, DATA_TOKENS, DATA_FORMAT_COUNT };
enum spec_best { BEST_NONE, BEST_VAL_ACCURACY, BEST_VAL_LOSS, BEST_COUNT };

/* NULL-terminated, in the order of the enums. */
extern const char *const data_format_names[DATA_FORMAT_COUNT + 1];
extern const char *const spec_schedule_names[SCHEDULE_COUNT + 1];
extern const char *const spec_best_names[BEST_COUNT + 1]; /* "none", "val/accuracy", "val/loss" */

struct spec_every { /* at most one is not 0; both 0: never */
    uint64_t epochs, steps;
};

struct spec_files {
    const char *images, *labels; /* resolved against base_dir; NULL when the split is absent */
};

struct spec_paths { /* resolved against base_dir; n 0 when the split is absent */
    const char *const *at;
    uint32_t n;
};

struct spec {
    struct arena *arena; /* everything below lives here */
    const char *name;    /* "job" when absent */
    const char *output;  /* directory, resolved; "runs/<name>" when absent */

    /* model, init */
    struct model model; /* the last layer is the loss */
    uint32_t features;  /* elements of an input row */
    uint32_t classes;   /* width of the last output */
    bool mse; /* loss is mse (float targets [rows][classes]), else softmax_xent (int32 targets [rows]) */
    const struct transformer *transformer; /* what the model was described as; NULL: as a chain */
    const char *from;  /* Hugging Face folder with the initial weights; NULL: random ones */
    uint32_t from_crc; /* of these */
    bool tokens;       /* a row is int32 token ids: features == seq, int32 targets [rows][seq] */
    uint32_t seq;      /* tokens per sample; 0 or 1: none */
    uint32_t vocab;    /* of the tokens: each id is below; 0 without tokens */
    uint64_t seed;     /* of initial weights, dropout and shuffling */
    struct { /* standard deviations of initial weights that the section `init` gives; 0: not given */
        float std, proj_std, embedding_std;
    } init;

    struct {
        enum data_format format;
        bool shuffle;
        /* idx */
        struct spec_files train, val;
        double scale_lo, scale_hi; /* what bytes 0 and 255 become */
        bool transpose;
        /* tokens, bytes */
        struct spec_paths train_files, val_files;
        uint32_t token_bytes; /* tokens: 2 or 4; 0: what a file's header says, without one 2 */
        bool has_ignore;
        uint32_t ignore; /* tokens: targets of this id do not count */
        /* synthetic */
        uint64_t samples, val_samples, seed;
        double noise;
    } data;

    struct {
        uint64_t epochs, steps; /* exactly one is not 0 */
        uint32_t global_batch;
        uint32_t micro_batch; /* 0: auto */
        uint32_t replicas;    /* 0: auto */
        bool skip_nonfinite;  /* on_nonfinite "skip"; else stop */
        double label_smoothing;
    } train;

    struct optimizer optimizer; /* clip: train.grad_clip */
    bool no_decay_given;        /* else by the kind of model */
    double lr;                  /* the peak */
    struct {
        enum spec_schedule type;
        uint64_t warmup_steps;
        double min_lr_ratio;
        uint64_t every_steps; /* step: after so many of them, */
        double gamma;         /* times this */
    } schedule;

    struct spec_every eval;
    struct {
        struct spec_every every;
        uint32_t keep;
        enum spec_best best;
    } checkpoint;

    struct {
        /* As written; spec_demand interprets them. */
        uint32_t devices_min;              /* at least 1 */
        uint32_t devices_max;              /* at least devices_min; 0: not given */
        uint64_t device_bytes, host_bytes; /* 0: auto */
    } resources;
    struct {
        enum policy_id policy;
        enum update_place update;
    } memory;
    struct {                   /* the daemon's business */
        uint64_t time_limit_s; /* 0: none */
    } queue;

    struct { /* by spec_resolve; 0 before */
        uint32_t micro_batch, n_micro, replicas;
        uint64_t train_samples;
        uint32_t data_crc;
        uint64_t total_steps;
    } resolved;
};

struct json;

/* Reads the model in a Hugging Face folder: the architecture into *ret, and into *ret_crc a checksum that
 * differs between folders with different weights. */
typedef int spec_folder_fn(const char *dir, struct transformer *ret, uint32_t *ret_crc, struct err *err);

/* How to read a spec. The caller fills it in, and it need not outlive the call. All zero is a strict reading
 * that opens no file. */
struct spec_options {
    const char *base_dir; /* relative paths in the spec start here; NULL leaves them relative */
    bool comments;        /* accept // comments */
    bool accepted; /* a daemon accepted this spec earlier: ignore keys that only later versions refuse */
    /* Called for {"model": {"from": DIR}}. With NULL the folder is not opened, and the spec of such a job has
     * no layers: only the rest of the spec is valid. The daemon passes NULL, because the folder belongs to a
     * user. */
    spec_folder_fn *read_folder;
};

/* Reads the file at `path`, or standard input when `path` is "-". Returns -EINVAL with the JSON path of the
 * mistake, -EOPNOTSUPP for what the schema knows and this version does not do yet, or what open(2) and
 * read(2) failed with. */
int spec_load(const char *path, const struct spec_options *options, struct spec **ret, struct err *err);

/* Parses `text`. Error messages call it `name`. */
int spec_parse(const char *text, size_t bytes, const char *name, const struct spec_options *options,
               struct spec **ret, struct err *err);

/* Reads a document that is already parsed. The daemon uses this function: it returns -ENOMEM when memory runs
 * out, where spec_parse would abort the process. */
int spec_read(const struct json *doc, const struct spec_options *options, struct spec **ret, struct err *err);
void spec_destroy(struct spec *s); /* takes NULL */

bool spec_has_val(const struct spec *s);

/* What a job asks of a machine: the section `resources` with its defaults filled in. The daemon decides with
 * it whether the job can be admitted, and the worker decides with it which devices to use. Examples:
 * "devices": 4 gives min 4 and max 4; {"min": 2, "max": 8} gives 2 and 8; {"min": 2} gives 2 and 2; "auto"
 * gives 1 and 1. */
struct spec_demand {
    uint32_t devices_min;  /* fewest devices that the job accepts; at least 1 */
    uint32_t devices_max;  /* most devices that the job can use; at least devices_min */
    uint64_t device_bytes; /* bytes wanted on each device; 0: as many as are free */
    uint64_t host_bytes;   /* bytes of host memory wanted; 0: as many as the machine offers */
};

/* Returns what `s` asks of a machine. Other code calls this function instead of reading s->resources. */
struct spec_demand spec_demand(const struct spec *s);

/* What changes bits and may be auto. */
struct spec_sizes {
    uint32_t micro_batch, replicas; /* 0: not known */
};

/* Fixes the sizes and the number of steps. A size must be the spec's, unless that is auto; 0: the spec's, and
 * for auto one replica and as large a micro-batch as there can be. train_samples and data_crc come from the
 * training dataset. Epochs become ceil(epochs * train_samples / global_batch) steps. May be called again,
 * e.g. with another micro_batch. */
int spec_resolve(struct spec *s, struct spec_sizes sizes, uint64_t train_samples, uint32_t data_crc,
                 struct err *err);

/* The divisors of `batch` nearest to `want`: *ret_below <= want <= *ret_above; 0 where there is none. */
void spec_nearest_divisors(uint32_t batch, uint32_t want, uint32_t *ret_below, uint32_t *ret_above);

/* Learning rate of a 0-based step: linear warm-up, then the schedule. Needs spec_resolve. */
double spec_lr(const struct spec *s, uint64_t step);

/* Is something that happens `every` so often due when `steps_done` steps are done? Epochs count as done with
 * the first step that reaches their end. Never at 0. Needs spec_resolve. */
bool spec_due(const struct spec *s, const struct spec_every *every, uint64_t steps_done);

/* What determines the bits of a run, as canonical JSON, one line: model layers, seed, data (format, options,
 * counts, checksum; no paths), batch sizes, optimizer, schedule. The number of steps is part of it only where
 * the schedule depends on it, so that a constant schedule may be prolonged. Needs spec_resolve. */
void spec_resolved_json(const struct spec *s, struct strbuf *b);
/* A layer's part of it. */
void spec_layer_json(const struct layer *l, struct strbuf *b);
uint64_t spec_hash(const struct spec *s); /* of that text */

/* The sizes in a text made by spec_resolved_json: what "auto" meant when a job was first planned. */
int spec_resolved_sizes(const char *resolved_json, size_t bytes, struct spec_sizes *ret, struct err *err);

#endif
