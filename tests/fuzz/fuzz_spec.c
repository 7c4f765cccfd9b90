/* Reads the input as a job spec, with and without comments. An accepted spec must resolve, or fail with a
 * proper error, for data sets of any size. */
#include "tests/fuzz/fuzz.h"

#include <math.h>

#include "daemon/spec/spec.h"
#include "daemon/worker/model/hf.h"

static void check_resolved(struct spec *s, uint64_t samples)
{
    struct strbuf b = {0}, again = {0};
    struct json *doc = NULL;
    struct err err = {0};
    struct spec_sizes sizes = {0};
    int r = spec_resolve(s, sizes, samples, 7, &err);
    if (r < 0) {
        check_failure(r, &err);
        return;
    }
    const struct spec_sizes *first = &s->resolved.phases[0];
    HOLDS(s->resolved.n_phases == 1 && first->micro_batch > 0 && first->replicas > 0);
    HOLDS((uint64_t)s->train.global_batch % ((uint64_t)first->micro_batch * first->replicas) == 0);
    HOLDS(s->resolved.total_steps > 0 && s->resolved.total_steps <= SPEC_MAX_STEPS);
    spec_resolved_json(s, &b);
    HOLDS(json_parse(b.at, b.n, "resolved", false, &doc, NULL) == 0);
    json_free(doc);
    spec_resolved_json(s, &again);
    HOLDS(b.n == again.n && memcmp(b.at, again.at, b.n) == 0);
    HOLDS(spec_resolved_sizes(b.at, b.n, 1, &sizes, &err) == 0 && sizes.micro_batch == first->micro_batch &&
          sizes.replicas == first->replicas);
    spec_hash(s);
    const uint64_t steps[] = {0, s->resolved.total_steps / 3, s->resolved.total_steps / 2,
                              s->resolved.total_steps - 1};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        double lr = spec_lr(&s->rate, s->resolved.total_steps, steps[i]);
        HOLDS(isfinite(lr) && lr >= 0 && lr <= s->rate.lr);
        HOLDS(steps[i] > 0 || (!spec_due(s, &s->eval, s->train.global_batch, 0) &&
                               !spec_due(s, &s->checkpoint.every, s->train.global_batch, 0)));
        spec_due(s, &s->eval, s->train.global_batch, steps[i]);
    }
    strbuf_finish(&b);
    strbuf_finish(&again);
}

static void check_spec(const struct spec *s)
{
    HOLDS(s->name != NULL && s->output != NULL && s->output[0] == '/');
    HOLDS(s->model.n_layers >= 1 && s->model.n_layers <= SPEC_MAX_LAYERS);
    HOLDS((s->train.epochs > 0) != (s->train.steps > 0));
    HOLDS(s->train.global_batch >= 1);
    HOLDS(s->resources.devices_min >= 1);
    HOLDS(s->resources.devices_max == 0 || s->resources.devices_max >= s->resources.devices_min);
}

static bool try(const char *text, size_t bytes, bool comments)
{
    static const uint64_t samples[] = {1, 2, 96, 60000, 1ull << 32, 1ull << 53};
    struct spec *s = NULL;
    struct err err = {0};
    const struct spec_options how = {
        .base_dir = "/base", .comments = comments, .read_folder = hf_read_folder};
    int r = spec_parse(text, bytes, "fuzz", &how, &s, &err);
    if (r < 0) {
        HOLDS(s == NULL);
        check_failure(r, &err);
        return false;
    }
    check_spec(s);
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++)
        if (s->model.n_layers < 500 || i == 2) /* of long ones the text takes its time */
            check_resolved(s, samples[i]);
    spec_destroy(s);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    bool without = try((const char *)data, bytes, false), with = try((const char *)data, bytes, true);
    HOLDS(with || !without);
    return 0;
}
