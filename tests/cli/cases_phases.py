"""A job of three phases (worker_phases.c): the first half of the model is trained, its outputs are kept, and the rest is
trained on them. Killed between and inside the phases it goes on to the same bits, whatever the memory and the devices.
"""
import json
import os
import random
import shutil
import signal
import time

import reference
import strace
from files import (POLICIES, SMALL, TINY, check_checkpoint, check_output, checkpoint_steps, job, leftovers, outcome, read_json,
                   read_metrics, read_safetensors, same_outcome, separable, steps_in_metrics, write_idx_pair, write_job)
from harness import case, once, spread

# Phase 0 has the steps of the job and two more, phase 1 has none, phase 2 has the steps of the job.
MODEL = {"type": "mlp", "input": 6, "hidden": [7, 5, 4], "classes": 3}
SHORT = job(TINY, {"model": MODEL, "train.steps": 2, "data.samples": 18})
LONG = job(SMALL, {"train.steps": 12, "model.dropout": 0.1, "train.grad_clip": 1.0, "checkpoint.every": {"steps": 3},
                   "data.samples": 100, "checkpoint.keep": 100})
FIRST, SECOND = 14, 12  # training steps of phases 0 and 2 of LONG
TIGHT = ["--devices", 2, "--device-memory", "24KiB"]
MACHINES = [["--devices", 1], TIGHT, ["--devices", 2, "--policy", "harmony-pp"], ["--device-memory", "40KiB"]]


def run(t, path, out, *options, **more):
    return t.worker("--run", path, "--output", out, "--quiet", *options, **more)


def long_reference(t):
    def make():
        out = t.fresh("reference")
        run(t, write_job(t, LONG), out)
        return outcome(out)

    return once("phases", make)


def phases_of(out):
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        return [(m["step"], m["phase"]) for m in map(json.loads, f)]


# ---- what the phases do ----

@case
def test_phases_follow_each_other(t):
    out = t.path("out")
    run(t, write_job(t, LONG), out)
    t.equal(phases_of(out), [(s, 0 if s <= FIRST else 2) for s in range(1, FIRST + SECOND + 1)], "steps and phases")
    t.equal(checkpoint_steps(out), [3, 6, 9, 12, 14, 17, 20, 23, 26], "checkpoints")
    for step in checkpoint_steps(out):
        state = check_checkpoint(out, step)
        at = (0, step) if step <= FIRST else (2, step - FIRST)
        t.equal((state["phase"], state["phase_step"]), at, f"position of step {step}")
        t.equal("inputs_crc32c" in state, step > FIRST, f"checksum of inputs at step {step}")
        names, _ = read_safetensors(os.path.join(out, "checkpoints", f"step-{step}", "model.safetensors"))
        t.equal(len(names), 8, f"weights in step {step}: of trained and untrained layers")
        moments, _ = read_safetensors(os.path.join(out, "checkpoints", f"step-{step}", "optimizer.safetensors"))
        t.equal({name.split(".")[1] for name in moments}, {"0", "1"} if step <= FIRST else {"2", "3"}, "trained layers")
    result = read_json(os.path.join(out, "result.json"))
    t.equal((result["steps"], result["total_steps"]), (26, 26), "steps in result.json")
    t.equal(leftovers(out), [], "left behind")
    train = read_json(os.path.join(out, "resolved.json"))["train"]
    t.equal(train["phases"], [{"micro_batch": 8, "replicas": 1}] * 2 + [{"micro_batch": 4, "replicas": 1}], "sizes")


def idx_spec(t, **data):
    rng = random.Random(5)
    side, n = 4, 30
    images, labels = separable(n, 3, side, rng)
    files = write_idx_pair(t, "train", images, labels, side)
    scaled = [([b / 255 for b in images[i * side * side : (i + 1) * side * side]], labels[i]) for i in range(n)]
    return {"schema": "job/v1", "model": {"type": "mlp", "input": [side, side], "hidden": [9, 8, 7], "classes": 3},
            "data": {"format": "idx", "train": files, **data}, "train": {"steps": 2, "global_batch": 12},
            "optimizer": {"type": "adamw", "lr": 0.01, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.1},
            "checkpoint": {"every": {"steps": 1}, "keep": 99}}, scaled


