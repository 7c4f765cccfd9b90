/* Reads the section `method` of a spec: which method trains the model, and the settings of the method.
 * spec_method_cut.c checks later whether the method fits the model, when all sections have been read. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "daemon/spec/spec_private.h"

#define MOST_PARTS      SPEC_MAX_LAYERS /* most partitions, and most blocks */
#define MOST_HEAD       SPEC_MAX_DIM
#define DEFAULT_CYCLE_S 10.0
#define DEFAULT_KAPPA   3.0

const char *const local_scheme_names[LOCAL_COUNT + 1] = {"chunked", "greedy", "overlapping", NULL};
static const char *const nothing_later[] = {NULL};

/* ------------------------------------------------------------------------------------------ method.each */

/* Returns the default settings of one part of the training. They come from the sections train, optimizer and
 * schedule. */
static struct spec_part default_part(const struct spec *s)
{
    return (struct spec_part){
        .epochs = s->train.epochs,
        .steps = s->train.steps,
        .global_batch = s->train.global_batch,
        .micro_batch = s->train.micro_batch,
        .replicas = s->train.replicas,
        .optimizer = s->optimizer,
        .rate = s->rate,
    };
}

/* Reads the keys that set how long a part of the training is, and the sizes of its batches. */
static void read_part_train(struct json_obj *o, struct spec_part *ret)
{
    uint64_t epochs = 0, steps = 0;
    bool has_epochs = spec_take_u64(o, "epochs", JSON_OPTIONAL, 1, SPEC_MAX_STEPS, &epochs);
    bool has_steps = spec_take_u64(o, "steps", JSON_OPTIONAL, 1, SPEC_MAX_STEPS, &steps);

    if (has_epochs && has_steps)
        json_fail(o, "steps", -EINVAL, "\"epochs\" and \"steps\" are both given; keep one of them");
    if (has_epochs || has_steps) {
        ret->epochs = epochs;
        ret->steps = steps;
    }
    if (spec_take_u32(o, "global_batch", JSON_OPTIONAL, 1, SPEC_MAX_DIM, &ret->global_batch))
        ret->micro_batch = 0; /* train.micro_batch does not fit this batch */
    spec_take_auto_u32(o, "micro_batch", 1, SPEC_MAX_DIM, &ret->micro_batch);
    spec_take_auto_u32(o, "replicas", 1, SPEC_MAX_DIM, &ret->replicas);
    spec_check_batch(o, ret->global_batch, ret->micro_batch, ret->replicas);
}

/* Reads one element of method.each for the method `sil`. */
static int read_part(const struct spec_reader *r, const struct json *node, const char *path,
                     struct spec_part *ret)
{
    const struct json *optimizer = NULL, *schedule = NULL;
    struct json_obj o;
    char inside[128];
    bool no_decay_given = false;

    json_obj_begin(&o, node, path, r->err);
    read_part_train(&o, ret);
    json_take(&o, "optimizer", JSON_OPTIONAL, &optimizer);
    json_take(&o, "schedule", JSON_OPTIONAL, &schedule);
    if (json_obj_end(&o) < 0)
        return o.status;
    if (optimizer) {
        const double clip = ret->optimizer.clip;
        ret->optimizer = (struct optimizer){.clip = clip};
        json_path_key(inside, sizeof inside, path, "optimizer");
        int status =
            spec_read_optimizer_at(r, optimizer, inside, &ret->optimizer, &ret->rate.lr, &no_decay_given);
        if (status < 0)
            return status;
    }
    if (!schedule)
        return 0;
    ret->rate = (struct spec_rate){.lr = ret->rate.lr, .gamma = 0.1};
    json_path_key(inside, sizeof inside, path, "schedule");
    return spec_read_schedule_at(r, schedule, inside, &ret->rate);
}

/* Reads one element of method.each for the method `local`: the learning rate of a block. */
static int read_rate(const struct spec_reader *r, const struct json *node, const char *path,
                     struct spec_rate *ret)
{
    const struct json *schedule = NULL;
    struct json_obj o;
    char inside[128];

