/* The top level of the spec reader, the checks that involve several sections, and everything derived from a
 * spec: sizes, steps, learning rates.
 *
 * The schema is code, not a table: the json_take_* calls (base/json_read.c) say which keys exist, and the
 * meaning of a section stands where it is read. The sections are in spec_init.c, spec_model.c, spec_data.c,
 * spec_method.c and spec_sections.c. The array `sections` gives the order in which they are read; a section
 * that needs another one comes after it.
 *
 * Nothing here opens a file that a spec names, so the daemon can use this code as well. Any thread may call
 * it.
 */
#include "daemon/spec/spec.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "base/checked.h"
#include "daemon/spec/spec_private.h"

#define MAX_FILE_BYTES (16u << 20)

/* ------------------------------------------------------------------------------------------ sections */

const char *const method_names[METHOD_COUNT + 1] = {
#define METHOD(id) [METHOD_##id] = #id,
#include "daemon/spec/methods.def"
#undef METHOD
};

const char *const spec_precision_names[PRECISION_COUNT + 1] = {"fp32", "bf16", "fp16", "tf32", NULL};

enum dtype spec_dtype(enum spec_precision p)
{
    return p == PRECISION_BF16 ? DTYPE_BF16 : p == PRECISION_FP16 ? DTYPE_F16 : DTYPE_F32;
}

/* Finds the precision with the name `text`. `path` is the place of the name, for messages. */
static int find_precision(const char *text, const char *path, enum spec_precision *ret, struct err *err)
{
    if (strcmp(text, "auto") == 0) {
        *ret = PRECISION_FP32;
        return 0;
    }
    for (int i = 0; i < PRECISION_COUNT; i++)
        if (strcmp(text, spec_precision_names[i]) == 0) {
            *ret = (enum spec_precision)i;
            return 0;
        }
    return err_set_at(
        err, -EINVAL, path,
        "found \"%s\"; write \"fp32\", \"bf16\", \"fp16\", \"tf32\", or \"auto\", which is fp32", text);
}

static int read_precision(const struct spec_reader *r, const struct json *node)
{
    const char *text;
    int status = json_string(node, "precision", &text, r->err);

    return status < 0 ? status : find_precision(text, "precision", &r->s->precision, r->err);
}

static int refuse_prune(const struct spec_reader *r, const struct json *node)
{
    (void)node;
    return err_set_at(r->err, -EOPNOTSUPP, "prune", "pruning is not supported yet; remove \"prune\"");
}

/* The sections of a job spec and the functions that read them. Sections are read in the order of this table,
 * because some sections need values of earlier ones. */
static const struct section {
    const char *key;
    enum json_need need;
    int (*read)(const struct spec_reader *r, const struct json *node);
} sections[] = {
    {"init", JSON_OPTIONAL, spec_read_init},
    {"model", JSON_REQUIRED, spec_read_model},
    {"data", JSON_REQUIRED, spec_read_data},
    {"train", JSON_REQUIRED, spec_read_train},
    {"optimizer", JSON_REQUIRED, spec_read_optimizer},
    {"schedule", JSON_OPTIONAL, spec_read_schedule},
    {"precision", JSON_OPTIONAL, read_precision},
    {"method", JSON_OPTIONAL, spec_read_method},
    {"prune", JSON_OPTIONAL, refuse_prune},
    {"eval", JSON_OPTIONAL, spec_read_eval},
    {"checkpoint", JSON_OPTIONAL, spec_read_checkpoint},
    {"resources", JSON_OPTIONAL, spec_read_resources},
    {"memory", JSON_OPTIONAL, spec_read_memory},
    {"queue", JSON_OPTIONAL, spec_read_queue},
};
enum { N_SECTIONS = sizeof sections / sizeof sections[0] };

/* ------------------------------------------------------------------------------------------ top level */