def close(t, found, want, what):
    t.check(abs(found - want) <= 1e-6 + 2e-4 * abs(want), f"{what}: found {found}, want {want}")


@case
def test_second_half_trains_as_in_plain_python(t):
    """Its first step: the loss and the gradients are those of the joined network, the optimizer is fresh."""
    spec, samples = idx_spec(t, shuffle=False)
    out, o = t.path("out"), spec["optimizer"]
    run(t, write_job(t, spec), out)
    before, _ = read_safetensors(os.path.join(out, "checkpoints", "step-4", "model.safetensors"))
    after, _ = read_safetensors(os.path.join(out, "checkpoints", "step-5", "model.safetensors"))
    layers = reference.layers_of(before)
    loss, grads = reference.gradients(layers, samples[:6])
    close(t, float(read_metrics(out)[4][1]), loss, "loss of the first step of phase 2")
    grads = reference.flatten(grads)
    for name, w in reference.flatten(layers).items():
        zeros = [0.0] * len(w)
        trained = int(name.split(".")[1]) >= 2
        want = reference.adamw(w, grads[name], zeros, zeros, 1, o) if trained else w
        for found, expected in zip(after[name][1], want):
            if trained:
                close(t, found, expected, name)
            else:
                t.equal(found, expected, f"{name}, which phase 2 does not train")


@case
def test_kept_outputs_go_with_the_targets_of_their_samples(t):
    """With a rate that changes no weight, the mean loss of a shuffled epoch is that of the joined network."""
    spec, samples = idx_spec(t)
    spec["optimizer"] = {"type": "sgd", "lr": 1e-30}
    spec["train"] = {"steps": 5, "global_batch": 12, "micro_batch": 4}
    out = t.path("out")
    run(t, write_job(t, spec), out)
    weights, _ = read_safetensors(os.path.join(out, "model.safetensors"))
    loss, _ = reference.evaluate(reference.layers_of(weights), samples)
    epoch = [float(m[1]) for m in read_metrics(out)[7:12]]
    t.equal(len(epoch), 5, "steps of 6 of 30 samples")
    close(t, sum(epoch) / 5, loss, "mean loss")


@case
def test_sizes_of_phases_are_chosen_once(t):
    path = write_job(t, job(LONG, {"train.micro_batch": "auto"}))
    out = t.path("out")
    run(t, path, out, "--device-memory", "24KiB")
    sizes = read_json(os.path.join(out, "resolved.json"))["train"]["phases"]
    t.equal(sizes[1], sizes[0], "sizes of the phase that computes the outputs of phase 0")
    last = checkpoint_steps(out)[-1]
    os.rename(os.path.join(out, "checkpoints", f"step-{last}"), t.path("gone"))
    run(t, path, out, "--device-memory", "64MiB")
    t.equal(read_json(os.path.join(out, "resolved.json"))["train"]["phases"], sizes, "sizes of a run with more memory")


@case
def test_check_and_plan_show_the_largest_phase(t):
    path = write_job(t, LONG)
    check = t.worker("--check", path, "--json", *TIGHT).json()
    t.equal((check["steps"], check["resolved"]["micro_batch"]), (FIRST + SECOND, 8), "steps, micro-batch")
    t.contains(t.worker("--check", path).out, "phase 0  first half: 14 steps of 24 samples",
               "phase 1  outputs of the first half: forward only", "phase 2  second half: 12 steps of 12 samples")
    text = t.worker("--plan", path, "--no-what-if").out
    t.contains(text, "phase 0 (first half), the largest of 3 phases", "phase 2  second half: 12 steps of 12 samples")
    plan = t.worker("--plan", path, "--json", "--no-what-if", *TIGHT).json()
    t.equal(plan["phases"], check["phases"], "phases of --plan and --check")
    t.equal(plan["phases"][0]["device_peak_bytes"], plan["device_peak_bytes"], "memory of the largest phase")
    t.equal([p["steps"] for p in check["phases"]], [FIRST, 0, SECOND], "steps of the phases")
    t.check(all(0 < peak <= check["device_bytes"] for p in check["phases"] for peak in p["device_peak_bytes"]),
            f"memory of the phases: {check['phases']}")
    t.contains(t.worker("--run", path, "--output", t.path("out")).out, "3; what follows is about phase 0 (first half)")
    least = check["least_device_bytes"]
    run(t, path, t.path("fits"), "--device-memory", least, "--devices", 2)
    refused = run(t, path, t.path("small"), "--device-memory", least - 256, "--devices", 2, expect=None)
    t.check(refused.code != 0, "less than the least was enough")
    t.contains(refused.err, "phase ")


