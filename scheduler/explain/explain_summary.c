/* Implements plan_summary, the page that a person reads before running a job, and its JSON form. The page has
 * four blocks, and explain_why.c adds a fifth:
 *
 *     COMPUTE  packs of each device in the forward and backward pass, recomputation, where updates run
 *     BYTES    bytes per iteration by class and direction, rounded and exact, and their lower bound
 *     MEMORY   peak and capacity of each device, and what stays there between iterations
 *     TIME     the simulator's prediction, split into compute and stall
 */
#include "scheduler/explain/explain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/sort.h"
#include "scheduler/explain/explain_parts.h"
#include "scheduler/predict/bound.h"

/* ----------------------------------------------------------------------- columns and numbers */

enum { LABEL_WIDTH = 12 };

/* Pads the line that starts at offset `line` of `out` with spaces to `width` columns. The line then ends with
 * at least two spaces, so that columns stay apart. */
static void pad(struct strbuf *out, size_t line, size_t width)
{
    do
        strbuf_add(out, " ");
    while (out->n - line < width || out->at[out->n - 2] != ' ');
}

size_t explain_label(struct strbuf *out, const char *text)
{
    size_t line = out->n;

    strbuf_add(out, text);
    pad(out, line, LABEL_WIDTH);
    return line;
}

static size_t label_device(struct strbuf *out, uint32_t device)
{
    char text[24];

    snprintf(text, sizeof text, "device %u", device);
    return explain_label(out, text);
}

/* Adds a size, right-aligned in `width` columns. */
static void add_size(struct strbuf *out, uint64_t bytes, int width)
{
    struct strbuf size = {0};

    strbuf_add_bytes(&size, bytes);
    strbuf_addf(out, "%*s", width, size.at);
    strbuf_finish(&size);
}

void explain_add_time(struct strbuf *out, uint64_t ns)
{
    double s = (double)ns / 1e9;

    if (ns >= 1000000000u)
        strbuf_addf(out, "%.3f s", s);
    else if (ns >= 1000000u)
        strbuf_addf(out, "%.3f ms", s * 1e3);
    else
        strbuf_addf(out, "%.3f us", s * 1e6);
}

static double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

/* ------------------------------------------------------------------------------------- packs */

static uint32_t pack_size(const struct pack *k)
{
    return (k->first < k->last ? k->last - k->first : k->first - k->last) + 1;
}

static uint32_t pack_stride(const struct pack *a, const struct pack *b)
{
    return pack_size(&(struct pack){a->first, b->first}) - 1;
}

/* Returns how many packs at the start of the list are alike. Packs are alike if they have the same number of
 * layers, and if the distance from each pack to the next is the same. */
static uint32_t count_alike(const struct pack *packs, uint32_t n)
{
    uint32_t same = 1;

    while (same < n && pack_size(&packs[same]) == pack_size(&packs[0]) &&
           pack_stride(&packs[same - 1], &packs[same]) == pack_stride(&packs[0], &packs[1]))
        same++;
    return same;
}

static void add_range(struct strbuf *out, uint32_t first, uint32_t last)
{
    strbuf_addf(out, "%u", first);
    if (first != last)
        strbuf_addf(out, "-%u", last);
}

/* Adds a short form for several packs that are alike. For example, "0-11 by 4" stands for the packs 0-3, 4-7
 * and 8-11. Packs with gaps between them look like this: "0-1, 4-5 .. 48-49". */
static void add_alike(struct strbuf *out, const struct pack *packs, uint32_t n)
{
    const struct pack *last = &packs[n - 1];

    if (pack_stride(&packs[0], &packs[1]) == pack_size(&packs[0])) {
        add_range(out, packs[0].first, last->last);
        strbuf_addf(out, " by %u", pack_size(&packs[0]));
        return;
    }
    add_range(out, packs[0].first, packs[0].last);
    strbuf_add(out, ", ");
    add_range(out, packs[1].first, packs[1].last);
    strbuf_add(out, " .. ");
    add_range(out, last->first, last->last);
}

