"""Training in bf16 and fp16: the bits are the same everywhere and after every kill, files have the master weights, exports are
rounded once, any weights can be the start, and what cannot be is refused."""
import json
import math
import os
import random
import struct

import strace
from cases_bits import least_bytes
from cases_machine import ELSEWHERE
from cases_profile import environment
from cases_transformers import SMALL_GPT2, SMALL_LLAMA, read_tensors
from files import (DELETE, POLICIES, SMALL, check_output, checkpoint_steps, job, outcome, read_json, read_safetensors,
                   same_outcome, steps_in_metrics, write_job)
from harness import case, once
from methods import JOB, bits, local, same_bits, sil, tensors

HALVES = ("bf16", "fp16")
EXPORTS = {"f32": "F32", "bf16": "BF16", "f16": "F16"}
TOKENS = {"format": "synthetic", "samples": 48, "val_samples": 12, "seed": 3, "noise": 0.1}
JOBS = {
    "mlp": job(SMALL, {"model.dropout": 0.1, "train.grad_clip": 1.0}),
    "mlp, mse, sgd": job(SMALL, {"model.loss": "mse", "optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9},
                                 "train.micro_batch": 4, "train.replicas": 2}),
    "mlp, plain sgd": job(SMALL, {"optimizer": {"type": "sgd", "lr": 0.05}, "train.micro_batch": 12}),
    "gpt2": job(SMALL, {"model": SMALL_GPT2, "data": TOKENS, "train.global_batch": 6, "train.micro_batch": 2}),
    "llama": job(SMALL, {"model": SMALL_LLAMA, "data": TOKENS, "train.global_batch": 6, "train.micro_batch": 3,
                         "train.grad_clip": 0.5}),
}
METHODS = {
    "sil": job(JOB, {"method": sil([1, 3], recovery_epochs=1), "checkpoint": {"every": {"steps": 1}, "keep": 99}}),
    "sil, concurrent": job(JOB, {"method": sil([2], concurrent=True)}),
    "local, chunked": job(JOB, {"method": local("chunked", 2)}),
    "local, overlapping": job(JOB, {"method": local("overlapping", 2)}),
}


def spec_of(name, precision, changes=None):
    return job({**JOBS, **METHODS}[name], {"precision": precision, **(changes or {})})


def train(t, spec, name="out", *options, expect=0):
    out = t.fresh(name)
    run = t.worker("--run", write_job(t, spec, f"{name}.json"), "--output", out, "--quiet", *options, expect=expect)
    return out if expect == 0 else run


def reference(t, name, precision):
    """The outcome on one device where everything fits."""
    return once(("precision", name, precision),
                lambda: bits(train(t, spec_of(name, precision), "reference", "--threads", 1, "--devices", 1)))


def compare(t, path, expected, what, *options):
    out = t.fresh("out")
    t.worker("--run", path, "--output", out, "--quiet", *options)
    same_bits(t, out, expected, what)


def metrics(out):
    """The lines of metrics.jsonl about training steps."""
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        return [m for m in map(json.loads, f) if "loss" in m]


# ---- rounding, in Python ----

def rounded(dtype, floats):
    """The bytes of floats as an export has them: each is rounded once, to the nearest, ties to even."""
    if dtype == "F32":
        return struct.pack(f"<{len(floats)}f", *floats)
    if dtype == "F16":
        return struct.pack(f"<{len(floats)}e", *floats)
    bits = struct.unpack(f"<{len(floats)}I", struct.pack(f"<{len(floats)}f", *floats))
    return struct.pack(f"<{len(floats)}H", *((b + 0x7FFF + (b >> 16 & 1)) >> 16 for b in bits))


def widened(dtype, data):
    if dtype == "F16":
        return struct.unpack(f"<{len(data) // 2}e", data)
    if dtype == "BF16":
        data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
    return struct.unpack(f"<{len(data) // 4}f", data)


