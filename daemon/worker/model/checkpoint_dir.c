/* Manages the directory of checkpoints: lists them, removes old ones, and cleans up after a crash.
 *
 * Only names of the exact form step-<number> are checkpoints. A checkpoint that is being written or removed
 * has a name that ends in ".tmp", so it is never mistaken for a complete one. Removing a checkpoint takes
 * three steps. First it is renamed. Then the parent directory is synced, so that the rename survives a crash.
 * Last, its files are deleted.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/vec.h"
#include "daemon/worker/model/checkpoint_private.h"

void step_name(char buf[STEP_NAME_BYTES], uint64_t step, const char *suffix)
{
    snprintf(buf, STEP_NAME_BYTES, "step-%" PRIu64 "%s", step, suffix);
}

int open_checkpoints(const struct outdir *out, struct err *err)
{
    int r = fs_make_dir(out->fd, CHECKPOINTS), fd;

    if (r == 0)
        r = fs_sync(out->fd);
    if (r < 0)
        return fs_fail(err, r, out->name, CHECKPOINTS, "make the directory");
    fd = fs_open_dir(out->fd, CHECKPOINTS);
    return fd < 0 ? fs_fail(err, fd, out->name, CHECKPOINTS, "open the directory") : fd;
}

/* ------------------------------------------------------------------------------------------ listing */

/* Returns whether `name` is the name of a checkpoint directory, exactly as step_name writes it, such as
 * "step-12". Stores the number in *ret. */
static bool parse_step_dir(const char *name, uint64_t *ret)
{
    char again[STEP_NAME_BYTES];
    uint64_t step;

    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return false;
    step = strtoull(name + 5, NULL, 10);
    step_name(again, step, "");
    if (strcmp(again, name) != 0)
        return false;
    *ret = step;
    return true;
}

static bool is_leftover(const char *name)
{
    size_t n = strlen(name);

    return strncmp(name, "step-", 5) == 0 && n > 4 && strcmp(name + n - 4, ".tmp") == 0;
}

/* Calls `visit` for every name in the directory `fd`. Stops at the first error and returns that error. */
static int each_name(int fd, int (*visit)(void *ctx, int fd, const char *name), void *ctx)
{
    int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0; /* has its own read position */
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *e;

    if (!dir) {
        r = -errno;
        if (copy >= 0)
            close(copy);
        return r;
    }
    while (r == 0 && (errno = 0, e = readdir(dir)))
        r = visit(ctx, fd, e->d_name);
    if (r == 0 && errno != 0)
        r = -errno;
    closedir(dir);
    return r;
}

struct steps {
    VEC(uint64_t) v;
};

static int collect_step(void *ctx, int fd, const char *name)
{
    struct steps *steps = ctx;
    struct stat st;
    uint64_t step;

    if (parse_step_dir(name, &step) && fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISDIR(st.st_mode))
        vec_push(&steps->v, step);
    return 0;
}

