/* Reads the sections train, optimizer, schedule, eval, checkpoint, resources, memory and queue of a spec.
 * Each function reads one section. spec.c sets the defaults before it calls these functions. The checks that
 * involve several sections are in spec.c too. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/spec/spec_private.h"

static const char *const nothing_later[] = {NULL};

/* ------------------------------------------------------------------------------------------ train */

/* A text for error messages. It names the divisors that are nearest to a wanted number, such as "32 or
 * 64". */
struct nearest {
    char text[32];
};

static struct nearest nearest(uint32_t of, uint32_t want)
{
    struct nearest ret;
    uint32_t below, above;

    spec_nearest_divisors(of, want, &below, &above);
    if (above == 0 || above == below)
        snprintf(ret.text, sizeof ret.text, "%" PRIu32, below);
    else
        snprintf(ret.text, sizeof ret.text, "%" PRIu32 " or %" PRIu32, below, above);
    return ret;
}

/* Returns true if `size` divides `batch`. Also returns true if `size` is 0, which means "auto". Otherwise
 * reports the mistake at `key` and returns false. */
static bool check_divides(struct json_obj *o, const char *key, uint32_t batch, uint32_t size)
{
    if (size == 0 || batch % size == 0)
        return true;
    if (size > batch)
        json_fail(o, key, -EINVAL,
                  "%" PRIu32 " is larger than global_batch; write at most %" PRIu32 ", or \"auto\"", size,
                  batch);
    else
        json_fail(o, key, -EINVAL,
                  "%" PRIu32 " does not divide global_batch %" PRIu32 "; write %s, or \"auto\"", size, batch,
                  nearest(batch, size).text);
    return false;
}

void spec_check_batch(struct json_obj *o, uint32_t batch, uint32_t micro, uint32_t replicas)
{
    char other[96] = "";

    if (batch == 0 || !check_divides(o, "replicas", batch, replicas))
        return;
    if (replicas <= 1) {
        check_divides(o, "micro_batch", batch, micro);
        return;
    }
    if (micro == 0 || batch / replicas % micro == 0)
        return;
    if (batch % micro == 0)
        snprintf(other, sizeof other, ", or replicas to %s", nearest(batch / micro, replicas).text);
    json_fail(o, "micro_batch", -EINVAL,
              "%" PRIu32 " x %" PRIu32 " replicas does not divide global_batch %" PRIu32
              "; change micro_batch to %s%s, or write \"auto\"",
              micro, replicas, batch, nearest(batch / replicas, micro).text, other);
}

static void read_grad_clip(const struct spec_reader *r, struct json_obj *o)
{
    const struct json *node;

    if (json_take(o, "grad_clip", JSON_OPTIONAL, &node) && json_type(node) != JSON_NULL)
        spec_take_float(o, "grad_clip", JSON_OPTIONAL, SPEC_POSITIVE_OR_NULL, &r->s->optimizer.clip);
}

/* Reads train.loss_scale, which only the precision fp16 uses. A spec may give one of its keys or both. */
static int read_loss_scale(const struct spec_reader *r, const struct json *node)
{
    struct loss_scaling *scale = &r->s->train.loss_scale;
    struct json_obj o;
    double start = 0;

    json_obj_begin(&o, node, "train.loss_scale", r->err);
    if (spec_take_float(&o, "start", JSON_OPTIONAL, SPEC_POSITIVE, &start)) {
        scale->start = (float)start;
        if (start < 1 || start > (double)LOSS_SCALE_MOST)
            json_fail(&o, "start", -EINVAL, "must be from 1 to %.0f, found %.9g", (double)LOSS_SCALE_MOST,
                      start);
    }
    spec_take_u32(&o, "growth_steps", JSON_OPTIONAL, 1, INT32_MAX, &scale->growth_steps);
    r->s->train.loss_scale_given = true;
    return json_obj_end(&o);
}