# ---- the same bits ----

@case(each=POLICIES)
def test_policy_does_not_change_bits(t, policy):
    out = t.path("out")
    memory = {"resident": "64MiB", "blocks": "64MiB", "lru": "40KiB"}.get(policy, "24KiB")
    run(t, write_job(t, LONG), out, "--policy", policy, "--devices", 2, "--device-memory", memory, "--delay-seed", 7)
    same_outcome(t, out, long_reference(t), policy)


def kill_after(t, path, out, step, *options):
    """Kills a run when metrics.jsonl has `step`. Returns whether the run was still going."""
    live = t.start("--run", path, "--output", out, "--quiet", *map(str, options))
    live.until(lambda: steps_in_metrics(out) >= step or not live.alive(), f"step {step}")
    code = live.kill().code
    check_output(out)
    return code == -9


def cycle_job(t, k):
    """LONG with k steps in a cycle, and with checkpoints that are far enough apart for whole cycles in phases 0 and 2."""
    return write_job(t, job(LONG, {"memory.cycle_steps": k, "checkpoint.every": {"steps": 9}}), f"job-{k}.json")


@case(each=[2, 4, 7, 64])
def test_steps_of_a_cycle_do_not_change_bits(t, k):
    for options in [[], [*TIGHT, "--delay-seed", 7]]:
        out = t.fresh("out")
        run(t, cycle_job(t, k), out, *options)
        same_outcome(t, out, long_reference(t), f"{k} steps in a cycle, {options}")
        t.equal(checkpoint_steps(out), [9, FIRST, FIRST + 9, FIRST + SECOND], "checkpoints")


@case(each=[1, 2, 3])
def test_killed_with_several_steps_in_a_cycle_resumes_to_the_same_bits(t, seed):
    rng, out, kills = random.Random(seed), t.path("out"), 0
    while steps_in_metrics(out) < FIRST + SECOND - 3:
        goal, options = steps_in_metrics(out) + rng.randrange(1, 9), rng.choice(MACHINES)
        kills += kill_after(t, cycle_job(t, rng.choice([1, 2, 4, 7])), out, goal, *options, "--delay-seed", rng.randrange(1, 99))
    run(t, cycle_job(t, 4), out)
    same_outcome(t, out, long_reference(t), f"after {kills} kills")


@case(each=[1, 2, 3])
def test_killed_while_training_resumes_to_the_same_bits(t, seed):
    """Killed many times at random steps of phases 0 and 2, each time with other memory and other devices."""
    rng, path, out, kills = random.Random(seed), write_job(t, LONG), t.path("out"), 0
    while steps_in_metrics(out) < FIRST + SECOND - 3:
        goal = steps_in_metrics(out) + rng.randrange(1, 6)
        kills += kill_after(t, path, out, goal, *rng.choice(MACHINES), "--delay-seed", rng.randrange(1, 1000))
    run(t, path, out)
    same_outcome(t, out, long_reference(t), f"after {kills} kills")