static int compare_steps(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

int list_steps(const struct outdir *out, uint64_t **ret, size_t *ret_n, struct err *err)
{
    struct steps steps = {{0}};
    int fd = fs_open_dir(out->fd, CHECKPOINTS), r;

    if (fd < 0)
        return fs_fail(err, fd, out->name, CHECKPOINTS, "open the directory");
    r = each_name(fd, collect_step, &steps);
    close(fd);
    if (r < 0) {
        vec_free(&steps.v);
        return fs_fail(err, r, out->name, CHECKPOINTS, "read the directory");
    }
    if (steps.v.n > 0)
        qsort(steps.v.at, steps.v.n, sizeof *steps.v.at, compare_steps);
    *ret = steps.v.at;
    *ret_n = steps.v.n;
    return 0;
}

int checkpoint_latest(const struct outdir *out, uint64_t *ret_step, struct err *err)
{
    uint64_t *steps = NULL;
    size_t n = 0;
    int r = list_steps(out, &steps, &n, err);

    if (r < 0)
        return r;
    if (n > 0)
        *ret_step = steps[n - 1];
    free(steps);
    return n > 0 ? 0 : err_set_at(err, -ENOENT, out->name, "there is no checkpoint in this directory");
}

static int load_step(const struct outdir *out, int fd, uint64_t step, struct checkpoint_state *ret)
{
    char name[STEP_NAME_BYTES];
    int dir, r;

    step_name(name, step, "");
    dir = fs_open_dir(fd, name);
    if (dir < 0)
        return dir;
    r = checkpoint_state_load(dir, out->name, ret, NULL);
    close(dir);
    return r;
}

int checkpoint_resolved(const struct outdir *out, char **ret_text, uint64_t *ret_hash)
{
    uint64_t *steps = NULL;
    size_t n = 0;
    struct checkpoint_state s;
    int r = list_steps(out, &steps, &n, NULL), fd = r < 0 ? r : fs_open_dir(out->fd, CHECKPOINTS);

    r = -ENOENT;
    while (fd >= 0 && r < 0 && n-- > 0)
        r = load_step(out, fd, steps[n], &s);
    if (r == 0) {
        *ret_text = xmalloc(strlen(s.info.resolved) + 1);
        strcpy(*ret_text, s.info.resolved);
        *ret_hash = s.info.spec_hash;
        checkpoint_state_finish(&s);
    }
    if (fd >= 0)
        close(fd);
    free(steps);
    return r < 0 ? -ENOENT : 0;
}

/* ------------------------------------------------------------------------------------------ clean */

struct leftovers {
    VEC(char *) v;
};

static int collect_leftover(void *ctx, int fd, const char *name)
{
    struct leftovers *l = ctx;

    (void)fd;
    if (is_leftover(name)) {
        char *copy = xmalloc(strlen(name) + 1);
        strcpy(copy, name);
        vec_push(&l->v, copy);
    }
    return 0;
}

int checkpoint_clean(const struct outdir *out, struct err *err)
{
    struct leftovers l = {{0}};
    int fd = open_checkpoints(out, err), r;

    if (fd < 0)
        return fd;
    r = each_name(fd, collect_leftover, &l);
    if (r < 0)
        fs_fail(err, r, out->name, CHECKPOINTS, "read the directory");
    for (size_t i = 0; i < l.v.n; i++) {
        if (r == 0) {
            r = fs_remove_tree(fd, l.v.at[i]);
            if (r < 0)
                fs_fail(err, r, out->name, l.v.at[i], "remove what a crash left behind");
        }
        free(l.v.at[i]);
    }
    vec_free(&l.v);
    close(fd);
    return r;
}

/* ------------------------------------------------------------------------------------------ prune */

/* A checkpoint that checkpoint_prune may remove. */
struct prune_candidate {
    uint64_t step;
    bool sound; /* state.json could be read */
    bool keep;  /* the checkpoint stays */
    struct checkpoint_eval eval;
};

/* Reads the state.json of a checkpoint that may be removed. A damaged file is no error, but marks the
 * checkpoint as damaged. */
static int load_candidate(int fd, const struct outdir *out, struct prune_candidate *c)
{
    struct checkpoint_state s;
    int r = load_step(out, fd, c->step, &s);

    if (r == 0) {
        c->sound = true;
        c->eval = s.info.eval;
        checkpoint_state_finish(&s);
    }
    return r == -EBADMSG ? 0 : r;
}

static bool is_above(double x, double y)
{
    return !isnan(x) && (isnan(y) || x > y);
}

bool checkpoint_is_better(const struct checkpoint_eval *a, const struct checkpoint_eval *b,
                          enum spec_best best)
{
    if (best == BEST_VAL_LOSS)
        return is_above(-a->loss, -b->loss);
    if (best == BEST_VAL_ACCURACY || is_above(a->accuracy, b->accuracy) || is_above(b->accuracy, a->accuracy))
        return is_above(a->accuracy, b->accuracy);
    return is_above(-a->loss, -b->loss);
}

/* Marks the checkpoints that must stay: the newest `keep` sound checkpoints, the best one, and all damaged
 * ones. */
static void mark_kept(struct prune_candidate *c, size_t n, uint32_t keep, enum spec_best best)
{
    struct prune_candidate *winner = NULL;

    for (size_t i = n; i-- > 0;) {
        if (!c[i].sound)
            c[i].keep = true;
        else if (keep > 0) {
            c[i].keep = true;
            keep--;
        }
    }
    /* Find the best checkpoint. If two evaluations are equal, the older checkpoint counts as better. */
    for (size_t i = 0; best != BEST_NONE && i < n; i++)
        if (c[i].sound && c[i].eval.valid &&
            (!winner || checkpoint_is_better(&c[i].eval, &winner->eval, best)))
            winner = &c[i];
    if (winner)
        winner->keep = true;
}

/* Removes all checkpoints that are not marked as kept. The function first renames all of them, then syncs the
 * directory once, and then deletes their files. In this order, a crash never leaves a checkpoint without some
 * of its files. */
static int remove_candidates(int fd, const struct prune_candidate *c, size_t n)
{
    char name[STEP_NAME_BYTES], gone[STEP_NAME_BYTES];
    bool any = false;
    int r = 0;

    for (size_t i = 0; i < n && r == 0; i++) {
        if (c[i].keep)
            continue;
        step_name(name, c[i].step, "");
        step_name(gone, c[i].step, ".old.tmp");
        r = fs_remove_tree(fd, gone);
        if (r == 0 && renameat(fd, name, fd, gone) < 0)
            r = -errno;
        any = true;
    }
    if (r < 0 || !any)
        return r;
    r = fs_sync(fd);
    for (size_t i = 0; i < n && r == 0; i++) {
        if (c[i].keep)
            continue;
        step_name(gone, c[i].step, ".old.tmp");
        r = fs_remove_tree(fd, gone);
    }
    return r;
}

int checkpoint_prune(const struct outdir *out, uint32_t keep, enum spec_best best, struct err *err)
{
    uint64_t *steps = NULL;
    size_t n = 0;
    struct prune_candidate *c;
    int fd, r = list_steps(out, &steps, &n, err);

    assert(keep >= 1);
    if (r < 0)
        return r;
    fd = fs_open_dir(out->fd, CHECKPOINTS);
    r = fd < 0 ? fd : 0;
    c = xcalloc(n + 1, sizeof *c);
    for (size_t i = 0; i < n && r == 0; i++) {
        c[i].step = steps[i];
        r = load_candidate(fd, out, &c[i]);
    }
    if (r == 0) {
        mark_kept(c, n, keep, best);
        r = remove_candidates(fd, c, n);
    }
    if (fd >= 0)
        close(fd);
    free(c);
    free(steps);
    return r < 0 ? fs_fail(err, r, out->name, CHECKPOINTS, "remove an old checkpoint") : 0;
}
