"""The methods local and sil as their user sees them: keys and refusals, what a plan and a report say, what is exported."""
import json
import os
import shutil
import signal
import struct

import strace
from files import (DELETE, SMALL, checkpoint_steps, job, leftovers, read_json, read_safetensors, sha256,
                   steps_in_metrics, write_job)
from harness import case

LOCAL = job(SMALL, {"method": {"type": "local", "scheme": "chunked", "blocks": 2}})
SIL = job(SMALL, {"method": {"type": "sil", "partitions": 2}})


def run(t, spec, *options, out="out", **more):
    path = t.path(out)
    t.worker("--run", write_job(t, spec), "--output", path, "--quiet", *options, **more)
    return path


# ---- export ----

@case
def test_export_drops_the_heads_or_keeps_them(t):
    out = run(t, LOCAL)
    plain, both = t.path("plain.safetensors"), t.path("both.safetensors")
    result = t.worker("--export", out, "--out", plain, "--json").json()
    t.equal(result["weights_hash"], read_json(os.path.join(out, "result.json"))["weights_hash"], "hash of the model")
    t.worker("--export", out, "--out", both, "--heads")
    model, metadata = read_safetensors(plain)
    all_of_it, other = read_safetensors(both)
    t.equal((other, metadata["format"]), (metadata, "pt"), "metadata")
    added = {name: v for name, v in all_of_it.items() if name not in model}
    t.check(not any(name.startswith("heads.") for name in model), "a head in the plain export")
    t.equal(sorted(added), ["heads.0.out.bias", "heads.0.out.weight"], "tensors of heads")
    t.equal({name: all_of_it[name] for name in model}, model, "the model's tensors")
    t.equal(added, read_safetensors(os.path.join(out, "checkpoints", "step-5", "method.safetensors"))[0], "the heads")


@case
def test_export_of_heads_is_refused_without_heads(t):
    for spec, out in ((SMALL, "backprop"), (SIL, "sil")):
        run(t, spec, out=out)
        r = t.worker("--export", t.path(out), "--out", t.path("w"), "--heads", "--json", expect=2).json()
        t.contains(r["path"] + ": " + r["message"], "--heads: there are no heads", what=out)
        t.check(not os.path.exists(t.path("w")), f"{out}: a file was written")
    r = t.worker("--export", t.path("sil"), "--hf", t.path("w"), "--heads", "--json", expect=2).json()
    t.contains(r["message"], "no place for heads", what="the message with --hf")


# ---- what is reported ----

@case
def test_report_has_the_work_beside_that_of_backpropagation(t):
    """By the formulas of the layers: a dense layer takes 2 FLOP per weight and row forward, and 4 backward."""
    model = {"type": "mlp", "input": 32, "hidden": [64, 64, 64], "classes": 8}
    base = job(SMALL, {"model": model})
    backprop = read_json(os.path.join(run(t, base, out="backprop"), "result.json"))["flops"]
    t.equal((backprop["total"], backprop["sequential"]), (backprop["backprop"],) * 2, "backpropagation")
    dense = 6 * 24 * 5 * (32 * 64 + 2 * 64 * 64 + 64 * 8)
    t.check(dense <= backprop["total"] < 1.1 * dense, f"{dense} in dense layers, {backprop['total']} in all")
    work = {}
    for scheme in ({"scheme": "chunked", "blocks": 2}, {"scheme": "greedy"}, {"scheme": "overlapping", "blocks": 2}):
        spec = job(base, {"method": {"type": "local", **scheme}})
        f = work[scheme["scheme"]] = read_json(os.path.join(run(t, spec, out=scheme["scheme"]), "result.json"))["flops"]
        t.equal(f["backprop"], backprop["total"], f"{scheme}: backpropagation")
        t.check(f["total"] > backprop["total"], f"{scheme}: heads cost something")
        t.check(f["sequential"] < backprop["total"], f"{scheme}: blocks work side by side")
        # In multiplications: a shared layer passes forward once, as the last layer of the lower block, and backward twice.
        weights, last_head = [32 * 64, 64 * 64, 64 * 64, 64 * 8], 64 * 8
        parts, blocks = read_json(os.path.join(t.path(scheme["scheme"]), "result.json"))["parts"], []
        for b, (first, last) in enumerate(parts):
            shared = [i for i in range(first, last + 1) if b > 0 and i <= parts[b - 1][1]]
            blocks.append(sum(weights[i] * (2 if i in shared else 3) for i in range(first, min(last, 3) + 1)))
            blocks[b] += 3 * last_head * (b + 1 < len(parts))
        t.equal(scheme["scheme"] == "overlapping", sum(blocks) > 3 * (sum(weights) + last_head * (len(parts) - 1)), "shared layers")
        for what, want in (("total", sum(blocks)), ("sequential", max(blocks))):
            want *= 2 * 24 * 5
            t.check(want <= f[what] < 1.1 * want, f"{scheme}: {what} of {f[what]}, of which {want} in products")
    t.check(work["greedy"]["sequential"] < work["chunked"]["sequential"], "shorter blocks have less to do in a row")
    sil = read_json(os.path.join(run(t, job(base, {"method": {"type": "sil"}}), out="sil"), "result.json"))["flops"]
    t.equal(sil["total"], sil["sequential"], "phases come one after another")


