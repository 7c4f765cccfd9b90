/* Reads the section `data` of a spec and checks that the model can use data of this kind.
 *
 * The section `model` must be read first. No data file is opened here. dataset_open opens and checks the data
 * files later.
 */
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "daemon/spec/spec_private.h"

const char *const data_format_names[DATA_FORMAT_COUNT + 1] = {"bytes", "idx", "synthetic", "tokens", NULL};

static int read_files(const struct spec_reader *r, const struct json *node, const char *path,
                      struct spec_files *ret)
{
    struct json_obj o;

    json_obj_begin(&o, node, path, r->err);
    spec_take_path(r, &o, "images", JSON_REQUIRED, &ret->images);
    spec_take_path(r, &o, "labels", JSON_REQUIRED, &ret->labels);
    return json_obj_end(&o);
}

static int read_scale(const struct spec_reader *r, const struct json *node)
{
    static const char path[] = "data.scale";
    double v[2];
    char at[32], found[32];
    int status;

    if (json_type(node) != JSON_ARRAY || json_array_size(node) != 2)
        return err_set_at(r->err, -EINVAL, path,
                          "must be two numbers, the values for the bytes 0 and 255, e.g. [0,1]");
    for (size_t i = 0; i < 2; i++) {
        json_path_index(at, sizeof at, path, i);
        status = json_double(json_array_at(node, i), at, &v[i], r->err);
        if (status < 0)
            return status;
        if (fabs(v[i]) > FLT_MAX / 4) {
            json_format_number(v[i], found, sizeof found);
            return err_set_at(r->err, -EINVAL, at, "must be between %.8g and %.8g, found %s",
                              -(double)FLT_MAX / 4, (double)FLT_MAX / 4, found);
        }
    }
    if ((float)v[0] == (float)v[1])
        return err_set_at(r->err, -EINVAL, path,
                          "the two numbers are equal as float32, so all pixels would be equal; write [0,1]");
    r->s->data.scale_lo = v[0];
    r->s->data.scale_hi = v[1];
    return 0;
}

static int read_idx(const struct spec_reader *r, struct json_obj *o)
{
    const struct json *train = NULL, *val = NULL, *scale = NULL;
    int status;

    json_take(o, "train", JSON_REQUIRED, &train);
    json_take(o, "val", JSON_OPTIONAL, &val);
    json_take(o, "scale", JSON_OPTIONAL, &scale);
    json_take_bool(o, "transpose", JSON_OPTIONAL, &r->s->data.transpose);
    status = json_obj_end(o);
    if (status == 0)
        status = read_files(r, train, "data.train", &r->s->data.train);
    if (status == 0 && val)
        status = read_files(r, val, "data.val", &r->s->data.val);
    if (status == 0 && scale)
        status = read_scale(r, scale);
    return status;
}

static int read_synthetic(const struct spec_reader *r, struct json_obj *o)
{
    struct spec *s = r->s;

    spec_take_u64(o, "samples", JSON_REQUIRED, 1, 1ull << 40, &s->data.samples);
    spec_take_u64(o, "val_samples", JSON_OPTIONAL, 0, 1ull << 40, &s->data.val_samples);
    json_take_u64(o, "seed", JSON_OPTIONAL, &s->data.seed);
    spec_take_float(o, "noise", JSON_OPTIONAL, SPEC_NOT_NEGATIVE, &s->data.noise);
    return json_obj_end(o);
}

static int read_tokens(const struct spec_reader *r, struct json_obj *o)
{
    static const char *const types[] = {"uint16", "uint32", NULL}, *const later[] = {NULL};
    struct spec *s = r->s;
    int type;

    spec_take_paths(r, o, "train", JSON_REQUIRED, &s->data.train_files);
    spec_take_paths(r, o, "val", JSON_OPTIONAL, &s->data.val_files);
    if (s->data.format == DATA_BYTES)
        return json_obj_end(o);
    if (spec_take_choice(o, "dtype", JSON_OPTIONAL, types, later, &type))
        s->data.token_bytes = type == 0 ? 2 : 4;
    s->data.has_ignore = spec_take_u32(o, "ignore", JSON_OPTIONAL, 0, UINT32_MAX, &s->data.ignore);
    if (s->data.has_ignore && s->tokens && s->data.ignore >= s->vocab)
        json_fail(o, "ignore", -EINVAL,
                  "%" PRIu32 " is not a token id: the model's vocabulary has %" PRIu32
                  " tokens, and an ignored target is still an input; write an id below %" PRIu32,
                  s->data.ignore, s->vocab, s->vocab);
    return json_obj_end(o);
}

/* Returns 0 if the model can use data of this format, for example tokens or images. Otherwise returns -EINVAL
 * with an error message that names data.format. */
static int check_model(const struct spec *s, struct err *err)
{
    const char *format = data_format_names[s->data.format];
    bool tokens = s->data.format == DATA_TOKENS || s->data.format == DATA_BYTES;

    if (tokens && !s->tokens)
        return err_set_at(
            err, -EINVAL, "data.format",
            "\"%s\" gives tokens, but the model takes numbers; choose a model for tokens, such as "
            "\"type\": \"gpt2\", or the data format \"idx\" or \"synthetic\"",
            format);
    if (s->data.format == DATA_IDX && s->tokens)
        return err_set_at(err, -EINVAL, "data.format",
                          "\"idx\" gives images, but the model takes tokens; write \"tokens\", \"bytes\" or "
                          "\"synthetic\", or choose another model");
    if (s->data.format == DATA_BYTES && s->vocab < 256)
        return err_set_at(err, -EINVAL, "data.format",
                          "\"bytes\" gives tokens from 0 to 255, but the model's vocabulary has %" PRIu32
                          "; set model.vocab to 256",
                          s->vocab);
    return 0;
}

int spec_read_data(const struct spec_reader *r, const struct json *node)
{
    static const char *const later[] = {"npy", NULL};
    struct json_obj o;
    int format = 0, status;

    json_obj_begin(&o, node, "data", r->err);
    json_take_bool(&o, "shuffle", JSON_OPTIONAL, &r->s->data.shuffle);
    if (!spec_take_choice(&o, "format", JSON_REQUIRED, data_format_names, later, &format))
        return json_obj_end(&o);
    r->s->data.format = (enum data_format)format;
    if (format == DATA_IDX)
        status = read_idx(r, &o);
    else if (format == DATA_SYNTHETIC)
        status = read_synthetic(r, &o);
    else
        status = read_tokens(r, &o);
    return status < 0 ? status : check_model(r->s, r->err);
}