int spec_read_train(const struct spec_reader *r, const struct json *node)
{
    static const char *const nonfinite[] = {"stop", "skip", NULL};
    const struct json *loss_scale = NULL;
    struct spec *s = r->s;
    struct json_obj o;
    bool epochs, steps;
    int skip = 0;

    json_obj_begin(&o, node, "train", r->err);
    epochs = spec_take_u64(&o, "epochs", JSON_OPTIONAL, 1, SPEC_MAX_STEPS, &s->train.epochs);
    steps = spec_take_u64(&o, "steps", JSON_OPTIONAL, 1, SPEC_MAX_STEPS, &s->train.steps);
    spec_take_u32(&o, "global_batch", JSON_REQUIRED, 1, SPEC_MAX_DIM, &s->train.global_batch);
    spec_take_auto_u32(&o, "micro_batch", 1, SPEC_MAX_DIM, &s->train.micro_batch);
    spec_take_auto_u32(&o, "replicas", 1, SPEC_MAX_DIM, &s->train.replicas);
    read_grad_clip(r, &o);
    spec_take_float(&o, "label_smoothing", JSON_OPTIONAL, SPEC_FRACTION, &s->train.label_smoothing);
    if (json_take_enum(&o, "on_nonfinite", JSON_OPTIONAL, nonfinite, &skip))
        s->train.skip_nonfinite = skip == 1;
    json_take(&o, "loss_scale", JSON_OPTIONAL, &loss_scale);
    spec_check_batch(&o, s->train.global_batch, s->train.micro_batch, s->train.replicas);
    if (epochs && steps)
        json_fail(&o, "steps", -EINVAL, "\"epochs\" and \"steps\" are both given; keep one of them");
    if (json_obj_end(&o) < 0)
        return o.status;
    if (!epochs && !steps)
        return err_set_at(r->err, -EINVAL, "train",
                          "does not say how long to train; add \"epochs\" or \"steps\"");
    return loss_scale ? read_loss_scale(r, loss_scale) : 0;
}

/* ------------------------------------------------------------------------------------------ optimizer */

static void read_betas(struct json_obj *o, struct optimizer *ret)
{
    const struct json *node;
    char path[sizeof o->path + 8], key[16];
    double v;

    if (!json_take(o, "betas", JSON_OPTIONAL, &node))
        return;
    if (json_type(node) != JSON_ARRAY || json_array_size(node) != 2) {
        json_fail(o, "betas", -EINVAL, "must be two numbers, e.g. [0.9,0.999]");
        return;
    }
    for (int i = 0; i < 2; i++) {
        snprintf(key, sizeof key, "betas[%d]", i);
        json_path_key(path, sizeof path, o->path, key);
        int r = json_double(json_array_at(node, (size_t)i), path, &v, o->err);
        if (r == 0)
            r = spec_check_float(v, SPEC_FRACTION, path, o->err);
        if (r < 0) {
            o->status = r;
            return;
        }
        *(i == 0 ? &ret->beta1 : &ret->beta2) = (float)v;
    }
}

static void read_adamw(struct json_obj *o, struct optimizer *ret)
{
    double eps = 1e-8;

    ret->beta1 = 0.9f;
    ret->beta2 = 0.999f;
    ret->weight_decay = 0.01f;
    read_betas(o, ret);
    spec_take_float(o, "eps", JSON_OPTIONAL, SPEC_POSITIVE, &eps);
    ret->eps = (float)eps;
}

static void read_sgd(struct json_obj *o, struct optimizer *ret)
{
    double momentum = 0;

    spec_take_float(o, "momentum", JSON_OPTIONAL, SPEC_FRACTION, &momentum);
    ret->momentum = (float)momentum;
}

/* Reads optimizer.no_decay, which lists the kinds of parameters that get no weight decay, for example
 * ["bias","norm"]. */