@case
def test_blocks_are_reported_and_evaluated_on_request(t):
    for heads in (False, True):
        out = run(t, job(LOCAL, {"eval.heads": heads}), out=f"out-{heads}")
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
        steps = [m for m in lines if "loss" in m]
        t.equal([[b["block"] for b in m["blocks"]] for m in steps], [[0, 1]] * 5, "blocks of steps")
        t.check(all(m["blocks"][1]["loss"] == m["loss"] for m in steps), "the loss is that of the last block")
        evals = [m for m in lines if "val/loss" in m]
        t.equal(["blocks" in m for m in evals], [heads] * 2, "blocks of evaluations")
        for m in evals if heads else []:
            t.equal(m["blocks"][1], {"block": 1, "loss": m["val/loss"], "accuracy": m["val/accuracy"]}, "last block")
        blocks = read_json(os.path.join(out, "result.json"))["blocks"]
        t.equal(blocks, [{k: b[k] for k in ("block", "loss", "accuracy")} for b in steps[-1]["blocks"]], "the report")


@case
def test_learning_of_labels_is_judged_without_evaluations(t):
    spec = job(SIL, {"eval": DELETE, "train.steps": 20, "data.val_samples": DELETE, "method.kappa": 1000})
    out = run(t, spec)
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        judged = [m for m in map(json.loads, f) if "labels" in m]
    t.equal([m["step"] for m in judged], list(range(2, 21, 2)), "steps of judgements")
    t.check(all(m["val/nearest_label_accuracy"] is None for m in judged), "nobody counted the nearest labels")
    labels = read_json(os.path.join(out, "result.json"))["labels"]
    t.equal([(m["verdict"], "advice" in m) for m in labels], [("dead", True)], "the verdict in the report")


# ---- what a plan with several steps in a cycle moves ----

MODEL = {"type": "mlp", "input": 64, "hidden": [64] * 7, "classes": 64}
LONG = job(SMALL, {"model": MODEL, "method": {"type": "local", "scheme": "chunked", "blocks": 4}, "eval": DELETE,
                   "data": {"format": "synthetic", "samples": 960, "seed": 3}, "train.global_batch": 16, "train.steps": 8,
                   "checkpoint": DELETE})
ONE_BLOCK = ["--devices", 1, "--device-memory", "232KiB"]  # for the state of one block, its gradients and its activations


def parameters():
    head = 64 * 64 + 64
    return 8 * (64 * 64 + 64) + 3 * head