@case(each=[2, FIRST - 1, FIRST + 3, FIRST + SECOND - 2])
def test_stopped_while_training_resumes_to_the_same_bits(t, step):
    path, out = write_job(t, LONG), t.path("out")
    live = t.start("--run", path, "--output", out, "--quiet", "--delay-seed", "5")
    live.until(lambda: steps_in_metrics(out) >= step or not live.alive(), f"step {step}")
    live.signal(signal.SIGTERM)
    stopped = live.wait()
    t.check(stopped.code in (0, 128 + signal.SIGTERM), f"exit code {stopped.code}")
    result = read_json(os.path.join(out, "result.json"))
    t.equal((result["steps"], result["stopped"]), (checkpoint_steps(out)[-1], stopped.code != 0), "steps, stopped")
    run(t, path, out, *TIGHT)
    same_outcome(t, out, long_reference(t), f"after a stop at step {result['steps']}")


class Slow:
    """A job whose phase 1 takes long enough to be killed inside: many samples, and random delays."""

    SPEC = job(LONG, {"data.samples": 3000, "train.global_batch": 8, "train.micro_batch": 2})
    OPTIONS = ["--delay-seed", "11", "--devices", "2", "--device-memory", "24KiB"]

    @staticmethod
    def reference(t):
        def make():
            out = t.fresh("slow")
            run(t, write_job(t, Slow.SPEC, "slow.json"), out)
            return outcome(out)

        return once("phases slow", make)


def said(live, text):
    size = os.fstat(live.err.fileno()).st_size
    return text.encode() in os.pread(live.err.fileno(), size, 0)


def interrupt_forward(t, number, pause):
    """Sends a signal while the kept outputs are computed. Returns the job file, the output and the Run. On a busy
    machine the phase may be over before the signal comes: then it tries again."""
    path = write_job(t, Slow.SPEC)
    for _ in range(50):
        out = t.fresh("out")
        live = t.start("--run", path, "--output", out, *Slow.OPTIONS)
        live.until(lambda at=live: said(at, "phase 1 ("), "phase 1")
        time.sleep(0.01 * pause)
        live.signal(number)
        run_of_it = live.wait()
        if "phase 2 (" not in run_of_it.err:
            return path, out, run_of_it
    t.check(False, "phase 1 was always over before the signal came")


@case(each=[0, 1, 5])
def test_killed_inside_the_forward_phase_resumes_to_the_same_bits(t, pause):
    path, out, killed = interrupt_forward(t, signal.SIGKILL, pause)
    t.equal(killed.code, -9, "exit code")
    t.equal((checkpoint_steps(out)[-1], steps_in_metrics(out)), (FIRST, FIRST), "the newest checkpoint, metrics")
    t.equal(leftovers(out), [], "left behind")
    again = t.worker("--run", path, "--output", out)
    t.contains(again.err, f"resumed from the checkpoint of step {FIRST}", "phase 1 (", "phase 2 (")
    t.check("phase 0 (" not in again.err, "phase 0 ran again")
    same_outcome(t, out, Slow.reference(t), "after a kill in phase 1")


@case
def test_stopped_inside_the_forward_phase_resumes_to_the_same_bits(t):
    path, out, stopped = interrupt_forward(t, signal.SIGTERM, 0)
    t.equal(stopped.code, 128 + signal.SIGTERM, "exit code")
    t.equal(read_json(os.path.join(out, "result.json"))["steps"], FIRST, "steps in result.json")
    run(t, path, out)
    same_outcome(t, out, Slow.reference(t), "after a stop in phase 1")


@case(each=[signal.SIGTERM, signal.SIGKILL])
def test_interrupted_while_outputs_are_computed_again_resumes_to_the_same_bits(t, number):
    """A run that goes on in phase 2 first repeats phase 1. The steps that the job has done are those of its checkpoint."""
    path, start, newest = write_job(t, Slow.SPEC), t.path("start"), FIRST + 3
    run(t, path, start)
    for step in checkpoint_steps(start):
        if step > newest:
            shutil.rmtree(os.path.join(start, "checkpoints", f"step-{step}"))
    for i in range(50):  # on a busy machine the phase may be over before the signal comes
        out = t.path(f"out-{i}")
        shutil.copytree(start, out)
        live = t.start("--run", path, "--output", out, *Slow.OPTIONS)
        live.until(lambda at=live: said(at, "phase 1 ("), "phase 1")
        live.signal(number)
        ended = live.wait()
        if "phase 2 (" not in ended.err:
            break
    t.check("phase 2 (" not in ended.err, "phase 1 was always over before the signal came")
    t.equal(checkpoint_steps(out)[-1], newest, "the newest checkpoint")
    if number == signal.SIGTERM:
        t.equal(ended.code, 128 + signal.SIGTERM, "exit code")
        t.contains(ended.err, f"stopped after a checkpoint at step {newest}", what="standard error")
        result = read_json(os.path.join(out, "result.json"))
        t.equal((result["steps"], result["resumed_from"], result["stopped"]), (newest, newest, True), "the result")
    run(t, path, out)
    same_outcome(t, out, Slow.reference(t), "after an interruption of the repeated phase 1")