static void set_defaults(struct spec *s)
{
    s->name = "job";
    s->data.shuffle = true;
    s->data.scale_hi = 1;
    s->data.noise = 0.1;
    s->checkpoint.keep = 2;
    s->rate.gamma = 0.1;
    s->resources.devices_min = 1;
    s->memory.cycle_steps = 1;
    s->train.loss_scale = (struct loss_scaling){.start = 65536, .growth_steps = 2000};
}

/* Returns true if `name` may be the name of a job. The name becomes part of a path and appears in printed
 * tables. So spaces, slashes and a leading dot are refused. */
static bool name_is_good(const char *name)
{
    size_t n = strlen(name);

    if (n < 1 || n > 64 || name[0] == '.')
        return false;
    for (size_t i = 0; i < n; i++)
        if (name[i] == ' ' || name[i] == '/')
            return false;
    return true;
}

static void read_name(const struct spec_reader *r, struct json_obj *o)
{
    const char *name;

    if (!json_take_name(o, "name", JSON_OPTIONAL, &name))
        return;
    if (name_is_good(name))
        r->s->name = arena_strdup(r->s->arena, name);
    else
        json_fail(o, "name", -EINVAL,
                  "must be 1 to 64 bytes long, with no space and no '/', and must not begin with '.'");
}

static void default_output(const struct spec_reader *r)
{
    const char *base = r->options->base_dir ? r->options->base_dir : ".";
    size_t n = strlen(base) + strlen("/runs/") + strlen(r->s->name) + 1;
    char *path = arena_alloc(r->s->arena, n);

    snprintf(path, n, "%s/runs/%s", base, r->s->name);
    r->s->output = path;
}

/* Reads the whole spec. First takes all top-level keys and only then reads the sections. So a misspelt
 * section name is reported before a mistake inside a section. */
static int read_top(const struct spec_reader *r, const struct json *doc)
{
    static const char *const schemas[] = {"job/v1", NULL};
    const struct json *nodes[N_SECTIONS] = {NULL};
    struct json_obj o;
    int schema, status;

    json_obj_begin(&o, doc, "", r->err);
    json_take_enum(&o, "schema", JSON_REQUIRED, schemas, &schema);
    read_name(r, &o);
    for (int i = 0; i < N_SECTIONS; i++)
        json_take(&o, sections[i].key, sections[i].need, &nodes[i]);
    spec_take_path(r, &o, "output", JSON_OPTIONAL, &r->s->output);
    status = json_obj_end(&o);
    for (int i = 0; i < N_SECTIONS && status == 0; i++)
        if (nodes[i])
            status = sections[i].read(r, nodes[i]);
    if (status == 0 && !r->s->output)
        default_output(r);
    return status;
}

/* ------------------------------------------------------------------------------------------ cross-checks */

bool spec_has_val(const struct spec *s)
{
    switch (s->data.format) {
    case DATA_IDX:
        return s->data.val.images != NULL;
    case DATA_SYNTHETIC:
        return s->data.val_samples > 0;
    default:
        return s->data.val_files.n > 0;
    }
}

static bool is_set(const struct spec_every *e)
{
    return e->epochs || e->steps;
}

static int check_eval(const struct spec *s, struct err *err)
{
    const char *add = s->data.format == DATA_SYNTHETIC ? "data.val_samples" : "data.val";

    if (is_set(&s->eval) && !spec_has_val(s))
        return err_set_at(err, -EINVAL, "eval",
                          "the job has no validation data to evaluate on; add %s, or remove \"eval\"", add);
    if (s->checkpoint.best == BEST_NONE)
        return 0;
    if (!is_set(&s->eval))
        return err_set_at(
            err, -EINVAL, "checkpoint.best",
            "compares evaluations, but the job has none; add \"eval\": {\"every\": {\"epochs\": 1}}%s%s, or "
            "remove \"best\"",
            spec_has_val(s) ? "" : " and ", spec_has_val(s) ? "" : add);
    if (s->mse && s->checkpoint.best == BEST_VAL_ACCURACY)
        return err_set_at(err, -EINVAL, "checkpoint.best",
                          "a model with the loss mse has no accuracy; write \"val/loss\"");
    return 0;
}