/* Adds the packs in the order in which they run, such as "0-3, 4-7, 8". If four or more packs in a row are
 * alike, uses a short form for them. */
static void add_packs(struct strbuf *out, const struct plan *p, const struct layer_use *use, int way)
{
    struct pack *packs = xcalloc(p->n_layers, sizeof *packs);
    uint32_t n = explain_find_packs(p, use, way, packs);

    for (uint32_t i = 0; i < n;) {
        uint32_t same = count_alike(packs + i, n - i);
        strbuf_add(out, i ? ", " : "");
        if (same >= 4) {
            add_alike(out, packs + i, same);
            i += same;
        } else {
            add_range(out, packs[i].first, packs[i].last);
            i++;
        }
    }
    xfree(packs);
}

/* Adds the numbers of the layers in use as ranges, such as "0-7, 9". Ignores the borders of packs. */
static void add_layers(struct strbuf *out, const struct plan *p, struct layer_use *use)
{
    for (uint32_t l = 0; l < p->n_layers; l++)
        use[l].begins = false;
    add_packs(out, p, use, 1);
}

/* ---------------------------------------------------------------------------------- the head */

/* Adds the types of all layers, such as "dense x4, softmax_xent". Here, "x4" means four layers of this type
 * in a row. */
static void add_types(struct strbuf *out, const struct graph *g)
{
    for (uint32_t l = 0, end; l < g->n_layers; l = end) {
        for (end = l + 1; end < g->n_layers && strcmp(g->layers[end].type, g->layers[l].type) == 0; end++)
            ;
        strbuf_addf(out, "%s%s", l ? ", " : "", g->layers[l].type);
        if (end - l > 1)
            strbuf_addf(out, " x%u", end - l);
    }
}

static void add_model(struct strbuf *out, const struct plan *p, const struct graph *g)
{
    uint64_t w = 0, k = 0;

    for (uint32_t l = 0; l < g->n_layers; l++) {
        w += g->layers[l].tied ? 0 : g->layers[l].size.w;
        k += g->layers[l].k_bytes;
    }
    explain_label(out, "model");
    strbuf_addf(out, "%u layer%s (", p->n_layers, explain_plural(p->n_layers));
    add_types(out, g);
    strbuf_add(out, "), weights ");
    strbuf_add_bytes(out, w);
    strbuf_add(out, ", optimizer state ");
    strbuf_add_bytes(out, k);
    strbuf_add(out, "\n");
}

/* Adds the micro-batch sizes, such as "8 micro-batches of 4 rows". If the layers have different sizes, adds a
 * text such as "32 rows in micro-batches of 4; layers 41-51 of 1". */
static void add_sizes(struct strbuf *out, const struct plan *p, const struct graph *g)
{
    uint32_t first = 0, n = 0;
    for (uint32_t l = 1; g != NULL && l <= g->n_layers; l++) {
        if (l < g->n_layers && g->layers[l].rows == g->layers[first].rows)
            continue;
        if (n++ == 0 && l < g->n_layers)
            strbuf_addf(out, "%u rows in micro-batches of %u", g->rows * g->n_micro, g->layers[0].rows);
        else if (n > 1)
            strbuf_addf(out, "%s", n == 2 ? "; layers " : ", "), add_range(out, first, l - 1),
                strbuf_addf(out, " of %u", g->layers[first].rows);
        first = l;
    }
    if (n <= 1)
        strbuf_addf(out, "%u micro-batch%s of %u row%s", p->n_micro, p->n_micro == 1 ? "" : "es", p->rows,
                    explain_plural(p->rows));
}

static void add_summary_head(struct strbuf *out, const struct plan *p, const struct graph *g)
{
    explain_label(out, "plan");
    strbuf_addf(out, "policy %s on %u device%s, %u instructions per iteration\n", p->policy, p->n_devices,
                explain_plural(p->n_devices), p->programs[PROGRAM_CYCLE].n_instrs);
    add_model(out, p, g);
    explain_label(out, "batch");
    add_sizes(out, p, g);
    if (p->n_replicas > 1)
        strbuf_addf(out, ", %u replicas", p->n_replicas);
    if (p->steps > 1)
        strbuf_addf(out, "; an iteration is a cycle of %u training steps", p->steps);
    strbuf_add(out, "\n");
}

