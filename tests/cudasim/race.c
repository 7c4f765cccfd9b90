/* The race detector: which two operations touch the same bytes, one of them writing, with nothing that
 * orders them.
 *
 * Every 4 bytes of device memory and of pinned host memory have a cell: who wrote last, and who read
 * since. "Who" is an epoch, a stream and the number of the operation in it. An operation carries a vector
 * clock (sim.h): an epoch is ordered before it iff that operation's number is at most the clock's entry
 * for that stream. Since clocks come from streams, events and synchronization alone and not from the order
 * in which operations happened to run, a missing wait is found under every seed.
 *
 * Not seen: two threads of one kernel against each other; memory that is not pinned; what a host function
 * does not say (cudasim_host_access). Of readers that are not ordered among themselves three are
 * remembered, of atomics that are not ordered the last. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cudasim.h"
#include "sim.h"

#define SEQ_BITS 25
#define SEQ_MASK ((1u << SEQ_BITS) - 1)
#define ATOMIC   0x8000u /* in write_loc */
#define LOC_MASK 0x7fffu
#define READERS  3
#define NOTES    4096 /* operations of a stream whose names are remembered */
#define SEEN     1024

struct cell {
    uint32_t write, read[READERS]; /* epochs; 0: nobody */
    uint16_t write_loc, read_loc[READERS];
};

/* Enough of an operation to name it after it is gone. */
struct note {
    uint32_t seq;
    enum op_kind kind;
    const char *name;
    const struct kernel *kernel;
};

static struct {
    uint32_t epoch;
    const struct vclock *clock;
    const struct note *note; /* NULL: the host thread */
} now;
static struct note *notes[SIM_STREAMS];
static uint64_t seen[SEEN], n_seen; /* of this case */
static uint64_t n_races;            /* of all */

