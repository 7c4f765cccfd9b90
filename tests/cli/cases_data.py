"""Data files, and that training on them does what it says: it learns, and its numbers are those of plain Python."""
import gzip
import math
import os
import random

import reference
from files import (SMALL, check_checkpoint, idx_bytes, job, outcome, read_metrics, read_safetensors,
                   separable, write_bytes, write_idx_pair, write_job)
from harness import case

SIDE, CLASSES, TRAIN, VAL = 8, 4, 200, 50


def data(t, suffix=""):
    """The data section for small IDX files that are written for it."""
    rng = random.Random(1)
    splits = {}
    for name, n in (("train", TRAIN), ("val", VAL)):
        splits[name] = write_idx_pair(t, name, *separable(n, CLASSES, SIDE, rng), SIDE, suffix)
    return {"format": "idx", **splits, "scale": [0, 1], "shuffle": True}


def idx_job(t, changes=None, suffix=""):
    return job(SMALL, {"data": data(t, suffix), **(changes or {})})


# ---- reading ----

@case
def test_gzip_and_plain_files_give_the_same_bits(t):
    outcomes = []
    for suffix in ("", ".gz"):
        out = t.path("out" + suffix)
        t.worker("--run", write_job(t, idx_job(t, suffix=suffix)), "--quiet", "--output", out)
        outcomes.append(outcome(out))
    t.equal(outcomes[1], outcomes[0], "outcome with .gz")


@case
def test_gzip_of_several_members_is_read(t):
    spec = idx_job(t)
    plain, out = t.path("plain"), t.path("out")
    t.worker("--run", write_job(t, spec), "--quiet", "--output", plain)
    path = spec["data"]["train"]["images"]
    with open(path, "rb") as f:
        raw = f.read()
    with open(path + ".gz", "wb") as f:
        f.write(gzip.compress(raw[:1000]) + gzip.compress(raw[1000:]))
    spec["data"]["train"]["images"] += ".gz"
    t.worker("--run", write_job(t, spec), "--quiet", "--output", out)
    t.equal(outcome(out), outcome(plain), "outcome")


@case
def test_transposed_images_give_the_same_bits_as_images_that_were(t):
    """EMNIST stores images by column."""
    spec = idx_job(t)
    plain, out = t.path("plain"), t.path("out")
    t.worker("--run", write_job(t, spec), "--quiet", "--output", plain)
    for split, n in (("train", TRAIN), ("val", VAL)):
        path = spec["data"][split]["images"]
        with open(path, "rb") as f:
            pixels = f.read()[16:]
        turned = bytearray()
        for i in range(n):
            image = pixels[i * SIDE * SIDE : (i + 1) * SIDE * SIDE]
            turned += bytes(image[y * SIDE + x] for x in range(SIDE) for y in range(SIDE))
        write_bytes(path, idx_bytes([n, SIDE, SIDE], turned))
    spec["data"]["transpose"] = True
    t.worker("--run", write_job(t, spec), "--quiet", "--output", out)
    t.equal(outcome(out)["metrics"], outcome(plain)["metrics"], "metrics")
    t.equal(outcome(out)["weights_hash"], outcome(plain)["weights_hash"], "weights")


def damage(path, change):
    with open(path, "rb") as f:
        raw = f.read()
    with open(path, "wb") as f:
        f.write(change(raw))


def set_bytes(at, *values):
    return lambda raw: raw[:at] + bytes(values) + raw[at + len(values) :]


