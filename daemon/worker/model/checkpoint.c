/* Saves and opens checkpoints.
 *
 * checkpoint_save makes step-N.tmp, writes and syncs each file, state.json last, syncs the directory, renames
 * step-N.tmp to step-N, and syncs the parent directory. A crash at any point leaves either no step-N or a
 * complete one. After an error, step-N.tmp is removed, and the message names the file. A failed fsync is not
 * repeated.
 *
 * checkpoint_open reads state.json, which contains its own checksum, and then compares every byte of the
 * other files with the sizes and checksums in it. The files stay open, so that the files that are
 * read later are the files that were checked.
 */
#include "daemon/worker/model/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/worker/model/checkpoint_private.h"

/* ------------------------------------------------------------------------------------------ tensors */

/* The list of tensors while checkpoint_tensors_init is filling it. */
struct tensor_list {
    struct st_tensor *at;
    size_t n;
};

/* Adds one tensor of a layer to the list. `prefix` is the name of the layer, such as "layers.3". If `part` is
 * NULL, the tensor is the parameter `p` of the layer, and `block` points to the layer's weights or buffers,
 * whose elements have the type `dtype`. Otherwise the tensor is one part of the optimizer state of `p`, and
 * `block` points to the layer's optimizer state (K). */
static void add_param(struct arena *arena, struct tensor_list *list, const char *prefix,
                      const struct layer_param *p, enum dtype dtype, const struct state_part *part,
                      void *block)
{
    struct st_tensor *t = &list->at[list->n++];
    /* The parameter's offset in W (the weights), in elements. Every part of K (the optimizer state) has the
     * same offset. */
    uint64_t first = dtype_elements(p->dtype, p->offset);
    char name[128];

    snprintf(name, sizeof name, "%s.%s%s%s", prefix, p->name, part ? "." : "", part ? part->name : "");
    t->name = arena_strdup(arena, name);
    t->dtype = dtype;
    t->rank = p->rank;
    memcpy(t->shape, p->shape, p->rank * sizeof p->shape[0]);
    t->data = (char *)block + (part ? part->begin : 0) + first * dtype_size(t->dtype);
}

static uint32_t count_buffers(const struct layer *l)
{
    return layer_type(l)->buffers != NULL ? layer_type(l)->buffers(l, NULL) : 0;
}

/* Adds the buffers of layer number `i` to the list. */
static void add_buffers(struct arena *arena, struct tensor_list *list, const struct layer *l,
                        const char *prefix, checkpoint_block_fn block, void *ctx, uint32_t i)
{
    const uint32_t n = count_buffers(l);
    struct layer_param *buffers = arena_alloc_array(arena, n, sizeof *buffers);

    if (n > 0)
        layer_type(l)->buffers(l, buffers);
    for (uint32_t j = 0; j < n; j++)
        add_param(arena, list, prefix, &buffers[j], buffers[j].dtype, NULL, block(ctx, i, TENSOR_B));
}

/* Writes the prefix of the names of a layer's tensors to `ret`: "layers.3" for layer 3 of the model, or the
 * name of a layer that the training method has added. */
static void name_prefix(const struct layer *l, uint32_t n_model, char ret[64])
{
    if (l->id < n_model)
        snprintf(ret, 64, "layers.%" PRIu32, l->id);
    else
        snprintf(ret, 64, "%s", l->name);
}