/* ----------------------------------------------------------------------------------- compute */

/* Adds a line with the layers for which a stream runs tasks of kind `kind`. `who` is the name of the device
 * on the first line about the device, and "" on the other lines. */
static void add_kind(struct strbuf *out, const struct plan *p, uint32_t stream, enum instr_kind kind,
                     const char *who, struct layer_use *use)
{
    static const char *const words[INSTR_KIND_COUNT] = {
        [INSTR_FWD] = "forward", [INSTR_BWD] = "backward", [INSTR_REC] = "recompute", [INSTR_UPD] = "update"};
    size_t line = explain_label(out, who);

    strbuf_add(out, words[kind]);
    pad(out, line, LABEL_WIDTH + 12);
    explain_find_use(p, stream, kind, use);
    if (kind == INSTR_REC || kind == INSTR_UPD)
        add_layers(out, p, use);
    else
        add_packs(out, p, use, kind == INSTR_BWD ? -1 : 1);
    strbuf_add(out, "\n");
}

static bool runs_kind(const struct plan *p, uint32_t stream, enum instr_kind kind)
{
    const struct plan_program *prog = &p->programs[PROGRAM_CYCLE];

    for (uint32_t i = 0; i < prog->n_instrs; i++)
        if (prog->instrs[i].stream == stream && prog->instrs[i].kind == kind)
            return true;
    return false;
}

static void add_stream_tasks(struct strbuf *out, const struct plan *p, uint32_t stream, const char *who,
                             struct layer_use *use)
{
    static const enum instr_kind kinds[] = {INSTR_FWD, INSTR_BWD, INSTR_REC, INSTR_UPD};

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!runs_kind(p, stream, kinds[i]))
            continue;
        add_kind(out, p, stream, kinds[i], who, use);
        who = "";
    }
}

static void add_compute(struct strbuf *out, const struct plan *p)
{
    struct layer_use *use = xcalloc(p->n_layers, sizeof *use);
    char who[24];

    strbuf_addf(out, "\n%-*slayers in order; a-b is one pack, \"by n\": packs of n layers\n", LABEL_WIDTH,
                "COMPUTE");
    for (uint32_t d = 0; d < p->n_devices; d++) {
        snprintf(who, sizeof who, "device %u", d);
        add_stream_tasks(out, p, plan_stream(d, LANE_COMPUTE), who, use);
    }
    add_stream_tasks(out, p, plan_host_stream(p), "host", use);
    xfree(use);
}

/* ------------------------------------------------------------------------------------- bytes */

enum { HUMAN_WIDTH = 12, EXACT_WIDTH = 17 };

/* Counts the bytes that move between devices, separately for each class of tensors. struct plan_bytes has
 * only the sum over all classes. */
static void count_peer(const struct plan *p, uint64_t ret[BYTES_CLASS_COUNT])
{
    const struct plan_program *prog = &p->programs[PROGRAM_CYCLE];

    memset(ret, 0, BYTES_CLASS_COUNT * sizeof *ret);
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        const struct plan_instr *in = &prog->instrs[i];
        if (in->kind != INSTR_SEND || in->n_operands == 0)
            continue;
        const struct plan_operand *o = &prog->operands[in->operand];
        ret[tensor_byte_class(&p->tensors[o->tensor])] += operand_bytes(o);
    }
}

static void add_bytes_row(struct strbuf *out, const char *name, const uint64_t *bytes, int n)
{
    explain_label(out, name);
    for (int i = 0; i < n; i++) {
        add_size(out, bytes[i], HUMAN_WIDTH);
        strbuf_addf(out, "%*llu", EXACT_WIDTH, (unsigned long long)bytes[i]);
    }
    strbuf_add(out, "\n");
}

/* Adds a line about the programs that run only once in a while: entry when training starts, flush for a
 * checkpoint, and exit when training stops. It shows how many bytes each of them moves. */
