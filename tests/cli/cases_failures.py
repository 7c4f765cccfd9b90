"""What goes wrong while a job runs: numbers that are not finite, a full disk, a disk that fails."""
import os

import strace
from files import (DELETE, SMALL, TINY, check_output, checkpoint_steps, job, leftovers, outcome, read_json,
                   read_metrics, read_safetensors, same_outcome, write_idx_pair, write_job)
from harness import case, once, spread

# ---- not finite ----

DIVERGES = {"optimizer": {"type": "sgd", "lr": 1e30}, "checkpoint": {"every": {"steps": 1}, "keep": 1}}


@case(each=[("stream", {"train.grad_clip": DELETE}), ("resident", {"train.grad_clip": 1.0})])
def test_divergence_stops_and_keeps_the_last_finite_checkpoint(t, value):
    policy, clip = value
    path, out = write_job(t, job(SMALL, {**DIVERGES, **clip})), t.path("out")
    run = t.worker("--run", path, "--quiet", "--output", out, "--policy", policy, expect=1)
    t.equal(run.out, "", "standard output")
    t.equal(len(run.err.splitlines()), 1, "lines on standard error")
    t.contains(run.err, "not finite at step 2", "diverged", "optimizer.lr", 'on_nonfinite "skip"', what="the message")
    t.equal(checkpoint_steps(out), [1], "checkpoints")
    check_output(out)
    weights, _ = read_safetensors(os.path.join(out, "checkpoints", "step-1", "model.safetensors"))
    for name, (_, values) in weights.items():
        t.check(all(abs(v) < float("inf") for v in values), f"{name} is not finite")
    t.equal([m[0] for m in read_metrics(out)], [1], "steps in metrics.jsonl")
    t.check(not os.path.exists(os.path.join(out, "model.safetensors")), "a diverged job has a final model")
    r = t.worker("--run", path, "--quiet", "--json", "--output", out, expect=1).json()  # loaded; diverges again
    t.equal((r["ok"], r["exit"]), (False, 1), "the JSON error")
    t.contains(r["message"], "not finite at step 2", what="the message")


@case
def test_divergence_skipped_goes_on_from_the_checkpoint(t):
    """Who stopped at a NaN may go on with "skip" in the same output."""
    out = t.path("out")
    t.worker("--run", write_job(t, job(SMALL, DIVERGES)), "--quiet", "--output", out, expect=1)
    skip = job(SMALL, {**DIVERGES, "train.on_nonfinite": "skip"})
    r = t.worker("--run", write_job(t, skip), "--quiet", "--json", "--output", out).json()
    t.equal((r["resumed_from"], r["steps"], r["stopped"]), (1, 5, False), "the result")
    losses = [m[1] for m in read_metrics(out) if m[1] != "val"]
    t.equal(losses[1:], [None] * 4, "losses of the skipped steps")
    first, _ = read_safetensors(os.path.join(out, "checkpoints", "step-5", "model.safetensors"))
    for name, (_, values) in first.items():
        t.check(all(abs(v) < float("inf") for v in values), f"{name} is not finite")


def poisoned(t, loss="mse"):
    """A job in which some steps, and only they, overflow: all images are black but a few, which are as bright as a
    float allows, so that with mse their gradient is infinite. What is learnt from black images is the biases."""
    side, n, batch = 8, 48, 6
    bad = {7, 30, 31}  # samples: steps 2 and 6
    images = bytes(255 if i in bad else 0 for i in range(n) for _ in range(side * side))
    files = write_idx_pair(t, "poison", images, bytes(i % 4 for i in range(n)), side)
    data = {"format": "idx", "train": files, "scale": [0, 8e37], "shuffle": False}
    return job(SMALL, {"data": data, "model.loss": loss, "eval": DELETE, "checkpoint": {"every": {"steps": 1}, "keep": 9},
                       "train": {"steps": 8, "global_batch": batch, "micro_batch": 3, "replicas": 1}})