void checkpoint_tensors_init(struct checkpoint_tensors *t, const struct model *all, uint32_t n_model,
                             const struct optimizer *optimizer, checkpoint_block_fn block, void *ctx)
{
    struct arena *arena = arena_create();
    struct tensor_list model = {0}, method = {0}, k = {0};
    uint32_t n = 0;

    for (uint32_t i = 0; i < all->n_layers; i++) {
        n += layer_type(&all->layers[i])->params(&all->layers[i], NULL);
        n += count_buffers(&all->layers[i]);
    }
    model.at = arena_alloc_array(arena, n, sizeof *model.at);
    method.at = arena_alloc_array(arena, n, sizeof *method.at);
    k.at = arena_alloc_array(arena, OPTIMIZER_PARTS * (size_t)n, sizeof *k.at);
    for (uint32_t i = 0; i < all->n_layers; i++) {
        const struct layer *l = &all->layers[i];
        struct tensor_list *w = l->id < n_model ? &model : &method;
        uint32_t n_params = layer_type(l)->params(l, NULL);
        struct layer_param *params = arena_alloc_array(arena, n_params, sizeof *params);
        struct state_part parts[OPTIMIZER_PARTS];
        struct layer_sizes size;
        char prefix[64];

        name_prefix(l, n_model, prefix);
        add_buffers(arena, w, l, prefix, block, ctx, i);
        /* Skip a layer that has no weights or that uses the weights of another layer. */
        if (n_params == 0)
            continue;
        layer_type(l)->params(l, params);
        layer_type(l)->sizes(l, 1, &size);
        void *w_block = block(ctx, i, TENSOR_W);
        uint32_t n_parts = optimizer_parts(optimizer, layer_w_elements(&size), parts);
        void *k_block = n_parts > 0 ? block(ctx, i, TENSOR_K) : NULL;
        for (uint32_t j = 0; j < n_params; j++) {
            add_param(arena, w, prefix, &params[j], optimizer->master ? DTYPE_F32 : params[j].dtype, NULL,
                      w_block);
            for (uint32_t part = 0; k_block && part < n_parts; part++)
                if (!parts[part].is_master)
                    add_param(arena, &k, prefix, &params[j], parts[part].dtype, &parts[part], k_block);
        }
    }
    *t = (struct checkpoint_tensors){.model = model.at,
                                     .n_model = model.n,
                                     .method = method.at,
                                     .n_method = method.n,
                                     .optimizer = k.at,
                                     .n_optimizer = k.n,
                                     .arena = arena};
}

void checkpoint_tensors_finish(struct checkpoint_tensors *t)
{
    arena_destroy(t->arena);
    *t = (struct checkpoint_tensors){0};
}

/* ------------------------------------------------------------------------------------------ writing */

static int write_tensors(int dirfd, const char *dir, const char *name, const struct checkpoint_data *data,
                         const struct st_tensor *tensors, size_t n, struct file_sum *ret, struct err *err)
{
    char step[24], hash[24], path[FS_PATH_BYTES];
    const struct st_meta meta[] = {{"format", "pt"}, {"step", step}, {"spec_hash", hash}};
    int fd = fs_create(dirfd, name), r, s;

    fs_path(path, sizeof path, dir, name);
    if (fd < 0)
        return fs_fail(err, fd, NULL, path, "create");
    snprintf(step, sizeof step, "%" PRIu64, data->step);
    snprintf(hash, sizeof hash, "%016" PRIx64, spec_hash(data->spec));
    r = safetensors_write(fd, path, tensors, n, meta, sizeof meta / sizeof meta[0], &ret->bytes, &ret->crc,
                          err);
    if (r < 0) {
        close(fd);
        return r;
    }
    s = fs_sync_close(fd);
    return s < 0 ? fs_fail(err, s, NULL, path, "sync") : 0;
}

static int write_state(int dirfd, const char *dir, const struct checkpoint_data *data,
                       const struct file_sum *files, struct err *err)
{
    struct strbuf b = {0};
    int fd = fs_create(dirfd, STATE_FILE), r;

    if (fd < 0)
        return fs_fail(err, fd, dir, STATE_FILE, "create");
    checkpoint_state_print(&b, data, files);
    r = fs_write_all(fd, b.at, b.n);
    strbuf_finish(&b);
    if (r < 0) {
        close(fd);
        return fs_fail(err, r, dir, STATE_FILE, "write");
    }
    r = fs_sync_close(fd);
    return r < 0 ? fs_fail(err, r, dir, STATE_FILE, "sync") : 0;
}