/* Checks that the inputs of all layers together take at most 2^50 bytes in one training step with `batch`
 * samples. With this limit, all sums of bytes that are computed later stay below SPEC_MAX_BYTES. */
static int check_batch_activations(const struct spec *s, uint32_t batch, const char *path, struct err *err)
{
    uint64_t width = 0, bytes;

    for (uint32_t i = 0; i < s->model.n_layers; i++)
        /* The sum cannot overflow, because there are at most 10,000 layers, and each has at most 2^30
         * elements per row. */
        width += layer_in(&s->model.layers[i]);
    if (!checked_mul(width, batch, &bytes) || !dtype_bytes(DTYPE_F32, bytes, &bytes) ||
        bytes > SPEC_MAX_BYTES / 8)
        return err_set_at(err, -EINVAL, path,
                          "the activations of %" PRIu32
                          " samples in this model take more than 2^50 bytes; make the batch or the model "
                          "smaller",
                          batch);
    return 0;
}

static int check_activations(const struct spec *s, struct err *err)
{
    uint32_t parts = s->method == METHOD_sil ? s->sil.partitions : 0;
    char path[64];
    int r = check_batch_activations(s, s->train.global_batch, "train.global_batch", err);

    for (uint32_t i = 0; r == 0 && i < parts; i++) {
        snprintf(path, sizeof path, "method.each[%" PRIu32 "].global_batch", i);
        r = check_batch_activations(s, s->sil.each[i].global_batch, path, err);
    }
    return r;
}

/* Copies settings between sections: train.label_smoothing goes to the loss layer, and optimizer.no_decay gets
 * its default if the model is a transformer. */
static int apply_across_sections(struct spec *s, struct err *err)
{
    uint64_t targets;

    /* The spec has no layers if its model is in a Hugging Face folder that was not opened. */
    if (s->model.n_layers == 0)
        return 0;
    struct layer *loss = &s->model.layers[s->model.n_layers - 1];
    if (loss->type == &layer_lm_head)
        loss->lm_head.smoothing = (float)s->train.label_smoothing;
    else if (loss->type == &layer_softmax_xent)
        loss->softmax_xent.smoothing = (float)s->train.label_smoothing;
    else if ((float)s->train.label_smoothing > 0)
        return err_set_at(err, -EINVAL, "train.label_smoothing",
                          "the loss %s has no labels to smooth; remove \"label_smoothing\"",
                          layer_type(loss)->name);
    if (s->transformer && !s->no_decay_given)
        s->optimizer.no_decay = 1u << PARAM_BIAS | 1u << PARAM_NORM;
    if (s->tokens && (!checked_mul(s->train.global_batch, s->seq, &targets) || targets > UINT32_MAX))
        return err_set_at(err, -EINVAL, "train.global_batch",
                          "%" PRIu32 " sequences of %" PRIu32
                          " tokens have more than 2^32 targets; use a smaller batch",
                          s->train.global_batch, s->seq);
    return 0;
}

static void set_optimizer(const struct spec *s, struct optimizer *o)
{
    o->master = spec_dtype(s->precision) != DTYPE_F32;
    o->scaling = s->precision == PRECISION_FP16 ? s->train.loss_scale : (struct loss_scaling){0};
}