def is_master(floats):
    """Whether some of the numbers need more than 16 bits."""
    return any(widened(d, rounded(d, floats)) != tuple(floats) for d in ("BF16",))


# ---- the same bits ----

@case(each=[(f"{name}; {precision}", name, precision) for name in [*JOBS, *METHODS] for precision in HALVES])
def test_precision_has_the_same_bits_on_any_devices_and_memory(t, value):
    _, name, precision = value
    path, expected = write_job(t, spec_of(name, precision)), reference(t, name, precision)
    rng = random.Random(f"{name} {precision}")
    for devices, update in ((1, "device"), (2, "host")):
        options = ["--devices", devices, "--optimizer-on", update]
        least = least_bytes(t, path, *options)
        for memory in (least, rng.randrange(least, 2 * least)):
            compare(t, path, expected, f"{devices} devices of {memory} bytes, updates on the {update}",
                            "--device-memory", memory, "--delay-seed", rng.randrange(1, 1000), *options)


@case(each=[(f"{policy}; {precision}", policy, precision) for policy in POLICIES for precision in HALVES])
def test_precision_has_the_same_bits_under_every_policy(t, value):
    _, policy, precision = value
    for name in ("mlp", "gpt2"):
        path, expected = write_job(t, spec_of(name, precision)), reference(t, name, precision)
        for devices in (1, 2):
            options = ["--policy", policy, "--devices", devices]
            compare(t, path, expected, f"{name}, {devices} devices", "--device-memory",
                            least_bytes(t, path, *options), *options)


@case
def test_precisions_learn_alike_and_differ_in_bits(t):
    for name in ("mlp", "gpt2"):
        out = {p: train(t, spec_of(name, p, {"train.steps": 20}), p) for p in ("fp32", *HALVES)}
        last = {p: metrics(out[p])[-1]["loss"] for p in out}
        for p in HALVES:
            t.check(abs(last[p] / last["fp32"] - 1) < 0.02, f"{name}: losses after 20 steps: {last}")
        t.equal(len({outcome(o)["weights_hash"] for o in out.values()}), 3, f"{name}: different weights")
        t.check(not any("loss_scale" in m for p in ("fp32", "bf16") for m in metrics(out[p])), "a loss scale without fp16")


# ---- kills ----

@case(each=[(f"{name}; {precision}", name, precision) for name, precision in
            (("mlp", "bf16"), ("gpt2", "fp16"), ("mlp, mse, sgd", "fp16"), ("sil", "bf16"), ("local, chunked", "fp16"))])