@case
def test_outputs_that_are_computed_again_are_those_of_the_checkpoint(t):
    """On another plan, and compared by checksum: kept outputs equal a fresh forward, bit for bit."""
    path, out = write_job(t, LONG), t.path("out")
    t.check(kill_after(t, path, out, FIRST + 4, "--device-memory", "64MiB", "--delay-seed", 3), "it ran to the end")
    t.check(checkpoint_steps(out)[-1] > FIRST, "no checkpoint in phase 2")
    again = t.worker("--run", path, "--output", out, *TIGHT)
    t.contains(again.err, "phase 1 (", "phase 2 (")
    same_outcome(t, out, long_reference(t), "resumed with other memory")


# ---- killed at every call ----

def short_arguments(t, out):
    return "--run", write_job(t, SHORT, "short.json"), "--output", out, "--quiet", "--threads", 1


def short_reference(t):
    def make():
        out = t.fresh("short")
        t.worker(*short_arguments(t, out))
        return outcome(out)

    return once("phases short", make)


def short_places(t):
    strace.need(t)

    def make():
        out = t.fresh("traced")
        return strace.places(t, out, *short_arguments(t, out))

    return once("phases places", make)


@case(each=["openat", "write", "fsync", "fdatasync", "renameat", "mkdirat", "unlinkat"])
def test_killed_at_every_call_resumes_to_the_same_bits(t, name):
    here = [p for p in short_places(t) if p[0] == name]
    t.check(here, f"no {name} to kill at")
    for _, number, line in spread(here):
        out, what = t.fresh("out"), f"killed at {name} #{number}: {line}"
        t.check(strace.kill_at(t, name, number, *short_arguments(t, out)), f"{what}: it ran to the end")
        check_output(out)
        t.worker(*short_arguments(t, out))
        same_outcome(t, out, short_reference(t), what)
        t.equal(leftovers(out), [], f"{what}: left behind")
        t.log.clear()


# ---- a phase for the whole model at the end ----

@case
def test_recovery_trains_the_joined_network(t):
    path, out, environment = write_job(t, LONG), t.path("out"), {**os.environ, "TUTTI_TEST_RECOVERY": "1"}
    run(t, path, out, env=environment)
    steps = phases_of(out)
    t.equal({p for s, p in steps if s > FIRST + SECOND}, {3}, "phase of the last steps")
    t.check(any(m[1] == "val" for m in read_metrics(out) if m[0] > FIRST + SECOND), "recovery has no evaluation")
    again = t.path("again")
    for goal in (FIRST + 2, FIRST + SECOND + 2, FIRST + SECOND + 7):
        live = t.start("--run", path, "--output", again, "--quiet", "--delay-seed", str(goal), env=environment)
        live.until(lambda at=goal: steps_in_metrics(again) >= at, f"step {goal}")
        live.kill()
        check_output(again)
    run(t, path, again, *TIGHT, env=environment)
    same_outcome(t, again, outcome(out), "after kills")
    # The first three phases are the same whether recovery follows or not.
    alone = t.path("alone")
    run(t, path, alone)
    step = f"step-{FIRST + SECOND}"
    one, _ = read_safetensors(os.path.join(alone, "checkpoints", step, "model.safetensors"))
    two, _ = read_safetensors(os.path.join(out, "checkpoints", step, "model.safetensors"))
    t.equal(one, two, "weights after phase 2")