static void read_no_decay(struct json_obj *o, struct optimizer *ret, bool *ret_given)
{
    const char *names[PARAM_CLASS_COUNT + 1] = {NULL};
    const struct json *list;
    const char *name;

    memcpy(names, param_class_names, sizeof param_class_names);
    if (!json_take(o, "no_decay", JSON_OPTIONAL, &list))
        return;
    *ret_given = true;
    ret->no_decay = 0;
    for (const struct json *i = json_type(list) == JSON_ARRAY ? json_array_first(list) : NULL; i;
         i = json_array_next(i)) {
        int class = 0;
        if (json_string(i, "", &name, NULL) < 0)
            name = "";
        while (names[class] && strcmp(names[class], name) != 0)
            class ++;
        if (!names[class]) {
            json_fail(
                o, "no_decay", -EINVAL,
                "has \"%s\"; the classes of parameters are \"matrix\", \"bias\", \"norm\" and \"embedding\"",
                name);
            return;
        }
        ret->no_decay |= 1u << class;
    }
    if (json_type(list) != JSON_ARRAY)
        json_fail(o, "no_decay", -EINVAL, "must be an array of classes, e.g. [\"bias\",\"norm\"]");
}

int spec_read_optimizer_at(const struct spec_reader *r, const struct json *node, const char *path,
                           struct optimizer *ret, double *ret_lr, bool *ret_no_decay_given)
{
    const char *names[OPTIMIZER_COUNT + 1] = {NULL};
    struct json_obj o;
    double decay;
    int kind;

    memcpy(names, optimizer_names, sizeof optimizer_names);
    json_obj_begin(&o, node, path, r->err);
    if (!spec_take_choice(&o, "type", JSON_REQUIRED, names, nothing_later, &kind))
        return json_obj_end(&o);
    ret->kind = (enum optimizer_kind)kind;
    spec_take_float(&o, "lr", JSON_REQUIRED, SPEC_POSITIVE, ret_lr);
    if (kind == OPTIMIZER_ADAMW)
        read_adamw(&o, ret);
    else
        read_sgd(&o, ret);
    if (spec_take_float(&o, "weight_decay", JSON_OPTIONAL, SPEC_NOT_NEGATIVE, &decay))
        ret->weight_decay = (float)decay;
    read_no_decay(&o, ret, ret_no_decay_given);
    return json_obj_end(&o);
}

int spec_read_optimizer(const struct spec_reader *r, const struct json *node)
{
    struct spec *s = r->s;

    return spec_read_optimizer_at(r, node, "optimizer", &s->optimizer, &s->rate.lr, &s->no_decay_given);
}

const char *const spec_schedule_names[SCHEDULE_COUNT + 1] = {"constant", "cosine", "linear", "step", NULL};

int spec_read_schedule(const struct spec_reader *r, const struct json *node)
{
    return spec_read_schedule_at(r, node, "schedule", &r->s->rate);
}

int spec_read_schedule_at(const struct spec_reader *r, const struct json *node, const char *path,
                          struct spec_rate *ret)
{
    struct json_obj o;
    int type = SCHEDULE_CONSTANT;

    json_obj_begin(&o, node, path, r->err);
    spec_take_choice(&o, "type", JSON_REQUIRED, spec_schedule_names, nothing_later, &type);
    ret->type = (enum spec_schedule)type;
    spec_take_u64(&o, "warmup_steps", JSON_OPTIONAL, 0, SPEC_MAX_STEPS, &ret->warmup_steps);
    if (spec_take_float(&o, "min_lr_ratio", JSON_OPTIONAL, SPEC_RATIO, &ret->min_lr_ratio) &&
        type == SCHEDULE_CONSTANT)
        json_fail(&o, "min_lr_ratio", -EINVAL,
                  "a constant schedule has no minimum; remove \"min_lr_ratio\", or write "
                  "\"type\": \"cosine\" or \"linear\"");
    if (type == SCHEDULE_STEP) {
        spec_take_u64(&o, "every_steps", JSON_REQUIRED, 1, SPEC_MAX_STEPS, &ret->every_steps);
        spec_take_float(&o, "gamma", JSON_OPTIONAL, SPEC_RATIO, &ret->gamma);
    }
    return json_obj_end(&o);
}

