"""Checkpoints: what is in them, which are kept, that a damaged one is refused, and that any machine can go on."""
import os
import random
import re
import shutil

from files import (SMALL, check_checkpoint, check_output, checkpoint_steps, crc32c, job, leftovers, outcome,
                   read_json, read_metrics, read_safetensors, same_outcome, separable, write_idx_pair, write_job)
from harness import case, once

SHAPES = {"layers.0.weight": [32, 64], "layers.0.bias": [32], "layers.1.weight": [48, 32], "layers.1.bias": [48],
          "layers.2.weight": [32, 48], "layers.2.bias": [32], "layers.3.weight": [4, 32], "layers.3.bias": [4]}


# ---- content ----

@case
def test_final_model_is_a_safetensors_file(t):
    t.worker("--run", write_job(t, SMALL), "--quiet", "--output", t.path("out"))
    tensors, metadata = read_safetensors(t.path("out", "model.safetensors"))
    t.equal({name: shape for name, (shape, _) in tensors.items()}, SHAPES, "shapes")
    t.equal((metadata["step"], metadata["format"]), ("5", "pt"), "metadata")
    t.equal(os.path.getsize(t.path("out", "model.safetensors")) % 8, 0, "bytes modulo 8")
    last, _ = read_safetensors(t.path("out", "checkpoints", "step-5", "model.safetensors"))
    t.equal(last, tensors, "the weights of the last checkpoint")
    for name, (_, values) in tensors.items():
        t.check(all(abs(v) < 10 for v in values) and any(v != 0 for v in values), f"{name} looks wrong: {values[:9]}")


@case(each=[
    ("adamw", {"type": "adamw", "lr": 1e-3}, [".exp_avg", ".exp_avg_sq"]),
    ("momentum", {"type": "sgd", "lr": 0.1, "momentum": 0.9}, [".momentum_buffer"]),
    ("plain sgd", {"type": "sgd", "lr": 0.1}, []),
])
def test_checkpoint_has_state_by_name_and_checksums(t, value):
    _, optimizer, suffixes = value
    t.worker("--run", write_job(t, job(SMALL, {"optimizer": optimizer})), "--quiet", "--output", t.path("out"))
    state = check_checkpoint(t.path("out"), 4)
    t.equal(state["schema"], "checkpoint/v1", "schema")
    t.equal((state["data_position"], state["seeds"]), (96, {"init": 7, "data": 3}), "position and seeds")
    t.equal(state["resolved"], read_json(t.path("out", "resolved.json")), "the resolved spec")
    t.equal(state["numerics"], read_json(t.path("out", "result.json"))["numerics"], "numerics")
    val = [m for m in read_metrics(t.path("out")) if m[0] == 4 and m[1] == "val"][0]
    t.equal((state["metrics"]["val/loss"], state["metrics"]["val/accuracy"]), (float(val[2]), float(val[3])), "metrics")
    tensors, _ = read_safetensors(t.path("out", "checkpoints", "step-4", "optimizer.safetensors"))
    t.equal({name: shape for name, (shape, _) in tensors.items()},
            {name + suffix: shape for name, shape in SHAPES.items() for suffix in suffixes}, "optimizer state")


@case
def test_checkpoints_are_the_same_bytes_wherever_they_were_written(t):
    path = write_job(t, SMALL)
    for name, options in (("a", ["--policy", "resident"]), ("b", ["--policy", "stream", "--devices", 3])):
        t.worker("--run", path, "--quiet", "--output", t.path(name), "--device-memory", "256KiB", *options)
    for file in ("model.safetensors", "optimizer.safetensors", "state.json"):
        bytes_of = []
        for name in "ab":
            with open(t.path(name, "checkpoints", "step-4", file), "rb") as f:
                bytes_of.append(f.read())
        t.check(bytes_of[0] == bytes_of[1], f"{file} differs")


# ---- retention ----

