/* Converts the config.json of a GPT-2 or Llama model from Hugging Face into a struct transformer, and back.
 * docs/huggingface.md lists the keys.
 *
 * For keys that are absent or null, reading uses the defaults of the Python package transformers. Keys that
 * do not affect training are ignored. A value that would make the model compute something else than this
 * program computes is refused, with the key and the value in the message.
 *
 * All functions are pure; any thread may call them.
 */
#ifndef DAEMON_SPEC_HF_CONFIG_H
#define DAEMON_SPEC_HF_CONFIG_H

#include <stddef.h>

#include "base/err.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "daemon/spec/transformer.h"

/* Reads a Hugging Face config from `node`. `path` is the JSON path of `node`, for messages. If the function
 * succeeds, *ret has passed transformer_check. Returns -EINVAL for a wrong value, and -EOPNOTSUPP for a value
 * that only the transformers package supports. */
int hf_config_read(const struct json *node, const char *path, struct transformer *ret, struct err *err);

/* Reads a Hugging Face config from `text`, the content of a config.json. `file` is the name of the file in
 * error messages. Returns the same errors as hf_config_read and json_parse. */
int hf_config_parse(const char *text, size_t bytes, const char *file, struct transformer *ret,
                    struct err *err);

/* Appends the text of a config.json that describes the model `t`. `dtype` is the type of the weights beside
 * it: F32, BF16 or F16. Both the transformers package and hf_config_parse can read this text. */
void hf_config_write(const struct transformer *t, enum dtype dtype, struct strbuf *b);

#endif
