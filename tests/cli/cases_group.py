"""The state of the decision group: AdamW's t counts the updates that were made, and not the steps."""
import math
import os
import shutil

import strace
from cases_failures import poisoned
from files import (DELETE, SMALL, check_output, job, outcome, read_json, read_metrics, read_safetensors, same_outcome,
                   write_idx_pair, write_job)
from harness import case

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "checkpoints")


def groups(out, step):
    return read_json(os.path.join(out, "checkpoints", f"step-{step}", "state.json")).get("groups")


# ---- against a reference ----

def linear_job(t, bad_steps):
    """One dense layer and mse on black images: the outputs are the biases, and their gradient is known. The images of
    bad_steps (from 1) are as bright as a float allows, so that the gradient of these steps is infinite."""
    side, batch, steps = 2, 4, 9
    n = batch * steps
    images = bytes(255 if i // batch + 1 in bad_steps else 0 for i in range(n) for _ in range(side * side))
    files = write_idx_pair(t, "linear", images, bytes(i * i % 3 for i in range(n)), side)
    return job(SMALL, {
        "model": {"type": "mlp", "input": [side, side], "hidden": [], "classes": 3, "loss": "mse"},
        "data": {"format": "idx", "train": files, "scale": [0, 8e37], "shuffle": False},
        "train": {"steps": steps, "global_batch": batch, "micro_batch": batch, "replicas": 1, "on_nonfinite": "skip"},
        "optimizer": {"type": "adamw", "lr": 0.05, "betas": [0.8, 0.9], "weight_decay": 0.1},
        "schedule": {"type": "cosine", "warmup_steps": 2},
        "eval": DELETE, "checkpoint": {"every": {"steps": 1}, "keep": 99}})


def adamw_biases(biases, rates, bad_steps, t_of_skipped):
    """AdamW as in Loshchilov and Hutter, in double precision. A skipped step leaves everything as it is, which is what
    PyTorch's GradScaler does: the step of the optimizer is not called. t_of_skipped: how far a skipped step advances t."""
    b = list(biases)
    m, v, t = [0.0] * 3, [0.0] * 3, 0
    for step, lr in enumerate(rates, 1):
        if step in bad_steps:
            t += t_of_skipped
            continue
        t += 1
        labels = [i * i % 3 for i in range((step - 1) * 4, step * 4)]
        for c in range(3):
            g = sum(2 / 3 * (b[c] - (label == c)) for label in labels) / 4
            m[c] = 0.8 * m[c] + 0.2 * g
            v[c] = 0.9 * v[c] + 0.1 * g * g
            b[c] -= lr * 0.1 * b[c]
            b[c] -= lr * (m[c] / (1 - 0.8 ** t)) / (math.sqrt(v[c] / (1 - 0.9 ** t)) + 1e-8)
    return b


@case(each=["resident", "stream"])
def test_adamw_with_skipped_steps_is_that_of_pytorch(t, policy):
    bad = {3, 7}
    out = t.path("out")
    t.worker("--run", write_job(t, linear_job(t, bad)), "--quiet", "--output", out, "--policy", policy)
    rates = [float(m[2]) for m in read_metrics(out)]
    t.equal([m[0] for m in read_metrics(out) if m[3] is None], sorted(bad), "skipped steps")
    t.worker("--run", write_job(t, linear_job(t, ())), "--quiet", "--output", t.path("plain"))
    t.equal(rates, [float(m[2]) for m in read_metrics(t.path("plain"))], "learning rates: the schedule goes by the step")
    t.equal([groups(out, step) for step in range(1, 10)], [[{"t": n}] for n in (1, 2, 2, 3, 4, 5, 5, 6, 7)], "t")
    first, _ = read_safetensors(os.path.join(out, "checkpoints", "step-1", "model.safetensors"))
    last, _ = read_safetensors(os.path.join(out, "checkpoints", "step-9", "model.safetensors"))
    start = initial_biases(first["layers.0.bias"][1], rates[0])
    want = adamw_biases(start, rates, bad, 0)
    wrong = adamw_biases(start, rates, bad, 1)
    for c in range(3):
        t.check(abs(last["layers.0.bias"][1][c] - want[c]) < 2e-6, f"bias {c}: {last['layers.0.bias'][1][c]}, want {want[c]}")
    t.check(max(abs(a - b) for a, b in zip(want, wrong)) > 1e-3, "the reference does not depend on t")


def initial_biases(after, lr):
    """The biases before step 1, from those after it: the first step of AdamW is lr long, against the gradient, which
    has the sign of the bias less the share of its class among the targets."""
    labels = [i * i % 3 for i in range(4)]
    biases = []
    for c, b in enumerate(after):
        for sign in (-1, 1):
            before = (b + lr * sign) / (1 - lr * 0.1)
            if (before - labels.count(c) / 4) * sign > 0:
                biases.append(before)
    return biases


# ---- the same bits whatever happens in between ----

SKIPS = {"train.on_nonfinite": "skip"}


def undisturbed(t):
    out = t.path("undisturbed")
    if not os.path.exists(out):
        t.worker("--run", write_job(t, job(poisoned(t), SKIPS)), "--quiet", "--output", out)
    return outcome(out)


@case
def test_kills_between_skipped_steps_change_no_bits(t):
    expected = undisturbed(t)
    path = write_job(t, job(poisoned(t), SKIPS))
    for number in range(1, 9):
        out = t.fresh("out")
        arguments = ("--run", path, "--quiet", "--output", out)
        t.check(strace.kill_at(t, "renameat", number, *arguments), f"rename #{number}: it ran to the end")
        t.worker(*arguments, "--policy", ("stream", "lru")[number % 2], "--devices", 2)
        same_outcome(t, out, expected, f"killed at rename #{number}")
        t.equal(groups(out, 8), [{"t": 6}], "t after 8 steps, 2 of them skipped")
        check_output(out)


@case(each=[("checkpoints", {"checkpoint": {"every": {"steps": 3}}}), ("none", {"checkpoint": DELETE})])
def test_drains_between_skipped_steps_change_no_bits(t, value):
    """With no checkpoint in between, two steps are under way all the time."""
    name, changes = value
    expected = undisturbed(t)
    t.worker("--run", write_job(t, job(poisoned(t), {**SKIPS, **changes})), "--quiet", "--output", t.path("out"),
             "--devices", 2, "--policy", "harmony-pp", "--device-memory", "64KiB")
    same_outcome(t, t.path("out"), expected, name)


@case
def test_group_state_is_kept_only_where_the_optimizer_has_one(t):
    for name, optimizer, want in (("sgd", {"type": "sgd", "lr": 0.1, "momentum": 0.9}, None),
                                  ("adamw", {"type": "adamw", "lr": 1e-3}, [{"t": 4}])):
        for clip in (DELETE, 1.0):
            out = t.fresh("out")
            t.worker("--run", write_job(t, job(SMALL, {"optimizer": optimizer, "train.grad_clip": clip})), "--quiet",
                     "--output", out)
            t.equal(groups(out, 4), want, f"groups of {name}")


# ---- checkpoints that were written before there was a group state ----

def older(t, name):
    shutil.copytree(os.path.join(GOLDEN, name), t.path(name))
    spec = read_json(t.path(name, "job.json"))
    if name == "skipped":
        spec["data"]["train"] = {"images": t.path(name, "images"), "labels": t.path(name, "labels")}
    return write_job(t, spec), t.path(name, "out")


@case
def test_older_checkpoint_goes_on_to_the_same_bits(t):
    path, out = older(t, "plain")
    t.equal(groups(out, 4), None, "groups in the older checkpoint")
    r = t.worker("--run", path, "--quiet", "--json", "--output", out).json()
    t.equal((r["resumed_from"], r["steps"]), (4, 8), "the result")
    t.equal(groups(out, 8), [{"t": 8}], "t at the end")
    if r["numerics"] != read_json(os.path.join(GOLDEN, "plain", "out", "checkpoints", "step-4", "state.json"))["numerics"]:
        t.skip("the checkpoint was written on another instruction set")
    t.worker("--run", path, "--quiet", "--output", t.path("fresh"))
    same_outcome(t, out, outcome(t.path("fresh")), "resumed from the older checkpoint")
    final, _ = read_safetensors(os.path.join(GOLDEN, "plain", "final.safetensors"))
    t.equal(read_safetensors(os.path.join(out, "model.safetensors"))[0], final, "the weights of the older program")


@case
def test_older_checkpoint_with_a_skipped_step_goes_on_with_the_right_t(t):
    path, out = older(t, "skipped")
    state = read_json(os.path.join(out, "checkpoints", "step-4", "state.json"))
    t.equal((state["step"], state["skipped_steps"], state.get("groups")), (4, 1, None), "the older checkpoint")
    r = t.worker("--run", path, "--quiet", "--json", "--output", out).json()
    t.equal((r["resumed_from"], r["steps"], r["skipped_steps"]), (4, 8, 2), "the result")
    t.equal(groups(out, 8), [{"t": 6}], "t at the end")
    check_output(out)
