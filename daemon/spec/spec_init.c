/* Reads how a model's weights are initialised: the section `init`, and the key `init` of a layer in a chain.
 * docs/job.md has the rule as a table, and kernels/layer.c draws the numbers.
 *
 * A standard deviation that the spec does not give is 0 in the settings of a layer. For matrices and their
 * biases, 0 means uniform numbers scaled by the fan-in. Embeddings and positions are always drawn from a
 * normal distribution. `init` is read before the model, so that every layer is complete when it is added.
 */
#include <errno.h>

#include "daemon/spec/spec_private.h"

static bool take_std(struct json_obj *o, const char *key, float *ret)
{
    double std;

    if (!spec_take_float(o, key, JSON_OPTIONAL, SPEC_POSITIVE, &std))
        return false;
    *ret = (float)std;
    return true;
}

int spec_read_init(const struct spec_reader *r, const struct json *node)
{
    struct spec *s = r->s;
    struct json_obj o;

    json_obj_begin(&o, node, "init", r->err);
    json_take_u64(&o, "seed", JSON_OPTIONAL, &s->seed);
    take_std(&o, "std", &s->init.std);
    take_std(&o, "proj_std", &s->init.proj_std);
    take_std(&o, "embedding_std", &s->init.embedding_std);
    return json_obj_end(&o);
}

/* Reads the key "init" of one layer, an object that may have `std` and `proj_std`. *ret_std and *ret_proj_std
 * become these values. If only `std` is given, *ret_proj_std also becomes `std`. If only `proj_std` is given,
 * *ret_std stays unchanged. If neither is given, both stay unchanged. `ret_proj_std` is NULL for a layer
 * without a projection. */
static void take_own_init(struct json_obj *o, float *ret_std, float *ret_proj_std)
{
    const struct json *node;
    struct json_obj own;
    char path[sizeof o->path];

    if (!json_take(o, "init", JSON_OPTIONAL, &node))
        return;
    json_path_key(path, sizeof path, o->path, "init");
    json_obj_begin(&own, node, path, o->err);
    if (take_std(&own, "std", ret_std) && ret_proj_std)
        *ret_proj_std = *ret_std;
    if (ret_proj_std)
        take_std(&own, "proj_std", ret_proj_std);
    if (json_obj_end(&own) < 0)
        o->status = own.status;
}

void spec_take_init(const struct spec_reader *r, struct json_obj *o, float *ret_std, float *ret_proj_std)
{
    const struct spec *s = r->s;

    *ret_std = s->init.std;
    if (ret_proj_std)
        *ret_proj_std = s->init.proj_std > 0 ? s->init.proj_std : s->init.std;
    take_own_init(o, ret_std, ret_proj_std);
}

void spec_take_embedding_init(const struct spec_reader *r, struct json_obj *o, float *ret_std)
{
    const struct spec *s = r->s;

    *ret_std = s->init.embedding_std > 0 ? s->init.embedding_std
               : s->init.std > 0         ? s->init.std
                                         : LAYER_EMBEDDING_STD;
    take_own_init(o, ret_std, NULL);
}

static bool has_projection(const struct layer *l)
{
    return l->type == &layer_attention || l->type == &layer_mlp;
}

static bool is_embedding(const struct layer *l)
{
    return l->type == &layer_embedding || l->type == &layer_positions;
}

static bool any_layer(const struct layer *layers, uint32_t n, bool (*is)(const struct layer *l))
{
    for (uint32_t i = 0; i < n; i++)
        if (is(&layers[i]) || any_layer(layers[i].inner, layers[i].n_inner, is))
            return true;
    return false;
}

/* Returns the name of a key that the section `init` of the spec sets, such as "init.std". The key "init.seed"
 * does not count. Returns NULL if the section sets no other key. */
static const char *given_key(const struct spec *s)
{
    return s->init.std > 0             ? "init.std"
           : s->init.proj_std > 0      ? "init.proj_std"
           : s->init.embedding_std > 0 ? "init.embedding_std"
                                       : NULL;
}

int spec_check_init(const struct spec *s, struct err *err)
{
    const struct model *m = &s->model;

    if (s->from && given_key(s))
        return err_set_at(
            err, -EINVAL, given_key(s),
            "the initial weights come from the folder \"%s\", so none are drawn; remove this key", s->from);
    /* The spec has no layers if its model is in a Hugging Face folder that was not opened. */
    if (m->n_layers == 0)
        return 0;
    if (s->init.proj_std > 0 && !any_layer(m->layers, m->n_layers, has_projection))
        return err_set_at(
            err, -EINVAL, "init.proj_std",
            "changes nothing, because the model has no attention, mlp or swiglu layer; remove it");
    if (s->init.embedding_std > 0 && !any_layer(m->layers, m->n_layers, is_embedding))
        return err_set_at(
            err, -EINVAL, "init.embedding_std",
            "changes nothing, because the model has neither an embedding nor positions; remove it");
    return 0;
}
