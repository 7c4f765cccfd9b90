/* The job spec (schema job/v1, documented in docs/job.md) as a plain C struct: the JSON text is read, checked
 * and turned into a struct spec, which is const once it is resolved.
 *
 * Order of calls:
 *     spec_load, spec_parse or spec_read    read the text and check syntax, schema and cross-references
 *     dataset_open (data.h)                 opens the data and learns the number of samples
 *     spec_resolve, spec_resolve_phase      fix the sizes that were "auto" and the number of steps
 *     spec_lr, spec_due, data_index,        may be called from now on
 *     spec_resolved_json, spec_hash
 *
 * The reader opens no file that the spec names. The one exception is a Hugging Face folder, which it reads
 * through a function that the caller supplies (struct spec_options).
 *
 * Reading and resolving belong to one thread. Afterwards any thread may read the struct.
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
#include "scheduler/plan_request.h"

#define SPEC_MAX_LAYERS      10000u
#define SPEC_MAX_DIM         (1u << 30)    /* most elements per row, rows per batch */
#define SPEC_MAX_BYTES       (1ull << 53)  /* most bytes in any computed size */
#define SPEC_MAX_STEPS       0xffffffffull /* most training steps; must fit 32 bits */
#define SPEC_MAX_FILES       400u          /* most files per split, all open together */
#define SPEC_MAX_CYCLE_STEPS 64u           /* most training steps in one run of a plan */

/* The training methods, such as METHOD_backprop. daemon/worker/phase.h says what a method does. */
enum method_id {
#define METHOD(id) METHOD_##id,
#include "daemon/spec/methods.def"
#undef METHOD
    METHOD_COUNT
};
extern const char *const method_names[METHOD_COUNT + 1]; /* NULL-terminated */

enum spec_schedule { SCHEDULE_CONSTANT, SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_STEP, SCHEDULE_COUNT };
enum data_format { DATA_BYTES, DATA_IDX, DATA_SYNTHETIC, DATA_TOKENS, DATA_FORMAT_COUNT };
/* The types of numbers in which a job computes. With PRECISION_BF16 and PRECISION_FP16, the weights W, the
 * activations and their gradients have 16 bits, and the optimizer keeps the master weights in float. With
 * PRECISION_TF32, all numbers are floats, but products of matrices on devices round their factors to 10
 * fraction bits. */
enum spec_precision { PRECISION_FP32, PRECISION_BF16, PRECISION_FP16, PRECISION_TF32, PRECISION_COUNT };
enum spec_best { BEST_NONE, BEST_VAL_ACCURACY, BEST_VAL_LOSS, BEST_COUNT };

/* The names that specs use for the values of the enums above. An enum value is the index of its name in the
 * array. The last entry of each array is NULL. */
extern const char *const data_format_names[DATA_FORMAT_COUNT + 1];
extern const char *const spec_schedule_names[SCHEDULE_COUNT + 1];
extern const char *const spec_best_names[BEST_COUNT + 1];           /* "none", "val/accuracy", "val/loss" */
extern const char *const spec_precision_names[PRECISION_COUNT + 1]; /* "fp32", "bf16", ... */

/* Returns the type of weights and activations in a job of this precision. */
enum dtype spec_dtype(enum spec_precision p);

/* Says how often evaluations or checkpoints happen. {.epochs = 2} means after every second epoch. {.steps =
 * 100} means after every 100th training step. At most one of the two fields is set. If both are 0, the event
 * never happens. */
struct spec_every {
    uint64_t epochs, steps;
};

/* Describes how the learning rate of a phase changes from one training step to the next: a linear warm-up,
 * and then a schedule. The spec has one struct spec_rate, and each training phase has its own copy. */
struct spec_rate {
    double lr; /* learning rate after the warm-up */
    enum spec_schedule type;
    uint64_t warmup_steps;
    double min_lr_ratio;
    /* With SCHEDULE_STEP, the learning rate is multiplied by `gamma` after every `every_steps` training
     * steps. */
    uint64_t every_steps;
    double gamma;
};