static void add_once(struct strbuf *out, const struct plan *p)
{
    struct plan_bytes entry, flush, exit_;

    plan_count_bytes(p, PROGRAM_ENTRY, &entry);
    plan_count_bytes(p, PROGRAM_FLUSH, &flush);
    plan_count_bytes(p, PROGRAM_EXIT, &exit_);
    explain_label(out, "besides");
    strbuf_add(out, "entry moves ");
    strbuf_add_bytes(out, entry.in);
    strbuf_add(out, " in; a flush for a checkpoint ");
    strbuf_add_bytes(out, flush.out);
    strbuf_add(out, " out; exit ");
    strbuf_add_bytes(out, exit_.out);
    strbuf_add(out, " out\n");
}

/* Adds a line with three numbers: a lower bound on the bytes that any plan has to move, the bytes that this
 * plan moves, and the ratio of the two. */
static void add_bound(struct strbuf *out, const struct plan *p, const struct plan_bytes *b)
{
    uint64_t least = bound_bytes(p), moved = b->state_in + b->state_out + b->stash_in + b->stash_out;

    explain_label(out, "bound");
    add_size(out, least, HUMAN_WIDTH);
    strbuf_addf(out, "%*llu", EXACT_WIDTH, (unsigned long long)least);
    strbuf_add(out, "  state + stash cannot be less; here ");
    strbuf_add_bytes(out, moved);
    if (least > 0)
        strbuf_addf(out, ", %.2f times that", (double)moved / (double)least);
    strbuf_add(out, "\n");
}

static void add_bytes(struct strbuf *out, const struct plan *p)
{
    int n = p->n_devices > 1 ? 3 : 2;
    struct plan_bytes b;
    uint64_t peer[BYTES_CLASS_COUNT];

    plan_count_bytes(p, PROGRAM_CYCLE, &b);
    count_peer(p, peer);
    strbuf_addf(out, "\n%-*s%*s%*s", LABEL_WIDTH, "BYTES", HUMAN_WIDTH + EXACT_WIDTH, "in per iteration",
                HUMAN_WIDTH + EXACT_WIDTH, "out per iteration");
    if (n > 2)
        strbuf_addf(out, "%*s", HUMAN_WIDTH + EXACT_WIDTH, "device to device");
    strbuf_add(out, "\n");
    add_bytes_row(out, "state", (uint64_t[]){b.state_in, b.state_out, peer[BYTES_STATE]}, n);
    add_bytes_row(out, "stash", (uint64_t[]){b.stash_in, b.stash_out, peer[BYTES_STASH]}, n);
    add_bytes_row(out, "data", (uint64_t[]){b.data_in, b.data_out, peer[BYTES_DATA]}, n);
    add_bytes_row(out, "total", (uint64_t[]){b.in, b.out, b.peer}, n);
    add_bound(out, p, &b);
    add_once(out, p);
}

/* ------------------------------------------------------------------------------------ memory */

/* Adds what stays on a device between iterations, such as "W 1.20 MiB (0-2); K 2.40 MiB (0-2)". The numbers
 * in parentheses are layers. */
static void add_resident(struct strbuf *out, const struct plan *p, uint32_t device, struct layer_use *use)
{
    bool any = false;

    for (int kind = 0; kind < TENSOR_KIND_COUNT; kind++) {
        uint64_t bytes = 0;
        memset(use, 0, p->n_layers * sizeof *use);
        for (uint32_t i = 0; i < p->n_boundary; i++) {
            const struct plan_copy *c = &p->boundary[i];
            const struct plan_tensor *t = &p->tensors[c->tensor];
            if (c->device != device || (int)t->kind != kind)
                continue;
            bytes += c->end - c->begin;
            if (t->layer < p->n_layers)
                use[t->layer].used = true;
        }
        if (bytes == 0)
            continue;
        strbuf_addf(out, "%s%s ", any ? "; " : "", tensor_kind_names[kind]);
        strbuf_add_bytes(out, bytes);
        strbuf_add(out, " (");
        add_layers(out, p, use);
        strbuf_add(out, ")");
        any = true;
    }
    strbuf_add(out, any ? "\n" : "nothing\n");
}

