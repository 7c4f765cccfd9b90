/* Helpers shared by the tests of the cuda backend. They open a devset by the name of its backend, and wrap
 * the calls of device.h so that a call that returns an error fails the test.
 *
 * Tests take host memory only from devset_host_alloc, and reach device memory only through copies. The same
 * test therefore runs on every backend. Main thread only.
 */
#ifndef TESTS_CUDA_RIG_H
#define TESTS_CUDA_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/device.h"

#define STREAM(device, lane) ((uint32_t)(LANE_COUNT * (device) + (lane)))
#define RIG_CAPACITY         (UINT64_C(1) << 20)

/* Returns the configuration of a devset with `n_devices` devices of this backend. When TUTTI_CUDA_SHARED is
 * set in the environment, all devices of a cuda devset are CUDA's device 0, each with its own arena and
 * streams. This allows tests of several devices on a machine with one GPU. */
struct devset_config rig_config(const char *backend, uint32_t n_devices);
struct devset *rig_open(const struct devset_config *c);
/* devset_open must fail with this code and a message in which `says` occurs. */
void rig_refused(const struct devset_config *c, int code, const char *says);

struct event *rig_event(struct devset *ds);
float *rig_floats(struct devset *ds, uint64_t n); /* host memory, zero; freed by devset_host_free */
void rig_free(struct devset *ds, float *p, uint64_t n);
void rig_copy(struct devset *ds, uint32_t stream, void *dst, const void *src, uint64_t bytes);
void rig_launch(struct devset *ds, uint32_t stream, const struct op_call *call);
void rig_record(struct devset *ds, uint32_t stream, struct event *e);
void rig_wait(struct devset *ds, uint32_t stream, struct event *e);
void rig_drain(struct devset *ds);

/* Makes every command that `to` gets from now on wait for all commands that `from` has so far. */
void rig_order(struct devset *ds, uint32_t from, uint32_t to, struct event *e);

/* y[n] += b[n], and y[n] = relu(y[n]) */
struct op_call rig_add(float *y, const float *b, uint32_t n);
struct op_call rig_relu(float *y, uint64_t n);

/* Returns whether the backend can be opened on this machine. Tests of other backends are skipped. */
bool rig_has(const char *backend);

#endif