/* The number of samples in a micro-batch, and the number of replicas. A spec may have the value "auto" for
 * these sizes, and Tutti then chooses them. The sizes affect the bits of the result, so a job must keep its
 * sizes once they are chosen. Every phase of a job has its own sizes. */
struct spec_sizes {
    uint32_t micro_batch, replicas; /* 0: not decided yet */
};

/* The two files in IDX format of the training samples or of the validation samples. Both paths are NULL if
 * the spec has no such samples. */
struct spec_files {
    /* The paths of the file with the images and of the file with the labels. A relative path in the spec has
     * already been resolved against base_dir. */
    const char *images, *labels;
};

/* The data files for the formats "tokens" and "bytes". There is one struct spec_paths for the training
 * samples and one for the validation samples. */
struct spec_paths {
    /* The paths of the `n` data files. A relative path in the spec has already been resolved against
     * base_dir. */
    const char *const *at;
    uint32_t n; /* number of files; 0: no such split */
};

/* The settings of one part of a training, from one element of method.each. Settings that the element omits
 * come from the sections train, optimizer and schedule. */
struct spec_part {
    uint64_t epochs, steps; /* one of them is 0 */
    uint32_t global_batch;
    uint32_t micro_batch, replicas; /* 0: auto */
    struct optimizer optimizer;
    struct spec_rate rate;
};

/* The settings of the method `sil`, which divides a model into partitions and trains them one after another.
 * Each partition except the last learns to turn the samples of a class into a vector that was drawn at random
 * for this class. */
struct spec_sil {
    /* The number of partitions. Partition i has the layers from cuts[i] up to cuts[i + 1], and cuts[0] is 0.
     * The end of the last partition is the end of the model. */
    uint32_t partitions;
    const uint32_t *cuts;     /* NULL until spec_settle_method has cut the model */
    double kappa;             /* the elements of the vectors are drawn from kappa * U(0, 1) */
    uint64_t recovery_epochs; /* number of epochs in which the whole model is trained at the end */
    bool concurrent;          /* all partitions are trained at once, on label vectors as inputs */
    bool keep_outputs;        /* the kept outputs of partitions stay as files in the output directory */
    struct spec_part *each;   /* [partitions] */
    struct spec_part recovery;
};

/* The schemes of the method `local`, in which each block of layers has a loss of its own. In `greedy`, every
 * layer with weights is a block. In `chunked`, a block has several layers. In `overlapping`, the first layer
 * of a block is also the last layer of the block before it. */
enum local_scheme { LOCAL_CHUNKED, LOCAL_GREEDY, LOCAL_OVERLAPPING, LOCAL_COUNT };
extern const char *const local_scheme_names[LOCAL_COUNT + 1]; /* NULL-terminated */

/* A block of the method `local`: the layers from `first` to `last`, both included. */
struct spec_block {
    uint32_t first, last;
};

/* The settings of the method `local`. */
struct spec_local {
    enum local_scheme scheme;
    uint32_t n_blocks;
    const struct spec_block *blocks; /* NULL until spec_settle_method has cut the model */
    uint32_t head_hidden;            /* width of a hidden layer in each head; 0: none */
    struct spec_rate *rates;         /* [n_blocks] */
    /* The number of training steps for which a block stays on its device before the next block takes over. 0
     * means that the planner chooses the number. The results of training do not depend on it. */
    uint32_t resident_steps;
    /* The longest predicted time of one run of the plan, in seconds, that the planner may choose. The limit
     * exists because a job can stop only between two runs of the plan. */
    double max_cycle_s;
};

/* A job spec that has been read. spec_resolve completes the spec. spec_destroy frees the spec and everything
 * that it points to. The daemon keeps a spec only while it decides whether to accept a job. A worker keeps it
 * during the whole run. */
struct spec {
    struct arena *arena; /* owns this struct and its data */
    const char *name;    /* "job" when the spec gives no name */
    /* The path of the job's output directory. The default is "runs/<name>" in the directory base_dir. */
    const char *output;

