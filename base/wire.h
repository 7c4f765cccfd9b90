/* Messages as lines: what daemon, client and worker have in common of the protocol (docs/protocol.md).
 *
 * A `struct wire_in` collects bytes as they come and gives out whole lines. It holds at most one line's worth of
 * bytes, whatever the peer sends. A message is one line of JSON-RPC 2.0; wire_parse takes it apart.
 *
 *     wire_in_init(&in, WIRE_LINE_MAX);
 *     loop: wire_in_space(&in, &p, &n); n = read(fd, p, n); wire_in_added(&in, n);
 *           while ((r = wire_in_line(&in, &line, &bytes)) > 0) ... ;   r < 0: a line is too long, hang up
 *     wire_in_finish(&in);
 */
#ifndef BASE_WIRE_H
#define BASE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/strbuf.h"

#define WIRE_PROTOCOL        1
#define WIRE_LINE_MAX        (1u << 20) /* tutti.sock, the newline included */
#define WIRE_WORKER_LINE_MAX (2u << 20) /* worker.sock */

struct wire_in {
    char *at;
    size_t begin, end, cap; /* bytes [begin, end) are not yet given out */
    size_t scanned;         /* no newline in [begin, scanned) */
    size_t max;             /* of a line, newline included */
};

void wire_in_init(struct wire_in *in, size_t max_line);
void wire_in_finish(struct wire_in *in);
/* Room for the next read: at least one byte. *ret_n is 0 when a line is too long or memory ran out (wire_in_line tells a
 * line that is too long before). */
void wire_in_space(struct wire_in *in, char **ret, size_t *ret_n);
void wire_in_added(struct wire_in *in, size_t n);
/* 1: a line, without its newline, NUL-terminated, valid until the next call of any wire_in function; 0: none yet;
 * -EMSGSIZE: more than max bytes without a newline. */
int wire_in_line(struct wire_in *in, char **ret, size_t *ret_bytes);
/* Gives the caller the memory that holds the line of the last wire_in_line, so that the line stays valid until the caller
 * frees *ret. Bytes that came behind the line stay here. -ENOMEM: nothing has changed. */
int wire_in_steal(struct wire_in *in, char **ret);
/* Whether a line has begun and not ended. */
bool wire_in_partial(const struct wire_in *in);

enum wire_kind { WIRE_REQUEST, WIRE_NOTIFICATION, WIRE_RESULT, WIRE_ERROR };

#define WIRE_NODES_MAX 100000 /* values in a line that a client sends to the daemon */
#define WIRE_ID_MAX    1024   /* bytes of an id as it is written, quotes included */

/* One message, parsed. Nodes belong to `doc`.
 *
 * The id is kept as the sender wrote it, and an answer repeats these bytes. So an integer of any size comes back exactly,
 * and an answer needs no memory for it. */
struct wire_msg {
    struct json *doc;
    enum wire_kind kind;
    const char *method;        /* requests and notifications */
    const struct json *params; /* an object, or NULL */
    const struct json *result; /* WIRE_RESULT */
    const struct json *error;  /* WIRE_ERROR: an object */
    char id[WIRE_ID_MAX + 1];  /* a number or a string as JSON text; "" where there is none, or null */
};

enum wire_code {
    WIRE_PARSE_ERROR = -32700,
    WIRE_INVALID_REQUEST = -32600,
    WIRE_NO_METHOD = -32601,
    WIRE_INVALID_PARAMS = -32602,
    WIRE_INTERNAL = -32603,
    WIRE_FAILED = -32000,
};

/* `max_nodes`: the most JSON values in the line; 0: any number. On failure *ret_code is the JSON-RPC code, and ret->id is
 * set where the message had one, unless the line is not JSON. wire_msg_finish is due after a failure too. */
int wire_parse(const char *line, size_t bytes, size_t max_nodes, struct wire_msg *ret,
               enum wire_code *ret_code, struct err *err);
void wire_msg_finish(struct wire_msg *m); /* takes a zeroed one */
/* The id as a number; false when it is something else, or beyond JSON_MAX_INTEGER. */
bool wire_msg_id(const struct wire_msg *m, uint64_t *ret);
/* What the other side said of a WIRE_ERROR: message, path, and the errno by name (-EIO when unknown). */
int wire_msg_error(const struct wire_msg *m, struct err *ret);

/* Building. Begin, add the members of params or result as JSON text, end: which adds the newline.
 *     wire_begin_notification(&b, "event");  strbuf_add(&b, "{\"seq\":1}");  wire_end(&b); */
void wire_begin_request(struct strbuf *b, uint64_t id, const char *method);
void wire_begin_notification(struct strbuf *b, const char *method);
void wire_begin_result(struct strbuf *b, const char *id); /* `id` as in struct wire_msg */
void wire_end(struct strbuf *b);
/* The most bytes that wire_add_error writes without a hint: an id, path and message with every byte escaped, the rest. */
#define WIRE_ERROR_MAX (WIRE_ID_MAX + 6 * sizeof(struct err) + 512)
/* A whole error line. `id` may be NULL or "" (null). The errno name, exit code and path come from err. */
void wire_add_error(struct strbuf *b, const char *id, enum wire_code code, const struct err *err,
                    const char *hint);
/* {"errno":...,"path":...,"message":...} */
void wire_add_err_object(struct strbuf *b, const struct err *err);

/* The exit code that the shell gets for a failure (docs/protocol.md). `code` is a negative errno. */
int wire_exit_code(int code);
/* "ENOENT" -> -ENOENT; 0 when unknown. */
int wire_errno(const char *name);

#endif
