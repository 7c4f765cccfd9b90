/* Plans written by hand, with plan_script.h, for features that need hand-made plans: replicas, shares, copies
 * within a device, pieces. They have no eval program, and none of them comes from the builder.
 *
 * Most plans use a model of one dense layer with 704 bytes of weights, the Adam optimizer, and a loss. 704 is
 * not a multiple of PLAN_ALIGN, so the second part of K begins at an unaligned offset.
 */
#ifndef TESTS_SHARE_PLANS_H
#define TESTS_SHARE_PLANS_H

#include "base/strbuf.h"
#include "scheduler/table.h"
#include "tests/unit/plan_script.h"

#define SHARE_W   704u
#define SHARE_CUT 256u /* shares: 0..256 and 256..704 */

enum share_graph {
    GRAPH_TWO,      /* 2 replicas of 2 micro-batches */
    GRAPH_PAIR,     /* 2 replicas of 1 */
    GRAPH_DECISION, /* the same with a decision */
    GRAPH_THREE,    /* 3 replicas of 1 */
    GRAPH_TIED,     /* 3 replicas of 1; layer 1 uses the W of layer 0, of which K is no multiple */
    GRAPH_SMALL,    /* K is so small that all of it goes with the last share */
    GRAPH_SIZES,    /* micro-batches of 4, 2 and 4 rows */
    GRAPH_PARTS,    /* dW and the parts of K have other types than W, and one part has fewer elements */
    SHARE_GRAPHS
};

static struct graph *share_graphs[SHARE_GRAPHS];

static struct graph *share_dense(uint32_t n_micro, uint32_t n_replicas, double clip)
{
    struct layer layers[2] = {{.type = &layer_dense,
                               .id = 0,
                               .in = {1, {10}},
                               .out = {1, {16}},
                               .dense = {.bias = true, .act = ACT_RELU}},
                              {.type = &layer_softmax_xent, .id = 1, .in = {1, {16}}}};
    struct model model = {layers, 2};
    struct optimizer optimizer = {.kind = OPTIMIZER_ADAMW, .clip = clip};
    struct graph_config config = {.model = &model,
                                  .optimizer = &optimizer,
                                  .rows = 4,
                                  .n_micro = n_micro,
                                  .n_replicas = n_replicas,
                                  .training = true};
    struct graph *g = NULL;
    struct err err;
    if (graph_build(&config, &g, &err) < 0)
        abort();
    assert(g->layers[0].size.w == SHARE_W && g->layers[0].k_bytes == 2 * SHARE_W);
    return g;
}

struct share_layer {
    uint32_t w, k, x; /* x: of two rows */
    bool tied;        /* to layer 0 */
};

/* Three layers, the last without weights. */
static struct graph *share_table(const struct share_layer *layers, uint32_t batch, uint32_t replicas,
                                 const uint32_t *rows)
{
    struct strbuf b = {0};
    struct table *t = NULL;
    struct graph *g = NULL;
    struct err err;
    strbuf_add(&b, "{\"micro_batch_fwd\":[2,4],\"micro_batch_bwd\":[2,4],\"micro_batch_fwd_bytes\":[2,4],"
                   "\"micro_batch_bwd_bytes\":[2,4],\"micro_batch_input\":[2,4],\"layers\":[");
    for (uint32_t l = 0; l < 3; l++)
        strbuf_addf(&b,
                    "%s{\"weight_bytes\":%u,\"optimizer_bytes\":%u%s,\"input_bytes\":[%u,%u],"
                    "\"fwd_s\":[1e-3,2e-3],\"bwd_s\":[1e-3,2e-3],\"fwd_bytes\":[4000,4000],"
                    "\"bwd_bytes\":[8000,8000],\"update_cpu_s\":1e-3}",
                    l > 0 ? "," : "", layers[l].w, layers[l].k, layers[l].tied ? ",\"tied_to\":0" : "",
                    layers[l].x, 2 * layers[l].x);
    strbuf_add(&b, "]}");
    struct graph_sizes sizes = {batch, replicas, rows};
    if (table_parse(b.at, b.n, "table", &t, &err) < 0 || graph_build_sizes(t, &sizes, true, &g, &err) < 0)
        abort();
    table_destroy(t);
    strbuf_finish(&b);
    return g;
}

