/* The table of the cpu backend's ops. Generated from ops.def: an op that nobody wrote does not link. */
#include "kernels/cpu/ops.h"

cpu_op_fn *const cpu_ops[OP_COUNT] = {
#define OP(name) [OP_##name] = cpu_op_##name,
#include "kernels/ops.def"
#undef OP
};
