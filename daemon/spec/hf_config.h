/* Hugging Face's config.json of GPT-2 and Llama models, to and from struct transformer. docs/huggingface.md lists the keys.
 *
 * Reading takes the defaults of the transformers package for keys that are absent or null, ignores keys that change
 * nothing in training, and refuses, with key and value, whatever would make another function of the weights.
 *
 * Pure functions; any thread.
 */
#ifndef DAEMON_SPEC_HF_CONFIG_H
#define DAEMON_SPEC_HF_CONFIG_H

#include <stddef.h>

#include "base/err.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "daemon/spec/transformer.h"

/* A config inside another document, at JSON path `path`. The result has passed transformer_check. -EINVAL: a value that
 * is wrong; -EOPNOTSUPP: one that transformers knows and this does not. */
int hf_config_read(const struct json *node, const char *path, struct transformer *ret, struct err *err);

/* The text of a config.json; `file` is its name in messages. */
int hf_config_parse(const char *text, size_t bytes, const char *file, struct transformer *ret,
                    struct err *err);

/* Adds a config.json that transformers loads, and that reads back as the same model. */
void hf_config_write(const struct transformer *t, struct strbuf *b);

#endif