@case(each=["resident", "stream", "lru", "harmony-pp"])
def test_skipped_steps_change_nothing_and_the_others_go_on(t, policy):
    spec = job(poisoned(t), {"train.on_nonfinite": "skip"})
    t.worker("--run", write_job(t, spec), "--quiet", "--output", t.path("out"), "--policy", policy, "--devices", 2)
    t.equal([m[0] for m in read_metrics(t.path("out")) if m[3] is None], [2, 6], "steps without a finite gradient")
    for file in ("model", "optimizer"):
        states = [read_safetensors(t.path("out", "checkpoints", f"step-{i}", f"{file}.safetensors"))[0]
                  for i in range(1, 9)]
        same = [i + 2 for i in range(7) if states[i] == states[i + 1]]
        t.equal(same, [2, 6], f"steps that changed nothing in {file}")
    plain = t.path("plain")
    t.worker("--run", write_job(t, spec), "--quiet", "--output", plain, "--device-memory", "1MiB")
    same_outcome(t, t.path("out"), outcome(plain), policy)


@case(each=[("no clipping", {}, "weights of layer 0"), ("clipping", {"train.grad_clip": 1.0}, "a gradient")])
def test_infinite_gradient_stops_before_it_is_saved(t, value):
    """The loss of the step is finite; what it would do to the weights is not."""
    _, changes, what = value
    out = t.path("out")
    run = t.worker("--run", write_job(t, job(poisoned(t), changes)), "--quiet", "--output", out, expect=1)
    t.contains(run.err, what, "not finite", "step 2", "diverged", what="the message")
    t.equal(checkpoint_steps(out), [1], "checkpoints")
    check_output(out)


@case
def test_infinite_optimizer_state_is_not_saved(t):
    spec, out = poisoned(t, "softmax_xent"), t.path("out")
    t.worker("--run", write_job(t, spec), "--quiet", "--output", out, expect=None)
    for step in checkpoint_steps(out):
        state, _ = read_safetensors(os.path.join(out, "checkpoints", f"step-{step}", "optimizer.safetensors"))
        for name, (_, values) in state.items():
            bad = sum(not abs(v) < float("inf") for v in values)
            t.equal(bad, 0, f"elements of {name} in step-{step} that are not finite")


@case
def test_failure_leaves_no_result_of_success(t):
    """DESIGN section 4: a worker writes its outcome before it exits."""
    out = t.path("out")
    t.worker("--run", write_job(t, job(poisoned(t), {"train.steps": 1})), "--quiet", "--output", out)
    t.equal(read_json(os.path.join(out, "result.json"))["ok"], True, "result.json of the first run: ok")
    t.worker("--run", write_job(t, poisoned(t)), "--quiet", "--output", out, expect=1)
    path = os.path.join(out, "result.json")
    t.check(not os.path.exists(path) or not read_json(path)["ok"], "result.json says ok after a failure")


@case
def test_divergence_without_a_checkpoint_does_not_promise_one(t):
    spec = job(SMALL, {**DIVERGES, "checkpoint": DELETE})
    run = t.worker("--run", write_job(t, spec), "--quiet", "--output", t.path("out"), expect=1)
    t.equal(checkpoint_steps(t.path("out")), [], "checkpoints")
    t.check("last checkpoint is kept" not in run.err, run.err)


@case
def test_skipped_steps_are_counted_in_the_result(t):
    spec = job(poisoned(t), {"train.on_nonfinite": "skip"})
    r = t.worker("--run", write_job(t, spec), "--quiet", "--json", "--output", t.path("out")).json()
    t.check(any("skip" in key for key in r), f"keys: {sorted(r)}")


@case
def test_skipped_last_step_is_reported_as_made(t):
    spec = job(SMALL, {**DIVERGES, "train.on_nonfinite": "skip"})
    run = t.worker("--run", write_job(t, spec), "--quiet", "--output", t.path("out"))
    t.check("no step made" not in run.out, "five steps were made")


# ---- a disk that is full ----