/* Sets the types of all layers, and what the precision asks of the optimizers. */
static int settle_precision(const struct spec_reader *r)
{
    struct spec *s = r->s;
    const char *option = r->options->precision;
    int status = option ? find_precision(option, "--precision", &s->precision, r->err) : 0;

    if (status < 0)
        return status;
    if (s->train.loss_scale_given && s->precision != PRECISION_FP16 && !option)
        return err_set_at(r->err, -EINVAL, "train.loss_scale",
                          "only the precision fp16 scales losses, and this job has %s; remove "
                          "\"loss_scale\", or write \"precision\": \"fp16\"",
                          spec_precision_names[s->precision]);
    model_set_types(&s->model, spec_dtype(s->precision));
    set_optimizer(s, &s->optimizer);
    if (s->method != METHOD_sil)
        return 0;
    for (uint32_t i = 0; i < s->sil.partitions; i++)
        set_optimizer(s, &s->sil.each[i].optimizer);
    set_optimizer(s, &s->sil.recovery.optimizer);
    return 0;
}

/* ------------------------------------------------------------------------------------------ entry points */

/* Reads and checks a whole spec. All memory of the spec comes from `arena`. If this function fails, the
 * caller must destroy the arena. */
static int read_spec(struct spec_reader *reader, struct arena *arena, const struct json *doc)
{
    int r;

    reader->s = arena_alloc(arena, sizeof *reader->s);
    reader->s->arena = arena;
    set_defaults(reader->s);
    r = read_top(reader, doc);
    if (r == 0)
        r = spec_check_init(reader->s, reader->err);
    if (r == 0)
        r = check_eval(reader->s, reader->err);
    if (r == 0)
        r = apply_across_sections(reader->s, reader->err);
    if (r == 0)
        r = settle_precision(reader);
    if (r == 0)
        r = check_activations(reader->s, reader->err);
    if (r == 0)
        r = spec_settle_method(reader->s, reader->err);
    return r;
}

int spec_parse(const char *text, size_t bytes, const char *name, const struct spec_options *options,
               struct spec **ret, struct err *err)
{
    struct spec_reader reader = {.options = options, .err = err};
    struct arena *arena;
    struct json *doc;
    int r = json_parse(text, bytes, name, options->comments, &doc, err);

    if (r < 0)
        return r;
    arena = arena_create();
    r = read_spec(&reader, arena, doc);
    json_free(doc);
    if (r == 0)
        *ret = reader.s;
    else
        arena_destroy(arena);
    return r;
}

/* The arguments of read_bounded. */
struct bounded_reading {
    struct spec_reader reader;
    const struct json *doc;
};

static int read_bounded(void *arg)
{
    struct bounded_reading *b = arg;
    struct arena *arena = arena_create();
    int r = read_spec(&b->reader, arena, b->doc);

    if (r < 0)
        arena_destroy(arena);
    return r;
}

int spec_read(const struct json *doc, const struct spec_options *options, struct spec **ret, struct err *err)
{
    struct bounded_reading b = {.reader = {.options = options, .err = err}, .doc = doc};
    /* This scope limits neither memory nor time. It only makes a failed allocation return an error code
     * instead of aborting the process. */
    struct bounded scope = {0};
    int r = bounded_run(&scope, read_bounded, &b);

    if (scope.ended_early)
        return err_set(err, -ENOMEM, "out of memory while reading the spec");
    if (r == 0)
        *ret = b.reader.s;
    return r;
}

/* Reads from `fd` until the end of the file or pipe, or until `buf` is full. Stores the number of bytes read
 * in *ret. */
static int read_all(int fd, char *buf, size_t size, size_t *ret)
{
    size_t n = 0;

    while (n < size) {
        ssize_t got = read(fd, buf + n, size - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        n += (size_t)got;
    }
    *ret = n;
    return 0;
}

int spec_load(const char *path, const struct spec_options *options, struct spec **ret, struct err *err)
{
    bool in = strcmp(path, "-") == 0;
    int fd = in ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY), r;
    char *text;
    size_t bytes = 0;

    if (fd < 0)
        return err_set_at(err, -errno, path, "cannot open the job file: %s", strerror(errno));
    text = malloc(MAX_FILE_BYTES + 1);
    r = text ? read_all(fd, text, MAX_FILE_BYTES + 1, &bytes) : -ENOMEM;
    close(fd);
    if (r < 0)
        err_set_at(err, r, path, "cannot read the job file: %s", strerror(-r));
    else if (bytes > MAX_FILE_BYTES)
        r = err_set_at(err, -EFBIG, path, "is too large: a job file has at most %u bytes; check the path",
                       MAX_FILE_BYTES);
    else
        r = spec_parse(text, bytes, in ? "standard input" : path, options, ret, err);
    free(text);
    return r;
}

