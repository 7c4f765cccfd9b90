/* Implements the lines and JSON-RPC messages of wire.h. Each program reads and writes its sockets itself. The
 * other side decides how long a line is, so every allocation may fail. In this case, wire_in_space offers no
 * space, and wire_parse returns -ENOMEM. */
#include "base/wire.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/get.h"
#include "base/mem.h"

#define FIRST_CAP 4096

/* ---- lines ---- */

void wire_in_init(struct wire_in *in, size_t max_line)
{
    *in = (struct wire_in){.max = max_line};
}

void wire_in_finish(struct wire_in *in)
{
    free(in->at);
    *in = (struct wire_in){.max = in->max};
}

void wire_in_space(struct wire_in *in, char **ret, size_t *ret_n)
{
    if (in->begin == in->end)
        in->begin = in->end = in->scanned = 0;
    if (in->begin > 0 && in->end == in->cap) {
        memmove(in->at, in->at + in->begin, in->end - in->begin);
        in->end -= in->begin;
        in->scanned -= in->begin;
        in->begin = 0;
    }
    if (in->end == in->cap && in->cap < in->max) {
        size_t want = in->cap == 0 ? FIRST_CAP : 2 * in->cap, cap = want < in->max ? want : in->max;
        char *more = mem_realloc(in->at, cap);
        if (more != NULL) {
            in->at = more;
            in->cap = cap;
        }
    }
    *ret = in->at != NULL ? in->at + in->end : NULL;
    *ret_n = in->cap - in->end;
}

void wire_in_added(struct wire_in *in, size_t n)
{
    in->end += n;
}

int wire_in_line(struct wire_in *in, char **ret, size_t *ret_bytes)
{
    char *newline = in->end > in->scanned ? memchr(in->at + in->scanned, '\n', in->end - in->scanned) : NULL;
    if (newline == NULL) {
        in->scanned = in->end;
        return in->end - in->begin >= in->max ? -EMSGSIZE : 0;
    }
    *newline = '\0';
    *ret = in->at + in->begin;
    *ret_bytes = (size_t)(newline - *ret);
    in->begin = in->scanned = (size_t)(newline - in->at) + 1;
    return 1;
}

int wire_in_steal(struct wire_in *in, char **ret)
{
    size_t rest = in->end - in->begin, cap = rest > FIRST_CAP ? rest : FIRST_CAP;
    char *at = rest > 0 ? mem_alloc(cap) : NULL;
    if (rest > 0 && at == NULL)
        return -ENOMEM;
    if (rest > 0)
        memcpy(at, in->at + in->begin, rest);
    *ret = in->at;
    *in = (struct wire_in){.at = at, .end = rest, .cap = at != NULL ? cap : 0, .max = in->max};
    return 0;
}

bool wire_in_partial(const struct wire_in *in)
{
    return in->end > in->begin;
}

/* ---- messages ---- */

static int bad_request(enum wire_code *ret_code, struct err *err, const char *why)
{
    *ret_code = WIRE_INVALID_REQUEST;
    return err_set(err, -EINVAL, "%s", why);
}

static int take_call(struct wire_msg *m, enum wire_code *ret_code, struct err *err)
{
    const struct json *method = json_get(m->doc, "method");
    m->kind = m->id[0] != '\0' ? WIRE_REQUEST : WIRE_NOTIFICATION;
    if (json_type(method) != JSON_STRING)
        return bad_request(ret_code, err, "\"method\" must be a string");
    json_string(method, "method", &m->method, NULL);
    if (m->params != NULL && json_type(m->params) != JSON_OBJECT)
        return bad_request(ret_code, err, "\"params\" must be an object");
    return 0;
}

static int take_answer(struct wire_msg *m, enum wire_code *ret_code, struct err *err)
{
    m->result = json_get(m->doc, "result");
    m->error = json_get(m->doc, "error");
    m->kind = m->error != NULL ? WIRE_ERROR : WIRE_RESULT;
    if ((m->result == NULL) == (m->error == NULL))
        return bad_request(ret_code, err, "needs one of \"method\", \"result\" and \"error\"");
    if (m->error != NULL && json_type(m->error) != JSON_OBJECT)
        return bad_request(ret_code, err, "\"error\" must be an object");
    return 0;
}

static int take_id(struct wire_msg *m, const char *line, const struct json_span *span,
                   enum wire_code *ret_code, struct err *err)
{
    const struct json *id = json_get(m->doc, "id");
    size_t n = span->end - span->begin;
    if (id == NULL || json_type(id) == JSON_NULL)
        return 0;
    if (json_type(id) != JSON_NUMBER && json_type(id) != JSON_STRING)
        return bad_request(ret_code, err, "\"id\" must be a number or a string");
    if (n == 0)
        return bad_request(ret_code, err, "the key \"id\" must be written without escapes");
    if (n > WIRE_ID_MAX)
        return bad_request(ret_code, err, "\"id\" is too long; it may have 1024 bytes");
    memcpy(m->id, line + span->begin, n);
    return 0;
}

/* Handles a line that could not be parsed, and chooses the error code. If the line contains a request's id,
 * stores the id, so that the answer can contain it. */
static int refuse_whole(struct wire_msg *m, const char *line, const struct json_span *id, int r,
                        enum wire_code *ret_code)
{
    size_t n = id->end - id->begin;
    *ret_code = r == -ENOMEM ? WIRE_INTERNAL : WIRE_PARSE_ERROR;
    if ((r == -ENOMEM || r == -E2BIG) && n > 0 && n <= WIRE_ID_MAX &&
        strchr("\"-0123456789", line[id->begin]) != NULL)
        memcpy(m->id, line + id->begin, n);
    return r;
}

