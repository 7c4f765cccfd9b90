/* The table of the cpu backend's ops, generated from ops.def. The program does not link if an op has no
 * function. */
#include "kernels/cpu/ops.h"

cpu_op_fn *const cpu_ops[OP_COUNT] = {
#define OP(name) [OP_##name] = cpu_op_##name,
#include "kernels/ops.def"
#undef OP
};