/* --------------------------------------------------------------------------------------- eval, checkpoint */

static int read_every(const struct spec_reader *r, const struct json *node, const char *path,
                      struct spec_every *ret)
{
    struct json_obj o;
    bool epochs, steps;

    json_obj_begin(&o, node, path, r->err);
    epochs = spec_take_u64(&o, "epochs", JSON_OPTIONAL, 1, SPEC_MAX_STEPS, &ret->epochs);
    steps = spec_take_u64(&o, "steps", JSON_OPTIONAL, 1, SPEC_MAX_STEPS, &ret->steps);
    if (json_obj_end(&o) < 0)
        return o.status;
    if (epochs == steps)
        return err_set_at(r->err, -EINVAL, path,
                          "must have exactly one of \"epochs\" and \"steps\", e.g. {\"epochs\": 1}");
    return 0;
}

int spec_read_eval(const struct spec_reader *r, const struct json *node)
{
    const struct json *every = NULL;
    struct json_obj o;

    json_obj_begin(&o, node, "eval", r->err);
    json_take(&o, "every", JSON_REQUIRED, &every);
    if (json_take_bool(&o, "heads", JSON_OPTIONAL, &r->s->eval_heads) && r->s->eval_heads &&
        r->s->method != METHOD_local)
        json_fail(&o, "heads", -EINVAL, "only the method \"local\" has heads; remove it");
    if (json_obj_end(&o) < 0)
        return o.status;
    return read_every(r, every, "eval.every", &r->s->eval);
}

const char *const spec_best_names[BEST_COUNT + 1] = {"none", "val/accuracy", "val/loss", NULL};

int spec_read_checkpoint(const struct spec_reader *r, const struct json *node)
{
    struct spec *s = r->s;
    const struct json *every = NULL;
    struct json_obj o;
    int best = BEST_NONE;

    json_obj_begin(&o, node, "checkpoint", r->err);
    json_take(&o, "every", JSON_OPTIONAL, &every);
    spec_take_u32(&o, "keep", JSON_OPTIONAL, 1, 1000000, &s->checkpoint.keep);
    spec_take_choice(&o, "best", JSON_OPTIONAL, spec_best_names, nothing_later, &best);
    s->checkpoint.best = (enum spec_best)best;
    if (json_obj_end(&o) < 0)
        return o.status;
    return every ? read_every(r, every, "checkpoint.every", &s->checkpoint.every) : 0;
}

/* -------------------------------------------------------------------------------------- resources, memory */

static int read_devices(const struct spec_reader *r, const struct json *node)
{
    struct spec *s = r->s;
    uint32_t min = 1, max = 0;
    struct json_obj o;

    json_obj_begin(&o, node, "resources.devices", r->err);
    spec_take_u32(&o, "min", JSON_OPTIONAL, 1, DEVICE_MAX, &min);
    spec_take_u32(&o, "max", JSON_OPTIONAL, 1, DEVICE_MAX, &max);
    if (max && max < min)
        json_fail(&o, "max", -EINVAL, "%" PRIu32 " is below min %" PRIu32 "; write at least %" PRIu32, max,
                  min, min);
    s->resources.devices_min = min;
    s->resources.devices_max = max;
    return json_obj_end(&o);
}

int spec_read_resources(const struct spec_reader *r, const struct json *node)
{
    struct spec *s = r->s;
    const struct json *devices = NULL;
    struct json_obj o;
    uint32_t n = 0;

    json_obj_begin(&o, node, "resources", r->err);
    spec_take_auto_bytes(&o, "device_memory", &s->resources.device_bytes);
    spec_take_auto_bytes(&o, "host_memory", &s->resources.host_bytes);
    json_take(&o, "devices", JSON_OPTIONAL, &devices);
    if (devices && json_type(devices) != JSON_OBJECT && spec_take_auto_u32(&o, "devices", 1, DEVICE_MAX, &n))
        s->resources.devices_min = s->resources.devices_max = n;
    if (json_obj_end(&o) < 0)
        return o.status;
    return devices && json_type(devices) == JSON_OBJECT ? read_devices(r, devices) : 0;
}