/* Returns a graph in which W has 256 elements in F32, dW has F64, and K has three parts: 256 elements in F32,
 * 256 in BF16, and 100 in F32. */
static struct graph *share_parts(void)
{
    static const struct state_part parts[] = {{"first", DTYPE_F32, 256, 0, 1024},
                                              {"half", DTYPE_BF16, 256, 1024, 1536},
                                              {"few", DTYPE_F32, 100, 1536, 1936}};
    const struct share_layer layers[] = {{1024, 1936, 80}, {0, 0, 80}, {0, 0, 80}};
    struct graph *g = share_table(layers, 2, 1, (const uint32_t[]){2, 2, 2});
    g->layers[0].size.w_dtype = DTYPE_F32;
    g->layers[0].parts = parts;
    g->layers[0].n_parts = 3;
    for (tensor_id t = 0; t < g->n_tensors; t++)
        if (g->tensors[t].kind == TENSOR_W)
            g->tensors[t].dtype = DTYPE_F32;
        else if (g->tensors[t].kind == TENSOR_DW)
            g->tensors[t].dtype = DTYPE_F64, g->tensors[t].bytes *= 2;
    for (uint32_t i = 0; i < g->n_operands; i++)
        if (g->tensors[g->operands[i].tensor].kind == TENSOR_DW)
            g->operands[i].end *= 2;
    return g;
}

static int make_share_graphs(void **state)
{
    (void)state;
    share_graphs[GRAPH_TWO] = share_dense(4, 2, 0);
    share_graphs[GRAPH_PAIR] = share_dense(2, 2, 0);
    share_graphs[GRAPH_DECISION] = share_dense(2, 2, 1.0);
    share_graphs[GRAPH_THREE] = share_dense(3, 3, 0);
    const struct share_layer tied[] = {{1024, 1800, 80}, {1024, 0, 80, true}, {0, 0, 80}},
                             small[] = {{1024, 104, 80}, {0, 0, 80}, {0, 0, 80}},
                             sizes[] = {{512, 0, 80}, {256, 256, 200}, {0, 0, 168}};
    share_graphs[GRAPH_TIED] = share_table(tied, 6, 3, (const uint32_t[]){2, 2, 2});
    share_graphs[GRAPH_SMALL] = share_table(small, 2, 1, (const uint32_t[]){2, 2, 2});
    share_graphs[GRAPH_SIZES] = share_table(sizes, 8, 1, (const uint32_t[]){4, 2, 4});
    share_graphs[GRAPH_PARTS] = share_parts();
    return 0;
}

static int free_share_graphs(void **state)
{
    (void)state;
    for (int i = 0; i < SHARE_GRAPHS; i++)
        graph_destroy(share_graphs[i]);
    return 0;
}

/* ---- what the scripts have in common ---- */

static tensor_id find_w(const struct script *s)
{
    return script_tensor(s, TENSOR_W, 0, PLAN_NONE);
}
static tensor_id find_k(const struct script *s)
{
    return script_tensor(s, TENSOR_K, 0, PLAN_NONE);
}

static spot_id fetch_all(struct script *s, tensor_id t, uint32_t device)
{
    spot_id i = script_all(s, t, device);
    script_fetch(s, i, 0, script_bytes(s, t));
    return i;
}

static void spill_all(struct script *s, spot_id i)
{
    script_spill(s, i, s->spots.at[i].begin, s->spots.at[i].end);
}

/* The device's copies of what belongs to the micro-batch. Results go home before. */
static void drop_micro(struct script *s, uint32_t device, uint32_t micro)
{
    for (spot_id i = 0; i < s->spots.n; i++) {
        const struct spot *p = &s->spots.at[i];
        const struct graph_tensor *t = &s->g->tensors[p->tensor];
        if (!p->live || p->device != device || t->micro != micro)
            continue;
        if (t->kind == TENSOR_RESULT)
            spill_all(s, i);
        script_drop(s, i, t->kind == TENSOR_RESULT ? LANE_OUT : LANE_COMPUTE);
    }
}

