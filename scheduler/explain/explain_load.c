/* Reads a plan from JSON (explain_json.c describes the format). The file may come from anywhere, so
 * nothing in it is trusted.
 *
 * Every index is checked against its table, every count has a limit, and unknown keys are errors. Each error
 * names its path, such as "programs.cycle[12][6][0][2]". A path is built only when something fails: a row is
 * read through a cursor, and each cursor knows the cursor of the enclosing row.
 *
 * The first failure is stored in the loader and turns all later reads into no-ops. Thus the functions
 * that read a row are plain lists of values, without error checks. Only code that uses a value as an
 * index must call failed() first.
 *
 * A loaded plan can safely be printed, simulated, traced and verified. Whether it is correct
 * is checked by plan_verify.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/vec.h"
#include "scheduler/explain/explain.h"
#include "scheduler/explain/explain_parts.h"

/* Limits on the counts in a file. No real plan comes near these limits. They keep a bad file from using too
 * much memory or time. */
enum {
    /* Maximum number of rows in a table, and maximum number of operands or waits in a program. */
    MAX_ROWS = 1 << 22,
    MAX_LAYERS = 1 << 20,
    MAX_MICRO = 1 << 20,
    MAX_REPLICAS = 1 << 16,
    MAX_SLOTS = 1 << 10,
};
#define MAX_BYTES (1ull << 53)

/* The state of one plan_from_json. */
struct plan_loader {
    struct plan *plan;
    struct err *err;
    /* The first failure, as an error code. 0 if nothing has failed. */
    int status;
    struct err detail; /* buffer for the messages of json.h */
};

/* A position in a JSON array, from which the values of the array are read one after another. */
struct load_cursor {
    struct plan_loader *l;
    /* Cursor of the array that contains this array. NULL if this array is a whole table. */
    const struct load_cursor *up;
    /* Name of the table, for error messages. NULL if the cursor is for an inner array. */
    const char *name;
    const struct json *at; /* current element; NULL at the end */
    size_t index;          /* index of the current element */
};

static void cursor_path(const struct load_cursor *c, char *buf, size_t size)
{
    char base[256];

    if (c->up)
        cursor_path(c->up, base, sizeof base);
    json_path_index(buf, size, c->up ? base : c->name, c->index);
}

__attribute__((format(printf, 2, 3))) static void fail(const struct load_cursor *c, const char *fmt, ...)
{
    char path[256];
    va_list ap;

    if (c->l->status < 0)
        return;
    cursor_path(c, path, sizeof path);
    va_start(ap, fmt);
    c->l->status = err_setv(c->l->err, -EINVAL, path, fmt, ap);
    va_end(ap);
}

static bool failed(const struct load_cursor *c)
{
    return c->l->status < 0;
}

static struct load_cursor table_begin(struct plan_loader *l, const char *name, const struct json *array)
{
    return (struct load_cursor){.l = l, .name = name, .at = json_array_first(array)};
}

/* The current element of `up` must be an array. Returns a cursor for this inner array. The caller must not
 * move `up` while the new cursor is in use, because error messages take the path from `up`. */
static struct load_cursor row_begin(const struct load_cursor *up, const char *what)
{
    struct load_cursor c = {.l = up->l, .up = up};

    if (failed(up))
        return c;
    if (!up->at)
        fail(up, "%s: missing", what);
    else if (json_type(up->at) != JSON_ARRAY)
        fail(up, "%s: expected an array, found %s", what, json_type_name(json_type(up->at)));
    else
        c.at = json_array_first(up->at);
    return c;
}

static void cursor_next(struct load_cursor *c)
{
    if (c->at)
        c->at = json_array_next(c->at);
    c->index++;
}

static void row_end(const struct load_cursor *c)
{
    if (c->at)
        fail(c, "this row has too many values");
}