int spec_read_memory(const struct spec_reader *r, const struct json *node)
{
    static const char *const recompute_now[] = {"auto", NULL}, *const recompute_later[] = {"always", "never",
                                                                                           NULL};
    struct json_obj o;
    int policy = POLICY_auto, update = UPDATE_AUTO, objective = OBJECTIVE_BALANCED, recompute = 0;

    json_obj_begin(&o, node, "memory", r->err);
    spec_take_auto_u32(&o, "cycle_steps", 1, SPEC_MAX_CYCLE_STEPS, &r->s->memory.cycle_steps);
    spec_take_choice(&o, "policy", JSON_OPTIONAL, policy_names, nothing_later, &policy);
    spec_take_choice(&o, "objective", JSON_OPTIONAL, plan_objective_names, nothing_later, &objective);
    spec_take_choice(&o, "optimizer_on", JSON_OPTIONAL, update_place_names, nothing_later, &update);
    spec_take_choice(&o, "recompute", JSON_OPTIONAL, recompute_now, recompute_later, &recompute);
    spec_refuse_key(&o, "file_tier", "tensors are kept on devices and in host memory only; remove it");
    r->s->memory.policy = (enum policy_id)policy;
    r->s->memory.update = (enum update_place)update;
    r->s->memory.objective = (enum plan_objective)objective;
    return json_obj_end(&o);
}

/* ------------------------------------------------------------------------------------------ queue */

/* Parses a duration such as "2d", "1d12h" or "90m", and stores it in seconds. Returns false if `text` is not
 * a duration or is longer than ten years. */
static bool parse_duration(const char *text, uint64_t *ret_s)
{
    static const char units[] = "smhd";
    static const uint64_t seconds[] = {1, 60, 3600, 86400};
    uint64_t total = 0, v;
    char *end;

    while (*text) {
        const char *unit;
        if (*text < '0' || *text > '9')
            return false;
        v = strtoull(text, &end, 10);
        unit = *end ? strchr(units, *end) : NULL;
        if (!unit || v > 400000000)
            return false;
        total += v * seconds[unit - units];
        if (total > 3653ull * 86400)
            return false;
        text = end + 1;
    }
    *ret_s = total;
    return total > 0;
}

static void read_time_limit(struct json_obj *o, uint64_t *ret_s)
{
    const struct json *node;
    const char *text;

    if (!json_take(o, "time_limit", JSON_OPTIONAL, &node))
        return;
    if (json_type(node) == JSON_NUMBER)
        spec_take_u64(o, "time_limit", JSON_REQUIRED, 1, 3653ull * 86400, ret_s);
    else if (json_take_string(o, "time_limit", JSON_REQUIRED, &text) && !parse_duration(text, ret_s))
        json_fail(o, "time_limit", -EINVAL,
                  "must be a number of seconds, or a duration of at most ten years such as \"2d\", \"12h\", "
                  "\"90m\" or \"1d12h\"");
}

/* Refuses a key that earlier versions of Tutti accepted but ignored. In a job that a daemon has already
 * accepted, the key is ignored as before, so that the job can continue. */
static void refuse_later(const struct spec_reader *r, struct json_obj *o, const char *key, const char *words)
{
    const struct json *ignored;

    if (r->options->accepted)
        json_take(o, key, JSON_OPTIONAL, &ignored);
    else
        spec_refuse_key(o, key, words);
}

int spec_read_queue(const struct spec_reader *r, const struct json *node)
{
    struct json_obj o;

    json_obj_begin(&o, node, "queue", r->err);
    read_time_limit(&o, &r->s->queue.time_limit_s);
    refuse_later(r, &o, "priority", "the queue is first come, first served; remove it");
    refuse_later(r, &o, "preemptible", "a running job is never stopped for another; remove it");
    return json_obj_end(&o);
}