/* Forward and backward of a micro-batch on the device, which has W. */
static void micro(struct script *s, uint32_t device, uint32_t j)
{
    fetch_all(s, script_tensor(s, TENSOR_X, 0, j), device);
    if (graph_tensor_find(s->g, TENSOR_TARGET, s->g->n_layers - 1, j, 0) != PLAN_NONE)
        fetch_all(s, script_tensor(s, TENSOR_TARGET, s->g->n_layers - 1, j), device);
    for (uint32_t l = 0; l < s->g->n_layers; l++)
        script_task(s, INSTR_FWD, l, j, device, 0, 0);
    for (uint32_t l = s->g->n_layers; l-- > 0;)
        script_task(s, INSTR_BWD, l, j, device, 0, 0);
    drop_micro(s, device, j);
}

/* The spots of a share of K, ret[2], where it is cut into parts. */
static void place_state(struct script *s, uint32_t device, uint64_t begin, uint64_t end, spot_id *ret)
{
    for (uint64_t p = 0; p < 2; p++)
        ret[p] = script_spot(s, find_k(s), device, p * SHARE_W + begin, p * SHARE_W + end);
}

static void fetch_state(struct script *s, const spot_id *parts)
{
    for (int p = 0; p < 2; p++)
        script_fetch(s, parts[p], s->spots.at[parts[p]].begin, s->spots.at[parts[p]].end);
}

static void spill_state(struct script *s, const spot_id *parts)
{
    for (int p = 0; p < 2; p++)
        spill_all(s, parts[p]);
}

static uint64_t share_begin(uint32_t share)
{
    return share ? SHARE_CUT : 0;
}
static uint64_t share_end(uint32_t share)
{
    return share ? SHARE_W : SHARE_CUT;
}

/* DECIDE, and the group state to the devices from..to-1, which update. */
static void group_to(struct script *s, uint32_t from, uint32_t to)
{
    script_task(s, INSTR_DECIDE, PLAN_NONE, PLAN_NONE, PLAN_HOST, 0, 0);
    for (uint32_t d = from; d < to; d++)
        fetch_all(s, script_tensor(s, TENSOR_GROUP, 0, PLAN_NONE), d);
}

/* ---- replicas on one device ---- */

/* Everything on the device; W stays, K comes and goes where activations were. */
static struct edit plan_replicas(void)
{
    struct script s = script_begin(share_graphs[GRAPH_TWO], "replicas", 1);
    s.k = PROGRAM_ENTRY;
    spot_id w = fetch_all(&s, find_w(&s), 0);
    script_keep(&s, w);
    s.k = PROGRAM_CYCLE;
    uint64_t mark = s.next[0] + 2 * 768; /* behind both dW, which come first */
    script_all(&s, script_tensor(&s, TENSOR_DW, 0, 0), 0);
    script_all(&s, script_tensor(&s, TENSOR_DW, 0, 1), 0);
    for (uint32_t j = 0; j < 4; j++) {
        s.next[0] = mark + j % 2 * 4096; /* double buffered */
        micro(&s, 0, j);
    }
    script_task(&s, INSTR_RED, 0, 1, 0, 0, 0);
    s.next[0] = mark;
    spot_id k = fetch_all(&s, find_k(&s), 0);
    group_to(&s, 0, 1);
    script_task(&s, INSTR_UPD, 0, PLAN_NONE, 0, 0, 0);
    spill_all(&s, k);
    script_drop_all(&s, 0);
    s.k = PROGRAM_FLUSH;
    spill_all(&s, w);
    s.k = PROGRAM_EXIT;
    spill_all(&s, w);
    script_drop(&s, w, LANE_OUT);
    return script_end(&s);
}

