/* Implements confine, which takes away from a worker the privileges that it does not need.
 *
 * The worker does this itself as its first action, because the daemon starts workers with uv_spawn, which has
 * no hook between fork and exec. A systemd unit with NoNewPrivileges= does part of the work, but a daemon may
 * run outside a unit, as root, or with ambient capabilities. Ambient capabilities would survive a change of
 * the user and allow the worker to become root again.
 *
 * A worker that runs as root keeps its user but loses the right to ignore file permissions: it can use files
 * that root owns or that everybody may use. It also loses CAP_IPC_LOCK, so the limit on locked memory applies
 * to it from then on. Pinned host memory counts against that limit, so confine first raises the limit as far
 * as it can.
 *
 * --probe is not confined, because the CUDA library may have to run its setuid helper once to create the
 * device files.
 */
#include "daemon/worker/confine.h"

#include <errno.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static void raise_locked_memory(void)
{
    struct rlimit r = {RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_MEMLOCK, &r) == 0 || getrlimit(RLIMIT_MEMLOCK, &r) < 0)
        return;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_MEMLOCK, &r);
}

/* Drops the capability bounding set. This fails without CAP_SETPCAP, which is harmless, because
 * PR_SET_NO_NEW_PRIVS already keeps new programs from gaining capabilities. */
static void drop_bounding_set(void)
{
    for (unsigned long c = 0; prctl(PR_CAPBSET_READ, c, 0, 0, 0) >= 0; c++)
        prctl(PR_CAPBSET_DROP, c, 0, 0, 0);
}

static int clear_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};
    return syscall(SYS_capset, &header, none) < 0 ? -errno : 0;
}

int confine(struct err *err)
{
    raise_locked_memory();
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 && errno != EINVAL))
        return err_set(err, -errno, "cannot give up privileges: %s", strerror(errno));
    drop_bounding_set();
    int r = clear_capabilities();
    if (r < 0)
        return err_set(err, r, "cannot give up capabilities: %s", strerror(-r));
    /* Close the descriptors that the daemon itself inherited and passed on to this worker. The descriptors
     * that the daemon opened were closed at exec. Kernels before 5.9 do not have close_range. On such a
     * kernel, the inherited descriptors stay open, which does no harm. */
    close_range(STDERR_FILENO + 1, ~0u, 0);
    return 0;
}