# name, suffix, which file, what to do to it, words of the message
WRONG = [
    ("images cut short", "", "images", lambda raw: raw[:-1], ["cut short", "200 x 8 x 8"]),
    ("images cut in the header", "", "images", lambda raw: raw[:7], ["cut short", "header"]),
    ("images that are empty", "", "images", lambda raw: b"", ["cut short", "header"]),
    ("labels cut short", "", "labels", lambda raw: raw[:-5], ["cut short", "data.train.labels"]),
    ("images with a tail", "", "images", lambda raw: raw + b"x", ["more than"]),
    ("gzip cut short", ".gz", "images", lambda raw: raw[: len(raw) // 2], ["gzip", "cut short"]),
    ("gzip cut in its last bytes", ".gz", "labels", lambda raw: raw[:-4], ["gzip", "cut short"]),
    ("gzip with a flipped byte", ".gz", "images", lambda raw: raw[:600] + bytes([raw[600] ^ 64]) + raw[601:],
     ["gzip", "damaged"]),
    ("gzip with a wrong checksum", ".gz", "labels", lambda raw: raw[:-8] + bytes([raw[-8] ^ 1]) + raw[-7:], ["gzip"]),
    ("gzip with a tail", ".gz", "images", lambda raw: raw + b"tail", ["after the end of its gzip stream"]),
    ("no IDX file", "", "images", lambda raw: b"\x89PNG" + raw[4:], ["not an IDX file", "89 50 4e 47"]),
    ("floats", "", "images", set_bytes(2, 0x0D), ["32-bit floats", "unsigned bytes"]),
    ("no dimensions", "", "images", set_bytes(3, 0), ["0 dimensions"]),
    ("more images than there are", "", "images", set_bytes(4, 0xFF, 0xFF, 0xFF, 0xFF), ["cut short", "4294967295"]),
    ("more images than there are, gzip", ".gz", "images",
     lambda raw: gzip.compress(set_bytes(4, 0xFF, 0xFF, 0xFF, 0xFF)(gzip.decompress(raw))), ["cut short"]),
    ("no images", "", "images", lambda raw: idx_bytes([0, 8, 8], b""), ["no samples"]),
    ("images of other elements", "", "images", lambda raw: idx_bytes([200, 7, 8], raw[16 : 16 + 200 * 56]),
     ["56 elements", "model.input has 64", "[7,8]"]),
    ("labels fewer than images", "", "labels", lambda raw: idx_bytes([199], raw[8:-1]), ["199 labels", "200 images"]),
    ("labels that are images", "", "labels", lambda raw: idx_bytes([200, 1], raw[8:]), ["2 dimensions", "exchanged"]),
    ("a label beyond the classes", "", "labels", lambda raw: raw[:58] + b"\x09" + raw[59:],
     ["label 9 of sample 50", "4 classes (0 to 3)", "model.classes"]),
]


@case(each=WRONG)
def test_wrong_file_is_refused(t, value):
    _, suffix, which, change, says = value
    spec = idx_job(t, suffix=suffix)
    path = spec["data"]["train"][which]
    damage(path, change)
    for verb in ("--check", "--run"):
        run = t.worker(verb, write_job(t, spec), "--output", t.path("out"), expect=2)
        t.equal(run.out, "", "standard output")
        t.equal(len(run.err.splitlines()), 1, "lines on standard error")
        t.check(run.err.startswith(f"tutti-worker: {path}: "), "the file is not named")
        t.contains(run.err, f"data.train.{which}", *says, what="the message")
    r = t.worker("--check", write_job(t, spec), "--json", expect=2).json()
    t.equal((r["path"], r["exit"]), (path, 2), "the JSON error")
    t.check(not os.path.exists(t.path("out")), "a job with wrong data made its output directory")


@case
def test_missing_file_is_refused(t):
    for which in ("images", "labels"):
        spec = idx_job(t)
        spec["data"]["val"][which] = t.path("nowhere")
        run = t.worker("--check", write_job(t, spec), expect=2)
        t.contains(run.err, f"tutti-worker: {t.path('nowhere')}: ", f"data.val.{which}", "No such file", what="message")


@case
def test_directory_and_fifo_in_place_of_a_file_are_refused(t):
    os.mkfifo(t.path("fifo"))
    for path in (t.dir, t.path("fifo")):
        spec = idx_job(t)
        spec["data"]["train"]["images"] = path
        run = t.worker("--check", write_job(t, spec), expect=2)
        t.contains(run.err, f"tutti-worker: {path}: ", "not a regular file", what="the message")


@case
def test_changed_data_is_another_spec(t):
    spec = idx_job(t)
    t.worker("--run", write_job(t, spec), "--quiet", "--output", t.path("out"))
    damage(spec["data"]["train"]["images"], lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]))
    run = t.worker("--run", write_job(t, spec), "--quiet", "--output", t.path("out"), expect=2)
    t.contains(run.err, "another spec", what="the message")


