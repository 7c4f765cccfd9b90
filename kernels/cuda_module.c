/* The program's side of the cuda backend: a row in the table of backends. Its `probe` and `open` load the
 * module.
 *
 * The cuda backend is a module because the program must also start on machines without a driver, a CUDA
 * runtime or a device. Only libtutti-cuda.so needs libcudart and libcublas, and it is loaded when somebody
 * asks for the backend. The program passes the module a table of the functions that the module needs
 * (struct backend_host).
 *
 * If $TUTTI_CUDA_MODULE is set, the module is searched for only there. Otherwise it is searched for next
 * to the program, as in a build directory, and then in the folder of the installation. The module is never
 * unloaded, because the CUDA runtime does not survive being unloaded.
 *
 * This file has no state. Any thread may call its functions.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu.h"

#define MODULE_FILE "libtutti-cuda.so"

/* Runs an op on the cpu for the cuda module. The CUDA driver may call this function from a new thread each
 * time. So every call first initializes the calling thread. */
static void run_op(const struct op_call *call, struct pool *pool)
{
    cpu_thread_init();
    cpu_ops[call->op](call, pool);
}

static const struct backend_host host = {
    .now_ns = clock_now_ns,
    .log = log_msg,
    .pool_create = pool_create,
    .pool_destroy = pool_destroy,
    .run_op = run_op,
};

/* Writes the folder that contains the running program to `ret`, without a trailing slash. Returns false if
 * the folder cannot be found. */
static bool program_folder(char *ret, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", ret, size - 1);
    char *slash;

    if (n <= 0)
        return false;
    ret[n] = '\0';
    slash = strrchr(ret, '/');
    if (!slash)
        return false;
    *slash = '\0';
    return true;
}

/* Searches for the module file and writes its path to `ret`. In a build directory, the program is one or two
 * folders below the root. If the module file does not exist, the function returns false, and `ret` is the
 * last path that was tried. */
static bool find_module(char *ret, size_t size)
{
    static const char *const from_program[] = {"/../kernels/cuda/", "/../../kernels/cuda/"};
    const char *named = secure_getenv("TUTTI_CUDA_MODULE");
    char folder[PATH_MAX];

    if (named && *named)
        return (size_t)snprintf(ret, size, "%s", named) < size && access(ret, F_OK) == 0;
    if (program_folder(folder, sizeof folder))
        for (size_t i = 0; i < sizeof from_program / sizeof from_program[0]; i++)
            if ((size_t)snprintf(ret, size, "%s%s" MODULE_FILE, folder, from_program[i]) < size &&
                access(ret, F_OK) == 0)
                return true;
    snprintf(ret, size, "%s/" MODULE_FILE, MODULE_DIR);
    return access(ret, F_OK) == 0;
}

static int load_module(const char *path, const struct backend **ret, struct err *err)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    backend_module_fn *entry;

    if (!handle)
        return err_set_at(
            err, -ELIBACC, path,
            "the cuda backend cannot be loaded: %s. It needs the CUDA runtime and cuBLAS of the "
            "version it was built with; install them or put their folder into LD_LIBRARY_PATH",
            dlerror());
    entry = (backend_module_fn *)(uintptr_t)dlsym(handle, BACKEND_MODULE_SYMBOL);
    if (!entry)
        return err_set_at(err, -EPROTO, path,
                          "this file is not a backend: it does not export " BACKEND_MODULE_SYMBOL);
    *ret = entry(BACKEND_ABI, &host);
    if (!*ret)
        return err_set_at(
            err, -EPROTO, path,
            "the cuda backend is of another version than this program; install the two together");
    return 0;
}

static int load_backend(const struct backend **ret, struct err *err)
{
    char path[2 * PATH_MAX];

    if (!find_module(path, sizeof path))
        return err_set_at(
            err, -ENOENT, path,
            "there is no cuda backend here; build with -Dcuda=enabled (needs nvcc), or say where " MODULE_FILE
            " is with TUTTI_CUDA_MODULE");
    return load_module(path, ret, err);
}

static int probe_cuda(uint64_t asked, struct device_info *ret, uint32_t max, uint32_t *ret_n, struct err *err)
{
    const struct backend *b;
    int r = load_backend(&b, err);

    return r < 0 ? r : b->probe(asked, ret, max, ret_n, err);
}

static int open_cuda(const struct devset_config *config, struct devset **ret, struct err *err)
{
    const struct backend *b;
    int r = load_backend(&b, err);

    return r < 0 ? r : b->open(config, ret, err);
}

const struct backend backend_cuda = {
    .name = "cuda", .has_tf32 = true, .probe = probe_cuda, .open = open_cuda};