static void add_memory_row(struct strbuf *out, uint64_t peak, uint64_t capacity)
{
    add_size(out, peak, HUMAN_WIDTH);
    strbuf_addf(out, "%*llu", EXACT_WIDTH, (unsigned long long)peak);
    add_size(out, capacity, HUMAN_WIDTH + 2);
    strbuf_addf(out, "%7.1f%%", percent(peak, capacity));
}

/* Returns the memory that a device needs, divided by the largest number of bytes in use at once. The result
 * is 1 if no memory is lost in gaps between copies. */
static double fragmentation(const struct plan *p, uint32_t device, const uint64_t *live)
{
    return live[device] ? (double)p->devices[device].peak_bytes / (double)live[device] : 1;
}

static void add_fragmentation(struct strbuf *out, const struct plan *p)
{
    uint64_t live[DEVICE_MAX];

    plan_live_peak(p, live);
    explain_label(out, "addresses");
    strbuf_add(out, "peak by most bytes alive at once: ");
    for (uint32_t d = 0; d < p->n_devices; d++)
        strbuf_addf(out, "%s%.3f", d ? ", " : "", fragmentation(p, d, live));
    strbuf_add(out, "\n");
}

static void add_memory(struct strbuf *out, const struct plan *p)
{
    struct layer_use *use = xcalloc(p->n_layers, sizeof *use);

    strbuf_addf(out, "\n%-*s%*s%*s%8s  stays on the device between iterations (layers)\n", LABEL_WIDTH,
                "MEMORY", HUMAN_WIDTH + EXACT_WIDTH, "peak", HUMAN_WIDTH + 2, "capacity", "used");
    for (uint32_t d = 0; d < p->n_devices; d++) {
        label_device(out, d);
        add_memory_row(out, p->devices[d].peak_bytes, p->devices[d].lease_bytes);
        strbuf_add(out, "  ");
        add_resident(out, p, d, use);
    }
    explain_label(out, "host");
    add_memory_row(out, p->host_bytes, p->host_lease_bytes);
    strbuf_add(out, "\n");
    add_fragmentation(out, p);
    xfree(use);
}

/* -------------------------------------------------------------------------------------- time */

/* Returns the part of an iteration in which a device does not compute. Runs of the cycle overlap, so the
 * device may compute for longer than an iteration takes. The result is then 0. */
static uint64_t stall_of(const struct sim_result *sim, uint64_t compute_ns)
{
    return sim->cycle_ns > compute_ns ? sim->cycle_ns - compute_ns : 0;
}

static void add_prediction(struct strbuf *out, const struct plan *p, const struct sim_result *sim,
                           const char *times)
{
    strbuf_addf(out, "\n%-*spredicted with %s\n", LABEL_WIDTH, "TIME",
                times ? times : "the analytic profile, not measured");
    explain_label(out, "iteration");
    explain_add_time(out, sim->cycle_ns);
    strbuf_add(out, "\n");
    for (uint32_t d = 0; d < p->n_devices; d++) {
        label_device(out, d);
        uint64_t compute = sim->compute_ns[d] / sim->runs;
        strbuf_addf(out, "compute %5.1f%%   stall %5.1f%%   (", percent(compute, sim->cycle_ns),
                    percent(stall_of(sim, compute), sim->cycle_ns));
        explain_add_time(out, compute);
        strbuf_add(out, " of compute per iteration)\n");
    }
}

/* Adds a line about the lower bound on the time: by how much the predicted time exceeds the bound, and which
 * resource determines the bound. The bound is for one training step, but an iteration may have several
 * steps. */
static void add_time_bound(struct strbuf *out, const struct plan *p, const struct sim_result *sim,
                           const struct time_bound *bound)
{
    double least = (double)bound->ns * p->steps, ns = (double)sim->cycle_ns;

    if (bound->ns == 0)
        return;
    explain_label(out, "bound");
    if (ns > least * 1.0005)
        strbuf_addf(out, "at most %.1f%% above what any plan could reach", 100 * (ns / least - 1));
    else
        strbuf_add(out, "no plan could be faster");
    strbuf_add(out, " with these micro-batches (bound ");
    explain_add_time(out, bound->ns * p->steps);
    strbuf_addf(out, ": %s%s)\n", time_bound_names[bound->kind], bound->traded ? " and others" : "");
}