@case(each=[1, 2, 3])
def test_keep_retains_the_newest(t, keep):
    spec = job(SMALL, {"train.steps": 9, "checkpoint": {"every": {"steps": 2}, "keep": keep}})
    t.worker("--run", write_job(t, spec), "--quiet", "--output", t.path("out"))
    t.equal(checkpoint_steps(t.path("out")), [4, 6, 8, 9][-keep:], "checkpoints")
    t.equal(leftovers(t.path("out")), [], "left behind")


@case(each=["val/loss", "val/accuracy"])
def test_best_is_kept_beside_the_newest(t, best):
    """What it learns is wrong for the validation samples, all of whose labels are shifted: the best is early."""
    rng, data = random.Random(2), {"format": "idx"}
    for name, shift in (("train", 0), ("val", 1)):
        images, labels = separable(60, 4, 8, rng)
        data[name] = write_idx_pair(t, name, images, bytes((label + shift) % 4 for label in labels), 8)
    spec = job(SMALL, {"data": data, "train": {"steps": 30, "global_batch": 20}, "optimizer.lr": 5e-3,
                       "eval.every": {"steps": 5}, "checkpoint": {"every": {"steps": 5}, "keep": 2, "best": best}})
    t.worker("--run", write_job(t, spec), "--quiet", "--output", t.path("out"))
    val = [(m[0], float(m[2] if best == "val/loss" else m[3])) for m in read_metrics(t.path("out")) if m[1] == "val"]
    top = min(v for _, v in val) if best == "val/loss" else max(v for _, v in val)
    winner = [step for step, v in val if v == top][0]
    t.check(winner < 25, f"the best is among the newest, which tests nothing: {val}")
    t.equal(checkpoint_steps(t.path("out")), [winner, 25, 30], f"checkpoints; evaluations {val}")
    check_checkpoint(t.path("out"), winner)


@case
def test_last_step_is_kept_without_a_checkpoint_section(t):
    spec = job(SMALL)
    del spec["checkpoint"]
    t.worker("--run", write_job(t, spec), "--quiet", "--output", t.path("out"))
    t.equal(checkpoint_steps(t.path("out")), [5], "checkpoints")


# ---- going on elsewhere ----

FIRST = job(SMALL, {"train.steps": 4, "model.dropout": 0.2, "train.grad_clip": 0.5,
                    "checkpoint": {"every": {"steps": 2}, "keep": 9}})
WHOLE = job(FIRST, {"train.steps": 9})
MACHINES = {
    "1 device, resident": ["--devices", 1, "--policy", "resident"],
    "3 devices, stream": ["--devices", 3, "--policy", "stream", "--device-memory", "40KiB", "--optimizer-on", "device"],
    "2 devices, harmony-pp": ["--devices", 2, "--policy", "harmony-pp", "--device-memory", "30KiB", "--threads", 1],
    "4 devices, auto": ["--devices", 4, "--device-memory", "24KiB", "--optimizer-on", "host"],
}


@case(each=[(f"{a} to {b}", a, b) for a in MACHINES for b in MACHINES if a != b])
def test_resumed_on_another_machine_gives_the_same_bits(t, value):
    _, first, second = value

    def make():
        out = t.fresh("plain")
        t.worker("--run", write_job(t, WHOLE), "--quiet", "--output", out)
        return outcome(out)

    out = t.path("out")
    t.worker("--run", write_job(t, FIRST), "--quiet", "--output", out, *MACHINES[first])
    r = t.worker("--run", write_job(t, WHOLE), "--quiet", "--json", "--output", out, *MACHINES[second]).json()
    t.equal(r["resumed_from"], 4, "resumed_from")
    whole = once("another machine", make)
    t.equal(outcome(out)["weights_hash"], whole["weights_hash"], "weights")
    found = [m for m in read_metrics(out) if m[1] != "val"]
    t.equal(found, [m for m in whole["metrics"] if m[1] != "val"], "metrics")