# ---- learning ----

@case(each=["adamw", "sgd"])
def test_training_learns(t, kind):
    optimizer = {"adamw": {"type": "adamw", "lr": 5e-3}, "sgd": {"type": "sgd", "lr": 0.1, "momentum": 0.9}}[kind]
    spec = idx_job(t, {"train": {"epochs": 15, "global_batch": 20, "micro_batch": 10}, "optimizer": optimizer,
                       "eval.every": {"epochs": 5}, "checkpoint.every": {"epochs": 5}})
    r = t.worker("--run", write_job(t, spec), "--quiet", "--json", "--output", t.path("out"), "--devices", 2).json()
    t.equal(r["total_steps"], 150, "steps of 15 epochs")
    chance = math.log(CLASSES)
    train = [float(m[1]) for m in read_metrics(t.path("out")) if m[1] != "val"]
    t.check(train[0] > 0.7 * chance, f"the first loss is {train[0]}, ln(classes) is {chance:.3f}")
    t.check(sum(train[-10:]) / 10 < 0.1 * chance, f"the last losses are {train[-10:]}")
    thirds = [sum(train[i : i + 50]) for i in (0, 50, 100)]
    t.check(thirds[0] > thirds[1] > thirds[2], f"the loss does not fall: {thirds}")
    t.check(r["val_accuracy"] > 0.9 and r["val_loss"] < 0.3 * chance, f"validation: {r}")
    val = [m for m in read_metrics(t.path("out")) if m[1] == "val"]
    t.equal([m[0] for m in val], [50, 100, 150], "steps of evaluations")
    t.equal((float(val[-1][2]), float(val[-1][3])), (r["val_loss"], r["val_accuracy"]), "the last evaluation")


# ---- numbers ----

def samples(spec, split, indices):
    """Samples as the program should see them: bytes to [0, 1], row by row."""
    files = spec["data"][split]
    with open(files["images"], "rb") as f:
        pixels = f.read()[16:]
    with open(files["labels"], "rb") as f:
        labels = f.read()[8:]
    n = SIDE * SIDE
    return [([b / 255 for b in pixels[i * n : (i + 1) * n]], labels[i]) for i in indices]


def close(t, found, expected, what, tolerance=2e-4):
    t.check(abs(found - expected) <= tolerance * max(1e-2, abs(expected)), f"{what}: {found}, in Python {expected}")


@case
def test_evaluation_is_that_of_the_final_model(t):
    spec = idx_job(t, {"model.hidden": [12, 10], "train.steps": 12})
    r = t.worker("--run", write_job(t, spec), "--quiet", "--json", "--output", t.path("out")).json()
    tensors, _ = read_safetensors(t.path("out", "model.safetensors"))
    loss, accuracy = reference.evaluate(reference.layers_of(tensors), samples(spec, "val", range(VAL)))
    close(t, r["val_loss"], loss, "val_loss")
    close(t, r["val_accuracy"], accuracy, "val_accuracy")


OPTIMIZERS = {
    "adamw": {"type": "adamw", "lr": 0.01, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1},
    "sgd": {"type": "sgd", "lr": 0.1, "momentum": 0.7, "weight_decay": 0.05},
}


