/* tutti export: writes the weights of a job to a file or to a Hugging Face folder. tutti-worker replaces this
 * process and writes the files, so they belong to the user who runs the command. */
#include <errno.h>
#include <stdlib.h>

#include "client/worker_opts.h"

static const struct opt opts[] = {
    {"dtype", 0, "TYPE", "type of the weights: f32, bf16, f16 (default: that of the job's precision)"},
    {"force", 'f', NULL, "overwrite an earlier export"},
    {"heads", 0, NULL, "with --out: keep the heads of local updates, as early exits"},
    {"hf", 0, "FOLDER", "write a gpt2 or llama model as a Hugging Face folder"},
    {"out", 'o', "FILE", "the file to write, e.g. model.safetensors"},
    {"shard", 0, "SIZE", "with --hf: at most SIZE of tensors in each file (default: 5GB)"},
    {"step", 0, "N|best|last", "the checkpoint to export (default: the newest weights)"},
    {0},
};

static int check_target(const struct args *a, struct err *err)
{
    if (opts_has(a, "out") && opts_has(a, "hf"))
        return err_set(err, -EINVAL, "--out writes a file and --hf a folder; give one of them");
    if (opts_has(a, "heads") && opts_has(a, "hf"))
        return err_set(err, -EINVAL, "--heads goes with --out; a Hugging Face folder has no place for heads");
    if (!opts_has(a, "out") && !opts_has(a, "hf"))
        return err_set_at(err, -EINVAL, "--out", "is missing; name a file with --out, or a folder with --hf");
    return 0;
}

static int run_export(struct client *c, const struct args *a)
{
    struct err err = {0};
    struct spawn_args args = {0};
    char *dir = NULL;
    if (check_target(a, &err) < 0)
        return client_fail(c, &err);
    int exit = client_find_output(c, a->rest[0], &dir);
    if (exit == CLIENT_DONE) {
        spawn_add_value(&args, "--export", dir);
        spawn_add_value(&args, "--dtype", opts_get(a, "dtype"));
        spawn_add_value(&args, "--hf", opts_get(a, "hf"));
        spawn_add_value(&args, "--out", opts_get(a, "out"));
        spawn_add_value(&args, "--shard", opts_get(a, "shard"));
        spawn_add_value(&args, "--step", opts_get(a, "step"));
        spawn_add_option(&args, "--force", opts_get(a, "force"));
        spawn_add_option(&args, "--heads", opts_get(a, "heads"));
        exit = worker_become(c, &args);
    }
    free(dir);
    return exit;
}

const struct client_command cmd_export = {
    .name = "export",
    .args = "ID|DIR --out FILE | --hf FOLDER [options]",
    .summary = "write the weights of a job to a file, or as a Hugging Face folder",
    .details = "A number is the id of a job of the daemon. Anything else is an output directory and needs no "
               "daemon; write ./3\n"
               "for a directory with the name 3.\n",
    .opts = opts,
    .least = 1,
    .most = 1,
    .run = run_export,
};