@case
def test_resumed_from_any_checkpoint_gives_the_same_bits(t):
    """State is complete: later checkpoints are not needed."""
    whole = t.path("whole")
    t.worker("--run", write_job(t, WHOLE), "--quiet", "--output", whole)
    for step in (2, 4, 6, 8):
        out = t.fresh("out")
        shutil.copytree(whole, out)
        for other in checkpoint_steps(out):
            if other > step:
                shutil.rmtree(os.path.join(out, "checkpoints", f"step-{other}"))
        os.remove(os.path.join(out, "model.safetensors"))
        t.worker("--run", write_job(t, WHOLE), "--quiet", "--output", out)
        same_outcome(t, out, outcome(whole), f"from step {step}")


@case
def test_resumed_with_other_numerics_says_that_bits_may_differ(t):
    out = t.path("out")
    t.worker("--run", write_job(t, FIRST), "--quiet", "--output", out)
    path = os.path.join(out, "checkpoints", "step-4", "state.json")
    with open(path, "rb") as f:
        raw = f.read()
    raw = re.sub(rb'"numerics":"[^"]*"', b'"numerics":"cuda sm_90"', raw)
    raw = re.sub(rb'"self_crc32c":"\w+"', b'"self_crc32c":"00000000"', raw)
    with open(path, "wb") as f:
        f.write(raw.replace(b'"00000000"}', b'"%s"}' % crc32c(raw).encode()))
    check_checkpoint(out, 4)
    run = t.worker("--run", write_job(t, WHOLE), "--quiet", "--output", out)
    t.contains(run.err, "other numerics", "bits may differ", what="standard error")


@case
def test_auto_micro_batch_is_resolved_once(t):
    """The first run decides with its memory; a later one with more, or less, has to do the same."""
    auto = job(FIRST, {"train.micro_batch": "auto"})
    check = ["--check", write_job(t, auto), "--json"]
    small = t.worker(*check, "--device-memory", "23KiB").json()["resolved"]["micro_batch"]
    large = t.worker(*check).json()["resolved"]["micro_batch"]
    t.check(small < large == 24, f"micro_batch is {small} with little memory, {large} with plenty")
    out = t.path("out")
    t.worker("--run", write_job(t, auto), "--quiet", "--output", out, "--device-memory", "23KiB")
    before = read_json(os.path.join(out, "resolved.json"))
    t.equal(before["train"]["micro_batch"], small, "resolved.json")
    longer = write_job(t, job(auto, {"train.steps": 7}))
    r = t.worker("--run", longer, "--quiet", "--json", "--output", out, "--devices", 2).json()
    t.equal((r["micro_batch"], r["resumed_from"]), (small, 4), "the second run")
    t.equal(read_json(os.path.join(out, "resolved.json")), before, "resolved.json after the second run")
    fixed = write_job(t, job(FIRST, {"train.micro_batch": small, "train.steps": 7}))
    t.worker("--run", fixed, "--quiet", "--output", t.path("plain"))
    t.equal(outcome(out)["weights_hash"], outcome(t.path("plain"))["weights_hash"], "weights")
    run = t.worker("--run", longer, "--quiet", "--output", out, "--device-memory", "9KiB", expect=5)
    t.contains(run.err, "resources.device_memory", "at least", what="the message")


@case
def test_best_has_a_figure_at_every_scheduled_checkpoint(t):
    """Also where evaluation and checkpoints have different periods."""
    spec = job(FIRST, {"train.steps": 6, "eval": {"every": {"steps": 5}},
                       "checkpoint": {"every": {"steps": 2}, "keep": 3, "best": "val/loss"}})
    t.worker("--run", write_job(t, spec), "--quiet", "--output", t.path("out"))
    for step in (2, 4, 6):
        state = read_json(t.path("out", "checkpoints", f"step-{step}", "state.json"))
        t.check("val/loss" in state.get("metrics", {}), f"step-{step} was not evaluated")


