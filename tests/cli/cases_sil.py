"""What must hold of training in partitions with synthetic intermediate labels: what each partition is trained on, and that
nothing of one partition is in another. cases_invariants.py has random jobs, machines and kills, and cases_local.py has the job
with a single partition, which is backpropagation."""
import json
import os
import random

import reference
from cases_local import batch_of, close, idx_spec
from files import DELETE, checkpoint_steps, job, read_json, write_job
from harness import case, once
from methods import (JOB, STILL, TIGHT, all_tensors, bits, bits_without_spec, change_state, figures, go_back, kill_after, local,
                     same_bits, sil, state, tensors, train, training)

STEPS = 7  # of every partition of JOB
EVERY = {"checkpoint.every": {"steps": 1}}


def of_phase(lines, phase):
    return [m for m in lines if m["phase"] == phase]


def vectors_of(out, step, partition=0):
    """The label vectors of a partition, one for each class."""
    (classes, units), flat = tensors(out, step, "method")[f"labels.{partition}.vectors"]
    return [flat[c * units : (c + 1) * units] for c in range(classes)]


# ---- label vectors ----

@case
def test_label_vectors_are_drawn_once_and_by_the_seed(t):
    """They are the same in every checkpoint and on every machine. They depend on the seed and on kappa alone."""
    spec = job(JOB, {"method": sil([1, 3]), **EVERY})
    out = train(t, spec)
    first = tensors(out, 1, "method")
    t.equal(len(checkpoint_steps(out)), 3 * STEPS, "checkpoints")
    labels = {k: v for k, v in first.items() if k.startswith("labels.")}
    t.equal({k: v[0] for k, v in labels.items()}, {"labels.0.vectors": [4, 16], "labels.0.offsets": [4],
                                                   "labels.1.vectors": [4, 10], "labels.1.offsets": [4]}, "shapes")
    for step in checkpoint_steps(out):
        t.equal(tensors(out, step, "method"), first, f"the vectors at step {step}")
    for name, changes in {"data": {"data.seed": 99}, "length": {"train.steps": 2}, "batch": {"train.global_batch": 20},
                          "rate": {"optimizer.lr": 0.5}, "dropout": {"model.dropout": 0.5}}.items():
        again = train(t, job(spec, changes), name, *TIGHT)
        t.equal(tensors(again, 1, "method"), first, f"the vectors of a job with another {name}")
    other = train(t, job(spec, {"init.seed": 8}), "seed")
    for name in labels:
        t.check(tensors(other, 1, "method")[name] != first[name], f"{name} does not depend on the seed")
    # kappa * U(0,1): the same numbers, times kappa.
    one = train(t, job(spec, {"method.kappa": 1.0}), "kappa")
    for part in (0, 1):
        for v, u in zip(vectors_of(out, 1, part), vectors_of(one, 1, part)):
            for x, y in zip(v, u):
                t.check(0 <= y < 1 and abs(x - 3 * y) < 1e-6, f"{x} with kappa 3, {y} with kappa 1")
    t.check(vectors_of(out, 1, 0)[0][:10] != vectors_of(out, 1, 1)[0], "both partitions have the same vectors")


@case
def test_label_vectors_are_uniform(t):
    """Of 4000 numbers, every tenth of the interval has its share, and no two classes or units go together."""
    spec = job(JOB, {"model": {"type": "mlp", "input": 3, "hidden": [1000, 5], "classes": 4}, "train.steps": 1,
                     "eval": DELETE, "method": sil([1], kappa=2.0)})
    v = vectors_of(train(t, spec), 1)
    tenths = [0] * 10
    for x in (x for c in v for x in c):
        tenths[int(x / 2 * 10)] += 1
    t.check(all(300 < n < 500 for n in tenths), f"numbers in each tenth of [0, 2): {tenths}")
    for a in range(4):
        for b in range(a):
            together = sum((x - 1) * (y - 1) for x, y in zip(v[a], v[b])) / 1000 * 3  # 1/3 is the variance
            t.check(abs(together) < 0.15, f"classes {a} and {b} correlate by {together}")