/* Three replicas; their sums are added up on the host. */
static struct edit plan_replicas_host(void)
{
    struct script s = script_begin(share_graphs[GRAPH_THREE], "replicas, host", 1);
    s.k = PROGRAM_CYCLE;
    spot_id w = fetch_all(&s, find_w(&s), 0);
    for (uint32_t j = 0; j < 3; j++) {
        micro(&s, 0, j);
        spot_id sum = script_find(&s, script_tensor(&s, TENSOR_DW, 0, j), 0, 0, SHARE_W);
        spill_all(&s, sum);
        script_drop(&s, sum, LANE_OUT);
    }
    script_drop(&s, w, LANE_COMPUTE);
    script_task(&s, INSTR_RED, 0, 1, PLAN_HOST, 0, 0);
    script_task(&s, INSTR_RED, 0, 2, PLAN_HOST, 0, 0);
    group_to(&s, 0, 0);
    script_task(&s, INSTR_UPD, 0, PLAN_NONE, PLAN_HOST, 0, 0);
    return script_end(&s);
}

/* Three replicas with tied layers. RED and UPD run in shares, and the second share runs before the first. K
 * is cut in the same proportion as W. */
static struct edit plan_tied(void)
{
    struct script s = script_begin(share_graphs[GRAPH_TIED], "tied", 1);
    s.k = PROGRAM_CYCLE;
    spot_id w = fetch_all(&s, find_w(&s), 0);
    for (uint32_t j = 0; j < 3; j++)
        micro(&s, 0, j);
    spot_id k = script_all(&s, find_k(&s), 0);
    for (uint32_t share = 2; share-- > 0;) {
        uint64_t begin = share ? 512 : 0, end = share ? 1024 : 512;
        for (uint32_t l = 0; l < 2; l++)
            for (uint32_t r = 1; r < 3; r++)
                script_task(&s, INSTR_RED, l, r, 0, begin, end);
        script_fetch(&s, k, share ? 768 : 0, share ? 1800 : 768);
        script_task(&s, INSTR_UPD, 0, PLAN_NONE, 0, begin, end);
    }
    spill_all(&s, w);
    spill_all(&s, k);
    script_drop_all(&s, 0);
    return script_end(&s);
}

/* One device with all of W, 1024 bytes, and K, which updates each half by itself. */
static struct edit plan_halves(enum share_graph g, const char *name)
{
    struct script s = script_begin(share_graphs[g], name, 1);
    s.k = PROGRAM_CYCLE;
    spot_id w = fetch_all(&s, find_w(&s), 0), k = fetch_all(&s, find_k(&s), 0);
    micro(&s, 0, 0);
    script_task(&s, INSTR_UPD, 0, PLAN_NONE, 0, 0, 512);
    script_task(&s, INSTR_UPD, 0, PLAN_NONE, 0, 512, 1024);
    spill_all(&s, w);
    spill_all(&s, k);
    script_drop_all(&s, 0);
    return script_end(&s);
}

/* K is so small that the first of two shares has no part of it. */
static struct edit plan_small_state(void)
{
    return plan_halves(GRAPH_SMALL, "small state");
}
static struct edit plan_parts(void)
{
    return plan_halves(GRAPH_PARTS, "parts");
}

/* ---- two devices, each with a replica and a share ---- */

/* Brings W to both devices: each device gets one half from the host and one half from the other device. w
 * receives the two spots. */
static void gather_w(struct script *s, spot_id *w)
{
    for (uint32_t d = 0; d < 2; d++) {
        w[d] = script_all(s, find_w(s), d);
        script_fetch(s, w[d], share_begin(d), share_end(d));
    }
    for (uint32_t d = 0; d < 2; d++)
        script_send(s, w[d], w[!d], share_begin(d), share_end(d));
}

/* Each device receives its share of the other device's dW. */
static void exchange_sums(struct script *s)
{
    for (uint32_t d = 0; d < 2; d++) {
        tensor_id sum = script_tensor(s, TENSOR_DW, 0, !d);
        spot_id to = script_spot(s, sum, d, share_begin(d), share_end(d));
        script_send(s, script_find(s, sum, !d, 0, SHARE_W), to, share_begin(d), share_end(d));
    }
}

static spot_id find_share(const struct script *s, tensor_id t, uint32_t d)
{
    return script_find(s, t, d, share_begin(d), share_end(d));
}

enum share_update { SHARES_DEVICE, SHARES_HOST, SHARES_MIXED, SHARES_HOST_RED };