@case(each=[(f"{kind}{', clipping' if clip else ''}", kind, clip) for kind in OPTIMIZERS for clip in (None, 0.05)])
def test_step_is_that_of_plain_python(t, value):
    """From the checkpoint of step 2: the loss, the gradient norm and every weight of step 3."""
    _, kind, clip = value
    o, batch = OPTIMIZERS[kind], 12
    spec = idx_job(t, {"model.hidden": [12, 10], "optimizer": o, "data.shuffle": False,
                       "train": {"steps": 3, "global_batch": batch, "micro_batch": 4, "grad_clip": clip},
                       "checkpoint": {"every": {"steps": 1}, "keep": 9}})
    t.worker("--run", write_job(t, spec), "--quiet", "--output", t.path("out"))
    before, _ = read_safetensors(t.path("out", "checkpoints", "step-2", "model.safetensors"))
    state, _ = read_safetensors(t.path("out", "checkpoints", "step-2", "optimizer.safetensors"))
    after, _ = read_safetensors(t.path("out", "checkpoints", "step-3", "model.safetensors"))
    layers = reference.layers_of(before)
    loss, grads = reference.gradients(layers, samples(spec, "train", range(2 * batch, 3 * batch)))
    grads = reference.flatten(grads)
    norm = math.sqrt(sum(g * g for flat in grads.values() for g in flat))
    line = [m for m in read_metrics(t.path("out")) if m[0] == 3][0]
    close(t, float(line[1]), loss, "loss of step 3")
    if clip is not None:
        close(t, float(line[3]), norm, "grad_norm of step 3")
        t.check(norm > clip, f"the norm {norm} is not clipped")
        grads = {name: [g * clip / norm for g in flat] for name, flat in grads.items()}
    for name, w in reference.flatten(layers).items():
        if kind == "adamw":
            m, v = state[name + ".exp_avg"][1], state[name + ".exp_avg_sq"][1]
            expected = reference.adamw(w, grads[name], m, v, 3, o)
        else:
            expected = reference.sgd(w, grads[name], state[name + ".momentum_buffer"][1], o)
        t.check(max(abs(p - q) for p, q in zip(expected, w)) > 1e-5, f"{name} does not change")
        for i, (found, want) in enumerate(zip(after[name][1], expected)):
            close(t, found, want, f"{name}[{i}] after step 3")


@case
def test_shuffled_epoch_uses_every_sample_once(t):
    """With a rate that changes no weight, the mean loss of an epoch is that of the evaluation of the same files."""
    losses = {}
    for shuffle in (True, False):
        spec = idx_job(t, {"train": {"epochs": 2, "global_batch": 10, "micro_batch": 5},
                           "eval": {"every": {"epochs": 1}}, "checkpoint": {"every": {"epochs": 1}},
                           "optimizer": {"type": "sgd", "lr": 1e-30}})
        spec["data"].update(shuffle=shuffle, val=spec["data"]["train"])
        out = t.fresh("out")
        t.worker("--run", write_job(t, spec), "--quiet", "--output", out)
        metrics, n = read_metrics(out), TRAIN // 10
        mean = float([m for m in metrics if m[1] == "val"][0][2])
        train = [float(m[1]) for m in metrics if m[1] != "val"]
        losses[shuffle] = train[:n], train[n:]
        for epoch, found in enumerate(losses[shuffle]):
            t.equal(len(found), n, f"steps of epoch {epoch}")
            close(t, sum(found) / n, mean, f"mean loss of epoch {epoch}, shuffle {shuffle}", 1e-6)
        for epoch in (1, 2):
            state = check_checkpoint(out, epoch * n)
            t.equal(state["data_position"], epoch * TRAIN, f"data_position after epoch {epoch}")
    t.equal(losses[False][1], losses[False][0], "losses of the second epoch in the order of the file")
    t.check(losses[True][1] != losses[True][0], "two shuffled epochs have the same order")
    t.check(losses[True][0] != losses[False][0], "the shuffled order is that of the file")
