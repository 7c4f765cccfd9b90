"""Tokens and text: every form of file, every refusal by both verbs, what counts in a loss, and the order over a resume."""
import math
import os
import random
import struct

from files import DELETE, SMALL, job, read_json, read_metrics, steps_in_metrics, write_bytes, write_job
from harness import case

CONTEXT, VOCAB, SAMPLES = 16, 256, 24

GPT = {
    "schema": "job/v1",
    "name": "gpt",
    "model": {"type": "gpt2", "layers": 2, "heads": 2, "width": 32, "vocab": VOCAB, "context": CONTEXT},
    "init": {"seed": 7},
    "data": {"format": "bytes", "train": "text"},
    "train": {"steps": 4, "global_batch": 6, "micro_batch": 3},
    "optimizer": {"type": "adamw", "lr": 3e-3},
}


def numbers(ids, width):
    return struct.pack(f"<{len(ids)}{'BHI'[width // 2]}", *ids)


def llmc(ids, width, magic=None, version=None, count=None):
    magic, version = magic or {2: 20240520, 4: 20240801}[width], version or {2: 1, 4: 7}[width]
    return struct.pack("<256i", magic, version, len(ids) if count is None else count, *[0] * 253) + numbers(ids, width)


def some_ids(n=SAMPLES * CONTEXT + 5, vocab=VOCAB):
    """Numbers that follow one another by a rule, most of the time."""
    rng, ids = random.Random(3), [1]
    while len(ids) < n:
        ids.append((ids[-1] * 5 + 7) % 61 if rng.random() < 0.9 else rng.randrange(vocab))
    return ids


def tokens_job(t, name, content, changes=None):
    path = write_bytes(t.path(name), content)
    return job(GPT, {"data": {"format": "tokens", "train": path}, **(changes or {})})


def run(t, spec, name, **options):
    out = t.fresh(name)
    t.worker("--run", write_job(t, spec), "--quiet", "--output", out, **options)
    return out


def losses(out):
    return [float(m[1]) for m in read_metrics(out) if m[1] != "val"]


# ---- forms ----

@case
def test_every_form_of_the_same_tokens_gives_the_same_bits(t):
    ids = some_ids()
    forms = {"llmc16": (llmc(ids, 2), {}), "llmc32": (llmc(ids, 4), {}), "raw16": (numbers(ids, 2), {}),
             "raw32": (numbers(ids, 4), {"data.dtype": "uint32"}), "bytes": (numbers(ids, 1), {"data.format": "bytes"})}
    found = {}
    for name, (content, changes) in forms.items():
        spec = tokens_job(t, name, content)
        out = run(t, job(spec, changes), "out-" + name)
        found[name] = read_json(os.path.join(out, "result.json"))["weights_hash"], read_metrics(out)
    for name in forms:
        t.equal(found[name], found["llmc16"], f"weights and losses of {name}")


@case
def test_check_tells_samples_tokens_and_context(t):
    a, b = write_bytes(t.path("a"), llmc(some_ids(50), 2)), write_bytes(t.path("b"), numbers(some_ids(33), 2))
    val = write_bytes(t.path("val"), numbers(some_ids(17), 2))
    spec = job(GPT, {"data": {"format": "tokens", "train": [a, b], "val": val}})
    r = t.worker("--check", write_job(t, spec), "--json").json()
    t.equal((r["train_samples"], r["train_tokens"], r["val_tokens"], r["context"]), (3 + 2, 83, 17, CONTEXT), "figures")
    shown = t.worker("--check", write_job(t, spec)).out
    t.contains(shown, "5 training samples of 16 tokens (83 tokens in 2 files)", "1 for evaluation (17 tokens in 1 file)")


# ---- refusals ----

IDS = some_ids()
# name, content, changes, words of the message
WRONG = [
    ("empty", b"", {}, ["empty"]),
    ("header cut short", llmc(IDS, 2)[:1000], {}, ["cut short", "1024"]),
    ("tokens cut short", llmc(IDS, 2)[:-1], {}, ["cut short", f"{len(IDS)} tokens"]),
    ("a tail", llmc(IDS, 4) + b"x", {}, ["too long"]),
    ("a version of another day", llmc(IDS, 2, version=3), {}, ["version 3"]),
    ("a header against dtype", llmc(IDS, 2), {"data.dtype": "uint32"}, ["says uint16", "data.dtype"]),
    ("half a token", numbers(IDS, 2)[:-1], {}, ["not a whole number"]),
    ("4-byte tokens", numbers(IDS, 4), {}, ['"dtype": "uint32"']),
    ("gzip", b"\x1f\x8b\x08\0" + bytes(40), {}, ["gunzip"]),
    ("npy", b"\x93NUMPY\1\0" + bytes(40), {}, ["tofile"]),
    ("too few for a sample", numbers(IDS[:CONTEXT], 2), {}, ["too few for one sample", "model.context"]),
    ("an id beyond the vocabulary at its beginning", numbers([3, 999, *IDS], 2), {},
     ["token 1 of data.train is 999", "0 to 255", "model.vocab"]),
]


