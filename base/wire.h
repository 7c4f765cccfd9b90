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

/* The maximum length of a line on tutti.sock and on worker.sock, in bytes. The newline counts. */
#define WIRE_LINE_MAX        (1u << 20)
#define WIRE_WORKER_LINE_MAX (2u << 20)

/* The input of one connection. It holds the bytes that have arrived but were not yet returned as lines. */
struct wire_in {
    char *at;
    size_t begin, end; /* bytes [begin, end) were not returned yet */
    size_t cap;        /* bytes allocated at `at` */
    size_t scanned;    /* the bytes [begin, scanned) contain no newline */
    size_t max;        /* bytes of the longest line, with newline */
};

void wire_in_init(struct wire_in *in, size_t max_line);
void wire_in_finish(struct wire_in *in);
/* Stores in *ret the address for the next read, and in *ret_n the number of bytes that fit there. *ret_n
 * is 0 when memory ran out. It is also 0 when the current line is too long, which wire_in_line has already
 * reported. */
void wire_in_space(struct wire_in *in, char **ret, size_t *ret_n);
/* Records that `n` bytes were read to the address that wire_in_space returned. */
void wire_in_added(struct wire_in *in, size_t n);
/* Stores the next complete line in *ret and returns 1. The line ends with a NUL instead of its newline. It
 * is valid until the next call of any wire_in function. Returns 0 when no line is complete, and -EMSGSIZE
 * when a line is too long. */
int wire_in_line(struct wire_in *in, char **ret, size_t *ret_bytes);
/* Call this right after wire_in_line. It gives the memory of the line to the caller, who must free *ret.
 * Bytes after the line stay in `in`. When memory runs out, it returns -ENOMEM and changes nothing. */
int wire_in_steal(struct wire_in *in, char **ret);
/* Returns true when the beginning of a line has arrived, but not yet its end. */
bool wire_in_partial(const struct wire_in *in);

enum wire_kind { WIRE_REQUEST, WIRE_NOTIFICATION, WIRE_RESULT, WIRE_ERROR };

/* The maximum number of JSON values in a line that a client sends to the daemon. */
#define WIRE_NODES_MAX 100000
/* The maximum number of bytes in a message's id. The id is JSON text, and its quotes count. */
#define WIRE_ID_MAX 1024

/* One parsed message. wire_parse fills it in and wire_msg_finish frees it. All nodes belong to `doc`.
 *
 * The id is stored as the text that the sender wrote, and an answer repeats that text. So an integer of any
 * size comes back exactly, and answering needs no memory for the id. */
struct wire_msg {
    struct json *doc;
    enum wire_kind kind;
    const char *method;        /* of a request or notification */
    const struct json *params; /* an object, or NULL */
    const struct json *result; /* of a WIRE_RESULT */
    const struct json *error;  /* of a WIRE_ERROR: an object */
    /* The message's id as JSON text. The id is a number or a string. Empty when the message has no id or
     * the id is null. */
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

/* Parses one line into *ret. `max_nodes` is the maximum number of JSON values in the line; 0 means no
 * limit. On failure *ret_code is the JSON-RPC error code. ret->id is set even on failure, unless the line
 * is not JSON. Call wire_msg_finish after a failure too. */
int wire_parse(const char *line, size_t bytes, size_t max_nodes, struct wire_msg *ret,
               enum wire_code *ret_code, struct err *err);
/* Frees the message. It may be a zeroed struct. */
void wire_msg_finish(struct wire_msg *m);
/* Stores the message's id in *ret and returns true. Returns false when the id is not a whole number from 0
 * to JSON_MAX_INTEGER. */
bool wire_msg_id(const struct wire_msg *m, uint64_t *ret);
/* Fills in *ret from a WIRE_ERROR. It copies the message with its hint, the path and the errno. Returns
 * the errno, or -EIO when the other side sent an unknown errno. */
int wire_msg_error(const struct wire_msg *m, struct err *ret);

/* Building a message takes three steps. Begin it, append params or result as one JSON value, and end it;
 * wire_end adds the newline:
 *     wire_begin_notification(&b, "event");  strbuf_add(&b, "{\"seq\":1}");  wire_end(&b); */
void wire_begin_request(struct strbuf *b, uint64_t id, const char *method);
void wire_begin_notification(struct strbuf *b, const char *method);
void wire_begin_result(struct strbuf *b, const char *id); /* `id` as in struct wire_msg */
void wire_end(struct strbuf *b);
/* The maximum number of bytes that wire_add_error appends without a hint. The sum counts the id, the fixed
 * text, and a path and a message in which every byte is escaped. */
#define WIRE_ERROR_MAX (WIRE_ID_MAX + 6 * sizeof(struct err) + 512)
/* Appends a complete error line that answers request `id`. If `id` is NULL or "", the answer has the id
 * null. The errno name, the exit code, the path and the message come from `err`. `hint` may be NULL. */
void wire_add_error(struct strbuf *b, const char *id, enum wire_code code, const struct err *err,
                    const char *hint);
/* Appends `err` as the object {"errno":...,"path":...,"message":...}. */
void wire_add_err_object(struct strbuf *b, const struct err *err);

/* Returns the exit code of a program that fails with the negative errno `code`. docs/protocol.md lists the
 * exit codes. */
int wire_exit_code(int code);
/* Returns the negative errno with this name, for example -ENOENT for "ENOENT". Returns 0 for an unknown
 * name. */
int wire_errno(const char *name);

#endif
