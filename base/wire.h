/* The part of the protocol that daemon, client and worker share (docs/protocol.md):
 * lines and JSON-RPC messages.
 *
 * A `struct wire_in` collects bytes as they arrive and returns complete lines. It never holds more than one
 * line of the maximum length, whatever the peer sends. Each line is one JSON-RPC 2.0 message, which
 * wire_parse takes apart.
 *
 *     wire_in_init(&in, WIRE_LINE_MAX);
 *     loop: wire_in_space(&in, &p, &n); n = read(fd, p, n); wire_in_added(&in, n);
 *           while ((r = wire_in_line(&in, &line, &bytes)) > 0) ... ;   // r < 0: a line is too long, hang up
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

#define WIRE_PROTOCOL 1

/* The largest number of bytes, including the newline, that a line on tutti.sock may have.
 * WIRE_WORKER_LINE_MAX is the limit on worker.sock. */
#define WIRE_LINE_MAX        (1u << 20)
#define WIRE_WORKER_LINE_MAX (2u << 20)

/* The input of one connection: the bytes that have arrived, except those that wire_in_line has already
 * returned. */
struct wire_in {
    char *at;
    size_t begin, end; /* bytes [begin, end) were not returned yet */
    size_t cap;        /* bytes allocated at `at` */
    size_t scanned;    /* the bytes [begin, scanned) contain no newline */
    size_t max;        /* bytes of the longest line, with newline */
};

void wire_in_init(struct wire_in *in, size_t max_line);
void wire_in_finish(struct wire_in *in);
/* Says where the next read may put bytes: *ret is the address, and *ret_n is the number of bytes that fit
 * there. *ret_n is 0 if memory ran out or the current line is too long. */
void wire_in_space(struct wire_in *in, char **ret, size_t *ret_n);
/* Tells the buffer that a read has put `n` bytes at the address from wire_in_space. */
void wire_in_added(struct wire_in *in, size_t n);
/* Stores the next complete line in *ret, with a NUL in place of the newline, and returns 1. The line is valid
 * until the next wire_in call. Returns 0 if no complete line has arrived, and -EMSGSIZE if a line is too
 * long. */
int wire_in_line(struct wire_in *in, char **ret, size_t *ret_bytes);
/* Hands the memory with the last line over to the caller, who must free *ret when the line is no longer
 * needed. Call this function right after wire_in_line. If memory runs out, returns -ENOMEM and changes
 * nothing. */
int wire_in_steal(struct wire_in *in, char **ret);
/* Returns true if the beginning of a line has arrived, but its end has not. */
bool wire_in_partial(const struct wire_in *in);

enum wire_kind { WIRE_REQUEST, WIRE_NOTIFICATION, WIRE_RESULT, WIRE_ERROR };

/* The largest number of JSON values in one line that a client sends to the daemon. */
#define WIRE_NODES_MAX 100000
/* The largest size in bytes of a message's id. If the id is a string, its quotes count. */
#define WIRE_ID_MAX 1024

/* One parsed message. wire_parse fills it in, and wire_msg_finish frees it. All nodes belong to `doc`. The id
 * is stored as the text that the sender wrote, so that the answer can repeat even a very large integer
 * exactly. */
struct wire_msg {
    struct json *doc;
    enum wire_kind kind;
    const char *method;        /* of a request or notification */
    const struct json *params; /* an object, or NULL */
    const struct json *result; /* of a WIRE_RESULT */
    const struct json *error;  /* of a WIRE_ERROR: an object */
    /* The id of the message as JSON text, which is a number or a string. The text is "" if the message has no
     * id. */
    char id[WIRE_ID_MAX + 1];
};

enum wire_code {
    WIRE_PARSE_ERROR = -32700,
    WIRE_INVALID_REQUEST = -32600,
    WIRE_NO_METHOD = -32601,
    WIRE_INVALID_PARAMS = -32602,
    WIRE_INTERNAL = -32603,
    WIRE_FAILED = -32000,
};

/* Parses one line into *ret. The line may contain at most `max_nodes` JSON values, or any number if
 * `max_nodes` is 0. On failure, *ret_code is the JSON-RPC error code. If the line is JSON with a valid id,
 * ret->id is set even on failure. Always call wire_msg_finish afterwards. */
int wire_parse(const char *line, size_t bytes, size_t max_nodes, struct wire_msg *ret,
               enum wire_code *ret_code, struct err *err);
/* Frees everything that belongs to the message, and sets *m to zero. *m may already be zero. */
void wire_msg_finish(struct wire_msg *m);
/* Stores the id of the message in *ret and returns true. Returns false if the id is not a whole number from
 * 0 to JSON_MAX_INTEGER. */
bool wire_msg_id(const struct wire_msg *m, uint64_t *ret);
/* Copies the text, the path and the errno of the error message `m` (kind WIRE_ERROR) to *ret. Returns this
 * errno, or -EIO if this system does not know the errno's name. */
int wire_msg_error(const struct wire_msg *m, struct err *ret);

/* To build a message, call one of the wire_begin functions, append the params or the result as one JSON
 * value, and call wire_end, which adds the newline. For example:
 *     wire_begin_notification(&b, "event");  strbuf_add(&b, "{\"seq\":1}");  wire_end(&b); */
void wire_begin_request(struct strbuf *b, uint64_t id, const char *method);
void wire_begin_notification(struct strbuf *b, const char *method);
void wire_begin_result(struct strbuf *b, const char *id); /* `id` as in struct wire_msg */
void wire_end(struct strbuf *b);
/* The largest number of bytes that wire_add_error appends if there is no hint. The limit holds even if every
 * byte of the path and of the text becomes an escape. */
#define WIRE_ERROR_MAX (WIRE_ID_MAX + 6 * sizeof(struct err) + 512)
/* Appends a complete line with the error `err`, as the answer to request `id`. If `id` is NULL or "", the
 * answer has the id null. `hint` may be NULL. */
void wire_add_error(struct strbuf *b, const char *id, enum wire_code code, const struct err *err,
                    const char *hint);
/* Appends `err` as the object {"errno":...,"path":...,"message":...}. */
void wire_add_err_object(struct strbuf *b, const struct err *err);

/* Returns the exit code of a program that failed with the negative errno `code`. docs/protocol.md lists the
 * exit codes. */
int wire_exit_code(int code);
/* Returns the negative errno for a name such as "ENOENT", or 0 if the name is unknown. */
int wire_errno(const char *name);

#endif