    /* model, init */
    struct model model; /* the last layer is the loss */
    uint32_t features;  /* elements in an input row */
    /* The number of classes. It is the number of outputs of the model per row, or per token if rows are
     * sequences of tokens. */
    uint32_t classes;
    /* True if the loss is the mean squared error, and false if the loss is cross-entropy. With the mean
     * squared error, the targets are floats [rows][classes]. With cross-entropy, the targets are int32
     * numbers [rows]. */
    bool mse;
    /* The description of a gpt2 or llama model. NULL for models of the types "mlp" and "chain". */
    const struct transformer *transformer;
    /* The path of the Hugging Face folder with the initial weights. NULL if the initial weights are drawn at
     * random. */
    const char *from;
    uint32_t from_crc; /* checksum of the weights in that folder */
    /* True if samples are sequences of token ids. The input and the targets of a sample are then both int32
     * [seq]. */
    bool tokens;
    /* The number of tokens in a sample. The value is 0 or 1 if samples are not sequences. */
    uint32_t seq;
    /* The number of different token ids, or 0 if samples are not sequences of tokens. */
    uint32_t vocab;
    uint64_t seed; /* seeds initial weights, dropout and shuffling */
    /* The standard deviations with which initial weights are drawn, from the section `init`. A value that the
     * spec does not give is 0. */
    struct {
        float std, proj_std, embedding_std;
    } init;

    struct {
        enum data_format format;
        bool shuffle;
        /* idx */
        struct spec_files train, val;
        /* The numbers that a byte of an image becomes: byte 0 becomes scale_lo, and byte 255 becomes
         * scale_hi. Bytes in between are interpolated. */
        double scale_lo, scale_hi;
        bool transpose;
        /* tokens, bytes */
        struct spec_paths train_files, val_files;
        /* The number of bytes of one token in a data file, 2 or 4. 0 means that the spec does not give the
         * number. In that case, the number comes from the header of the file. In a file without a header, a
         * token has 2 bytes. */
        uint32_t token_bytes;
        bool has_ignore;
        /* If has_ignore is true, targets with this token id do not count in the loss. */
        uint32_t ignore;
        /* synthetic */
        uint64_t samples, val_samples, seed;
        double noise;
    } data;

    struct {
        uint64_t epochs, steps; /* one of them is 0 */
        uint32_t global_batch;
        uint32_t micro_batch; /* 0: auto */
        uint32_t replicas;    /* 0: auto */
        bool skip_nonfinite;  /* on_nonfinite: true for "skip", false for "stop" */
        double label_smoothing;
        /* How losses are scaled if the precision is fp16. The defaults are filled in. */
        struct loss_scaling loss_scale;
        bool loss_scale_given; /* the spec has the key loss_scale */
    } train;

    /* All layers of the model, and all optimizers of the spec, agree with the precision: the layers have its
     * types, and the optimizers keep master weights and scale losses as it needs. */
    enum spec_precision precision;
    struct optimizer optimizer; /* its field `clip` holds train.grad_clip */
    /* True if the spec has the key optimizer.no_decay. If it is false, the kind of model decides which
     * parameters have no weight decay. */
    bool no_decay_given;
    struct spec_rate rate; /* the sections `schedule` and `optimizer.lr` */
    enum method_id method;
    struct spec_sil sil;     /* only if the method is sil */
    struct spec_local local; /* only if the method is local */

    struct spec_every eval;
    /* True if evaluations report every loss of the model. False if they report only the last loss. The key is
     * eval.heads. */
    bool eval_heads;
    struct {
        struct spec_every every;
        uint32_t keep;
        enum spec_best best;
    } checkpoint;