static int write_all(int dirfd, const char *dir, const struct checkpoint_data *data, struct err *err)
{
    const struct checkpoint_tensors *t = data->tensors;
    struct file_sum files[FILE_COUNT] = {0};
    int r = write_tensors(dirfd, dir, checkpoint_files[FILE_MODEL], data, t->model, t->n_model,
                          &files[FILE_MODEL], err);

    if (r == 0)
        r = write_tensors(dirfd, dir, checkpoint_files[FILE_OPTIMIZER], data, t->optimizer, t->n_optimizer,
                          &files[FILE_OPTIMIZER], err);
    if (r == 0 && t->n_method > 0)
        r = write_tensors(dirfd, dir, checkpoint_files[FILE_METHOD], data, t->method, t->n_method,
                          &files[FILE_METHOD], err);
    if (r == 0)
        r = write_state(dirfd, dir, data, files, err);
    if (r < 0)
        return r;
    r = fs_sync(dirfd);
    return r < 0 ? fs_fail(err, r, NULL, dir, "sync") : 0;
}

/* Creates the temporary directory `tmp` (step-N.tmp), and writes and syncs all files of the checkpoint in
 * it. */
static int write_tmp_dir(const struct outdir *out, int parent, const char *tmp,
                         const struct checkpoint_data *data, struct err *err)
{
    char dir[FS_PATH_BYTES];
    int r = fs_remove_tree(parent, tmp), fd;

    snprintf(dir, sizeof dir, "%s/%s/%s", out->name, CHECKPOINTS, tmp);
    if (r < 0)
        return fs_fail(err, r, NULL, dir, "remove");
    if (mkdirat(parent, tmp, 0777) < 0)
        return fs_fail(err, -errno, NULL, dir, "make the directory");
    fd = fs_open_dir(parent, tmp);
    if (fd < 0)
        return fs_fail(err, fd, NULL, dir, "open the directory");
    r = write_all(fd, dir, data, err);
    close(fd);
    return r;
}

/* Checks whether the checkpoint step-N already exists. Returns 1 if it is a sound checkpoint of this spec,
 * and 0 if it must be written. Returns -EEXIST if it belongs to another spec. */
static int check_existing(const struct outdir *out, int parent, const struct checkpoint_data *data,
                          struct err *err)
{
    char name[STEP_NAME_BYTES];
    struct checkpoint *old;
    struct stat st;
    bool same;
    int r;

    step_name(name, data->step, "");
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : fs_fail(err, -errno, out->name, name, "look at");
    r = checkpoint_open(out, data->step, &old, err);
    if (r == -EBADMSG || r == -ENOTDIR || r == -ELOOP)
        return 0;
    if (r < 0)
        return r;
    same = checkpoint_info(old)->spec_hash == spec_hash(data->spec);
    checkpoint_close(old);
    if (!same)
        return err_set_at(err, -EEXIST, out->name,
                          "has a checkpoint of step %" PRIu64
                          " of another spec; choose another output, or move the directory \"%s\" away",
                          data->step, CHECKPOINTS);
    return 1;
}

/* Renames step-N.tmp to step-N. Only this rename makes the checkpoint exist, so a crash before it leaves no
 * incomplete checkpoint. */
static int publish_checkpoint(const struct outdir *out, int parent, uint64_t step, struct err *err)
{
    char name[STEP_NAME_BYTES], tmp[STEP_NAME_BYTES], old[STEP_NAME_BYTES];
    int r;

    step_name(name, step, "");
    step_name(tmp, step, ".tmp");
    step_name(old, step, ".old.tmp");
    r = fs_remove_tree(parent, old);
    /* Move a damaged step-N away. */
    if (r == 0 && renameat(parent, name, parent, old) < 0 && errno != ENOENT)
        r = -errno;
    if (r == 0 && renameat(parent, tmp, parent, name) < 0)
        r = -errno;
    if (r < 0)
        return fs_fail(err, r, out->name, tmp, "rename");
    r = fs_sync(parent);
    if (r < 0)
        return fs_fail(err, r, out->name, CHECKPOINTS, "sync");
    (void)fs_remove_tree(parent, old); /* if this fails, checkpoint_clean removes it later */
    return 0;
}

