/* Scratch memory of each thread, for ops that copy their operands close to the core that works on them.
 *
 * Every thread needs such copies, and a device does not know how many threads there are. So this memory
 * does not belong to a device. The next piece and the next op use the same bytes again, which therefore
 * stay in the core's second-level cache. Each thread has one buffer. It grows to the largest size
 * requested so far and is freed when the thread ends. A thread that has run an op once allocates nothing
 * when it runs the op again.
 *
 * Any thread may call these functions. Each buffer is used only by its own thread.
 */
#include <pthread.h>
#include <stdlib.h>

#include "base/log.h"
#include "kernels/cpu/cpu.h"

/* The sizes of buffers are multiples of STEP bytes. STEP is a multiple of the size of a cache line. */
#define STEP ((size_t)1 << 16)

static _Thread_local void *buffer;
static _Thread_local size_t buffer_bytes;

/* The destructor of this key frees the thread's buffer when the thread ends. at_exit_once makes sure that the
 * key is created only once. */
static pthread_key_t at_exit;
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
        log_error("out of memory: a thread needs %zu bytes of workspace for an op", buffer_bytes);
        abort();
    }
}

void *cpu_thread_memory(size_t bytes)
{
    if (bytes > buffer_bytes)
        grow(bytes);
    return buffer;
}