void plan_summary(const struct plan *p, const struct graph *g, const struct sim_result *cycle,
                  const struct time_bound *bound, const char *times, struct strbuf *out)
{
    add_summary_head(out, p, g);
    add_compute(out, p);
    add_bytes(out, p);
    add_memory(out, p);
    if (cycle)
        add_prediction(out, p, cycle, times);
    if (cycle && bound)
        add_time_bound(out, p, cycle, bound);
}

/* ---------------------------------------------------------------------------------- figures */

static const char *form_of(const struct plan *p)
{
    const struct plan_program *prog = &p->programs[PROGRAM_CYCLE];
    uint32_t used = 0, first = 0; /* devices that compute; devices with layer 0 */
    bool busy[DEVICE_MAX] = {false}, begins[DEVICE_MAX] = {false};
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        const struct plan_instr *in = &prog->instrs[i];
        uint32_t d = in->stream / LANE_COUNT;
        if (in->kind != INSTR_FWD || d >= p->n_devices)
            continue;
        busy[d] = true;
        begins[d] |= in->layer == 0;
    }
    for (uint32_t d = 0; d < p->n_devices; d++) {
        used += busy[d];
        first += begins[d];
    }
    if (used <= 1)
        return "single";
    return first > 1 ? "dp" : "pp"; /* several pipelines count as "dp" */
}

void plan_figures(const struct plan *p, const struct sim_result *cycle, struct plan_figures *ret)
{
    const struct plan_bytes *b = &cycle->bytes;

    *ret = (struct plan_figures){
        .form = form_of(p),
        .iteration_ns = cycle->cycle_ns,
        .moved_bytes = b->state_in + b->state_out + b->stash_in + b->stash_out,
        .bound_bytes = bound_bytes(p),
    };
    for (uint32_t d = 0; d < p->n_devices; d++) {
        const struct plan_device *dev = &p->devices[d];
        ret->compute_ns += cycle->compute_ns[d] / cycle->runs / p->n_devices;
        if (d == 0 ||
            percent(dev->peak_bytes, dev->lease_bytes) > percent(ret->peak_bytes, ret->capacity_bytes)) {
            ret->peak_bytes = dev->peak_bytes;
            ret->capacity_bytes = dev->lease_bytes;
        }
    }
    ret->stall_ns = stall_of(cycle, ret->compute_ns);
}

/* ---------------------------------------------------------------------------------- as JSON */

static int by_first_layer(const void *pa, const void *pb)
{
    const struct pack *a = pa, *b = pb;

    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return a->last < b->last ? -1 : a->last > b->last;
}

/* Adds the packs of all devices in ascending order, as [[first, last], ...]. A pack that runs on several
 * devices is listed only once. */
static void add_json_packs(struct strbuf *out, const struct plan *p, enum instr_kind kind)
{
    struct pack *packs = xcalloc((size_t)p->n_layers * p->n_devices, sizeof *packs);
    struct layer_use *use = xcalloc(p->n_layers, sizeof *use);
    uint32_t n = 0;

    for (uint32_t d = 0; d < p->n_devices; d++) {
        explain_find_use(p, plan_stream(d, LANE_COMPUTE), kind, use);
        n += explain_find_packs(p, use, kind == INSTR_BWD ? -1 : 1, packs + n);
    }
    for (uint32_t i = 0; i < n; i++)
        if (packs[i].first > packs[i].last)
            packs[i] = (struct pack){packs[i].last, packs[i].first};
    sort_array(packs, n, sizeof *packs, by_first_layer);
    strbuf_add(out, "[");
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || packs[i].first != packs[i - 1].first || packs[i].last != packs[i - 1].last)
            strbuf_addf(out, "%s[%u,%u]", i ? "," : "", packs[i].first, packs[i].last);
    strbuf_add(out, "]");
    xfree(packs);
    xfree(use);
}