    json_obj_begin(&o, node, path, r->err);
    spec_take_float(&o, "lr", JSON_OPTIONAL, SPEC_POSITIVE, &ret->lr);
    json_take(&o, "schedule", JSON_OPTIONAL, &schedule);
    if (json_obj_end(&o) < 0 || !schedule)
        return o.status;
    *ret = (struct spec_rate){.lr = ret->lr, .gamma = 0.1};
    json_path_key(inside, sizeof inside, path, "schedule");
    return spec_read_schedule_at(r, schedule, inside, ret);
}

/* Checks that `list`, the value of method.each, is an array of `n` elements. */
static int check_each(const struct spec_reader *r, const struct json *list, uint32_t n, const char *of)
{
    if (json_type(list) == JSON_ARRAY && json_array_size(list) == n)
        return 0;
    return err_set_at(r->err, -EINVAL, "method.each",
                      "must be an array of %" PRIu32 " objects, one for each %s", n, of);
}

static int read_parts(const struct spec_reader *r, const struct json *list)
{
    struct spec_sil *sil = &r->s->sil;
    char path[64];
    int status = 0;

    sil->each = arena_alloc_array(r->s->arena, sil->partitions, sizeof *sil->each);
    for (uint32_t i = 0; i < sil->partitions; i++)
        sil->each[i] = default_part(r->s);
    if (list)
        status = check_each(r, list, sil->partitions, "partition");
    for (uint32_t i = 0; list && status == 0 && i < sil->partitions; i++) {
        json_path_index(path, sizeof path, "method.each", i);
        status = read_part(r, json_array_at(list, i), path, &sil->each[i]);
    }
    return status;
}

static int read_rates(const struct spec_reader *r, const struct json *list)
{
    struct spec_local *local = &r->s->local;
    char path[64];
    int status = 0;

    local->rates = arena_alloc_array(r->s->arena, local->n_blocks, sizeof *local->rates);
    for (uint32_t i = 0; i < local->n_blocks; i++)
        local->rates[i] = r->s->rate;
    if (list)
        status = check_each(r, list, local->n_blocks, "block");
    for (uint32_t i = 0; list && status == 0 && i < local->n_blocks; i++) {
        json_path_index(path, sizeof path, "method.each", i);
        status = read_rate(r, json_array_at(list, i), path, &local->rates[i]);
    }
    return status;
}

/* ------------------------------------------------------------------------------------------ sil */

/* Reads method.partitions. This is the number of partitions, or an array with the first layer of every
 * partition after partition 0. */
static int read_partitions(const struct spec_reader *r, const struct json *node)
{
    struct spec_sil *sil = &r->s->sil;
    uint64_t v = 0;
    uint32_t *cuts;
    char path[64];
    int status;

    sil->partitions = 2;
    if (!node)
        return 0;
    if (json_type(node) != JSON_ARRAY) {
        status = json_u64(node, "method.partitions", &v, r->err);
        if (status == 0 && (v < 1 || v > MOST_PARTS))
            status =
                err_set_at(r->err, -EINVAL, "method.partitions",
                           "must be a number of partitions from 1 to %u, or an array with the first layer of "
                           "every partition but the first, such as [3,6]",
                           MOST_PARTS);
        sil->partitions = (uint32_t)v;
        return status;
    }
    if (json_array_size(node) >= MOST_PARTS)
        return err_set_at(r->err, -EINVAL, "method.partitions", "has more than %u elements", MOST_PARTS - 1);
    sil->partitions = (uint32_t)json_array_size(node) + 1;
    cuts = arena_alloc_array(r->s->arena, sil->partitions, sizeof *cuts);
    cuts[0] = 0;
    for (uint32_t i = 1; i < sil->partitions; i++) {
        json_path_index(path, sizeof path, "method.partitions", i - 1);
        status = json_u64(json_array_at(node, i - 1), path, &v, r->err);
        if (status == 0 && (v <= cuts[i - 1] || v >= SPEC_MAX_LAYERS))
            status = err_set_at(r->err, -EINVAL, path,
                                "must be a layer after layer %" PRIu32 ", found %" PRIu64, cuts[i - 1], v);
        if (status < 0)
            return status;
        cuts[i] = (uint32_t)v;
    }
    sil->cuts = cuts;
    return 0;
}