static uint64_t take_u64(struct load_cursor *c, uint64_t max, const char *what)
{
    uint64_t v = 0;

    if (failed(c))
        return 0;
    if (!c->at)
        fail(c, "%s: missing", what);
    else if (json_u64(c->at, "", &v, &c->l->detail) < 0)
        fail(c, "%s: %s", what, c->l->detail.msg);
    else if (v > max)
        fail(c, "%s: must be at most %llu, found %llu", what, (unsigned long long)max, (unsigned long long)v);
    cursor_next(c);
    return failed(c) ? 0 : v;
}

/* Reads a number that must be a valid index into a table of `n` rows. */
static uint32_t take_index(struct load_cursor *c, uint32_t n, const char *what)
{
    if (n == 0)
        fail(c, "%s: its table is empty, so there is nothing to refer to", what);
    return (uint32_t)take_u64(c, n ? n - 1 : 0, what);
}

static bool take_null(struct load_cursor *c)
{
    if (failed(c) || !c->at || json_type(c->at) != JSON_NULL)
        return false;
    cursor_next(c);
    return true;
}

/* Reads an index below `n`, or null. Returns PLAN_NONE for null. In a field for a location, null stands for
 * the host, because PLAN_HOST and PLAN_NONE are the same number. */
static uint32_t take_id(struct load_cursor *c, uint32_t n, const char *what)
{
    return take_null(c) ? PLAN_NONE : take_index(c, n, what);
}

static int take_name(struct load_cursor *c, const char *const *names, int n, const char *what)
{
    const char *text = NULL;

    if (failed(c))
        return 0;
    if (!c->at)
        fail(c, "%s: missing", what);
    else if (json_string(c->at, "", &text, &c->l->detail) < 0)
        fail(c, "%s: %s", what, c->l->detail.msg);
    for (int i = 0; i < n && text; i++) {
        if (names[i] && strcmp(names[i], text) == 0) {
            cursor_next(c);
            return i;
        }
    }
    fail(c, "%s: there is no \"%.40s\"", what, text ? text : "");
    return 0;
}

/* Reads the begin and the end of a byte range in a tensor of `bytes` bytes. */
static void take_range(struct load_cursor *c, uint64_t bytes, uint64_t *ret_begin, uint64_t *ret_end)
{
    *ret_begin = take_u64(c, bytes, "begin");
    *ret_end = take_u64(c, bytes, "end");
    if (*ret_end < *ret_begin)
        fail(c, "begin is after end");
}

static void read_device(struct load_cursor *at, struct plan_device *ret)
{
    struct load_cursor row = row_begin(at, "device");

    ret->lease_bytes = take_u64(&row, MAX_BYTES, "lease_bytes");
    ret->peak_bytes = take_u64(&row, MAX_BYTES, "peak_bytes");
    row_end(&row);
}

static void read_tensor(struct load_cursor *at, struct plan_tensor *ret)
{
    const struct plan *p = at->l->plan;
    struct load_cursor row = row_begin(at, "tensor");

    ret->kind = (enum tensor_kind)take_name(&row, tensor_kind_names, TENSOR_KIND_COUNT, "kind");
    ret->layer = take_id(&row, p->n_layers, "layer");
    ret->micro = take_id(&row, p->n_micro, "micro");
    ret->replica = take_id(&row, p->n_replicas, "replica");
    ret->step = take_id(&row, p->steps, "step");
    ret->group = take_id(&row, p->n_groups, "group");
    ret->dtype = (enum dtype)take_name(&row, dtype_names, DTYPE_COUNT, "dtype");
    ret->bytes = take_u64(&row, MAX_BYTES, "bytes");
    ret->host_offset = take_null(&row) ? PLAN_NO_HOST : take_u64(&row, MAX_BYTES, "host_offset");
    ret->host_slots = (uint32_t)take_u64(&row, MAX_SLOTS, "host_slots");
    row_end(&row);
}