int checkpoint_save(const struct outdir *out, const struct checkpoint_data *data, struct err *err)
{
    char tmp[STEP_NAME_BYTES];
    int parent = open_checkpoints(out, err), r;

    if (parent < 0)
        return parent;
    step_name(tmp, data->step, ".tmp");
    r = check_existing(out, parent, data, err);
    if (r == 0) {
        r = write_tmp_dir(out, parent, tmp, data, err);
        if (r == 0)
            r = publish_checkpoint(out, parent, data->step, err);
        if (r < 0)
            (void)fs_remove_tree(parent, tmp);
    }
    close(parent);
    return r < 0 ? r : 0;
}

int checkpoint_export_weights(const struct outdir *out, const char *file, const struct checkpoint_data *data,
                              struct err *err)
{
    struct file_sum sum;
    char tmp[128];
    int r;

    assert(strlen(file) + sizeof ".tmp" <= sizeof tmp && !strchr(file, '/'));
    snprintf(tmp, sizeof tmp, "%s.tmp", file);
    r = fs_remove_tree(out->fd, tmp);
    if (r < 0)
        return fs_fail(err, r, out->name, tmp, "remove");
    r = write_tensors(out->fd, out->name, tmp, data, data->tensors->model, data->tensors->n_model, &sum, err);
    if (r == 0 && renameat(out->fd, tmp, out->fd, file) < 0)
        r = fs_fail(err, -errno, out->name, file, "rename");
    if (r < 0) {
        (void)fs_remove_tree(out->fd, tmp);
        return r;
    }
    r = fs_sync(out->fd);
    return r < 0 ? fs_fail(err, r, NULL, out->name, "sync") : 0;
}

/* ------------------------------------------------------------------------------------------ opening */

struct checkpoint {
    struct checkpoint_state state;
    int fd[FILE_COUNT]; /* -1 if the file is not open */
    struct safetensors *file[FILE_COUNT];
};

static int check_sum(int fd, const char *path, const struct file_sum *want, struct err *err)
{
    struct file_sum found = {0};
    int r = fs_checksum(fd, &found.bytes, &found.crc);

    if (r < 0)
        return fs_fail(err, r, NULL, path, "read");
    if (found.bytes != want->bytes)
        return err_set_at(err, -EBADMSG, path, "damaged: it should have %" PRIu64 " bytes, but has %" PRIu64,
                          want->bytes, found.bytes);
    if (found.crc != want->crc)
        return err_set_at(err, -EBADMSG, path,
                          "damaged: it should have the CRC-32C %08" PRIx32 ", but has %08" PRIx32, want->crc,
                          found.crc);
    return 0;
}

static int open_tensor_file(struct checkpoint *c, int i, int dirfd, const char *dir, struct err *err)
{
    char path[FS_PATH_BYTES];
    uint64_t bytes;
    int r;

    fs_path(path, sizeof path, dir, checkpoint_files[i]);
    c->fd[i] = fs_open_read(dirfd, checkpoint_files[i], &bytes);
    if (c->fd[i] == -ENOENT)
        return err_set_at(err, -EBADMSG, path, "the file is missing");
    if (c->fd[i] < 0)
        return fs_fail(err, c->fd[i], NULL, path, "open");
    r = check_sum(c->fd[i], path, &c->state.files[i], err);
    return r < 0 ? r : safetensors_open(c->fd[i], path, &c->file[i], err);
}

static int open_all(struct checkpoint *c, int dirfd, const char *dir, uint64_t step, struct err *err)
{
    int r = checkpoint_state_load(dirfd, dir, &c->state, err);

    if (r == 0 && c->state.info.step != step)
        r = err_set_at(err, -EBADMSG, dir, "is really the checkpoint of step %" PRIu64 ", under another name",
                       c->state.info.step);
    for (uint32_t i = 0; i < c->state.n_files && r == 0; i++)
        r = open_tensor_file(c, (int)i, dirfd, dir, err);
    return r;
}