/* Checks that partitions which are trained at once have the same steps, batches and kind of optimizer. */
static int check_concurrent(const struct spec *s, struct err *err)
{
    const struct spec_sil *sil = &s->sil;
    const struct optimizer *first = &sil->each[0].optimizer;
    const struct spec_part usual = default_part(s);
    char path[64];

    if (sil->keep_outputs)
        return err_set_at(err, -EINVAL, "method.keep_outputs",
                          "with \"concurrent\" no outputs are kept; remove it");
    for (uint32_t i = 0; i < sil->partitions; i++) {
        const struct spec_part *p = &sil->each[i];
        json_path_index(path, sizeof path, "method.each", i);
        if (p->epochs != usual.epochs || p->steps != usual.steps || p->global_batch != usual.global_batch ||
            p->micro_batch != usual.micro_batch || p->replicas != usual.replicas)
            return err_set_at(
                err, -EINVAL, path,
                "with \"concurrent\" all partitions have the steps and the batches of the section "
                "train; remove \"epochs\", \"steps\", \"global_batch\", \"micro_batch\" and "
                "\"replicas\"");
        if (p->optimizer.kind != first->kind || (p->optimizer.momentum > 0) != (first->momentum > 0))
            return err_set_at(err, -EINVAL, path,
                              "with \"concurrent\" all partitions have optimizers of the same type, with or "
                              "without momentum, and that of the first is \"%s\" %s momentum",
                              optimizer_names[first->kind], first->momentum > 0 ? "with" : "without");
    }
    return 0;
}

static int read_sil(const struct spec_reader *r, struct json_obj *o)
{
    const struct json *partitions = NULL, *each = NULL;
    struct spec_sil *sil = &r->s->sil;

    sil->kappa = DEFAULT_KAPPA;
    json_take(o, "partitions", JSON_OPTIONAL, &partitions);
    spec_take_float(o, "kappa", JSON_OPTIONAL, SPEC_POSITIVE, &sil->kappa);
    spec_take_u64(o, "recovery_epochs", JSON_OPTIONAL, 0, SPEC_MAX_STEPS, &sil->recovery_epochs);
    json_take_bool(o, "concurrent", JSON_OPTIONAL, &sil->concurrent);
    json_take_bool(o, "keep_outputs", JSON_OPTIONAL, &sil->keep_outputs);
    json_take(o, "each", JSON_OPTIONAL, &each);
    if (json_obj_end(o) < 0)
        return o->status;
    int status = read_partitions(r, partitions);
    if (status == 0)
        status = read_parts(r, each);
    sil->recovery = default_part(r->s);
    sil->recovery.epochs = sil->recovery_epochs;
    sil->recovery.steps = 0;
    return status == 0 && sil->concurrent ? check_concurrent(r->s, r->err) : status;
}

/* ------------------------------------------------------------------------------------------ local */

/* Reads one element of method.blocks: the first and the last layer of a block. */
static int read_block(const struct spec_reader *r, const struct json *node, const char *path,
                      struct spec_block *ret)
{
    uint64_t v[2] = {0, 0};
    int status = 0;

    if (json_type(node) != JSON_ARRAY || json_array_size(node) != 2)
        return err_set_at(r->err, -EINVAL, path,
                          "must be the first and the last layer of a block, such as [0,3]");
    for (size_t i = 0; status == 0 && i < 2; i++)
        status = json_u64(json_array_at(node, i), path, &v[i], r->err);
    if (status == 0 && (v[0] > v[1] || v[1] >= SPEC_MAX_LAYERS))
        status = err_set_at(r->err, -EINVAL, path,
                            "the last layer must not be before the first; found [%" PRIu64 ",%" PRIu64 "]",
                            v[0], v[1]);
    *ret = (struct spec_block){(uint32_t)v[0], (uint32_t)v[1]};
    return status;
}

/* Reads method.blocks. This is the number of blocks, or an array with the first and the last layer of each
 * block. With the scheme `greedy`, spec_settle_method derives the blocks from the model later. */