void spec_destroy(struct spec *s)
{
    if (s)
        arena_destroy(s->arena);
}

struct spec_demand spec_demand(const struct spec *s)
{
    uint32_t min = s->resources.devices_min, max = s->resources.devices_max;

    return (struct spec_demand){
        .devices_min = min,
        .devices_max = max > 0 ? max : min,
        .device_bytes = s->resources.device_bytes,
        .host_bytes = s->resources.host_bytes,
    };
}

/* ------------------------------------------------------------------------------------------ resolution */

void spec_nearest_divisors(uint32_t batch, uint32_t want, uint32_t *ret_below, uint32_t *ret_above)
{
    uint32_t below = 0, above = 0;

    for (uint64_t i = 1; i * i <= batch; i++) {
        uint32_t pair[2] = {(uint32_t)i, (uint32_t)(batch / i)};
        if (batch % i != 0)
            continue;
        for (int k = 0; k < 2; k++) {
            if (pair[k] <= want && pair[k] > below)
                below = pair[k];
            if (pair[k] >= want && (above == 0 || pair[k] < above))
                above = pair[k];
        }
    }
    *ret_below = below;
    *ret_above = above;
}

int spec_count_steps(uint64_t epochs, uint64_t steps, uint64_t batch, uint64_t samples, const char *path,
                     uint64_t *ret, struct err *err)
{
    uint64_t total;

    if (steps == 0) {
        if (!checked_mul(epochs, samples, &total) || total > SPEC_MAX_BYTES)
            return err_set_at(err, -EINVAL, path,
                              "%" PRIu64 " epochs are more than 2^53 samples; write a smaller number",
                              epochs);
        steps = total / batch + (total % batch != 0);
    }
    /* These limits keep every sample position below 2^53, which JSON can represent exactly, and every epoch
     * number within 32 bits. */
    if (steps > SPEC_MAX_STEPS || steps * batch > SPEC_MAX_BYTES || steps * batch / samples >= UINT32_MAX)
        return err_set_at(err, -EINVAL, path,
                          "%" PRIu64 " steps of %" PRIu64
                          " samples are more than can be counted; write a smaller number",
                          steps, batch);
    *ret = steps;
    return 0;
}

static int check_size(const char *path, uint32_t asked, uint32_t resolved, struct err *err)
{
    if (asked == 0 || asked == resolved)
        return 0;
    return err_set_at(err, -EINVAL, path,
                      "is %" PRIu32 ", but the job was first planned with %" PRIu32 "; write that number",
                      asked, resolved);
}

static int check_resolved_sizes(uint32_t batch, struct spec_sizes asked, struct spec_sizes sizes,
                                struct err *err)
{
    int r = check_size("train.replicas", asked.replicas, sizes.replicas, err);

    if (r == 0)
        r = check_size("train.micro_batch", asked.micro_batch, sizes.micro_batch, err);
    if (r < 0)
        return r;
    if (batch % sizes.replicas != 0)
        return err_set_at(err, -EINVAL, "train.replicas",
                          "%" PRIu32 " replicas do not divide global_batch %" PRIu32, sizes.replicas, batch);
    if (batch / sizes.replicas % sizes.micro_batch != 0)
        return err_set_at(err, -EINVAL, "train.micro_batch",
                          "%" PRIu32 " does not divide the share of a replica: global_batch %" PRIu32
                          " / %" PRIu32 " replicas",
                          sizes.micro_batch, batch, sizes.replicas);
    return 0;
}