# ---- against plain Python ----

class Partition:
    """A partition in plain Python, with AdamW."""

    def __init__(self, layers, first, o):
        self.layers, self.o, self.t = layers, o, 0
        self.names = [f"layers.{first + i}" for i in range(len(layers))]
        self.moments = {k: ([0.0] * len(v), [0.0] * len(v)) for k, v in reference.flatten(layers, self.names).items()}

    def step(self, samples, loss_of):
        loss, grads = reference.gradients(self.layers, samples, loss_of)
        self.t += 1
        b1, b2 = self.o["betas"]
        new = {}
        for (name, w), g in zip(reference.flatten(self.layers, self.names).items(), reference.flatten(grads).values()):
            m, s = self.moments[name]
            new[name] = reference.adamw(w, g, m, s, self.t, self.o)
            self.moments[name] = ([b1 * x + (1 - b1) * d for x, d in zip(m, g)],
                                  [b2 * x + (1 - b2) * d * d for x, d in zip(s, g)])
        shapes = [(len(w), len(w[0])) for w, _ in self.layers]
        self.layers = [reference.layer_of({n + ".weight": (shape, new[n + ".weight"]), n + ".bias": ([], new[n + ".bias"])}, n)
                       for n, shape in zip(self.names, shapes)]
        return loss

    def outputs(self, samples):
        """The samples with what the partition makes of them: its last layer has a ReLU too."""
        return [([max(v, 0.0) for v in reference.forward(self.layers, x)[1]], label) for x, label in samples]


def label_figures(layers, samples, vectors):
    """The mean error of the outputs against label vectors, and the share of samples that are nearest to their own vector."""
    error, nearest = reference.label_error(vectors), 0
    outputs = [(reference.forward(layers, x)[1], label) for x, label in samples]
    for y, label in outputs:
        far = [sum((max(a, 0.0) - b) ** 2 for a, b in zip(y, v)) for v in vectors]
        nearest += far.index(min(far)) == label
    return sum(error(y, label)[0] for y, label in outputs) / len(samples), nearest / len(samples)