/* Adds advice to the error message about a damaged checkpoint: which directory the user can remove, and at
 * which training step the job then resumes. */
static void advise(const struct outdir *out, uint64_t step, const char *dir, struct err *err)
{
    uint64_t *steps = NULL, older = 0;
    size_t n = 0;
    bool found = false;

    if (!err || list_steps(out, &steps, &n, NULL) < 0)
        return;
    for (size_t i = 0; i < n && steps[i] < step; i++) {
        older = steps[i];
        found = true;
    }
    free(steps);
    if (found)
        err_set_at(err, err->code, err->path, "%s; remove %s to resume from step %" PRIu64, err->msg, dir,
                   older);
    else
        err_set_at(err, err->code, err->path, "%s; remove %s to start from the beginning", err->msg, dir);
}

static int open_step_dir(const struct outdir *out, uint64_t step)
{
    char name[STEP_NAME_BYTES];
    int parent = fs_open_dir(out->fd, CHECKPOINTS), fd;

    if (parent < 0)
        return parent;
    step_name(name, step, "");
    fd = fs_open_dir(parent, name);
    close(parent);
    return fd;
}

int checkpoint_open(const struct outdir *out, uint64_t step, struct checkpoint **ret, struct err *err)
{
    char dir[FS_PATH_BYTES];
    struct checkpoint *c;
    int fd = open_step_dir(out, step), r;

    snprintf(dir, sizeof dir, "%s/%s/step-%" PRIu64, out->name, CHECKPOINTS, step);
    if (fd < 0)
        return fs_fail(err, fd, NULL, dir, "open the directory");
    c = xcalloc(1, sizeof *c);
    for (int i = 0; i < FILE_COUNT; i++)
        c->fd[i] = -1;
    r = open_all(c, fd, dir, step, err);
    close(fd);
    if (r < 0) {
        checkpoint_close(c);
        if (r == -EBADMSG)
            advise(out, step, dir, err);
        return r;
    }
    *ret = c;
    return 0;
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c)
        return;
    for (int i = 0; i < FILE_COUNT; i++) {
        safetensors_close(c->file[i]);
        if (c->fd[i] >= 0)
            close(c->fd[i]);
    }
    checkpoint_state_finish(&c->state);
    free(c);
}

const struct checkpoint_info *checkpoint_info(const struct checkpoint *c)
{
    return &c->state.info;
}

static int read_tensors(const struct safetensors *f, const char *name, const struct st_tensor *t, size_t n,
                        struct err *err)
{
    if (f == NULL && n == 0)
        return 0;
    if (f == NULL)
        return err_set_at(err, -EINVAL, name, "is missing in the checkpoint, but the method has %zu tensors",
                          n);
    if (safetensors_count(f) != n)
        return err_set_at(err, -EINVAL, name, "has %zu tensors, but the model and its optimizer have %zu",
                          safetensors_count(f), n);
    for (size_t i = 0; i < n; i++) {
        int r = safetensors_read_tensor(f, &t[i], err);
        if (r < 0)
            return r == -ENOENT ? -EINVAL : r;
    }
    return 0;
}

int checkpoint_read_weights(const struct checkpoint *c, const struct checkpoint_tensors *t, struct err *err)
{
    int r = read_tensors(c->file[FILE_MODEL], checkpoint_files[FILE_MODEL], t->model, t->n_model, err);
    if (r < 0)
        return r;
    return read_tensors(c->file[FILE_METHOD], checkpoint_files[FILE_METHOD], t->method, t->n_method, err);
}

int checkpoint_read_optimizer(const struct checkpoint *c, const struct checkpoint_tensors *t, struct err *err)
{
    return read_tensors(c->file[FILE_OPTIMIZER], checkpoint_files[FILE_OPTIMIZER], t->optimizer,
                        t->n_optimizer, err);
}
