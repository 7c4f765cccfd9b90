/* Memory of a thread's own, for ops that copy what they work on next to the core that works on it.
 *
 * Why this way: such copies are as many as there are threads, and a device does not know how many that are; and the same
 * bytes, used again by the next piece and by the next op, stay in the thread's second level cache. One buffer a thread, which
 * grows to the most that was ever asked for and is given back when the thread ends: a thread that has done an op once
 * allocates nothing for it again.
 *
 * Any thread; a buffer is only its own thread's.
 */
#include <pthread.h>
#include <stdlib.h>

#include "base/log.h"
#include "kernels/cpu/cpu.h"

#define STEP ((size_t)1 << 16) /* buffers grow in these; a multiple of a line of a cache */

static _Thread_local void *buffer;
static _Thread_local size_t buffer_bytes;

static pthread_key_t at_exit; /* made once, under at_exit_once; its value is the thread's buffer */
static pthread_once_t at_exit_once = PTHREAD_ONCE_INIT;

static void make_key(void)
{
    if (pthread_key_create(&at_exit, free) != 0)
        abort();
}

static void grow(size_t bytes)
{
    pthread_once(&at_exit_once, make_key);
    free(buffer);
    buffer_bytes = (bytes + STEP - 1) / STEP * STEP;
    buffer = aligned_alloc(64, buffer_bytes);
    if (!buffer || pthread_setspecific(at_exit, buffer) != 0) {
        log_error("a thread cannot have the %zu bytes that an op works in", buffer_bytes);
        abort();
    }
}

void *cpu_thread_memory(size_t bytes)
{
    if (bytes > buffer_bytes)
        grow(bytes);
    return buffer;
}
