/* Implements discover.h: chooses the backend and describes the machine. The backend `auto` means cuda if
 * there is a usable CUDA device, otherwise cpu. If the user named a backend that cannot be used, discover
 * returns an error and tries no other backend. An error costs the user less time than a job that silently
 * runs on the CPU. */
#include "daemon/worker/probe/discover.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/utf8.h"

#define MACHINE_MAX (4u << 20)

const char *const backend_choice_names[CHOICE_COUNT + 1] = {
    [CHOICE_AUTO] = "auto", [CHOICE_CPU] = "cpu", [CHOICE_CUDA] = "cuda"};

int discover_default(enum backend_choice *ret, struct err *err)
{
    const char *name = getenv("TUTTI_BACKEND");
    *ret = CHOICE_AUTO;
    if (name == NULL || name[0] == '\0')
        return 0;
    for (int i = 0; i < CHOICE_COUNT; i++) {
        *ret = (enum backend_choice)i;
        if (strcmp(name, backend_choice_names[i]) == 0)
            return 0;
    }
    return err_set_at(err, -EINVAL, "TUTTI_BACKEND", "is \"%s\"; it must be auto, cpu or cuda", name);
}

/* ---- a file ---- */

static int read_text(const char *path, struct strbuf *b, struct err *err)
{
    char chunk[8192];
    size_t n;
    int r = 0;
    FILE *f = fopen(path, "re");
    while (f != NULL && b->n <= MACHINE_MAX && (n = fread(chunk, 1, sizeof chunk, f)) > 0)
        strbuf_addn(b, chunk, n);
    if (f == NULL || ferror(f))
        r = err_set_at(err, -errno, path, "the topology file cannot be read: %s", strerror(errno));
    else if (b->n > MACHINE_MAX)
        r = err_set_at(err, -EFBIG, path, "is too large for a topology file");
    if (f != NULL)
        fclose(f);
    return r;
}

static int read_machine(const char *machine, struct topology *ret, struct err *err)
{
    struct strbuf b = {0};
    if (machine[0] == '{')
        return topology_parse(machine, strlen(machine), "--machine", ret, err);
    strbuf_add(&b, "");
    int r = read_text(machine, &b, err);
    if (r == 0)
        r = topology_parse(b.at, b.n, machine, ret, err);
    strbuf_finish(&b);
    if (r < 0 && err != NULL &&
        strncmp(err->path, machine, strlen(machine)) != 0) { /* err->path is only a JSON path */
        char at[sizeof err->path];
        snprintf(at, sizeof at, "%s", err->path);
        err_set_at(err, r, machine, "%s%s%s", at, at[0] != '\0' ? ": " : "", err->msg);
    }
    return r;
}

static int discover_file(enum backend_choice choice, const char *machine, struct discovery *ret,
                         struct err *err)
{
    struct topology *t = &ret->topology;
    int r = read_machine(machine, t, err);
    if (r < 0)
        return r;
    const char *name = backend_names[t->backend];
    if (choice != CHOICE_AUTO && strcmp(backend_choice_names[choice], name) != 0)
        return err_set_at(err, -EINVAL, "--backend", "is %s, but --machine describes a machine with %s",
                          backend_choice_names[choice], name);
    ret->from_file = true;
    snprintf(ret->reason, sizeof ret->reason, "the topology file says so");
    for (int i = 0; i < BACKEND_COUNT; i++)
        snprintf(ret->found[i].why, sizeof ret->found[i].why, "not looked for: a topology file was given");
    if (t->host_memory_bytes == 0)
        t->host_memory_bytes = topology_default_host_bytes();
    return 0;
}

/* ---- this machine ---- */

static void take_peers(struct topology *t)
{
    t->has_peers = t->n_devices > 0;
    for (uint32_t i = 0; i < t->n_devices; i++)
        for (uint32_t k = 0; k < t->n_devices; k++)
            t->peers[i][k] = i != k && t->devices[i].peer[k] ? TOPOLOGY_PEER_DIRECT : 0;
}

/* Replaces unsafe characters in device names, which come from a driver. The daemon reads the names from a
 * topology file, and unsafe characters are not allowed there. */
static void scrub_names(struct topology *t)
{
    for (uint32_t i = 0; i < t->n_devices; i++) {
        char name[sizeof t->devices[i].name];
        utf8_scrub(name, sizeof name, t->devices[i].name);
        strcpy(t->devices[i].name, name);
    }
}

static int probe(enum backend_id backend, uint64_t asked, struct topology *ret, struct err *err)
{
    *ret = (struct topology){.backend = backend, .host_memory_bytes = topology_default_host_bytes()};
    int r = devset_probe(backend_names[backend], asked, ret->devices, DEVICE_MAX, &ret->n_devices, err);
    if (r == 0)
        take_peers(ret);
    if (r == 0)
        scrub_names(ret);
    return r;
}

/* Writes a text that says why cuda was chosen: the number of devices, and which device has the most free
 * memory. */
static void say_devices(const struct topology *t, char *ret, size_t size)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < t->n_devices; i++)
        if (t->devices[i].free_bytes > t->devices[best].free_bytes)
            best = i;
    snprintf(ret, size, "%u usable cuda device%s found%s%s", t->n_devices, t->n_devices == 1 ? "" : "s",
             t->devices[best].name[0] != '\0' ? ": " : "", t->devices[best].name);
}

static int discover_cuda(enum backend_choice choice, uint64_t asked, struct discovery *ret, struct err *err)
{
    struct err why = {0};
    char *text = ret->found[BACKEND_CUDA].why;
    int r = probe(BACKEND_CUDA, asked, &ret->topology, &why);
    ret->found[BACKEND_CUDA].looked = true;
    if (r == 0 && ret->topology.n_devices == 0)
        r = err_set(&why, -ENODEV, "no device was found");
    if (r == 0) {
        say_devices(&ret->topology, ret->reason, sizeof ret->reason);
        ret->measured = cache_load(&ret->topology);
        return 0;
    }
    err_text(&why, text, sizeof ret->found[BACKEND_CUDA].why);
    return choice == CHOICE_AUTO
               ? r
               : err_set_at(err, -ENODEV, "--backend", "cuda cannot be used here: %s", text);
}

int discover(enum backend_choice choice, const char *machine, uint64_t asked, struct discovery *ret,
             struct err *err)
{
    *ret = (struct discovery){0};
    if (machine != NULL)
        return discover_file(choice, machine, ret, err);
    ret->found[BACKEND_CPU].looked = true; /* the cpu backend works on every machine */
    int r = choice != CHOICE_CPU ? discover_cuda(choice, asked, ret, err) : -ENODEV;
    if (r == 0 || choice == CHOICE_CUDA)
        return r;
    if (choice == CHOICE_CPU) {
        snprintf(ret->reason, sizeof ret->reason, "it was asked for");
        snprintf(ret->found[BACKEND_CUDA].why, sizeof ret->found[BACKEND_CUDA].why,
                 "not looked for: cpu was asked for");
    } else {
        snprintf(ret->reason, sizeof ret->reason, "cuda cannot be used here: %s",
                 ret->found[BACKEND_CUDA].why);
    }
    return probe(BACKEND_CPU, asked, &ret->topology, err);
}