    /* This is the section `resources` as the user wrote it. Other code calls spec_demand, which returns the
     * same numbers with defaults filled in. */
    struct {
        uint32_t devices_min;              /* at least 1 */
        uint32_t devices_max;              /* at least devices_min; 0: not given */
        uint64_t device_bytes, host_bytes; /* 0: auto */
    } resources;
    struct {
        enum policy_id policy;
        enum update_place update;
        /* The number of training steps in one run of the plan, from 1 to SPEC_MAX_CYCLE_STEPS. */
        uint32_t cycle_steps;
        enum plan_objective objective; /* of the search for a plan */
    } memory;
    /* Only the daemon uses this section. */
    struct {
        uint64_t time_limit_s; /* 0: no limit */
    } queue;

    /* Filled in by spec_resolve and spec_resolve_phase. Before these calls, all fields are 0. */
    struct {
        /* The sizes of each phase of the job. The spec owns this array. */
        struct spec_sizes *phases;
        uint32_t n_phases;
        uint64_t train_samples;
        uint32_t data_crc;
        /* The number of training steps that the section `train` asks for. */
        uint64_t total_steps;
    } resolved;
};

struct json;

/* The type of a function that reads the model from the Hugging Face folder `dir` into *ret. The function also
 * stores a checksum in *ret_crc, which covers the sizes of the files and samples of their content. It returns
 * 0, or a negative errno with a message. */
typedef int spec_folder_fn(const char *dir, struct transformer *ret, uint32_t *ret_crc, struct err *err);

/* Options for reading a spec. The caller may free them when the reading function returns. With a zeroed
 * struct, unknown keys are refused and no other file is opened. */
struct spec_options {
    /* The directory to which relative paths in the spec refer. If base_dir is NULL, such paths stay
     * relative. */
    const char *base_dir;
    bool comments; /* accept // comments */
    /* True if a daemon has accepted this spec before. Keys that earlier versions of Tutti ignored are then
     * ignored again, instead of refused. */
    bool accepted;
    /* The name of a precision that replaces the precision of the spec, or NULL. */
    const char *precision;
    /* The function that reads the folder of {"model": {"from": DIR}}. If this field is NULL, the folder is
     * not opened, and the spec has no layers. The daemon uses NULL, because the folder belongs to a user. */
    spec_folder_fn *read_folder;
};

/* Reads the job file at `path`, or standard input if `path` is "-". The caller owns *ret. Returns -EINVAL for
 * a mistake in the file, -EOPNOTSUPP for a value that is reserved for later versions, and -EFBIG for a file
 * above 16 MiB. May also return the errors of open(2) and read(2). */
int spec_load(const char *path, const struct spec_options *options, struct spec **ret, struct err *err);

/* Reads a spec from the `bytes` bytes at `text`. `name` is the name of the document in error messages.
 * Returns the same errors as spec_load, except those about files. */
int spec_parse(const char *text, size_t bytes, const char *name, const struct spec_options *options,
               struct spec **ret, struct err *err);

/* Reads a spec from a parsed JSON document. Returns -ENOMEM if memory runs out. The daemon uses this function
 * and not spec_parse, because spec_parse aborts the process if memory runs out. */
int spec_read(const struct json *doc, const struct spec_options *options, struct spec **ret, struct err *err);

/* Frees the spec and everything that the spec points to. `s` may be NULL. */
void spec_destroy(struct spec *s);

/* Returns true if the section `data` of the spec names validation samples. */
bool spec_has_val(const struct spec *s);

/* What a job asks of a machine: the section `resources` with its defaults filled in. The daemon uses it to
 * decide whether the job can be admitted, and the worker uses it to choose devices. Examples: "devices": 4
 * gives min 4 and max 4; {"min": 2, "max": 8} gives 2 and 8; {"min": 2} gives 2 and 2; "auto" gives 1 and
 * 1. */
struct spec_demand {
    uint32_t devices_min; /* least number of devices, 1 or more */
    /* The greatest number of devices that the job can use. It is never less than devices_min. */
    uint32_t devices_max;
    /* The number of bytes that the job asks for on each device. 0 means all free bytes of the device. */
    uint64_t device_bytes;
    /* The number of bytes of host memory that the job asks for. 0 means as many bytes as the machine
     * offers. */
    uint64_t host_bytes;
};

