/* The functions of all training methods (struct method in phase.h), one for each row of methods.def. */
#ifndef WORKER_METHODS_H
#define WORKER_METHODS_H

#include "daemon/worker/phase.h"

#define METHOD(id) int method_##id(const struct spec *s, struct phase_list *ret, struct err *err);
#include "daemon/spec/methods.def"
#undef METHOD

#endif