@case
def test_fewer_steps_than_the_checkpoint_has_are_refused(t):
    out = t.path("out")
    t.worker("--run", write_job(t, job(FIRST, {"train.steps": 4})), "--quiet", "--output", out)
    run = t.worker("--run", write_job(t, job(FIRST, {"train.steps": 2})), "--quiet", "--output", out, expect=2)
    t.contains(run.err, "step 4", "beyond the 2 steps", what="the message")


@case
def test_plan_knows_what_auto_meant(t):
    auto = job(FIRST, {"train.micro_batch": "auto", "output": t.path("out")})
    r = t.worker("--run", write_job(t, auto), "--quiet", "--json", "--device-memory", "23KiB").json()
    plan = t.worker("--plan", write_job(t, auto), "--json").json()
    t.equal(plan["micro_batch_fwd"], r["micro_batch"], "rows of a micro-batch in the plan")
    check = t.worker("--check", write_job(t, auto), "--json").json()
    t.equal(check["resolved"]["micro_batch"], r["micro_batch"], "micro_batch of --check")


# ---- checkpoints of earlier versions (tests/golden/checkpoints/README.md) ----

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "checkpoints")
PLACES = {1: [], 2: ["--devices", 2, "--policy", "harmony-pp"], 4: ["--devices", 2, "--policy", "stream"],
          7: ["--policy", "lru"]}


def earlier(t, name, changes=None):
    """Copies what an earlier version left. Returns the job file, the output directory, and the final outcome."""
    shutil.copytree(os.path.join(GOLDEN, name), t.path(name))
    spec = job(read_json(t.path(name, "job.json")), changes)
    if spec["data"]["format"] == "tokens":
        spec["data"]["train"] = t.path(name, spec["data"]["train"])
    return write_job(t, spec), t.path(name, "out"), read_json(os.path.join(GOLDEN, name, "final.json"))


def agree(found, expected):
    """Whether a number is what another instruction set may make of the same computation."""
    return found == expected or abs(float(found) - float(expected)) <= 1e-3 * max(1, abs(float(expected)))


@case(each=[(f"{name}, {k} steps in a cycle", name, k) for name in ("clipped", "gpt2") for k in (1, 2, 4, 7)])
def test_checkpoint_of_an_earlier_version_goes_on_to_the_same_bits(t, value):
    _, name, k = value
    path, out, final = earlier(t, name, {"memory.cycle_steps": k})
    state = check_checkpoint(out, 9)
    result = t.worker("--run", path, "--quiet", "--json", "--output", out, *PLACES[k]).json()
    t.equal((result["resumed_from"], result["steps"]), (9, 23), "the result")
    check_output(out)
    found = [list(m) for m in read_metrics(out)]
    if result["numerics"] == state["numerics"] == final["numerics"]:
        t.equal(found, final["metrics"], "metrics of the earlier version")
        t.equal(result["weights_hash"], final["weights_hash"], "weights of the earlier version")
    else:
        t.equal([m[:2] for m in found if m[1] == "val"], [m[:2] for m in final["metrics"] if m[1] == "val"], "evaluations")
        for line, expected in zip(found, final["metrics"], strict=True):
            t.check(all(map(agree, line[2:], expected[2:])) and agree(line[0], expected[0]), f"{line}, not {expected}")


# ---- damage ----

def finished(t):
    """An output with checkpoints of steps 2 and 4, of a job that has 9 steps."""

    def make():
        out = t.fresh("finished")
        t.worker("--run", write_job(t, FIRST), "--quiet", "--output", out)
        whole = t.fresh("whole")
        t.worker("--run", write_job(t, WHOLE), "--quiet", "--output", whole)
        kept = os.path.join(os.path.dirname(t.dir), "finished")
        shutil.copytree(out, kept)
        return kept, outcome(whole)["weights_hash"]

    return once("finished", make)


def tree(path):
    """Names, sizes and contents of all below."""
    found = {}
    for directory, _, files in os.walk(path):
        for name in files:
            with open(os.path.join(directory, name), "rb") as f:
                found[os.path.relpath(os.path.join(directory, name), path)] = f.read()
    return found