/* Returns an array with the number of rows in a micro-batch for each layer. The number is 0 for a layer
 * without forward tasks. The caller frees the array. */
static uint32_t *layer_rows(const struct plan *p)
{
    const struct plan_program *prog = &p->programs[PROGRAM_CYCLE];
    uint32_t *rows = xcalloc((size_t)p->n_layers + 1, sizeof *rows);
    for (uint32_t i = 0; i < prog->n_instrs; i++)
        if (prog->instrs[i].kind == INSTR_FWD && prog->instrs[i].layer < p->n_layers)
            rows[prog->instrs[i].layer]++;
    for (uint32_t l = 0; l < p->n_layers; l++)
        rows[l] = rows[l] > 0 ? (uint32_t)((uint64_t)p->rows * p->n_micro * p->steps / rows[l]) : 0;
    return rows;
}

/* Adds [first, last, rows] for each range of layers whose micro-batches have the same number of rows. */
static void add_json_sizes(struct strbuf *out, const struct plan *p, const uint32_t *rows)
{
    uint32_t first = 0;
    for (uint32_t l = 1; l <= p->n_layers; l++) {
        if (l < p->n_layers && rows[l] == rows[first])
            continue;
        strbuf_addf(out, "%s[%u,%u,%u]", first ? "," : "", first, l - 1, rows[first]);
        first = l;
    }
}

void plan_summary_json(const struct plan *p, const struct sim_result *cycle, const struct time_bound *bound,
                       double plan_s, struct strbuf *out)
{
    const struct plan_bytes *b = &cycle->bytes;
    struct plan_figures f;
    uint64_t live[DEVICE_MAX];

    plan_figures(p, cycle, &f);
    strbuf_add(out, "{\"policy\":");
    strbuf_add_json(out, p->policy);
    uint32_t *rows = layer_rows(p);
    strbuf_addf(out, ",\"form\":\"%s\",\"micro_batch_fwd\":%u,\"micro_batch_bwd\":%u,\"micro_batches\":[",
                f.form, rows[0], rows[0]);
    add_json_sizes(out, p, rows);
    xfree(rows);
    strbuf_add(out, "],\"packs_fwd\":");
    add_json_packs(out, p, INSTR_FWD);
    strbuf_add(out, ",\"packs_bwd\":");
    add_json_packs(out, p, INSTR_BWD);
    strbuf_addf(out, ",\"iteration_s\":%.9g,\"compute_s\":%.9g,\"stall_s\":%.9g,\"device_peak_bytes\":[",
                (double)f.iteration_ns * 1e-9, (double)f.compute_ns * 1e-9, (double)f.stall_ns * 1e-9);
    for (uint32_t d = 0; d < p->n_devices; d++)
        strbuf_addf(out, "%s%llu", d ? "," : "", (unsigned long long)p->devices[d].peak_bytes);
    plan_live_peak(p, live);
    strbuf_add(out, "],\"fragmentation\":[");
    for (uint32_t d = 0; d < p->n_devices; d++)
        strbuf_addf(out, "%s%.6g", d ? "," : "", fragmentation(p, d, live));
    strbuf_addf(out,
                "],\"host_bytes\":%llu,\"host_in_bytes\":%llu,\"host_out_bytes\":%llu,\"peer_bytes\":%llu,"
                "\"state_bytes\":%llu,\"activation_bytes\":%llu,\"bound_bytes\":%llu,\"time_bound_s\":%.9g,"
                "\"time_bound_by\":\"%s\",\"plan_s\":%.3g,\"verified\":true}",
                (unsigned long long)p->host_bytes, (unsigned long long)b->in, (unsigned long long)b->out,
                (unsigned long long)b->peer, (unsigned long long)(b->state_in + b->state_out),
                (unsigned long long)(b->stash_in + b->stash_out + b->peer), (unsigned long long)f.bound_bytes,
                (double)bound->ns * 1e-9, time_bound_names[bound->kind], plan_s);
}