struct cell *race_shadow_create(uint64_t bytes)
{
    void *p = mmap(NULL, (bytes + 7) / 4 * sizeof(struct cell), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

void race_shadow_destroy(struct cell *shadow, uint64_t bytes)
{
    if (shadow)
        munmap(shadow, (bytes + 7) / 4 * sizeof(struct cell));
}

static struct note *note_of(uint32_t stream, uint32_t seq)
{
    if (!notes[stream])
        notes[stream] = calloc(NOTES, sizeof **notes);
    if (!notes[stream])
        abort();
    return &notes[stream][seq % NOTES];
}

void race_begin(const struct op *op)
{
    struct note *n;

    if (!op) {
        now.epoch = (uint32_t)SIM_HOST << SEQ_BITS | (sim.host.at[SIM_HOST] & SEQ_MASK);
        now.clock = &sim.host;
        now.note = NULL;
        return;
    }
    if (op->seq > SEQ_MASK && sim.races) {
        fprintf(stderr, "cudasim: stream %d has too many operations, races are no longer looked for\n",
                op->stream->id);
        sim.races = false;
    }
    n = note_of((uint32_t)op->stream->id, op->seq);
    *n = (struct note){op->seq, op->kind, op->name, op->launch ? op->launch->kernel : NULL};
    now.epoch = (uint32_t)op->stream->id << SEQ_BITS | op->seq;
    now.clock = &op->clock;
    now.note = n;
}

static bool before(uint32_t epoch)
{
    return epoch == 0 || (epoch & SEQ_MASK) <= now.clock->at[epoch >> SEQ_BITS];
}

/* "kernel add (add.cu:12), stream 3 of device 0" */
static void describe(uint32_t epoch, uint32_t loc, char *text, size_t size)
{
    uint32_t stream = epoch >> SEQ_BITS, seq = epoch & SEQ_MASK;
    const struct note *n;
    char where[128] = "";

    if (stream == SIM_HOST) {
        snprintf(text, size, "the host thread");
        return;
    }
    n = note_of(stream, seq);
    if (n->seq != seq) {
        snprintf(text, size, "operation %u of stream %u", seq, stream);
        return;
    }
    if (n->kernel)
        kernel_loc(n->kernel, loc & LOC_MASK, where, sizeof where);
    snprintf(text, size, "%s %s%s%s%s, operation %u of stream %u on device %d", sim_name(n->kind), n->name,
             *where ? " (" : "", where, *where ? ")" : "", seq, stream, sim.streams[stream].device);
}

static uint64_t hash_text(uint64_t h, const char *text)
{
    for (; *text; text++)
        h = (h ^ (uint8_t)*text) * 1099511628211ULL;
    return h;
}

/* Is this pair of source lines or operations new? Numbers of operations do not count: a race in a loop is
 * one. */
static bool is_new(uint32_t other, uint32_t other_loc, uint32_t loc, const char *what)
{
    const struct note *n =
        other >> SEQ_BITS == SIM_HOST ? NULL : note_of(other >> SEQ_BITS, other & SEQ_MASK);
    uint64_t h = hash_text(14695981039346656037ULL, what);

    h = hash_text(h, n && n->name ? n->name : "host");
    h = (h ^ (other_loc & LOC_MASK)) * 1099511628211ULL;
    h = (h ^ (other >> SEQ_BITS)) * 1099511628211ULL;
    h = hash_text(h, now.note && now.note->name ? now.note->name : "host");
    h = (h ^ loc) * 1099511628211ULL;
    h = (h ^ (now.epoch >> SEQ_BITS)) * 1099511628211ULL;
    for (uint64_t i = 0; i < n_seen && i < SEEN; i++)
        if (seen[i] == h)
            return false;
    if (n_seen < SEEN)
        seen[n_seen] = h;
    n_seen++;
    n_races++;
    return true;
}

static void found(const struct allocation *a, uint64_t address, uint32_t other, uint32_t other_loc,
                  uint32_t loc, const char *what)
{
    char me[256], them[256];

    if (!is_new(other, other_loc, loc, what))
        return;
    describe(now.epoch, loc, me, sizeof me);
    describe(other, other_loc, them, sizeof them);
    report_problem(PROBLEM_RACE, "%s: %s; against %s; at %#llx, byte %llu of an allocation of %llu", what, me,
                   them, (unsigned long long)address, (unsigned long long)(address - a->address),
                   (unsigned long long)a->bytes);
}

static void cell_read(struct cell *c, uint32_t loc)
{
    for (int i = 0; i < READERS; i++)
        if (before(c->read[i])) {
            c->read[i] = now.epoch;
            c->read_loc[i] = (uint16_t)loc;
            return;
        }
    c->read[0] = now.epoch; /* a fourth reader that nothing orders: one is forgotten */
    c->read_loc[0] = (uint16_t)loc;
}

/* Readers that are not ordered before stay: who writes next may race with them too. */
static void cell_write(struct cell *c, uint32_t loc)
{
    c->write = now.epoch;
    c->write_loc = (uint16_t)loc;
    for (int i = 0; i < READERS; i++)
        if (before(c->read[i]))
            c->read[i] = 0;
}

void race_access(struct allocation *a, uint64_t address, uint64_t bytes, enum access access, uint32_t loc)
{
    struct cell *c, *end;

    if (!sim.races || !a->shadow || bytes == 0)
        return;
    loc &= LOC_MASK;
    c = &a->shadow[(address - a->address) / 4];
    end = &a->shadow[(address - a->address + bytes + 3) / 4];
    for (uint64_t at = address; c < end; c++, at += 4) {
        bool both_atomic = access == ACCESS_ATOMIC && (c->write_loc & ATOMIC);
        if (!before(c->write) && !both_atomic)
            found(a, at, c->write, c->write_loc, loc,
                  access == ACCESS_READ ? "read of a write" : "two writes");
        if (access == ACCESS_READ) {
            cell_read(c, loc);
            continue;
        }
        for (int i = 0; i < READERS; i++)
            if (!before(c->read[i]))
                found(a, at, c->read[i], c->read_loc[i], loc, "write over a read");
        cell_write(c, access == ACCESS_ATOMIC ? loc | ATOMIC : loc);
    }
}

uint64_t race_count(void)
{
    return n_races;
}

void race_forget(void)
{
    n_seen = 0;
}

/* ---- from the program --------------------------------------------------- */

void cudasim_host_access(const void *p, size_t bytes, int write)
{
    uint64_t address = (uint64_t)(uintptr_t)p;
    struct allocation *a;

    pthread_mutex_lock(&sim.lock);
    a = memory_find(address);
    if (memory_is_device_address(address)) {
        report_problem(PROBLEM_HOST_ACCESS, "the host touches device memory at %p", p);
    } else if (a) {
        if (address + bytes > a->address + a->bytes) {
            report_problem(PROBLEM_OUT_OF_BOUNDS,
                           "the host touches %zu bytes at %p, beyond its allocation of %llu", bytes, p,
                           (unsigned long long)a->bytes);
            bytes = a->address + a->bytes - address;
        }
        if (!sim.running)
            race_begin(NULL);
        race_access(a, address, bytes, write ? ACCESS_WRITE : ACCESS_READ, 0);
        if (sim.running)
            sim.running->bytes += bytes;
    }
    pthread_mutex_unlock(&sim.lock);
}

uint64_t cudasim_races(void)
{
    uint64_t n;

    pthread_mutex_lock(&sim.lock);
    n = race_count();
    pthread_mutex_unlock(&sim.lock);
    return n;
}