/* Makes the array s->resolved.phases long enough to contain the phase `phase`. All sizes of a new phase are
 * 0. */
static void extend_phases(struct spec *s, uint32_t phase)
{
    uint32_t n = s->resolved.n_phases;
    struct spec_sizes *phases;

    if (phase < n)
        return;
    phases = arena_alloc_array(s->arena, phase + 1, sizeof *phases);
    if (n > 0)
        memcpy(phases, s->resolved.phases, n * sizeof *phases);
    s->resolved.phases = phases;
    s->resolved.n_phases = phase + 1;
}

int spec_resolve_phase(struct spec *s, uint32_t phase, uint32_t batch, struct spec_sizes asked,
                       struct spec_sizes sizes, struct err *err)
{
    int r;

    if (sizes.replicas == 0)
        sizes.replicas = asked.replicas ? asked.replicas : 1;
    if (sizes.micro_batch == 0)
        sizes.micro_batch = asked.micro_batch ? asked.micro_batch : batch / sizes.replicas;
    /* If there are more replicas than samples in a batch, the division above gives a micro-batch of 0
     * samples. Use 1 sample, so that check_resolved_sizes refuses the job with a proper message. */
    if (sizes.micro_batch == 0)
        sizes.micro_batch = 1;
    r = check_resolved_sizes(batch, asked, sizes, err);
    if (r < 0)
        return r;
    extend_phases(s, phase);
    s->resolved.phases[phase] = sizes;
    return 0;
}

int spec_resolve(struct spec *s, struct spec_sizes sizes, uint64_t train_samples, uint32_t data_crc,
                 struct err *err)
{
    const struct spec_sizes asked = {s->train.micro_batch, s->train.replicas};
    uint64_t steps = 0;
    int r;

    assert(train_samples > 0);
    r = spec_resolve_phase(s, 0, s->train.global_batch, asked, sizes, err);
    if (r == 0)
        r = spec_count_steps(s->train.epochs, s->train.steps, s->train.global_batch, train_samples,
                             s->train.steps ? "train.steps" : "train.epochs", &steps, err);
    if (r < 0)
        return r;
    s->resolved.train_samples = train_samples;
    s->resolved.data_crc = data_crc;
    s->resolved.total_steps = steps;
    return 0;
}

double spec_lr(const struct spec_rate *rate, uint64_t total_steps, uint64_t step)
{
    uint64_t warmup = rate->warmup_steps;
    double min = rate->min_lr_ratio, t;

    assert(total_steps > 0);
    if (step < warmup)
        /* During the warm-up, the learning rate never exceeds rate->lr, because the quotient is at most 1. */
        return rate->lr * ((double)(step + 1) / (double)warmup);
    if (rate->type == SCHEDULE_CONSTANT)
        return rate->lr;
    if (rate->type == SCHEDULE_STEP) {
        t = pow(rate->gamma, (double)((step - warmup) / rate->every_steps));
        return rate->lr * (t > min ? t : min);
    }
    if (step >= total_steps)
        return rate->lr * min;
    t = (double)(step - warmup) / (double)(total_steps - warmup); /* warmup <= step < total_steps */
    if (rate->type == SCHEDULE_COSINE)
        t = 0.5 * (1 - cos(M_PI * t));
    return rate->lr * (1 - (1 - min) * t);
}

bool spec_due(const struct spec *s, const struct spec_every *every, uint32_t batch, uint64_t steps_done)
{
    uint64_t period, at = steps_done * batch;

    if (steps_done == 0)
        return false;
    if (every->steps)
        return steps_done % every->steps == 0;
    if (!every->epochs || !checked_mul(every->epochs, s->resolved.train_samples, &period))
        return false;
    return at / period > (at - batch) / period;
}