/* Returns the number of devices and the amount of memory that the job asks for. Always use this function
 * instead of s->resources, because this function fills in the defaults. */
struct spec_demand spec_demand(const struct spec *s);

/* Fixes the number of steps, and the sizes of phase 0 as the section `train` asks for them, and stores them
 * in s->resolved. `train_samples` and `data_crc` describe the open training dataset. Epochs become
 * ceil(epochs * train_samples / global_batch) steps. `sizes` is as in spec_resolve_phase. Returns -EINVAL
 * when the sizes contradict the spec or do not divide the global batch. May be called again, for example
 * with another micro-batch. */
int spec_resolve(struct spec *s, struct spec_sizes sizes, uint64_t train_samples, uint32_t data_crc,
                 struct err *err);

/* Fixes the sizes of phase `phase`, whose steps have `batch` samples, and stores them in s->resolved.phases.
 * The array grows as needed. If `asked` gives a size, `sizes` must hold the same number or 0. If `asked`
 * holds a 0, which means "auto", a 0 in `sizes` means one replica and the largest possible micro-batch.
 * Returns -EINVAL when the sizes contradict each other or do not divide the batch. May be called again. */
int spec_resolve_phase(struct spec *s, uint32_t phase, uint32_t batch, struct spec_sizes asked,
                       struct spec_sizes sizes, struct err *err);

/* Computes the number of training steps: `steps` itself, or ceil(epochs * samples / batch) if `steps` is 0.
 * Returns -EINVAL with a message for `path` if there are too many steps to count. */
int spec_count_steps(uint64_t epochs, uint64_t steps, uint64_t batch, uint64_t samples, const char *path,
                     uint64_t *ret, struct err *err);

/* Finds the divisors of `batch` that are nearest to `want`. *ret_below becomes the largest divisor up to
 * `want`, and *ret_above becomes the smallest divisor from `want` on. Either becomes 0 if there is no such
 * divisor. For example, with batch 96 and want 40, the divisors are 32 and 48. */
void spec_nearest_divisors(uint32_t batch, uint32_t want, uint32_t *ret_below, uint32_t *ret_above);

/* Returns the learning rate of the training step `step` in a phase with `total_steps` steps. The first step
 * has the number 0. */
double spec_lr(const struct spec_rate *rate, uint64_t total_steps, uint64_t step);

/* Returns true if an evaluation or a checkpoint is due after `steps_done` training steps of a phase. `every`
 * says how often evaluations or checkpoints happen. `batch` is the number of samples in each step of this
 * phase. An epoch ends with the step that reaches the last sample of the epoch. After 0 steps nothing is due.
 * Call spec_resolve first. */
bool spec_due(const struct spec *s, const struct spec_every *every, uint32_t batch, uint64_t steps_done);

/* Appends everything that determines the bits of a job's result, as one line of canonical JSON without paths.
 * The number of training steps is included only if the learning rates depend on it. So a job with a constant
 * learning rate can be extended. Call spec_resolve first. */
void spec_resolved_json(const struct spec *s, struct strbuf *b);

/* Finds the precision in `resolved_json`, a text made by spec_resolved_json. Returns false if the text
 * names no precision that this program knows. */
bool spec_resolved_precision(const char *resolved_json, size_t bytes, enum spec_precision *ret);

/* Appends the layer `l` as a JSON object, in the same form as spec_resolved_json. */
void spec_layer_json(const struct layer *l, struct strbuf *b);

/* Returns a 64-bit hash of the text that spec_resolved_json makes for `s`. */
uint64_t spec_hash(const struct spec *s);

/* Reads the sizes of the `n_phases` phases of a job into the array `ret`. `resolved_json` is a text made by
 * spec_resolved_json. This text contains the chosen size even if the spec has "auto". The size was chosen
 * when the job was first planned. If the text has another number of phases, all sizes become 0. */
int spec_resolved_sizes(const char *resolved_json, size_t bytes, uint32_t n_phases, struct spec_sizes *ret,
                        struct err *err);

#endif