static void update_share(struct script *s, uint32_t d, bool host, spot_id w)
{
    spot_id k[2];
    uint64_t begin = share_begin(d), end = share_end(d);
    if (host) {
        script_spill(s, find_share(s, script_tensor(s, TENSOR_DW, 0, 0), d), begin, end);
        script_task(s, INSTR_UPD, 0, PLAN_NONE, PLAN_HOST, begin, end);
        return;
    }
    place_state(s, d, begin, end, k);
    fetch_state(s, k);
    script_task(s, INSTR_UPD, 0, PLAN_NONE, d, begin, end);
    script_spill(s, w, begin, end);
    spill_state(s, k);
}

/* The gradients are whole again on device 0, for the norm. */
static void norm(struct script *s)
{
    tensor_id sum = script_tensor(s, TENSOR_DW, 0, 0), sumsq = script_tensor(s, TENSOR_SUMSQ, 0, PLAN_NONE);
    script_send(s, find_share(s, sum, 1), script_find(s, sum, 0, 0, SHARE_W), share_begin(1), share_end(1));
    script_task(s, INSTR_NORM, 0, PLAN_NONE, 0, 0, 0);
    spill_all(s, script_find(s, sumsq, 0, 0, script_bytes(s, sumsq)));
}

static void spill_sums(struct script *s)
{
    for (uint32_t d = 0; d < 2; d++)
        spill_all(s, script_find(s, script_tensor(s, TENSOR_DW, 0, d), d, 0, SHARE_W));
    for (uint32_t share = 0; share < 2; share++)
        script_task(s, INSTR_RED, 0, 1, PLAN_HOST, share_begin(share), share_end(share));
    group_to(s, 0, 0);
    script_task(s, INSTR_UPD, 0, PLAN_NONE, PLAN_HOST, 0, 0);
}

static struct edit plan_shares(enum share_graph g, enum share_update update, const char *name)
{
    struct script s = script_begin(share_graphs[g], name, 2);
    spot_id w[2];
    s.k = PROGRAM_CYCLE;
    gather_w(&s, w);
    for (uint32_t d = 0; d < 2; d++)
        micro(&s, d, d);
    if (update == SHARES_HOST_RED) {
        spill_sums(&s);
    } else {
        exchange_sums(&s);
        for (uint32_t d = 0; d < 2; d++)
            script_task(&s, INSTR_RED, 0, 1, d, share_begin(d), share_end(d));
        if (s.g->groups[0].decision)
            norm(&s);
        group_to(&s, update == SHARES_DEVICE ? 0 : 1, update == SHARES_HOST ? 1 : 2);
        for (uint32_t d = 0; d < 2; d++)
            update_share(&s, d, update == SHARES_HOST || (update == SHARES_MIXED && d == 0), w[d]);
    }
    for (uint32_t d = 0; d < 2; d++)
        script_drop_all(&s, d);
    return script_end(&s);
}

static struct edit plan_shares_device(void)
{
    return plan_shares(GRAPH_PAIR, SHARES_DEVICE, "shares");
}
static struct edit plan_shares_host(void)
{
    return plan_shares(GRAPH_PAIR, SHARES_HOST, "shares, host");
}
static struct edit plan_shares_mixed(void)
{
    return plan_shares(GRAPH_PAIR, SHARES_MIXED, "shares, mixed");
}
static struct edit plan_shares_host_red(void)
{
    return plan_shares(GRAPH_PAIR, SHARES_HOST_RED, "shares, host reduction");
}
static struct edit plan_shares_decision(void)
{
    return plan_shares(GRAPH_DECISION, SHARES_DEVICE, "shares, decision");
}