@case(each=WRONG)
def test_wrong_file_of_tokens_is_refused(t, value):
    _, content, changes, says = value
    spec = job(tokens_job(t, "file", content), changes)
    for verb in ("--check", "--run"):
        r = t.worker(verb, write_job(t, spec), "--output", t.path("out"), expect=2)
        t.equal((r.out, len(r.err.splitlines())), ("", 1), "output and lines of the message")
        t.check(r.err.startswith(f"tutti-worker: {t.path('file')}: "), "the file is not named")
        t.contains(r.err, "data.train", *says, what="the message")
    t.check(not os.path.exists(t.path("out")), "a job with wrong data made its output directory")


@case
def test_data_that_the_model_does_not_take_is_refused(t):
    text = write_bytes(t.path("text"), b"some text " * 40)
    wrong = [
        (job(SMALL, {"data": {"format": "bytes", "train": text}, "eval": DELETE}), "the model takes numbers"),
        (job(GPT, {"data": {"format": "idx", "train": {"images": text, "labels": text}}}), "the model takes tokens"),
        (job(GPT, {"data.train": text, "model.vocab": 200}), "set model.vocab to 256"),
    ]
    for spec, says in wrong:
        r = t.worker("--check", write_job(t, spec), expect=2)
        t.contains(r.err, "tutti-worker: data.format: ", says, what="the message")


@case
def test_id_beyond_the_vocabulary_ends_the_run_with_its_place(t):
    ids = some_ids()
    ids[200] = 999
    spec = tokens_job(t, "file", numbers(ids, 2), {"data.shuffle": False})
    t.worker("--check", write_job(t, spec))
    r = t.worker("--run", write_job(t, spec), "--quiet", "--output", t.path("out"), expect=1)
    t.contains(r.err, t.path("file"), "token 200 of data.train is 999", "vocabulary has 256", what="the message")
    result = read_json(t.path("out", "result.json"))
    t.equal((result["ok"], result["errno"], result["path"]), (False, "ERANGE", t.path("file")), "result.json")


@case
def test_file_cut_while_it_is_read_ends_the_run_with_its_name(t):
    path = write_bytes(t.path("text"), bytes(some_ids(40000)))
    spec = job(GPT, {"data.train": path, "train.steps": 1000000})
    live = t.start("--run", write_job(t, spec), "--quiet", "--output", t.path("out"))
    live.until(lambda: steps_in_metrics(t.path("out")) > 2, "steps")
    os.truncate(path, 100)
    r = live.wait()
    t.equal(r.code, 1, "exit code")
    t.contains(r.err, path, "data.train has become shorter", what="the message")


# ---- what counts ----

@case
def test_ignored_targets_are_not_in_the_mean(t):
    """The targets of the second sample are all ignored: the loss of both is that of the first."""
    ids = [*range(10, 10 + CONTEXT), *[7] * CONTEXT, 7]
    base = tokens_job(t, "file", numbers(ids, 2), {"data.ignore": 7, "data.shuffle": False, "train.steps": 1})
    both = losses(run(t, job(base, {"train": {"steps": 1, "global_batch": 2, "micro_batch": 1}}), "both"))[0]
    first = losses(run(t, job(base, {"train": {"steps": 1, "global_batch": 1}}), "first"))[0]
    t.check(abs(both - first) < 1e-5 * first, f"loss of both {both}, of the first {first}")
    r = t.worker("--run", write_job(t, job(base, {"train": {"steps": 2, "global_batch": 1}})), "--quiet", "--output",
                 t.path("none"), expect=1)
    t.contains(r.err, "no target of step 2 counts", "data.ignore", what="the message")


# ---- learning and order ----

@case(each=["bytes", "synthetic"])
def test_training_on_tokens_learns(t, kind):
    text = b"The quick brown fox jumps over the lazy dog. " * 30
    data = {"bytes": {"format": "bytes", "train": write_bytes(t.path("text"), text), "val": t.path("text")},
            "synthetic": {"format": "synthetic", "samples": 400, "val_samples": 50, "noise": 0.05}}[kind]
    spec = job(GPT, {"data": data, "train": {"steps": 150, "global_batch": 16}, "optimizer.lr": 1e-2})
    out = run(t, spec, "out")
    found, chance = losses(out), math.log(VOCAB)
    t.check(abs(found[0] - chance) < 0.5, f"the first loss is {found[0]}, ln(vocabulary) is {chance:.3f}")
    t.check(sum(found[-10:]) / 10 < 0.4 * chance, f"the last losses are {found[-10:]}")
    t.check(read_json(os.path.join(out, "result.json"))["val_accuracy"] > 0.5, "validation has not learnt")


@case
def test_resumed_run_reads_on_where_it_was(t):
    path = write_bytes(t.path("text"), bytes(some_ids()))
    spec = job(GPT, {"data.train": path, "train.steps": 7})  # 42 of 24 samples: into the second epoch
    whole, parts = run(t, spec, "whole"), t.path("parts")
    for steps in (2, 5, 7):
        t.worker("--run", write_job(t, job(spec, {"train.steps": steps})), "--quiet", "--output", parts)
    t.equal(losses(parts), losses(whole), "losses")
    hashes = [read_json(os.path.join(o, "result.json"))["weights_hash"] for o in (whole, parts)]
    t.equal(hashes[1], hashes[0], "weights")
    with open(path, "r+b") as f:
        f.write(b"?")
    r = t.worker("--run", write_job(t, job(spec, {"train.steps": 9})), "--quiet", "--output", parts, expect=2)
    t.contains(r.err, "another spec", what="the message")