@case(each=[[1], [2], [1, 3]])
def test_partitions_train_as_in_plain_python(t, cuts):
    """The losses of all steps: of the first partition against the label vectors, of the next ones on the outputs that the
    trained partitions before them have for the same samples, of the last one against the classes, and of the whole network in
    the recovery. Each phase begins with fresh optimizer state. Evaluations of a partition are against its label vectors."""
    spec, samples = idx_spec(t, method=sil(cuts, recovery_epochs=2))
    spec = job(spec, {"train.grad_clip": DELETE, "optimizer.lr": 0.01, "data.val": spec["data"]["train"]})
    start = train(t, job(spec, {"train.steps": 1, "optimizer": {"type": "sgd", "lr": STILL}}), "start")
    out = train(t, spec, "out", *TIGHT[:2])
    steps, lines, ends = spec["train"]["steps"], training(figures(out)), [0, *cuts, 4]
    layers, now, done = reference.layers_of(tensors(start, 1)), samples, []
    for i in range(len(cuts) + 1):
        part, last = Partition(layers[ends[i] : ends[i + 1]], ends[i], spec["optimizer"]), i == len(cuts)
        loss_of = reference.cross_entropy if last else reference.label_error(vectors_of(out, 1, i))
        mine = of_phase(lines, 2 * i)
        t.equal(len(mine), steps, f"steps of partition {i + 1}")
        for step, m in enumerate(mine, 1):
            want = part.step(batch_of(now, step, 12), loss_of)
            close(t, float(m["loss"]), want, f"partition {i + 1}, step {step}: loss", 2e-3)
        end = [m for m in of_phase(figures(out), 2 * i) if "lr" not in m][-1]
        trained = reference.layers_of(tensors(out, steps * (i + 1)))
        if not last:
            error, nearest = label_figures(trained[: ends[i + 1]], samples, vectors_of(out, 1, i))
            close(t, float(end["val/label_error"]), error, f"partition {i + 1}: error against its label vectors")
            t.equal(float(end["val/nearest_label_accuracy"]), nearest, f"partition {i + 1}: nearest label vectors")
        else:
            loss, right = reference.evaluate(trained, samples)
            close(t, float(end["val/loss"]), loss, "evaluation of the joined network")
            t.equal(float(end["val/accuracy"]), right, "accuracy of the joined network")
        done += part.layers
        now = part.outputs(now)
    whole, recovery = Partition(done, 0, spec["optimizer"]), of_phase(lines, 2 * len(cuts) + 1)
    t.equal(len(recovery), 4, "steps of the recovery")
    for step, m in enumerate(recovery, 1):
        close(t, float(m["loss"]), whole.step(batch_of(samples, step, 12), reference.cross_entropy), f"recovery {step}", 2e-3)
    weights = tensors(out, steps * (len(cuts) + 1) + len(recovery))
    for name, want in reference.flatten(whole.layers, whole.names).items():
        far = sum(abs(x - y) > 2e-3 for x, y in zip(weights[name][1], want))
        t.check(far <= len(want) // 50, f"{far} of {len(want)} numbers of {name} differ")


@case
def test_error_against_labels_is_no_accuracy_of_the_model(t):
    """Until the last partition trains, evaluations have names of their own."""
    out = train(t, job(JOB, {"method": sil([1, 3], recovery_epochs=1)}))
    names = {p: {k for m in of_phase(figures(out), p) if "lr" not in m for k in m} - {"step", "phase"} for p in (0, 2, 4, 5)}
    labels, model = {"val/label_error", "val/nearest_label_accuracy", "labels"}, {"val/loss", "val/accuracy"}
    t.equal(names, {0: labels, 2: labels, 4: model, 5: model}, "figures of evaluations")
    result = read_json(os.path.join(out, "result.json"))
    t.equal([(m["phase"], m["verdict"], "advice" in m) for m in result["labels"]], [(0, "learning", True), (2, "learning", True)],
            "seven steps are too few, and the report says so")
    evaluations = [m for m in figures(out) if "val/loss" in m]
    result = read_json(os.path.join(out, "result.json"), parse_float=str)
    t.equal((result["val_loss"], result["val_accuracy"]),
            (evaluations[-1]["val/loss"], evaluations[-1]["val/accuracy"]), "evaluation in result.json")
    for step in checkpoint_steps(out):
        t.equal("metrics" in state(out, step), any(m["step"] == step for m in evaluations),
                f"the checkpoint of step {step} has an evaluation of the model")


# ---- partitions do not know each other ----

OTHERS = {
    "a cut more": {"method.partitions": [2, 3]},
    "three cuts": {"method.partitions": [2, 3], "method.recovery_epochs": 2},
    "another last part": {"model.hidden": [16, 14, 1]},
    "another rate there": {"method.each": [{}, {"optimizer": {"type": "sgd", "lr": 0.2, "momentum": 0.9}, "steps": 3}]},
    "another batch there": {"method.each": [{}, {"global_batch": 20, "epochs": 1}]},
}


@case(each=list(OTHERS))
def test_first_partition_is_the_same_whatever_follows(t, name):
    spec = job(JOB, {"method": sil([2]), "model.dropout": 0.1, "train.grad_clip": 0.5, **EVERY})

    def first():
        out = train(t, spec, "first")
        return of_phase(figures(out), 0), {step: all_tensors(out, step) for step in range(1, STEPS + 1)}

    lines, parts = once("first partition", first)
    out = train(t, job(spec, OTHERS[name]), "out", *TIGHT)
    t.equal(of_phase(figures(out), 0), lines, "figures of phase 0")
    for step, files in parts.items():
        found = all_tensors(out, step)
        for file, numbers in files.items():
            # The other partitions are there too, but untrained: only those of partition 1 must be equal.
            for key, value in numbers.items():
                if key.split(".")[:2] in (["layers", "0"], ["layers", "1"], ["labels", "0"]):
                    t.equal(found[file].get(key), value, f"step {step}: {file} {key}")


@case
def test_a_phase_changes_no_weight_of_another_partition(t):
    out = train(t, job(JOB, {"method": sil([1, 3]), **EVERY}))
    parts = [{"0"}, {"1", "2"}, {"3"}]
    for phase, mine in enumerate(parts):
        before, after = phase * STEPS or 1, (phase + 1) * STEPS
        a, b = tensors(out, before), tensors(out, after)
        changed = {name.split(".")[1] for name in a if a[name] != b[name]}
        t.equal(changed, mine, f"layers that partition {phase + 1} changes")
        moments = {name.split(".")[1] for name in tensors(out, after, "optimizer")}
        t.equal(moments, mine, f"layers with optimizer state in partition {phase + 1}")


# ---- kept outputs ----

@case(each=["mlp", "all samples in one batch", "replicas"])
def test_kept_outputs_equal_a_fresh_forward_pass(t, name):
    """No weight moves. So the last partition on the kept outputs, and the whole network on the samples, have the same losses in
    every step and in every evaluation, to the bit, in an order that is shuffled anew in every epoch. The last batch of the
    samples is not full."""
    changes = {"mlp": {}, "all samples in one batch": {"train.global_batch": 60, "train.micro_batch": 20},
               "replicas": {"train.replicas": 3}}[name]
    size = {"data.samples": 60 if "train.global_batch" in changes else 67}
    spec = job(JOB, {"optimizer": {"type": "sgd", "lr": STILL}, "train.steps": DELETE, "train.epochs": 2, **size, **changes,
                     "method": sil([1, 3], recovery_epochs=2)})
    out = train(t, spec, "out", *TIGHT)
    kept, fresh = of_phase(figures(out), 4), of_phase(figures(out), 5)
    t.equal([m["loss"] for m in training(kept)], [m["loss"] for m in training(fresh)], "losses of steps")
    losses = {m["loss"] for m in training(kept)}
    t.check(len(losses) > len(training(kept)) // 2, f"too few different losses to tell samples apart: {losses}")
    ends = [[(m["val/loss"], m["val/accuracy"]) for m in part if "val/loss" in m] for part in (kept, fresh)]
    t.equal(set(ends[0]), set(ends[1]), "evaluations")
    t.equal(len(set(ends[0])), 1, "evaluations of weights that do not move")


@case
def test_kept_outputs_are_computed_without_dropout(t):
    """The checksums of the inputs of partition 2 are in its checkpoints."""
    def checksum(name, **changes):
        spec = job(JOB, {"optimizer": {"type": "sgd", "lr": STILL}, "method": sil([2]), **changes})
        return state(train(t, spec, name), 2 * STEPS)["inputs_crc32c"]

    plain, dropped = checksum("plain"), checksum("dropped", **{"model.dropout": 0.5})
    t.equal(dropped, plain, "checksum with dropout")
    t.check(checksum("seed", **{"init.seed": 8}) != plain, "the checksum is always the same")


@case
def test_kept_outputs_do_not_depend_on_the_machine(t):
    spec = job(JOB, {"method": sil([1, 3])})
    want = [state(train(t, spec, "one"), s)["inputs_crc32c"] for s in (2 * STEPS, 3 * STEPS)]
    t.check(want[0] != want[1], "both cuts have the same outputs")
    for options in (TIGHT, ["--policy", "lru", "--device-memory", "16KiB"], ["--devices", 3, "--delay-seed", 4]):
        out = train(t, spec, "out", *options)
        t.equal([state(out, s)["inputs_crc32c"] for s in (2 * STEPS, 3 * STEPS)], want, f"checksums with {options}")


# ---- what a phase takes ----

@case
def test_devices_hold_one_partition_at_a_time(t):
    """With everything of a phase on the device all the time, a device with space for the largest partition is enough. The whole
    model does not fit there, and the device counts what is in use."""
    spec = job(JOB, {"model": {"type": "mlp", "input": 64, "hidden": [64, 64, 64, 64, 64], "classes": 4}})
    resident = ["--policy", "resident", "--optimizer-on", "device"]
    parts = write_job(t, job(spec, {"method": sil([2, 4])}), "parts.json")
    least = t.worker("--check", parts, "--json", *resident).json()["least_device_bytes"]
    whole = t.worker("--check", write_job(t, spec, "whole.json"), "--json", *resident).json()["least_device_bytes"]
    state_bytes = 4 * 4 * (64 * 64 + 64)  # of one layer: W, dW and two moments
    t.check(least < 2 * state_bytes + 40000, f"{least} bytes for two layers with {2 * state_bytes} bytes of state")
    t.check(whole > 5 * state_bytes, f"{whole} bytes for five layers with {5 * state_bytes} bytes of state")
    out = train(t, job(spec, {"method": sil([2, 4])}), "out", *resident, "--device-memory", least)
    result = read_json(os.path.join(out, "result.json"))
    t.check(max(p["device_peak_bytes"][0] for p in result["phases"]) == result["devices"][0]["peak_bytes"] <= least,
            f"peaks: {result['phases']}, {result['devices']}")
    refused = t.worker("--check", t.path("whole.json"), *resident, "--device-memory", least, expect=None)
    t.check(refused.code != 0, "the whole model fits too, so the test says nothing")


@case(each=[1, 2])
def test_outputs_cross_the_cut_once_and_are_read_once_in_an_epoch(t, devices):
    """Samples times units times 4 bytes, in both ways. With everything resident, nothing else moves but the targets and the
    results of the losses."""
    units, n, batch = 14, 60, 12
    spec = job(JOB, {"method": sil([2]), "train.steps": DELETE, "train.epochs": 3, "eval": DELETE, "data.val_samples": DELETE,
                     "checkpoint": DELETE})
    out = train(t, spec, "out", "--policy", "resident", "--devices", devices, "--optimizer-on", "device")
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        second = [m for m in map(json.loads, f) if m["phase"] == 2]
    epoch = sum(m["in_bytes"] for m in second) / 3
    t.equal(len(second), 3 * n // batch, "steps of the second partition")
    t.check(n * units * 4 + n * 4 <= epoch <= n * units * 4 + n * 4 + n // batch * 100,
            f"{epoch} bytes in for an epoch of {n * units * 4} bytes of inputs and {n * 4} bytes of targets")
    t.check(sum(m["out_bytes"] for m in second) / 3 <= n // batch * 200, "the second partition moves its outputs out")


# ---- all partitions at once ----

def of_model(out, step, layers, parts):
    """The weights of these layers and the label vectors of these parts in a checkpoint."""
    found = {**tensors(out, step), **tensors(out, step, "method")}
    return {k: v for k, v in found.items() if k.split(".")[:2] in [["layers", str(i)] for i in layers] +
            [["labels", str(i)] for i in parts]}


@case
def test_concurrent_partition_1_is_that_of_partitions_in_turn(t):
    """It has the same inputs, vectors, steps and norm to clip. Later partitions have other inputs."""
    spec = job(JOB, {"model.dropout": 0.1, "train.grad_clip": 0.4, "checkpoint.every": {"steps": 1}, "method": sil([2])})
    turn, once_ = train(t, spec, "turn"), train(t, job(spec, {"method.concurrent": True}), "at-once", *TIGHT)
    for step in range(1, STEPS + 1):
        t.equal(of_model(once_, step, (0, 1), (0,)), of_model(turn, step, (0, 1), (0,)), f"partition 1 at step {step}")
    t.check(of_model(once_, STEPS, (2, 3), ()) != of_model(turn, 2 * STEPS, (2, 3), ()), "partition 2 is the same, too")
    t.equal(checkpoint_steps(once_), list(range(1, STEPS + 1)), "all partitions train in the same steps")


@case
def test_one_concurrent_partition_is_backpropagation(t):
    spec = job(JOB, {"model.dropout": 0.1, "train.grad_clip": 0.4})
    want, found = [bits_without_spec(train(t, job(spec, {"method": m}), name))
                   for m, name in (({"type": "backprop"}, "backprop"), (sil(1, concurrent=True), "sil"))]
    for key, value in want.items():
        t.equal(found[key], value, key)


@case(each=[[2], [1, 3]])
def test_concurrent_partitions_train_on_label_vectors(t, cuts):
    """As in plain Python: the inputs of a partition are the vectors of the partition before, whatever that one has learned.
    Evaluations are of the joined network, and of each partition against its vectors."""
    spec, samples = idx_spec(t, method=sil(cuts, concurrent=True))
    spec = job(spec, {"train.grad_clip": DELETE, "optimizer.lr": 0.01, "data.val": spec["data"]["train"],
                      "eval": {"every": {"steps": 3}}})
    start = train(t, job(spec, {"train.steps": 1, "optimizer": {"type": "sgd", "lr": STILL}, "eval": DELETE}), "start")
    out = train(t, spec, "out", *TIGHT)
    layers, ends, lines = reference.layers_of(tensors(start, 1)), [0, *cuts, 4], figures(out)
    parts = [Partition(layers[a:b], a, spec["optimizer"]) for a, b in zip(ends, ends[1:])]
    for step, m in enumerate(training(lines), 1):
        for i, part in enumerate(parts):
            batch = batch_of(samples, step, 12)
            if i > 0:
                batch = [(vectors_of(out, 1, i - 1)[label], label) for _, label in batch]
            loss_of = reference.cross_entropy if part is parts[-1] else reference.label_error(vectors_of(out, 1, i))
            close(t, float(m["blocks"][i]["loss"]), part.step(batch, loss_of), f"partition {i + 1}, step {step}", 2e-3)
        t.equal(m["loss"], m["blocks"][-1]["loss"], "the loss of the job")
        t.equal([b["accuracy"] is None for b in m["blocks"]], [True] * len(cuts) + [False], "only the last one has an accuracy")
    report = read_json(os.path.join(out, "result.json"))["blocks"]
    t.equal([b["accuracy"] is None for b in report], [True] * len(cuts) + [False], "accuracies in the report")
    for step in (3, 6):
        trained = reference.layers_of(tensors(out, step))
        loss, right = reference.evaluate(trained, samples)
        end = next(m for m in lines if m["step"] == step and "val/loss" in m)
        close(t, float(end["val/loss"]), loss, f"step {step}: evaluation of the joined network")
        t.equal(float(end["val/accuracy"]), right, f"step {step}: accuracy of the joined network")
        judged = [m for m in lines if m["step"] == step and "labels" in m]
        t.equal([m.get("part") for m in judged], list(range(len(cuts))) if len(cuts) > 1 else [None], "judged partitions")
        for i, m in enumerate(judged):
            error, nearest = label_figures(trained[: ends[i + 1]], samples, vectors_of(out, 1, i))
            close(t, float(m["val/label_error"]), error, f"step {step}: error of partition {i + 1}")
            t.equal(float(m["val/nearest_label_accuracy"]), nearest, f"step {step}: nearest vectors of partition {i + 1}")


@case(each=[{"each": [{"epochs": 2}, {}]}, {"each": [{}, {"global_batch": 6}]}, {"keep_outputs": True},
            {"each": [{}, {"optimizer": {"type": "sgd", "lr": 0.1}}]}])
def test_concurrent_refuses_what_makes_partitions_differ(t, keys):
    path = write_job(t, job(JOB, {"method": sil(2, concurrent=True, **keys)}))
    r = t.worker("--check", path, "--json", expect=2).json()
    t.equal(r["path"].split("[")[0], "method." + next(iter(keys)), "the path")
    t.contains(r["message"], '"concurrent"', what="the message")


# ---- it works ----

def accuracy(t, name, **changes):
    spec = job(JOB, {"model": {"type": "mlp", "input": 24, "hidden": [32, 32, 32, 32], "classes": 6},
                     "data": {"format": "synthetic", "samples": 600, "val_samples": 300, "seed": 5, "noise": 1.3},
                     "train": {"epochs": 6, "global_batch": 20, "micro_batch": 20}, "eval": {"every": {"epochs": 6}},
                     "checkpoint": DELETE, "optimizer.lr": 0.004, **changes})
    return float([m for m in figures(train(t, spec, name)) if "val/accuracy" in m][-1]["val/accuracy"])


@case
def test_trained_partitions_beat_a_frozen_first_half(t):
    """The control has a random first half, which does not train. Seeds and order are fixed, so the figures are always the
    same."""
    trained = accuracy(t, "trained", method=sil([2]))
    frozen = accuracy(t, "frozen", method=sil([2], each=[{"optimizer": {"type": "sgd", "lr": STILL}}, {}]))
    backprop = accuracy(t, "backprop")
    blocks = accuracy(t, "blocks", method=local("chunked", 2))
    at_once = accuracy(t, "at-once", method=sil([2], concurrent=True))
    t.notes.append(f"# accuracy: partitions {trained}, frozen first half {frozen}, backprop {backprop}, two blocks {blocks}, "
                   f"partitions at once {at_once}")
    t.check(at_once > frozen + 0.03, "training all partitions at once gains nothing")
    t.check(trained > frozen + 0.03 and blocks > frozen + 0.03, "training the first half gains nothing")
    t.check(trained > backprop - 0.05 and blocks > backprop - 0.05, "far below backpropagation")


# ---- kills ----

KILLED = job(JOB, {"method": sil([1, 3], recovery_epochs=1), "model.dropout": 0.1, "checkpoint.every": {"steps": 2},
                   "data.samples": 67})
TOTAL = 3 * STEPS + 6


def killed_reference(t):
    return once("sil, to be killed", lambda: bits(train(t, KILLED, "reference", "--policy", "resident")))


@case(each=[STEPS - 1, STEPS, STEPS + 1, 2 * STEPS, 2 * STEPS + 3, 3 * STEPS, 3 * STEPS + 2])
def test_killed_in_any_phase_resumes_to_the_same_bits(t, step):
    """Killed when the step is done: that is in a phase, or while its outputs are computed."""
    path, out = write_job(t, KILLED), t.path("out")
    kill_after(t, path, out, step, *TIGHT, "--delay-seed", step)
    t.worker("--run", path, "--output", out, "--quiet", "--devices", 3)
    same_bits(t, out, killed_reference(t), f"killed at step {step}")


@case
def test_a_run_may_start_at_every_checkpoint(t):
    """Each phase, and each hand-over between two phases. The label vectors come from the checkpoint, and kept outputs are
    computed again."""
    want, path = killed_reference(t), write_job(t, KILLED)
    out = train(t, KILLED, "out")
    steps = checkpoint_steps(out)
    t.check(all(s in steps for s in (STEPS, 2 * STEPS, 3 * STEPS, TOTAL)), f"a checkpoint at the end of every phase: {steps}")
    rng = random.Random(1)
    for step in reversed(steps[:-1]):
        go_back(out, step)
        t.worker("--run", path, "--output", out, "--quiet", *rng.choice([[], TIGHT, ["--devices", 3, "--delay-seed", step]]))
        same_bits(t, out, want, f"from the checkpoint of step {step}")


@case
def test_divergence_names_the_layer_of_the_model(t):
    """The second partition has the layers 2 and 3, which are its layers 0 and 1."""
    spec = job(JOB, {"method": sil([2], each=[{}, {"optimizer": {"type": "adamw", "lr": 1e30}}]), "train.grad_clip": 1.0})
    run = t.worker("--run", write_job(t, spec), "--output", t.path("out"), "--quiet", expect=1)
    t.contains(run.err, f"not finite at step {STEPS + 2}", "first in layer 3 (dense)", what="the message")


@case
def test_outputs_that_differ_from_those_of_the_checkpoint_are_refused(t):
    """The last partition has been trained on other inputs than the run would give it now."""
    out, path = train(t, KILLED, "out"), write_job(t, KILLED)
    step = 3 * STEPS - 1 - (3 * STEPS - 1) % 2  # the last checkpoint inside the last partition
    go_back(out, step)
    change_state(out, step, "inputs_crc32c", "00000000")
    r = t.worker("--run", path, "--output", out, "--quiet", "--json", expect=1).json()
    t.contains(r["message"], "00000000", what="the message")
    t.equal(checkpoint_steps(out)[-1], step, "the newest checkpoint")