/* Each device keeps its share of W and K, and puts W together beside it for every step. */
static struct edit plan_pinned(void)
{
    struct script s = script_begin(share_graphs[GRAPH_PAIR], "pinned shares", 2);
    spot_id pinned[2], w[2], k[2][2];
    s.k = PROGRAM_ENTRY;
    for (uint32_t d = 0; d < 2; d++) {
        pinned[d] = script_spot(&s, find_w(&s), d, share_begin(d), share_end(d));
        place_state(&s, d, share_begin(d), share_end(d), k[d]);
        script_fetch(&s, pinned[d], share_begin(d), share_end(d));
        fetch_state(&s, k[d]);
        script_keep(&s, pinned[d]);
        script_keep(&s, k[d][0]);
        script_keep(&s, k[d][1]);
    }
    s.k = PROGRAM_CYCLE;
    for (uint32_t d = 0; d < 2; d++) {
        w[d] = script_all(&s, find_w(&s), d);
        script_send(&s, pinned[d], w[d], share_begin(d), share_end(d));
    }
    for (uint32_t d = 0; d < 2; d++)
        script_send(&s, pinned[d], w[!d], share_begin(d), share_end(d));
    for (uint32_t d = 0; d < 2; d++)
        micro(&s, d, d);
    for (uint32_t d = 0; d < 2; d++)
        script_drop(&s, w[d], LANE_COMPUTE);
    exchange_sums(&s);
    group_to(&s, 0, 2);
    for (uint32_t d = 0; d < 2; d++) {
        script_task(&s, INSTR_RED, 0, 1, d, share_begin(d), share_end(d));
        script_task(&s, INSTR_UPD, 0, PLAN_NONE, d, share_begin(d), share_end(d));
        script_drop_all(&s, d);
    }
    for (s.k = PROGRAM_FLUSH; s.k <= PROGRAM_EXIT; s.k++)
        for (uint32_t d = 0; d < 2; d++) {
            spill_all(&s, pinned[d]);
            spill_state(&s, k[d]);
            for (int p = -1; s.k == PROGRAM_EXIT && p < 2; p++)
                script_drop(&s, p < 0 ? pinned[d] : k[d][p], LANE_OUT);
        }
    return script_end(&s);
}

/* ---- pieces ---- */

static void update_sizes(struct script *s, uint32_t device, uint32_t layer, spot_id w)
{
    if (layer == 1)
        fetch_all(s, script_tensor(s, TENSOR_K, 1, PLAN_NONE), device);
    script_task(s, INSTR_UPD, layer, PLAN_NONE, device, 0, 0);
    spill_all(s, w);
    if (layer == 1)
        spill_all(s, script_find(s, script_tensor(s, TENSOR_K, 1, PLAN_NONE), device, 0, 256));
}

/* Layer 0 writes X1 as a whole. Layer 1 reads X1 in two pieces, the second piece first, and writes X2 in two
 * pieces. The backward pass does the reverse with dX. */
static struct edit plan_pieces(void)
{
    struct script s = script_begin(share_graphs[GRAPH_SIZES], "pieces", 1);
    spot_id w[2];
    s.k = PROGRAM_CYCLE;
    for (uint32_t l = 0; l < 2; l++)
        w[l] = fetch_all(&s, script_tensor(&s, TENSOR_W, l, PLAN_NONE), 0);
    for (uint32_t j = 0; j < 2; j++) {
        fetch_all(&s, script_tensor(&s, TENSOR_X, 0, j), 0);
        script_task(&s, INSTR_FWD, 0, j, 0, 0, 0);
        script_task(&s, INSTR_FWD, 1, 2 * j + 1, 0, 0, 0);
        script_task(&s, INSTR_FWD, 1, 2 * j, 0, 0, 0);
        script_task(&s, INSTR_FWD, 2, j, 0, 0, 0);
        script_task(&s, INSTR_BWD, 2, j, 0, 0, 0);
        script_task(&s, INSTR_BWD, 1, 2 * j, 0, 0, 0);
        script_task(&s, INSTR_BWD, 1, 2 * j + 1, 0, 0, 0);
        script_task(&s, INSTR_BWD, 0, j, 0, 0, 0);
    }
    for (uint32_t l = 0; l < 2; l++)
        update_sizes(&s, 0, l, w[l]);
    script_drop_all(&s, 0);
    return script_end(&s);
}