int wire_parse(const char *line, size_t bytes, size_t max_nodes, struct wire_msg *ret,
               enum wire_code *ret_code, struct err *err)
{
    const char *version = NULL;
    struct json_span id;
    struct json_options options = {.max_nodes = max_nodes, .find = "id", .found = &id};
    *ret = (struct wire_msg){0};
    int r = json_parse_with(line, bytes, "line", &options, &ret->doc, err);
    if (r < 0)
        return refuse_whole(ret, line, &id, r, ret_code);
    if (json_type(ret->doc) == JSON_ARRAY)
        return bad_request(ret_code, err, "batches are not supported; send one object per line");
    if (json_type(ret->doc) != JSON_OBJECT)
        return bad_request(ret_code, err, "a message is a JSON object");
    r = take_id(ret, line, &id, ret_code, err);
    if (r < 0)
        return r;
    const struct json *v = json_get(ret->doc, "jsonrpc");
    if (v != NULL && json_type(v) == JSON_STRING)
        json_string(v, "jsonrpc", &version, NULL);
    if (version == NULL || strcmp(version, "2.0") != 0)
        return bad_request(ret_code, err, "\"jsonrpc\" must be \"2.0\"");
    ret->params = json_get(ret->doc, "params");
    return json_get(ret->doc, "method") != NULL ? take_call(ret, ret_code, err)
                                                : take_answer(ret, ret_code, err);
}

void wire_msg_finish(struct wire_msg *m)
{
    json_free(m->doc);
    *m = (struct wire_msg){0};
}

bool wire_msg_id(const struct wire_msg *m, uint64_t *ret)
{
    const struct json *id = m->id[0] != '\0' && m->doc != NULL ? json_get(m->doc, "id") : NULL;
    return id != NULL && json_type(id) == JSON_NUMBER && json_u64(id, "id", ret, NULL) == 0;
}

int wire_msg_error(const struct wire_msg *m, struct err *ret)
{
    const struct json *data = json_get(m->error, "data");
    const char *message = get_text(m->error, "message"), *path = get_text(data, "path"),
               *hint = get_text(data, "hint");
    int code = wire_errno(get_text(data, "errno"));
    return err_set_at(ret, code < 0 ? code : -EIO, path, "%s%s%s",
                      message[0] != '\0' ? message : "unknown error", hint[0] != '\0' ? "; " : "", hint);
}

/* ---- building ---- */

static void begin_call(struct strbuf *b, const char *method)
{
    strbuf_add(b, "\"method\":");
    strbuf_add_json(b, method);
    strbuf_add(b, ",\"params\":");
}

void wire_begin_request(struct strbuf *b, uint64_t id, const char *method)
{
    strbuf_addf(b, "{\"jsonrpc\":\"2.0\",\"id\":%" PRIu64 ",", id);
    begin_call(b, method);
}

void wire_begin_notification(struct strbuf *b, const char *method)
{
    strbuf_add(b, "{\"jsonrpc\":\"2.0\",");
    begin_call(b, method);
}

static void add_id(struct strbuf *b, const char *id)
{
    strbuf_add(b, "{\"jsonrpc\":\"2.0\",\"id\":");
    strbuf_add(b, id != NULL && id[0] != '\0' ? id : "null");
}

void wire_begin_result(struct strbuf *b, const char *id)
{
    add_id(b, id);
    strbuf_add(b, ",\"result\":");
}

void wire_end(struct strbuf *b)
{
    strbuf_add(b, "}\n");
}

static void add_errno(struct strbuf *b, int code)
{
    const char *name = strerrorname_np(-code);
    strbuf_add_json(b, name != NULL ? name : "EIO");
}

void wire_add_error(struct strbuf *b, const char *id, enum wire_code code, const struct err *err,
                    const char *hint)
{
    add_id(b, id);
    strbuf_addf(b, ",\"error\":{\"code\":%d,\"message\":", code);
    strbuf_add_json(b, err->msg);
    strbuf_add(b, ",\"data\":{\"errno\":");
    add_errno(b, err->code);
    strbuf_add(b, ",\"path\":");
    strbuf_add_json(b, err->path);
    strbuf_add(b, ",\"hint\":");
    strbuf_add_json(b, hint != NULL ? hint : "");
    strbuf_addf(b, ",\"exit\":%d}}", wire_exit_code(err->code));
    wire_end(b);
}

void wire_add_err_object(struct strbuf *b, const struct err *err)
{
    strbuf_add(b, "{\"errno\":");
    add_errno(b, err->code);
    strbuf_add(b, ",\"path\":");
    strbuf_add_json(b, err->path);
    strbuf_add(b, ",\"message\":");
    strbuf_add_json(b, err->msg);
    strbuf_add(b, "}");
}

/* ---- errno and exit codes ---- */

int wire_exit_code(int code)
{
    switch (-code) {
    case 0:
        return 0;
    case EINVAL:
    case EOPNOTSUPP:
    case EEXIST:
        return 2;
    case ESHUTDOWN:
        return 3;
    case EACCES:
    case EPERM:
        return 4;
    case ENOSPC:
        return 5;
    case ENOENT:
        return 6;
    }
    return 1;
}

int wire_errno(const char *name)
{
    for (int e = 1; e < 134; e++) {
        const char *known = strerrorname_np(e);
        if (known != NULL && strcmp(known, name) == 0)
            return -e;
    }
    return 0;
}