@case(each=[1, 2, 4, 8, 16])
def test_state_of_a_block_crosses_the_link_once_in_a_cycle(t, k):
    """24 / k bytes per parameter and step, and the outputs of three blocks out and in: at most 1.05 times that, and this has
    room for the samples and targets, too."""
    path, file = write_job(t, job(LONG, {"method.resident_steps": k, "train.steps": max(8, k)})), t.path("plan.json")
    options = [*ONE_BLOCK, "--policy", "blocks", "--optimizer-on", "device"] if k < 3 else ONE_BLOCK
    found = t.worker("--plan", path, *options, "--out", file, "--json", "--no-what-if").json()
    plan = read_json(file)
    t.equal((plan["policy"], plan["steps"]), ("blocks", k), "policy and steps of a cycle")
    state = {i for i, tensor in enumerate(plan["tensors"]) if tensor[0] in ("W", "K")}
    stays = {copy[0] for copy in plan["boundary"]} & state
    t.check(len(stays) < len(state) / 3, f"{len(stays)} of {len(state)} tensors stay on the device for ever")
    for kind in ("FETCH", "SPILL"):
        moved = [o[0] for i in plan["programs"]["cycle"] if i[0] == kind for o in i[7] if o[2] == "r" and o[0] in state]
        t.equal(sorted(moved), sorted(state - stays), f"{kind} of the state that does not stay, in a cycle of {k} steps")
    step = 24 / k * parameters()
    outputs = 2 * 3 * 16 * 64 * 4
    moved = (found["host_in_bytes"] + found["host_out_bytes"]) / k
    t.check(moved <= 1.05 * (step + outputs), f"{moved} bytes in a step, {step} of state, {outputs} of outputs")
    if k == 1:
        return
    out = t.path("out")
    r = t.worker("--run", path, *options, "--output", out, "--quiet", "--json").json()
    b = r["step_bytes"]
    t.equal((r["policy"], r["cycle_steps"]), ("blocks", k), "policy and steps of the run")
    t.check(b["state_in"] + b["state_out"] <= 1.05 * step, f"{b} of state in a step, at most 1.05 * {step}")
    cycles = (max(8, k) // k) * (found["host_in_bytes"] + found["host_out_bytes"])
    dirty = ("W", "K", "group")  # in at the start, out for the checkpoint and at the end
    around = 3 * sum(end - begin for i, _, begin, end, _ in plan["boundary"] if plan["tensors"][i][0] in dirty)
    counted = r["counted_bytes"]["in"] + r["counted_bytes"]["out"]
    t.equal(counted, cycles + around, "bytes that the devices counted")


@case
def test_stop_waits_for_the_cycle_in_progress(t):
    """A slow link makes a cycle last for over a second. The next cycle does not begin before the end of the fetches of this
    one. So a stop early in the second cycle ends with it. A busy machine may deliver the signal late: one of three must do."""
    options = [*ONE_BLOCK, "--link", "1MB", "--quiet"]
    path = write_job(t, job(LONG, {"method.resident_steps": 8, "train.steps": 64}))
    ended = []
    while len(ended) < 3 and 16 not in ended:
        out = t.fresh("out")
        live = t.start("--run", path, "--output", out, *map(str, options))
        live.until(lambda: steps_in_metrics(out) >= 8 or not live.alive(), "the first cycle")
        live.signal(signal.SIGTERM)
        t.equal(live.wait().code, 128 + signal.SIGTERM, "exit code")
        ended.append(checkpoint_steps(out)[-1])
        t.check(ended[-1] % 8 == 0, f"stopped inside a cycle: {ended}")
    t.check(16 in ended, f"stopped after the steps {ended}")


@case(each=[1, 2])
def test_updates_on_the_host_move_less_with_few_steps(t, k):
    """W in and dW out in every step: 8 bytes per parameter, where the state of a block on the device would take 24 / k."""
    path = write_job(t, job(LONG, {"method.resident_steps": k}))
    found = t.worker("--plan", path, *ONE_BLOCK, "--json", "--no-what-if", "--policy", "blocks", "--objective",
                     "bytes").json()
    t.equal((found["policy"], found["state_bytes"]), ("blocks", 8 * k * parameters()), "policy and bytes of state in a cycle")
    t.check(0 < found["bound_bytes"] <= found["state_bytes"], f"bound {found['bound_bytes']}")
    bits = {t.worker("--run", path, *ONE_BLOCK, "--optimizer-on", on, "--output", t.path(on), "--quiet",
                     "--json").json()["weights_hash"] for on in ("auto", "host", "device")}
    t.equal(len(bits), 1, "different weights")


@case(each=[{}, {"train.grad_clip": 1.0}])
def test_blocks_on_two_devices_run_free_of_each_other(t, changes):
    """While one device computes the last blocks of a cycle, the other one computes the first blocks of the next cycle. So two
    devices take hardly more than half of the time. Nothing else limits the speed of this machine: prediction, not measurement."""
    path, seconds = write_job(t, job(LONG, {"method.resident_steps": 8, **changes})), []
    for devices in (1, 2):
        machine = {"schema": "machine/v1", "backend": "cuda", "devices": [{"memory_bytes": 1e9, "free_bytes": 1e9}] * devices,
                   "link_bytes_per_s": 1e9, "all_links_bytes_per_s": 1e9, "peer_bytes_per_s": 1e9, "host_memory_bytes": 1e9,
                   "device_flops_per_s": 1e9}
        plan = t.worker("--plan", path, "--machine", json.dumps(machine), "--devices", devices, "--device-memory", "300KiB",
                        "--policy", "blocks", "--optimizer-on", "device", "--json", "--no-what-if").json()
        seconds.append(plan["iteration_s"])
    t.check(seconds[1] < 0.65 * seconds[0], f"seconds of a cycle on 1 and 2 devices: {seconds}")


@case(each=["balanced", "time", "bytes"])
def test_objective_chooses_the_steps(t, objective):
    """The link is fast, so that updates on the host cost no time. Then blocks that stay move less, but updates on the device
    take time."""
    machine = {"schema": "machine/v1", "backend": "cuda", "devices": [{"memory_bytes": 1e9, "free_bytes": 1e9}],
               "link_bytes_per_s": 1e10, "all_links_bytes_per_s": 1e10, "peer_bytes_per_s": 1e9, "host_memory_bytes": 1e9,
               "device_flops_per_s": 1e11}
    found = [t.worker("--plan", write_job(t, job(LONG, {"train.steps": 4096, **changes})), *ONE_BLOCK, "--machine",
                      json.dumps(machine), "--objective", objective, "--json", "--no-what-if").json()
             for changes in ({}, {"method.resident_steps": 1})]
    k = found[0]["cycle_steps"]
    seconds, moved = ([f(r) / n for r, n in zip(found, (k, 1))]
                      for f in (lambda r: r["iteration_s"], lambda r: r["host_in_bytes"] + r["host_out_bytes"]))
    if objective == "bytes":
        t.check(k > 3 and moved[0] < moved[1] / 3 and seconds[0] > 1.02 * seconds[1], f"{k} steps: {seconds} s, {moved} bytes")
    else:
        t.equal((k, found[0]["cycle_limit"]), (1, "more steps would move less, but take longer"), "steps and what limits them")


@case
def test_plan_says_how_many_steps_and_what_limits_them(t):
    def plan(*options, **changes):
        return t.worker("--plan", write_job(t, job(LONG, {"train.steps": 4096, **changes})), *options, "--json",
                        "--no-what-if").json()

    limits = {
        "device memory": plan("--devices", 1, "--device-memory", "150KiB"),
        "host memory": plan(*ONE_BLOCK, "--host-memory", "1100KiB"),
        "size of the plan": plan(*ONE_BLOCK, "--host-memory", "100MiB", **{"train.global_batch": 64, "train.micro_batch": 1}),
        "method.max_cycle_seconds": plan(*ONE_BLOCK, **{"method.max_cycle_seconds": 1e-6}),
        "steps between evaluations and checkpoints": plan(*ONE_BLOCK, **{"checkpoint": {"every": {"steps": 8}}}),
        "more steps would gain little": plan("--devices", 1, "--device-memory", "64MiB"),
    }
    t.equal({k: r["cycle_limit"] for k, r in limits.items()}, {k: k for k in limits}, "limits")
    free = plan(*ONE_BLOCK)
    t.check(free["cycle_steps"] > 3, f"{free['cycle_steps']} steps where nothing forbids more")
    t.equal(free["blocks_stay"], True, "blocks stay on their device")
    t.equal(free["waiting_bytes"], free["cycle_steps"] * 16 * 64 * 4, "outputs that wait for the next block")
    t.equal(limits["steps between evaluations and checkpoints"]["cycle_steps"], 8, "steps between checkpoints")
    tight = plan("--devices", 1, "--device-memory", "150KiB", **{"method.resident_steps": 4})
    t.equal((tight["cycle_steps"], tight["blocks_stay"]), (4, False), "where a block does not fit with its state")
    refused = t.worker("--check", write_job(t, job(LONG, {"method.resident_steps": 16, "train.steps": 64})), *ONE_BLOCK,
                       "--host-memory", "800KiB", "--json", expect=None).json()
    t.contains(refused["message"], "method.resident_steps is 16", what="the key in the message")
    text = t.worker("--plan", write_job(t, LONG), *ONE_BLOCK).out
    t.contains(text, "for which a block stays on its device", "of outputs wait for the next block", "4 blocks of layers")


# ---- the outputs that partitions keep ----

FILES = ["outputs-1-train.f32", "outputs-1-val.f32"]


@case
def test_kept_outputs_stay_on_request(t):
    """They are the outputs that plain Python computes from the first partition's weights, one row per sample."""
    spec = job(SIL, {"model.hidden": [5, 4], "data.samples": 12, "method.partitions": [1], "train.global_batch": 6,
                     "train.micro_batch": 3})
    gone, kept = run(t, spec, out="gone"), run(t, job(spec, {"method.keep_outputs": True}), out="kept")
    t.equal([n for n in os.listdir(gone) if n.startswith("outputs")], [], "outputs that were not asked for")
    t.equal(sorted(n for n in os.listdir(kept) if n.startswith("outputs")), FILES, "files of outputs")
    for name, samples in zip(FILES, (12, 40)):
        t.equal(os.path.getsize(os.path.join(kept, name)), samples * 5 * 4, f"bytes of {name}")
    with open(os.path.join(kept, FILES[0]), "rb") as f:
        outputs = struct.unpack("<60f", f.read())
    t.check(all(v >= 0 for v in outputs) and any(v > 0 for v in outputs), "outputs of a relu")
    t.equal(read_json(os.path.join(gone, "result.json"))["weights_hash"],
            read_json(os.path.join(kept, "result.json"))["weights_hash"], "weights")
    before = sha256(os.path.join(kept, FILES[0]))
    shutil.rmtree(os.path.join(kept, "checkpoints", "step-10"))
    run(t, job(spec, {"method.keep_outputs": True}), out="kept")
    t.equal(sha256(os.path.join(kept, FILES[0])), before, "outputs that a resumed run computed again")
    t.equal(leftovers(kept), [], "left behind")


@case
def test_outputs_beyond_host_memory_are_in_a_file(t):
    strace.need(t)
    spec = job(SIL, {"data.samples": 20000, "train.steps": 2, "eval": DELETE, "data.val_samples": DELETE})
    path = write_job(t, spec)
    hashes = set()
    for host in ("2MiB", "1GiB"):
        out = t.path(host)
        command = ["strace", "-f", "-e", "trace=fallocate", "-o", t.path("trace"), t.program, "--run", path, "--output", out,
                   "--host-memory", host, "--quiet"]
        t.equal(t.command(command).code, 0, f"exit code with {host}")
        with open(t.path("trace"), encoding="utf-8") as f:
            t.equal("fallocate(" in f.read(), host == "2MiB", f"a file for outputs with {host}")
        hashes.add(read_json(os.path.join(out, "result.json"))["weights_hash"])
    t.equal(len(hashes), 1, "different weights")


@case
def test_disk_without_room_for_outputs_is_noticed_at_the_start(t):
    """Before the first step, not when the first partition is trained."""
    disk = t.path("disk")
    os.mkdir(disk)
    if os.getuid() != 0 or t.command(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", disk]).code != 0:
        t.skip("a file system cannot be mounted here")
    t.undo.append(lambda: t.command(["umount", "-l", disk]))
    spec = job(SIL, {"data.samples": 20000, "train.steps": 2, "eval": DELETE, "data.val_samples": DELETE})
    out = os.path.join(disk, "out")
    r = t.worker("--run", write_job(t, spec), "--output", out, "--host-memory", "2MiB", "--quiet", "--json", expect=1).json()
    t.equal((r["errno"], r["path"]), ("ENOSPC", out), "the error")
    t.contains(r["message"], f"up to {20000 * 32 * 4} bytes", "resources.host_memory", what="the message")
    t.equal((steps_in_metrics(out), checkpoint_steps(out)), (0, []), "steps and checkpoints")
    t.equal(leftovers(out), [], "left behind")
    t.worker("--run", write_job(t, spec), "--output", out, "--host-memory", "1GiB", "--quiet")  # in memory, there is room