def check_refused(t, out, named, says):
    """Refused with the file and the way out, touching nothing; which way leads to the same bits."""
    before = tree(os.path.join(out, "checkpoints"))
    path = write_job(t, WHOLE)
    run = t.worker("--run", path, "--quiet", "--output", out, expect=1)
    t.equal(run.out, "", "standard output")
    t.equal(len(run.err.splitlines()), 1, "lines on standard error")
    t.check(run.err.startswith(f"tutti-worker: {named}: "), f"not named: {named}")
    t.contains(run.err, *says, what="the message")
    r = t.worker("--run", path, "--quiet", "--json", "--output", out, expect=1).json()
    t.equal((r["ok"], r["exit"], r["path"]), (False, 1, named), "the JSON error")
    t.equal(tree(os.path.join(out, "checkpoints")), before, "checkpoints after the refusal")


FILES = ["model.safetensors", "optimizer.safetensors", "state.json"]


@case(each=FILES)
def test_flipped_byte_in_a_checkpoint_is_refused(t, file):
    start, expected = finished(t)
    out = t.path("out")
    shutil.copytree(start, out)
    directory = os.path.join(out, "checkpoints", "step-4")
    path = os.path.join(directory, file)
    with open(path, "rb") as f:
        raw = f.read()
    rng = random.Random(file)
    places = [0, 1, 7, 8, 9, len(raw) - 1, len(raw) - 4, *(rng.randrange(len(raw)) for _ in range(10))]
    for place in places:
        with open(path, "wb") as f:
            f.write(raw[:place] + bytes([raw[place] ^ (1 << rng.randrange(8))]) + raw[place + 1 :])
        t.notes[:] = [f"byte {place} of {len(raw)} of {file} is flipped"]
        check_refused(t, out, path, ["damaged", f"remove {directory} to resume from step 2"])
    shutil.rmtree(directory)  # as advised
    t.worker("--run", write_job(t, WHOLE), "--quiet", "--output", out)
    t.equal(outcome(out)["weights_hash"], expected, "weights after following the advice")