static int read_blocks(const struct spec_reader *r, const struct json *node)
{
    struct spec_local *local = &r->s->local;
    struct spec_block *blocks;
    uint64_t v = 0;
    char path[64];
    int status = 0;

    if (local->scheme == LOCAL_GREEDY)
        return node ? err_set_at(r->err, -EINVAL, "method.blocks",
                                 "with the scheme \"greedy\" every layer with weights is a block; remove "
                                 "\"blocks\", or write \"scheme\": \"chunked\"")
                    : 0;
    if (!node)
        return err_set_at(
            r->err, -EINVAL, "method.blocks",
            "is missing; write a number of blocks, or the first and the last layer of each, such "
            "as [[0,3],[4,7]]");
    if (json_type(node) != JSON_ARRAY) {
        status = json_u64(node, "method.blocks", &v, r->err);
        if (status == 0 && (v < 1 || v > MOST_PARTS))
            status = err_set_at(r->err, -EINVAL, "method.blocks", "must be from 1 to %u, found %" PRIu64,
                                MOST_PARTS, v);
        local->n_blocks = (uint32_t)v;
        return status;
    }
    if (json_array_size(node) < 1 || json_array_size(node) > MOST_PARTS)
        return err_set_at(r->err, -EINVAL, "method.blocks", "must have from 1 to %u blocks", MOST_PARTS);
    local->n_blocks = (uint32_t)json_array_size(node);
    blocks = arena_alloc_array(r->s->arena, local->n_blocks, sizeof *blocks);
    for (uint32_t i = 0; status == 0 && i < local->n_blocks; i++) {
        json_path_index(path, sizeof path, "method.blocks", i);
        status = read_block(r, json_array_at(node, i), path, &blocks[i]);
    }
    local->blocks = blocks;
    return status;
}

static int read_head(const struct spec_reader *r, const struct json *node)
{
    struct json_obj o;

    json_obj_begin(&o, node, "method.head", r->err);
    spec_take_u32(&o, "hidden", JSON_REQUIRED, 1, MOST_HEAD, &r->s->local.head_hidden);
    return json_obj_end(&o);
}

static int read_local(const struct spec_reader *r, struct json_obj *o)
{
    const struct json *blocks = NULL, *head = NULL, *each = NULL;
    struct spec_local *local = &r->s->local;
    int scheme = LOCAL_CHUNKED, status;

    local->max_cycle_s = DEFAULT_CYCLE_S;
    spec_take_choice(o, "scheme", JSON_REQUIRED, local_scheme_names, nothing_later, &scheme);
    local->scheme = (enum local_scheme)scheme;
    json_take(o, "blocks", JSON_OPTIONAL, &blocks);
    json_take(o, "head", JSON_OPTIONAL, &head);
    json_take(o, "each", JSON_OPTIONAL, &each);
    spec_take_auto_u32(o, "resident_steps", 1, SPEC_MAX_CYCLE_STEPS, &local->resident_steps);
    spec_take_float(o, "max_cycle_seconds", JSON_OPTIONAL, SPEC_POSITIVE, &local->max_cycle_s);
    if (json_obj_end(o) < 0)
        return o->status;
    if (scheme == LOCAL_OVERLAPPING && local->resident_steps > 1)
        return err_set_at(r->err, -EINVAL, "method.resident_steps",
                          "overlapping blocks meet in every step, so the only number is 1; remove it");
    if (scheme == LOCAL_GREEDY && each)
        return err_set_at(r->err, -EINVAL, "method.each",
                          "is for blocks that the job lists; write \"scheme\": \"chunked\" with \"blocks\"");
    status = read_blocks(r, blocks);
    if (status == 0 && head)
        status = read_head(r, head);
    return status == 0 ? read_rates(r, each) : status;
}

/* ------------------------------------------------------------------------------------------ method */

int spec_read_method(const struct spec_reader *r, const struct json *node)
{
    struct json_obj o;
    int type = METHOD_backprop;

    json_obj_begin(&o, node, "method", r->err);
    if (!spec_take_choice(&o, "type", JSON_REQUIRED, method_names, nothing_later, &type))
        return json_obj_end(&o);
    r->s->method = (enum method_id)type;
    switch (r->s->method) {
    case METHOD_local:
        return read_local(r, &o);
    case METHOD_sil:
        return read_sil(r, &o);
    default:
        return json_obj_end(&o);
    }
}