@case
def test_full_disk_keeps_the_old_checkpoint_and_goes_on_with_room(t):
    disk = t.path("disk")
    os.mkdir(disk)
    if os.getuid() != 0 or t.command(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", disk]).code != 0:
        t.skip("a file system cannot be mounted here")
    t.undo.append(lambda: t.command(["umount", "-l", disk]))
    spec = job(SMALL, {"checkpoint": {"every": {"steps": 2}, "keep": 1}})
    plain, out = t.path("plain"), os.path.join(disk, "out")
    longer = write_job(t, job(spec, {"train.steps": 9}), "longer.json")
    t.worker("--run", longer, "--quiet", "--output", plain)
    t.worker("--run", write_job(t, spec), "--quiet", "--output", out)
    with open(os.path.join(disk, "filler"), "wb", buffering=0) as f:  # leaves less than a checkpoint of 68 kB
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
        f.write(bytes(free - (40 << 10)))
    run = t.worker("--run", longer, "--quiet", "--output", out, expect=1)
    t.equal(run.out, "", "standard output")
    t.equal(len(run.err.splitlines()), 1, "lines on standard error")
    t.contains(run.err, "No space left on device", out, what="the message")
    t.equal(checkpoint_steps(out), [5], "checkpoints")
    t.equal(leftovers(out), [], "left behind")
    check_output(out)
    r = t.worker("--run", longer, "--quiet", "--json", "--output", out, expect=1).json()
    t.equal((r["errno"], r["exit"]), ("ENOSPC", 1), "the JSON error")
    os.remove(os.path.join(disk, "filler"))
    t.worker("--run", longer, "--quiet", "--output", out)
    t.equal(outcome(out)["weights_hash"], outcome(plain)["weights_hash"], "weights after there was room")
    found = [m for m in read_metrics(out) if m[1] != "val"]
    t.equal(found, [m for m in read_metrics(plain) if m[1] != "val"], "metrics after there was room")


# ---- a disk that fails ----

def arguments(t, out):
    return "--run", write_job(t, TINY), "--output", out, "--quiet", "--threads", 1, "--device-memory", "1MiB"


def places(t):
    strace.need(t)

    def make():
        out = t.fresh("traced")
        found = strace.places(t, out, *arguments(t, out))
        return found, outcome(out)

    return once("failure places", make)


def writes(line):
    return "O_CREAT" in line or "O_DIRECTORY" in line


@case(each=[("openat", "ENOSPC"), ("write", "ENOSPC"), ("fsync", "EIO"), ("fdatasync", "EIO"), ("renameat", "EIO"),
            ("mkdir", "ENOSPC"), ("mkdirat", "ENOSPC"), ("unlinkat", "EIO")])
def test_failing_call_is_reported_and_loses_nothing(t, value):
    """Each call that touches the output fails once. Where the program cannot do without, it says which file and why."""
    name, errno = value
    reason = {"ENOSPC": "No space left on device", "EIO": "Input/output error"}[errno]
    calls, expected = places(t)
    here = spread(p for p in calls if p[0] == name and (name != "openat" or writes(p[2])))
    failed = 0
    for _, number, line in here:
        out = t.fresh("out")
        run = strace.fail_at(t, name, number, errno, *arguments(t, out))
        t.notes[:] = [f"failed: {name} #{number}: {line}"]
        t.check(run.code in (0, 1, 2), f"exit code {run.code}")
        if run.code != 0:
            failed += 1
            t.equal(len(run.err.splitlines()), 1, "lines on standard error")
            t.check(run.err.startswith(f"tutti-worker: {out}"), "the file is not named")
            t.contains(run.err, reason, what="the message")
        check_output(out)
        t.worker(*arguments(t, out))
        same_outcome(t, out, expected, "after the failure")
        t.equal(leftovers(out), [], "left behind")
        t.log.clear()
    t.check(failed >= len(here) // 3, f"only {failed} of {len(here)} failures of {name} were reported")


@case
def test_full_disk_at_the_start_is_not_a_misfit(t):
    calls, _ = places(t)
    first = [p for p in calls if p[0] == "write" and "resolved.json" in p[2]][0]
    run = strace.fail_at(t, "write", first[1], "ENOSPC", *arguments(t, t.fresh("out")))
    t.contains(run.err, "resolved.json", "No space left on device", what="standard error")
    t.check(run.code in (1, 2), f"exit code {run.code}")


@case
def test_failed_sync_is_not_retried(t):
    """After EIO the page cache may claim what the disk lacks: the checkpoint is given up, the old one stays."""
    calls, expected = places(t)
    syncs = [p for p in calls if p[0] == "fsync" and "step-2.tmp" in p[2]]
    t.check(len(syncs) >= 4, f"syncs of a checkpoint: {syncs}")
    for _, number, _ in syncs:
        out = t.fresh("out")
        run = strace.fail_at(t, "fsync", number, "EIO", *arguments(t, out))
        t.equal(run.code, 1, "exit code")
        t.equal(checkpoint_steps(out), [1], "checkpoints")
        t.equal(leftovers(out), [], "left behind")
        t.worker(*arguments(t, out))
        same_outcome(t, out, expected, "after the failure")