@case(each=FILES)
def test_truncated_file_in_a_checkpoint_is_refused(t, file):
    start, _ = finished(t)
    out = t.path("out")
    shutil.copytree(start, out)
    directory = os.path.join(out, "checkpoints", "step-4")
    path = os.path.join(directory, file)
    size = os.path.getsize(path)
    for length in (size - 1, size // 2, 9, 8, 1, 0):
        os.truncate(path, length)
        t.notes[:] = [f"{file} is cut to {length} of {size} bytes"]
        check_refused(t, out, path, ["damaged", f"remove {directory} to resume from step 2"])
    os.remove(path)
    check_refused(t, out, path, ["missing", f"remove {directory} to resume from step 2"])


@case
def test_lengthened_file_in_a_checkpoint_is_refused(t):
    start, _ = finished(t)
    out = t.path("out")
    shutil.copytree(start, out)
    for file in FILES:
        path = os.path.join(out, "checkpoints", "step-4", file)
        with open(path, "rb") as f:
            raw = f.read()
        with open(path, "ab") as f:
            f.write(b"\n")
        check_refused(t, out, path, ["damaged"])
        with open(path, "wb") as f:
            f.write(raw)
    t.worker("--run", write_job(t, WHOLE), "--quiet", "--output", out)


@case
def test_checkpoint_under_another_name_is_refused(t):
    start, _ = finished(t)
    out = t.path("out")
    shutil.copytree(start, out)
    directory = os.path.join(out, "checkpoints", "step-7")
    os.rename(os.path.join(out, "checkpoints", "step-4"), directory)
    check_refused(t, out, directory, ["step 4", f"remove {directory} to resume from step 2"])


@case
def test_only_checkpoint_damaged_advises_to_begin_again(t):
    start, expected = finished(t)
    out = t.path("out")
    shutil.copytree(start, out)
    shutil.rmtree(os.path.join(out, "checkpoints", "step-2"))
    directory = os.path.join(out, "checkpoints", "step-4")
    path = os.path.join(directory, "model.safetensors")
    os.truncate(path, 100)
    check_refused(t, out, path, ["damaged", f"remove {directory} to start from the beginning"])
    shutil.rmtree(directory)
    t.worker("--run", write_job(t, WHOLE), "--quiet", "--output", out)
    t.equal(outcome(out)["weights_hash"], expected, "weights after beginning again")


@case
def test_older_checkpoint_damaged_does_not_matter(t):
    start, expected = finished(t)
    out = t.path("out")
    shutil.copytree(start, out)
    os.truncate(os.path.join(out, "checkpoints", "step-2", "state.json"), 10)
    t.worker("--run", write_job(t, WHOLE), "--quiet", "--output", out)
    t.equal(outcome(out)["weights_hash"], expected, "weights")


@case
def test_things_in_the_checkpoint_directory_that_are_none_are_left_alone(t):
    start, expected = finished(t)
    out = t.path("out")
    shutil.copytree(start, out)
    mine = ["notes.txt", "step-", "step-04", "step-9999x", "best"]
    for name in mine:
        with open(os.path.join(out, "checkpoints", name), "w") as f:
            f.write("mine")
    t.worker("--run", write_job(t, WHOLE), "--quiet", "--output", out)
    t.equal(outcome(out)["weights_hash"], expected, "weights")
    for name in mine:
        t.check(os.path.exists(os.path.join(out, "checkpoints", name)), f"{name} is gone")


@case
def test_symbolic_links_in_the_output_are_not_followed(t):
    start, _ = finished(t)
    for name in ("metrics.jsonl", "lock"):
        out, target = t.fresh("out"), t.path("target")
        shutil.copytree(start, out)
        with open(target, "w") as f:
            f.write("precious")
        os.remove(os.path.join(out, name))
        os.symlink(target, os.path.join(out, name))
        run = t.worker("--run", write_job(t, WHOLE), "--quiet", "--output", out, expect=None)
        t.check(run.code in (1, 2), f"{name} is a link: exit code {run.code}")
        with open(target) as f:
            t.equal(f.read(), "precious", f"what {name} leads to")


@case(each=[("empty", ""), ("cut", '{"model":'), ("no keys", "{}"), ("no rows", '{"train":{"micro_batch":0}}'),
            ("zeros", "\0\0\0")])
def test_damaged_resolved_spec_is_refused(t, value):
    _, text = value
    start, expected = finished(t)
    out = t.path("out")
    shutil.copytree(start, out)
    with open(os.path.join(out, "resolved.json"), "w") as f:
        f.write(text)
    for micro_batch in (8, "auto"):
        spec = job(WHOLE, {"train.micro_batch": micro_batch})
        run = t.worker("--run", write_job(t, spec), "--quiet", "--output", out, expect=2)
        t.equal(len(run.err.splitlines()), 1, "lines on standard error")
        t.contains(run.err, os.path.join(out, "resolved.json") + ": damaged: ", "remove this file and run the job again",
                   what="standard error")
    os.remove(os.path.join(out, "resolved.json"))
    t.worker("--run", write_job(t, job(WHOLE, {"train.micro_batch": "auto"})), "--quiet", "--output", out)
    result = read_json(os.path.join(out, "result.json"))
    t.equal((result["resumed_from"], result["weights_hash"]), (4, expected), "the step from which it went on, and weights")


@case
def test_resolved_spec_with_a_changed_byte_is_called_damaged(t):
    start, _ = finished(t)
    out = t.path("out")
    shutil.copytree(start, out)
    with open(os.path.join(out, "resolved.json")) as f:
        text = f.read()
    with open(os.path.join(out, "resolved.json"), "w") as f:
        f.write(text.replace('"lr":0.00', '"lr":0.01'))
    run = t.worker("--run", write_job(t, WHOLE), "--quiet", "--output", out, expect=2)
    t.contains(run.err, os.path.join(out, "resolved.json") + ": damaged: ", "newest checkpoint", what="standard error")