static void read_copy(struct load_cursor *at, struct plan_copy *ret)
{
    const struct plan *p = at->l->plan;
    struct load_cursor row = row_begin(at, "copy");

    ret->tensor = take_index(&row, p->n_tensors, "tensor");
    ret->device = take_index(&row, p->n_devices, "device");
    if (failed(at))
        return;
    take_range(&row, p->tensors[ret->tensor].bytes, &ret->begin, &ret->end);
    ret->addr = take_u64(&row, MAX_BYTES, "addr");
    row_end(&row);
}

static void read_operand(struct load_cursor *at, struct plan_operand *ret)
{
    const struct plan *p = at->l->plan;
    struct load_cursor row = row_begin(at, "operand");

    ret->tensor = take_index(&row, p->n_tensors, "tensor");
    ret->loc = take_id(&row, p->n_devices, "device");
    ret->access = (enum access)take_name(&row, plan_json_access, PLAN_JSON_ACCESS_COUNT, "access");
    ret->role = (enum role)take_name(&row, role_names, ROLE_COUNT, "role");
    ret->addr = take_u64(&row, MAX_BYTES, "addr");
    if (failed(at))
        return;
    ret->begin = 0;
    ret->end = p->tensors[ret->tensor].bytes;
    if (row.at)
        take_range(&row, ret->end, &ret->begin, &ret->end);
    row_end(&row);
}

typedef VEC(struct plan_operand) operand_vec;
typedef VEC(struct plan_wait) wait_vec;

static uint32_t read_operands(struct load_cursor *at, operand_vec *v)
{
    size_t before = v->n;
    struct load_cursor list = row_begin(at, "operands");

    for (; list.at && !failed(at); cursor_next(&list)) {
        struct plan_operand o = {0};
        read_operand(&list, &o);
        if (v->n == MAX_ROWS)
            fail(&list, "more than %d operands in one program", MAX_ROWS);
        else
            vec_push(v, o);
    }
    return (uint32_t)(v->n - before);
}

static uint32_t read_waits(struct load_cursor *at, uint32_t n_instrs, wait_vec *v)
{
    size_t before = v->n;
    struct load_cursor list = row_begin(at, "waits");

    for (; list.at && !failed(at); cursor_next(&list)) {
        struct load_cursor row = row_begin(&list, "wait");
        struct plan_wait w = {.instr = take_index(&row, n_instrs, "instr")};
        w.distance = (uint32_t)take_u64(&row, PLAN_MAX_DISTANCE, "distance");
        row_end(&row);
        if (v->n == MAX_ROWS)
            fail(&list, "more than %d waits in one program", MAX_ROWS);
        else
            vec_push(v, w);
    }
    return (uint32_t)(v->n - before);
}

static void read_instr(struct load_cursor *at, uint32_t n_instrs, operand_vec *operands, wait_vec *waits,
                       struct plan_instr *ret)
{
    const struct plan *p = at->l->plan;
    struct load_cursor row = row_begin(at, "instruction");

    ret->kind = (enum instr_kind)take_name(&row, instr_kind_names, INSTR_KIND_COUNT, "kind");
    ret->stream = take_index(&row, plan_n_streams(p), "stream");
    ret->layer = take_id(&row, p->n_layers, "layer");
    ret->micro = take_id(&row, p->n_micro, "micro");
    ret->replica = take_id(&row, p->n_replicas, "replica");
    ret->step = take_index(&row, p->steps, "step");
    ret->group = take_index(&row, p->n_groups, "group");
    ret->operand = (uint32_t)operands->n;
    ret->n_operands = read_operands(&row, operands);
    cursor_next(&row);
    ret->wait = (uint32_t)waits->n;
    ret->n_waits = read_waits(&row, n_instrs, waits);
    cursor_next(&row);
    row_end(&row);
}

/* Checks that `node` is an array and is not longer than allowed. Returns the length of the array, or 0 if the
 * check fails. */
