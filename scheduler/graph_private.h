/* Declarations shared by the two files that build graphs. graph_layers.c checks the input and describes the
 * layers, and graph.c adds the tensors and tasks. No other file includes this header. */
#ifndef SCHEDULER_GRAPH_PRIVATE_H
#define SCHEDULER_GRAPH_PRIVATE_H

#include "scheduler/graph.h"
#include "scheduler/table.h"

/* Makes the layers and decision groups of a graph from a model: checks the input, connects the layers, and
 * computes sizes. Returns the same errors as graph_build. */
int graph_describe_model(const struct graph_config *c, struct graph **ret, struct err *err);

/* Makes the layers of a graph from a profile table. Returns the same errors as graph_build_sizes. */
int graph_describe_table(const struct table *t, const struct graph_sizes *sizes, bool training,
                         struct graph **ret, struct err *err);

#endif
