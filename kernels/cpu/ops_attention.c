/* stub */
#include <stdlib.h>

#include "kernels/cpu/ops.h"

#define STUB(name)                                              \
    void cpu_op_##name(const struct op_call *c, struct pool *p) \
    {                                                           \
        (void)c;                                                \
        (void)p;                                                \
        abort();                                                \
    }
STUB(attention_bwd)
STUB(attention_fwd)
STUB(embedding_bwd)
STUB(embedding_fwd)
STUB(rope)
STUB(rownorm_bwd)
STUB(rownorm_fwd)
STUB(swiglu_bwd)
STUB(swiglu_fwd)
STUB(zero)
