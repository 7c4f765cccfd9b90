/* What the two files of the graph builder share: graph_layers.c checks the input and describes the layers,
 * and graph.c adds the tensors and tasks. Nothing else includes this header. */
#ifndef SCHEDULER_GRAPH_PRIVATE_H
#define SCHEDULER_GRAPH_PRIVATE_H

#include "scheduler/graph.h"
#include "scheduler/table.h"

/* Makes the layers of a graph from a model: checks the input, connects the layers, and computes their sizes.
 * Sets the decision groups. Returns the errors that graph_build documents. */
int graph_describe_model(const struct graph_config *c, struct graph **ret, struct err *err);

/* Makes the layers of a graph from a profile table. Returns the errors that graph_build_sizes documents. */
int graph_describe_table(const struct table *t, const struct graph_sizes *sizes, bool training,
                         struct graph **ret, struct err *err);

#endif