static uint32_t count_rows(struct plan_loader *l, const char *name, const struct json *node)
{
    if (l->status < 0)
        return 0;
    if (json_type(node) != JSON_ARRAY) {
        l->status =
            err_set_at(l->err, -EINVAL, name, "expected an array, found %s", json_type_name(json_type(node)));
        return 0;
    }
    size_t n = json_array_size(node);
    if (n > MAX_ROWS) {
        l->status = err_set_at(l->err, -E2BIG, name, "%zu rows; at most %d are accepted", n, MAX_ROWS);
        return 0;
    }
    return (uint32_t)n;
}

static void read_program(struct plan_loader *l, const char *name, const struct json *node,
                         struct plan_program *ret)
{
    struct arena *arena = l->plan->arena;
    operand_vec operands = {0};
    wait_vec waits = {0};
    uint32_t n = count_rows(l, name, node);

    if (l->status < 0)
        return;
    ret->instrs = arena_alloc_array(arena, n, sizeof *ret->instrs);
    struct load_cursor at = table_begin(l, name, node);
    for (uint32_t i = 0; i < n && l->status == 0; i++, cursor_next(&at))
        read_instr(&at, n, &operands, &waits, &ret->instrs[i]);
    ret->operands = arena_memdup(arena, operands.at, operands.n * sizeof *operands.at);
    ret->waits = arena_memdup(arena, waits.at, waits.n * sizeof *waits.at);
    ret->n_instrs = n;
    ret->n_operands = (uint32_t)operands.n;
    ret->n_waits = (uint32_t)waits.n;
    vec_free(&operands);
    vec_free(&waits);
}

static void read_programs(struct plan_loader *l, const struct json *node)
{
    const struct json *programs[PROGRAM_COUNT];
    struct json_obj o;
    char path[64];

    json_obj_begin(&o, node, "programs", l->err);
    for (int k = 0; k < PROGRAM_COUNT; k++)
        json_take(&o, program_kind_names[k], JSON_REQUIRED, &programs[k]);
    l->status = json_obj_end(&o);
    for (int k = 0; k < PROGRAM_COUNT && l->status == 0; k++) {
        json_path_key(path, sizeof path, "programs", program_kind_names[k]);
        read_program(l, path, programs[k], &l->plan->programs[k]);
    }
}

static void read_devices(struct plan_loader *l, const struct json *node)
{
    struct plan *p = l->plan;
    uint32_t n = count_rows(l, "devices", node);

    if (l->status == 0 && n != p->n_devices)
        l->status = err_set_at(l->err, -EINVAL, "devices", "%u rows for %u devices", n, p->n_devices);
    if (l->status < 0)
        return;
    struct load_cursor at = table_begin(l, "devices", node);
    for (uint32_t i = 0; i < n && l->status == 0; i++, cursor_next(&at))
        read_device(&at, &p->devices[i]);
}

static void read_tensors(struct plan_loader *l, const struct json *node)
{
    struct plan *p = l->plan;
    uint32_t n = count_rows(l, "tensors", node);

    if (l->status < 0)
        return;
    p->tensors = arena_alloc_array(p->arena, n, sizeof *p->tensors);
    p->n_tensors = n;
    struct load_cursor at = table_begin(l, "tensors", node);
    for (uint32_t i = 0; i < n && l->status == 0; i++, cursor_next(&at))
        read_tensor(&at, &p->tensors[i]);
}

static void read_boundary(struct plan_loader *l, const struct json *node)
{
    struct plan *p = l->plan;
    uint32_t n = count_rows(l, "boundary", node);

    if (l->status < 0)
        return;
    p->boundary = arena_alloc_array(p->arena, n, sizeof *p->boundary);
    p->n_boundary = n;
    struct load_cursor at = table_begin(l, "boundary", node);
    for (uint32_t i = 0; i < n && l->status == 0; i++, cursor_next(&at))
        read_copy(&at, &p->boundary[i]);
}