/* Each piece of the tensor, where it is on its own, to or from the whole of it on the other device. */
static void move_pieces(struct script *s, tensor_id t, spot_id all, spot_id *pieces, bool apart)
{
    uint64_t bytes = script_bytes(s, t) / 2;
    for (uint32_t i = 0; i < 2; i++) {
        if (apart)
            pieces[i] = script_spot(s, t, 1, i * bytes, (i + 1) * bytes);
        script_send(s, apart ? all : pieces[i], apart ? pieces[i] : all, i * bytes, (i + 1) * bytes);
        if (!apart)
            script_drop(s, pieces[i], LANE_PEER);
    }
}

static void place_pieces(struct script *s, tensor_id t, spot_id *pieces)
{
    uint64_t bytes = script_bytes(s, t) / 2;
    for (uint32_t i = 0; i < 2; i++)
        pieces[i] = script_spot(s, t, 1, i * bytes, (i + 1) * bytes);
}

static void block_apart(struct script *s, uint32_t j)
{
    tensor_id x1 = script_tensor(s, TENSOR_Y, 0, j), x2 = script_tensor(s, TENSOR_Y, 1, j),
              dx1 = script_tensor(s, TENSOR_DX, 1, j), dx2 = script_tensor(s, TENSOR_DX, 2, j);
    spot_id pieces[2];
    fetch_all(s, script_tensor(s, TENSOR_X, 0, j), 0);
    script_task(s, INSTR_FWD, 0, j, 0, 0, 0);
    move_pieces(s, x1, script_find(s, x1, 0, 0, 400), pieces, true);
    place_pieces(s, x2, pieces);
    for (uint32_t i = 0; i < 2; i++)
        script_task(s, INSTR_FWD, 1, 2 * j + i, 1, 0, 0);
    move_pieces(s, x2, script_all(s, x2, 0), pieces, false);
    script_task(s, INSTR_FWD, 2, j, 0, 0, 0);
    script_task(s, INSTR_BWD, 2, j, 0, 0, 0);
    move_pieces(s, dx2, script_find(s, dx2, 0, 0, 336), pieces, true);
    place_pieces(s, dx1, pieces);
    for (uint32_t i = 0; i < 2; i++)
        script_task(s, INSTR_BWD, 1, 2 * j + i, 1, 0, 0);
    move_pieces(s, dx1, script_all(s, dx1, 0), pieces, false);
    script_task(s, INSTR_BWD, 0, j, 0, 0, 0);
}

/* The plan of plan_pieces with layer 1 on another device. The pieces are moved one by one, and a piece with
 * an address of its own is aligned. */
static struct edit plan_pieces_apart(void)
{
    struct script s = script_begin(share_graphs[GRAPH_SIZES], "pieces apart", 2);
    spot_id w[2];
    s.k = PROGRAM_CYCLE;
    for (uint32_t l = 0; l < 2; l++)
        w[l] = fetch_all(&s, script_tensor(&s, TENSOR_W, l, PLAN_NONE), l);
    for (uint32_t j = 0; j < 2; j++)
        block_apart(&s, j);
    for (uint32_t l = 0; l < 2; l++)
        update_sizes(&s, l, l, w[l]);
    script_drop_all(&s, 0);
    script_drop_all(&s, 1);
    return script_end(&s);
}

/* ---- all of them ---- */

static const struct share_plan {
    struct edit (*make)(void);
    enum share_graph graph;
} share_plans[] = {
    {plan_replicas, GRAPH_TWO},       {plan_replicas_host, GRAPH_THREE},
    {plan_tied, GRAPH_TIED},          {plan_small_state, GRAPH_SMALL},
    {plan_shares_device, GRAPH_PAIR}, {plan_shares_host, GRAPH_PAIR},
    {plan_shares_mixed, GRAPH_PAIR},  {plan_shares_host_red, GRAPH_PAIR},
    {plan_pinned, GRAPH_PAIR},        {plan_shares_decision, GRAPH_DECISION},
    {plan_pieces, GRAPH_SIZES},       {plan_pieces_apart, GRAPH_SIZES},
    {plan_parts, GRAPH_PARTS},
};
#define SHARE_PLANS (sizeof share_plans / sizeof *share_plans)

static struct machine share_machine = {
    .n_devices = 2, .capacity_bytes = {SCRIPT_LEASE, SCRIPT_LEASE}, .host_bytes = 1 << 20};

#endif
