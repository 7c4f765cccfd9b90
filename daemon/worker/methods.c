/* The table of training methods, made from methods.def. The table has a file of its own, so that a test
 * program can link another table in its place. */
#include "daemon/worker/methods.h"

const struct method methods[METHOD_COUNT] = {
#define METHOD(id) [METHOD_##id] = {#id, method_##id},
#include "daemon/spec/methods.def"
#undef METHOD
};