static void take_count(struct json_obj *o, const char *key, uint32_t max, uint32_t *ret)
{
    uint64_t v = 0;

    if (!json_take_u64(o, key, JSON_REQUIRED, &v))
        return;
    if (v < 1 || v > max)
        json_fail(o, key, -EINVAL, "must be from 1 to %u, found %llu", max, (unsigned long long)v);
    else
        *ret = (uint32_t)v;
}

static void take_schema(struct json_obj *o)
{
    const char *schema = NULL;

    if (json_take_string(o, "schema", JSON_REQUIRED, &schema) && strcmp(schema, PLAN_JSON_SCHEMA) != 0)
        json_fail(o, "schema", -EINVAL, "this program reads \"" PLAN_JSON_SCHEMA "\", found \"%.40s\"",
                  schema);
}

static void take_policy(struct json_obj *o, struct plan *p)
{
    const char *policy = NULL;

    if (!json_take_string(o, "policy", JSON_REQUIRED, &policy))
        return;
    if (strlen(policy) >= sizeof p->policy)
        json_fail(o, "policy", -EINVAL, "at most %zu bytes are accepted", sizeof p->policy - 1);
    else
        memcpy(p->policy, policy, strlen(policy) + 1);
}

static void take_columns(struct json_obj *o)
{
    const struct json *node = NULL;

    if (!json_take(o, "columns", JSON_REQUIRED, &node))
        return;
    char *text = json_print(node);
    if (strcmp(text, plan_json_columns) != 0)
        json_fail(o, "columns", -EINVAL, "these are not the columns of \"" PLAN_JSON_SCHEMA "\"");
    xfree(text);
}

static int load(struct plan_loader *l, const struct json *doc)
{
    struct plan *p = l->plan;
    const struct json *devices = NULL, *tensors = NULL, *boundary = NULL, *programs = NULL;
    struct json_obj o;

    json_obj_begin(&o, doc, "", l->err);
    take_schema(&o);
    take_policy(&o, p);
    take_count(&o, "n_devices", DEVICE_MAX, &p->n_devices);
    take_count(&o, "n_layers", MAX_LAYERS, &p->n_layers);
    take_count(&o, "n_micro", MAX_MICRO, &p->n_micro);
    take_count(&o, "n_replicas", MAX_REPLICAS, &p->n_replicas);
    take_count(&o, "n_groups", MAX_ROWS, &p->n_groups);
    take_count(&o, "rows", UINT32_MAX - 1, &p->rows);
    take_count(&o, "steps", MAX_ROWS, &p->steps);
    json_take_u64(&o, "host_lease_bytes", JSON_REQUIRED, &p->host_lease_bytes);
    json_take_u64(&o, "host_bytes", JSON_REQUIRED, &p->host_bytes);
    take_columns(&o);
    json_take(&o, "devices", JSON_REQUIRED, &devices);
    json_take(&o, "tensors", JSON_REQUIRED, &tensors);
    json_take(&o, "boundary", JSON_REQUIRED, &boundary);
    json_take(&o, "programs", JSON_REQUIRED, &programs);
    l->status = json_obj_end(&o);

    /* Read each table only after the tables to which its rows refer. For example, a boundary copy refers to a
     * tensor. */
    if (l->status == 0)
        read_devices(l, devices);
    if (l->status == 0)
        read_tensors(l, tensors);
    if (l->status == 0)
        read_boundary(l, boundary);
    if (l->status == 0)
        read_programs(l, programs);
    return l->status;
}

int plan_from_json(const char *text, size_t bytes, struct plan **ret, struct err *err)
{
    struct json *doc = NULL;
    int r = json_parse(text, bytes, "plan", false, &doc, err);

    if (r < 0)
        return r;
    struct arena *arena = arena_create();
    struct plan *p = arena_alloc(arena, sizeof *p);
    struct plan_loader l = {.plan = p, .err = err};
    p->arena = arena;
    r = load(&l, doc);
    json_free(doc);
    if (r < 0) {
        plan_destroy(p);
        return r;
    }
    *ret = p;
    return 0;
}
