/* Problems and the report.
 *
 * A problem is something that the program or a kernel does wrong. It is printed at once (the first
 * MESSAGES of them), counted by kind and kept for the report. CUDASIM_ABORT=1 makes the first one the
 * last, for a debugger.
 *
 * The report (CUDASIM_REPORT, "%p" in the name is the process id) is JSON; README.md has its fields. It is
 * written at exit, and before that whenever there is a problem or a fault: a program may also end by a
 * signal or _exit. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cudasim.h"
#include "sim.h"

#define MESSAGES 32

static const char *const problem_names[PROBLEM_COUNT] = {
    [PROBLEM_BAD_CALL] = "bad-call",
    [PROBLEM_BARRIER] = "divergent-barrier",
    [PROBLEM_DEADLOCK] = "deadlock",
    [PROBLEM_FREED] = "use-after-free",
    [PROBLEM_HANG] = "kernel-hangs",
    [PROBLEM_HOST_ACCESS] = "host-access",
    [PROBLEM_MISALIGNED] = "misaligned",
    [PROBLEM_NO_KERNEL] = "no-kernel",
    [PROBLEM_OUT_OF_BOUNDS] = "out-of-bounds",
    [PROBLEM_RACE] = "race",
    [PROBLEM_TRAP] = "trap",
    [PROBLEM_WARP] = "warp-mask",
};

static char messages[MESSAGES][640];
static uint64_t total, counts[PROBLEM_COUNT];

void report_problem(enum problem kind, const char *format, ...)
{
    char *text = messages[total < MESSAGES ? total : MESSAGES - 1];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof messages[0], format, args);
    va_end(args);
    counts[kind]++;
    if (total++ < MESSAGES)
        fprintf(stderr, "cudasim: %s: %s\n", problem_names[kind], text);
    report_write();
    if (sim.abort)
        abort();
}

uint64_t report_total(void)
{
    return total;
}

static void write_text(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            fprintf(f, "\\%c", *text);
        else if ((unsigned char)*text < ' ')
            fprintf(f, "\\u%04x", *text);
        else
            fputc(*text, f);
    fputc('"', f);
}

static uint64_t peer_bytes(const struct device *d)
{
    uint64_t sum = 0;

    for (int i = 0; i < sim.n_devices; i++)
        sum += d->peer_bytes[i];
    return sum;
}

static void write_device(FILE *f, const struct device *d)
{
    fprintf(f, "{\"memory_bytes\": %" PRIu64 ", \"used_bytes\": %" PRIu64 ", \"peak_bytes\": %" PRIu64,
            d->capacity_bytes, d->used_bytes, d->peak_bytes);
    fprintf(f,
            ", \"in_bytes\": %" PRIu64 ", \"in_copies\": %" PRIu64 ", \"out_bytes\": %" PRIu64
            ", \"out_copies\": %" PRIu64,
            d->in_bytes, d->in_copies, d->out_bytes, d->out_copies);
    fprintf(f, ", \"peer_bytes\": %" PRIu64 ", \"peer_copies\": %" PRIu64 ", \"peer_bytes_to\": [",
            peer_bytes(d), d->peer_copies);
    for (int i = 0; i < sim.n_devices; i++)
        fprintf(f, "%s%" PRIu64, i ? ", " : "", d->peer_bytes[i]);
    fprintf(f,
            "], \"local_bytes\": %" PRIu64 ", \"set_bytes\": %" PRIu64 ", \"kernels\": %" PRIu64
            ", \"gemms\": %" PRIu64 ", \"operations\": %" PRIu64,
            d->local_bytes, d->set_bytes, d->kernels, d->gemms, d->operations);
    fprintf(f, ", \"error\": %d, \"busy_ns\": {", (int)d->error);
    for (int i = 0; i < ENGINE_COUNT; i++)
        fprintf(f, "%s\"%s\": %" PRIu64, i ? ", " : "", engine_names[i], d->busy_ns[i]);
    fprintf(f, "}}");
}

static void write_leaks(FILE *f)
{
    struct leaks l;
    int streams = 0;

    memory_leaks(&l);
    for (int i = sim.n_devices; i < SIM_HOST; i++)
        streams += sim.streams[i].used;
    fprintf(f,
            "{\"device_allocations\": %" PRIu64 ", \"device_bytes\": %" PRIu64
            ", \"host_allocations\": %" PRIu64 ", \"host_bytes\": %" PRIu64 ", \"registrations\": %" PRIu64
            ", \"streams\": %d, \"events\": %" PRIu32 "}",
            l.device_allocations, l.device_bytes, l.host_allocations, l.host_bytes, l.registrations, streams,
            sim.n_events);
}

static uint64_t virtual_ns(void)
{
    uint64_t at = sim.host_ns;

    for (int i = 0; i < SIM_HOST; i++)
        if (at < sim.streams[i].free_ns)
            at = sim.streams[i].free_ns;
    return at;
}

static void write_json(FILE *f)
{
    const struct fault_event *faults;
    uint32_t n_faults = fault_events(&faults);

    fprintf(f,
            "{\"seed\": %" PRIu64 ", \"order\": \"%s\", \"virtual_ns\": %" PRIu64 ", \"operations\": %" PRIu64
            ", \"host_functions\": %" PRIu64 ", \"races\": %" PRIu64 ",\n \"devices\": [",
            sim.seed, order_names[sim.order], virtual_ns(), sim.n_ops, sim.n_host_functions, race_count());
    for (int i = 0; i < sim.n_devices; i++) {
        fprintf(f, "%s\n  ", i ? "," : "");
        write_device(f, &sim.devices[i]);
    }
    fprintf(f, "],\n \"leaks\": ");
    write_leaks(f);
    fprintf(f, ",\n \"faults\": [");
    for (uint32_t i = 0; i < n_faults; i++) {
        fprintf(f, "%s\n  {\"fault\": ", i ? "," : "");
        write_text(f, faults[i].spec);
        fprintf(f, ", \"device\": %d, \"error\": %d}", faults[i].device, (int)faults[i].error);
    }
    fprintf(f, "],\n \"problems\": {");
    for (int i = 0, n = 0; i < PROBLEM_COUNT; i++)
        if (counts[i])
            fprintf(f, "%s\"%s\": %" PRIu64, n++ ? ", " : "", problem_names[i], counts[i]);
    fprintf(f, "},\n \"messages\": [");
    for (uint64_t i = 0; i < total && i < MESSAGES; i++) {
        fprintf(f, "%s\n  ", i ? "," : "");
        write_text(f, messages[i]);
    }
    fprintf(f, "]}\n");
}

void report_write(void)
{
    char path[4096], new_path[4200];
    const char *at;
    FILE *f;

    if (!sim.report_path || !*sim.report_path)
        return;
    at = strstr(sim.report_path, "%p");
    if (at)
        snprintf(path, sizeof path, "%.*s%d%s", (int)(at - sim.report_path), sim.report_path, (int)getpid(),
                 at + 2);
    else
        snprintf(path, sizeof path, "%s", sim.report_path);
    snprintf(new_path, sizeof new_path, "%s.new", path);
    f = fopen(new_path, "w");
    if (!f) {
        fprintf(stderr, "cudasim: %s: %m\n", new_path);
        return;
    }
    write_json(f);
    if (fclose(f) != 0 || rename(new_path, path) != 0)
        fprintf(stderr, "cudasim: %s: %m\n", path);
}

uint64_t cudasim_problems(void)
{
    uint64_t n;

    pthread_mutex_lock(&sim.lock);
    n = report_total();
    pthread_mutex_unlock(&sim.lock);
    return n;
}

void cudasim_copied(int device, struct cudasim_copied *ret)
{
    *ret = (struct cudasim_copied){0};
    pthread_mutex_lock(&sim.lock);
    if (device >= 0 && device < sim.n_devices) {
        ret->in_bytes = sim.devices[device].in_bytes;
        ret->out_bytes = sim.devices[device].out_bytes;
        ret->peer_bytes = peer_bytes(&sim.devices[device]);
    }
    pthread_mutex_unlock(&sim.lock);
}
