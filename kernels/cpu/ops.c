/* This file has the table of the cpu backend's ops, generated from ops.def. If an op has no function, the
 * program does not link. */
#include "kernels/cpu/ops.h"

cpu_op_fn *const cpu_ops[OP_COUNT] = {
#define OP(name) [OP_##name] = cpu_op_##name,
#include "kernels/ops.def"
#undef OP
};