def test_precision_survives_kills(t, value):
    """Killed at the renames that publish checkpoints, and resumed on other devices under another policy."""
    _, name, precision = value
    path, expected = write_job(t, spec_of(name, precision)), reference(t, name, precision)
    for number in (2, 4, 6):
        out = t.fresh("out")
        arguments = ("--run", path, "--quiet", "--output", out)
        t.check(strace.kill_at(t, "renameat", number, *arguments), f"rename #{number}: it ran to the end")
        check_output(out)
        t.worker(*arguments, "--policy", ("stream", "lru")[number % 4 // 2], "--devices", 2)
        same_bits(t, out, expected, f"killed at rename #{number}")


@case(each=HALVES)
def test_precision_survives_kills_while_training(t, precision):
    rng, last = random.Random(precision), 40
    spec = spec_of("mlp", precision, {"train.steps": last, "checkpoint.every": {"steps": 3}, "eval.every": {"steps": 7},
                                      **({"train.loss_scale": {"start": 2.0**30, "growth_steps": 4}} if precision == "fp16"
                                         else {})})
    common = ["--run", write_job(t, spec), "--quiet", "--devices", 2, "--device-memory", "256KiB"]
    plain, out = t.fresh("plain"), t.fresh("out")
    t.worker(*common, "--output", plain)
    kills = 0
    while steps_in_metrics(out) < last - 8:
        goal = steps_in_metrics(out) + rng.randrange(1, 9)
        live = t.start(*common, "--output", out, "--delay-seed", rng.randrange(1, 1000))
        live.until(lambda: steps_in_metrics(out) >= goal, f"step {goal}")
        kills += live.kill().code == -9
        check_output(out)
    t.worker(*common, "--output", out)
    same_bits(t, out, bits(plain), f"after {kills} kills")
    t.check(kills >= 2, f"only {kills} kills")


# ---- the master weights ----

@case(each=HALVES)
def test_precision_keeps_small_updates_in_the_master_weights(t, precision):
    """The weights of norms begin at 1. A weight of 16 bits that is updated in place would stay there at this rate."""
    out = train(t, spec_of("gpt2", precision, {"optimizer": {"type": "adamw", "lr": 1e-5, "weight_decay": 0}}))
    found = {name: v for name, (_, v) in read_safetensors(os.path.join(out, "model.safetensors"))[0].items()}
    norms = {name: v for name, v in found.items() if name.endswith("norm.weight") or "ln" in name and "weight" in name}
    t.check(norms or any(all(abs(x - 1) < 1e-3 for x in v) for v in found.values()), f"no norms in {sorted(found)}")
    near_one = [v for v in found.values() if all(abs(x - 1) < 1e-3 for x in v)]
    t.check(near_one and all(any(x != 1 for x in v) for v in near_one), "the weights of a norm did not move")
    names = read_safetensors(os.path.join(out, "checkpoints", "step-5", "optimizer.safetensors"))[0]
    t.equal({n.rsplit(".", 1)[1] for n in names}, {"exp_avg", "exp_avg_sq"}, "parts of the optimizer state")
    t.equal(len(names), 2 * len(found), "tensors of the optimizer state")


@case(each=HALVES)
def test_precision_keeps_the_master_weights_of_layers_that_leave_a_phase(t, precision):
    out = train(t, spec_of("sil", precision))
    steps = checkpoint_steps(out)
    phase_of = {s: read_json(os.path.join(out, "checkpoints", f"step-{s}", "state.json"))["phase"] for s in steps}
    phases = sorted(set(phase_of.values()))
    t.check(len(phases) >= 3, f"phases with checkpoints: {phases}")
    end_of_first = max(s for s in steps if phase_of[s] == phases[0])
    first = tensors(out, end_of_first)["layers.0.weight"]
    t.check(is_master(first[1]), "the weights of the first partition are rounded")
    for s in steps:
        if phases[0] < phase_of[s] < phases[-1]:
            t.equal(tensors(out, s)["layers.0.weight"], first, f"the first partition at step {s}")
        for name, (_, v) in tensors(out, s).items():
            t.check(is_master(v) or len(v) < 32, f"{name} at step {s} is rounded")
    t.check(tensors(out, steps[-1])["layers.0.weight"] != first, "the recovery phase did not train the first partition")


@case(each=[("bf16", "BF16"), ("fp16", "F16")])
def test_precision_of_kept_outputs(t, value):
    precision, dtype = value
    spec = job(JOB, {"method": sil([1], keep_outputs=True), "precision": precision})
    out = train(t, spec)
    suffix = {"BF16": "bf16", "F16": "f16"}[dtype]
    names = sorted(n for n in os.listdir(out) if n.startswith("outputs-"))
    t.check(names and all(n.endswith("." + suffix) for n in names), f"files with outputs: {names}")
    train_file = next(n for n in names if "-train" in n)
    units = spec["model"]["hidden"][0]
    t.equal(os.path.getsize(os.path.join(out, train_file)), spec["data"]["samples"] * units * 2, "bytes of the outputs")
    with open(os.path.join(out, train_file), "rb") as f:
        values = widened(dtype, f.read())
    t.check(all(math.isfinite(v) for v in values) and any(v != 0 for v in values), "the outputs are no numbers")


# ---- the loss scale ----

def follow(lines, start, growth):
    """The loss scale of each step, by the rule: halved after an overflow, doubled after `growth` clean steps."""
    scale, good, scales = start, 0, []
    for m in lines:
        scales.append(scale)
        if m.get("skipped"):
            scale, good = scale / 2, 0
        else:
            good += 1
            if good == growth:
                scale, good = scale * 2, 0
    return scales


@case(each=["mlp", "gpt2", "mlp, plain sgd"])
def test_precision_fp16_halves_and_doubles_the_loss_scale(t, name):
    how = {"start": 2.0**32, "growth_steps": 3}
    spec = spec_of(name, "fp16", {"train.steps": 60, "train.loss_scale": how, "eval": DELETE, "checkpoint": DELETE})
    out = train(t, spec)
    lines = metrics(out)
    skipped = sum(bool(m.get("skipped")) for m in lines)
    t.check(2 <= skipped < 40, f"{skipped} of 60 steps were skipped")
    t.equal([m["loss_scale"] for m in lines], follow(lines, how["start"], how["growth_steps"]), "loss scales")
    t.check(all(m["grad_norm"] is None or m["grad_norm"] < 100 for m in lines if not m.get("skipped")),
            "gradient norms are of scaled gradients")
    t.equal(read_json(os.path.join(out, "result.json"))["skipped_steps"], skipped, "skipped_steps")
    state = read_json(os.path.join(out, "checkpoints", "step-60", "state.json"))["groups"][0]
    t.equal(sorted(state), ["good_steps", "loss_scale", *(["t"] if spec["optimizer"]["type"] == "adamw" else [])],
            "the state of the decision group")
    t.check(lines[-1]["loss"] < lines[0]["loss"], "it did not learn")


def overflowing(changes=None):
    """Losses are finite, but the gradient of the hidden layer overflows fp16 without any scaling."""
    return job(SMALL, {"model": {"type": "mlp", "input": 6, "hidden": [8], "classes": 3, "loss": "mse"},
                       "init.std": 50.0, "precision": "fp16", "eval": DELETE, "checkpoint": DELETE,
                       "train": {"steps": 4, "global_batch": 1, "micro_batch": 1, "replicas": 1, "loss_scale": {"start": 1},
                                 **(changes or {})},
                       "optimizer": {"type": "sgd", "lr": 1e-9}})


@case
def test_precision_fp16_has_one_loss_scale_for_overlapping_blocks(t):
    """The update of a layer that two blocks share undoes one loss scale, and its gradient comes from both losses. The large
    weights let gradients grow on their way down, so block 0 overflows at smaller loss scales than block 1."""
    model = {"type": "mlp", "input": 64, "hidden": [64, 64, 64, 64], "classes": 4}
    spec = job(JOB, {"model": model, "method": local("overlapping", [[0, 3], [3, 4]]), "init.std": 0.5, "train.steps": 60,
                     "optimizer": {"type": "sgd", "lr": 1e-5}, "eval": DELETE, "checkpoint": DELETE})
    how = {"start": 2.0**32, "growth_steps": 5}
    half = metrics(train(t, job(spec, {"precision": "fp16", "train.loss_scale": how}), "fp16"))
    clean = [m for m in half if not m.get("skipped")]
    t.check(10 < len(clean) < 60, f"{len(clean)} of 60 steps were not skipped")
    for m in half:
        t.equal(len({b["loss_scale"] for b in m["blocks"]}), 1, f"loss scales of the blocks at step {m['step']}")
    t.equal([m["loss_scale"] for m in half], follow(half, how["start"], how["growth_steps"]), "loss scales")


@case
def test_precision_fp16_with_a_loss_scale_below_1_has_diverged(t):
    run = train(t, overflowing(), "out", expect=1)
    t.contains(run.err, "loss scale is 0.5", "diverged", "bf16", what="standard error")
    out = train(t, overflowing({"on_nonfinite": "skip"}), "skipping")
    t.check(min(m["loss_scale"] for m in metrics(out)) < 1, "the loss scale stayed above 1")


@case
def test_precision_fp16_stops_at_a_loss_that_is_not_finite(t):
    spec = spec_of("mlp", "fp16", {"optimizer.lr": 1e4, "train.steps": 40, "train.grad_clip": DELETE})
    run = train(t, spec, "out", expect=1)
    t.contains(run.err, "diverged", what="standard error")


# ---- exports ----

@case(each=["bf16", "fp16", "fp32"])
def test_precision_of_exports(t, precision):
    out = train(t, spec_of("gpt2", precision, {"model": {**SMALL_GPT2, "tied": False}}))
    master = read_safetensors(os.path.join(out, "model.safetensors"))[0]
    wanted = read_json(os.path.join(out, "result.json"))["weights_hash"]
    for option in (None, *EXPORTS):
        dtype = EXPORTS[option or {"bf16": "bf16", "fp16": "f16", "fp32": "f32"}[precision]]
        file, folder, options = t.path(f"file-{option}"), t.path(f"hf-{option}"), ["--dtype", option] if option else []
        r = t.worker("--export", out, "--out", file, "--json", *options).json()
        found = read_tensors(file)
        t.equal(sorted(found), sorted(master), "names of tensors")
        for name, (shape, floats) in master.items():
            t.equal(found[name], (dtype, shape, rounded(dtype, floats)), f"{name} in {dtype}")
        t.equal((r["weights_hash"], r["bytes"], r.get("dtype", "F32")), (wanted, os.path.getsize(file), dtype), "the report")
        t.worker("--export", out, "--hf", folder, *options)
        in_folder = read_tensors(os.path.join(folder, "model.safetensors"))
        t.equal({e[0] for e in in_folder.values()}, {dtype}, "types in the folder")
        t.equal(sorted(x for e in in_folder.values() for x in widened(dtype, e[2])),
                sorted(x for e in found.values() for x in widened(dtype, e[2])), "numbers in the folder")
        t.equal(read_json(os.path.join(folder, "config.json"))["torch_dtype"],
                {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}[dtype], "config.json")
        # It reads back: a job that starts from the folder and stays there has the rounded weights.
        again = train(t, job(spec_of("gpt2", "fp32"), {"model": {"from": folder, "context": 16}, "train.steps": 1,
                                                       "optimizer.lr": 1e-30, "eval": DELETE}), "again")
        for name, (_, floats) in read_safetensors(os.path.join(again, "model.safetensors"))[0].items():
            t.equal(floats, tuple(widened(dtype, found[name][2])), f"{name} read back from {dtype}")


@case
def test_precision_of_exports_with_numbers_beyond_fp16(t):
    out = train(t, job(SMALL, {"init.std": 1e6, "precision": "bf16", "train.steps": 1, "optimizer.lr": 1e-9, "eval": DELETE}))
    t.worker("--export", out, "--out", t.path("bf16"))
    run = t.worker("--export", out, "--out", t.path("f16"), "--dtype", "f16", expect=2)
    t.contains(run.err, 'tensor "layers.0.weight"', "65504", "bf16", what="standard error")
    t.check(not os.path.exists(t.path("f16")), "a file was written")
    t.contains(t.worker("--export", out, "--out", t.path("x"), "--dtype", "fp8", expect=2).err, "--dtype", "f32",
               what="standard error")


@case(each=HALVES)
def test_precision_of_a_run_with_heads_is_exported(t, precision):
    out, file = train(t, spec_of("local, chunked", precision)), t.path("file")
    t.worker("--export", out, "--out", file, "--heads")
    found = read_tensors(file)
    t.equal({e[0] for e in found.values()}, {{"bf16": "BF16", "fp16": "F16"}[precision]}, "types")
    t.check(any(name.startswith("heads.") for name in found), f"no heads in {sorted(found)}")


# ---- starts ----

@case(each=[(f"{a} to {b}", a, b) for a in ("fp32", *HALVES) for b in ("fp32", *HALVES) if a != b])
def test_precision_of_a_start_is_any(t, value):
    """The weights of a run are the start of a job in another precision. The master weights are exactly those."""
    _, before, after = value
    first, folder = train(t, spec_of("llama", before)), t.path("hf")
    t.worker("--export", first, "--hf", folder, "--dtype", "f32")
    start = {"model": {"from": folder, "context": 16}}
    still = train(t, spec_of("llama", after, {**start, "train.steps": 1, "optimizer.lr": 1e-30, "eval": DELETE}), "still")
    t.equal(outcome(still)["weights_hash"], outcome(first)["weights_hash"], "weights_hash")
    on = train(t, spec_of("llama", after, {**start, "train.steps": 10}), "on")
    t.check(metrics(on)[0]["loss"] < metrics(first)[0]["loss"], "the start did not help")


# ---- samples ----

@case(each=HALVES)
def test_precision_of_samples_is_that_of_the_run(t, precision):
    out, folder = train(t, spec_of("llama", precision)), t.path("hf")
    t.worker("--export", out, "--hf", folder)

    def logits(source, *options):
        return t.worker("--sample", source, "--json", "--prompt-ids", "5,9,1,30,2", "--logits", *options).json()["logits"]

    own, wide = logits(out), logits(folder)
    t.equal(own, logits(out, "--threads", 1), "logits with one thread")
    off = max(abs(a - b) for a, b in zip(own, wide))
    t.check(0 < off < 0.02 * max(map(abs, wide)) + 0.01, f"logits of the run and of its weights in float differ by {off}")


# ---- plans ----

def without_times(plan):
    return {k: plan[k] for k in ("policy", "host_in_bytes", "host_out_bytes", "micro_batch_fwd")}


@case(each=HALVES)
def test_precision_of_a_plan_can_be_another(t, precision):
    memory = ["--devices", 1, "--device-memory", "40KiB", "--policy", "stream", "--no-what-if", "--json"]
    own = write_job(t, spec_of("mlp", precision), "own.json")
    other = write_job(t, spec_of("mlp", "fp32"), "other.json")
    want = t.worker("--plan", own, *memory).json()
    t.equal(without_times(t.worker("--plan", other, "--precision", precision, *memory).json()), without_times(want), "plans")
    wide = t.worker("--plan", other, *memory).json()
    t.check(want["host_in_bytes"] < wide["host_in_bytes"], f"{want['host_in_bytes']} and {wide['host_in_bytes']} bytes in")
    # An earlier run in the output directory is of no interest.
    out = train(t, spec_of("mlp", "fp32"))
    t.worker("--plan", other, "--output", out, "--precision", precision, *memory)
    found = t.worker("--check", other, "--output", out, "--precision", precision, "--json").json()
    t.equal(found["resolved"]["precision"], precision, "resolved.precision")
    t.contains(t.worker("--plan", other, "--precision", "half", expect=2).err, "--precision", "bf16", what="standard error")
    t.worker("--run", other, "--precision", precision, expect=2)


@case(each=HALVES)
def test_precision_of_measured_times_is_that_of_the_job(t, precision):
    """Times in one precision are not used for another, neither those of the cache nor those of a file."""
    env = environment(t)
    own, other = (write_job(t, spec_of("mlp", p), f"{p}.json") for p in (precision, "fp32"))
    file = t.path("profile.json")
    t.worker("--time", own, "--quiet", "--micro-batches", 8, "--out", file, env=env)
    t.equal(read_json(file)["precision"], precision, "precision of the profile")
    for path, source in ((own, "measured"), (other, "analytic")):
        t.contains(t.worker("--check", path, env=env).out, f"({source} times)", what="the text")
    t.worker("--check", own, "--profile", file, env=env)
    t.contains(t.worker("--check", other, "--profile", file, env=env, expect=2).err, file, "precision fp32", what="standard error")


# ---- what is refused ----

REFUSED = {
    "an unknown precision": ({"precision": "fp8"}, "precision", ['"bf16"', '"fp16"']),
    "a precision that is no text": ({"precision": 16}, "precision", ["string"]),
    "tf32 on cpu devices": ({"precision": "tf32"}, "precision", ["cuda", "bf16"]),
    "a loss scale in fp32": ({"train.loss_scale": {"start": 1024}}, "train.loss_scale", ["fp32", "fp16"]),
    "a loss scale in bf16": ({"precision": "bf16", "train.loss_scale": {}}, "train.loss_scale", ["bf16", "fp16"]),
    "a loss scale below 1": ({"precision": "fp16", "train.loss_scale": {"start": 0.5}}, "train.loss_scale.start", ["from 1"]),
    "a loss scale above all": ({"precision": "fp16", "train.loss_scale": {"start": 1e30}}, "train.loss_scale.start", ["from 1"]),
    "no growth": ({"precision": "fp16", "train.loss_scale": {"growth_steps": 0}}, "train.loss_scale.growth_steps", ["1"]),
    "a loss scale that is a number": ({"precision": "fp16", "train.loss_scale": 8}, "train.loss_scale", ["object"]),
    "a key of the loss scale that is none": ({"precision": "fp16", "train.loss_scale": {"growth": 8}},
                                             "train.loss_scale.growth", ["growth_steps"]),
}


@case(each=list(REFUSED))
def test_precision_that_cannot_be_is_refused(t, name):
    changes, path, parts = REFUSED[name]
    for mode in ("--check", "--plan", "--run"):
        run = t.worker(mode, write_job(t, job(SMALL, {"output": t.path("out"), **changes})), expect=2)
        t.contains(run.err, path + ": ", *parts, what="standard error")
    t.check(not os.path.exists(t.path("out")), "an output was made")


@case
def test_precision_of_cuda_devices_may_be_any(t):
    """For a machine that is described, a plan needs no device."""
    machine = t.path("machine.json")
    with open(machine, "w") as f:
        json.dump(ELSEWHERE, f)
    for precision in ("fp32", "tf32", *HALVES):
        found = t.worker("--check", write_job(t, spec_of("mlp", precision)), "--machine", machine, "--json").json()
        t.equal((found["backend"], found["resolved"]["precision"]), ("cuda", precision), "the check")
    t.contains(t.worker("--check", write_job(t, spec_of("mlp", "tf32")), expect=2).err, "precision: ", "cuda",
               what="standard error")


@case(each=[(f"{a} as {b}", a, b) for a in ("fp32", *HALVES) for b in ("fp32", *HALVES) if a != b])
def test_precision_of_a_run_is_kept(t, value):
    _, before, after = value
    out = train(t, spec_of("mlp", before))
    path = write_job(t, spec_of("mlp", after))
    for resolved in (True, False):
        if not resolved:
            os.unlink(os.path.join(out, "resolved.json"))
        run = t.worker("--run", path, "--output", out, expect=None)
        t.check(run.code != 0, "it ran")
        t.contains(run.err, f"precision {before}", f"has {after}", what="standard error")


@case
def test_precision_of_old_runs_is_fp32(t):
    """fp32 is what a job without the key has: the same resolved spec, and the same bits."""
    plain, named = train(t, SMALL, "plain"), train(t, job(SMALL, {"precision": "fp32"}), "named")
    auto = train(t, job(SMALL, {"precision": "auto"}), "auto")
    for out in (named, auto):
        same_outcome(t, out, outcome(plain), "named")
        t.equal(read_json(os.path.join(out, "resolved.json")), read_json(os.path.join(plain, "resolved.json")), "resolved")
