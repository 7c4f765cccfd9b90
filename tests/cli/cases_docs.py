"""Every example of the documentation learns.

The examples are taken out of README.md, docs/*.md (blocks of ```json), docs/examples/*.json and the man page of job files, so
that a new one is covered on arrival. Each is trained as it is written, but for its size: small data of the same form lie where it
says, wide layers become narrower, long runs shorter. Where it is only a model, or a section of a job, the rest is BASE.

What it must reach is between what a model knows that has seen no input (the frequencies of classes or tokens) and what the data
allow. Both are known exactly, because the data are made here.
"""
import copy
import glob
import json
import math
import os
import random
import re
import struct

from files import idx_bytes, read_json, separable, write_bytes, write_job
from harness import case

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODELS = ("mlp", "chain", "gpt2", "llama")

# ---- finding them ----


def without_comments(text):
    """JSON without // comments; strings may contain //."""
    return re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*', lambda m: m[1] or "", text)


def documents(text):
    """The JSON values of a block: one, or one on each line; a line may be a member, "data": {...}."""
    try:
        return [json.loads(text)]
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        return [json.loads("{" + line + "}" if line.startswith('"') else line) for line in lines]


def is_example(value):
    """Of a job file: a whole one, a model, or some sections. Other documents of this project have a schema or a method."""
    if not isinstance(value, dict):
        return False
    if value.get("schema", "job/v1") != "job/v1":
        return False
    sections = {"model", "data", "init", "from", "config"} & set(value) or isinstance(value.get("method"), dict)
    return "schema" in value or value.get("type") in MODELS or bool(sections)


def blocks(path, text):
    if path.endswith(".json"):
        return [without_comments(text)]
    if path.endswith(".5"):
        return [b.replace("\\-", "-").replace("\\e", "\\") for b in re.findall(r"^\.nf\n(.*?)^\.fi", text, re.M | re.S)]
    return re.findall(r"^```json\n(.*?)^```", text, re.M | re.S)


def find_examples():
    """(label, value) of each, and the files of which every block must be one."""
    paths = [os.path.join(ROOT, "README.md"), *sorted(glob.glob(os.path.join(ROOT, "docs", "*.md"))),
             *sorted(glob.glob(os.path.join(ROOT, "docs", "examples", "*.json"))),
             os.path.join(ROOT, "docs", "man", "tutti-job.5")]
    found = []
    for path in paths:
        name, n = os.path.relpath(path, ROOT), 0
        with open(path, encoding="utf-8") as f:
            texts = blocks(path, f.read())
        for text in texts:
            try:
                values = documents(text)
            except ValueError:
                if name in ("README.md", "docs/job.md", "docs/huggingface.md", "docs/man/tutti-job.5"):
                    raise
                continue  # protocol.md leaves parts out
            for value in values:
                if is_example(value):
                    n += 1
                    found.append((f"{name} {n}", value))
    return found


EXAMPLES = find_examples()

# ---- cutting them to size ----

STEPS = 240
VOCAB = 256  # of language models
BASE = {
    "schema": "job/v1",
    "model": {"type": "gpt2", "layers": 2, "width": 64, "heads": 4, "vocab": VOCAB, "context": 32},
    "data": {"format": "bytes", "train": "text.txt"},
    "train": {"steps": STEPS, "global_batch": 8},
    "optimizer": {"type": "adamw", "lr": 1e-3},
}
METHOD_BASE = {  # where only a method is given
    **BASE,
    "model": {"type": "mlp", "input": 64, "hidden": [64] * 5, "classes": 4},
    "data": {"format": "synthetic", "samples": 1024},
    "train": {"steps": STEPS, "global_batch": 32},
}


def whole_job(value):
    """The example as a job."""
    if "schema" in value:
        return copy.deepcopy(value)
    sections = value if {"model", "data", "init", "method"} & set(value) else {"model": value}
    base = METHOD_BASE if set(value) == {"method"} else BASE
    return {**copy.deepcopy(base), **copy.deepcopy(sections)}


def cut(node, key, most):
    if node.get(key, 0) > most:
        node[key] = most


def cut_transformer(m, blocks):
    m.setdefault("layers", 99)
    m.setdefault("width", 99)
    m.setdefault("heads", 99)
    m.pop("size", None)
    m.setdefault("vocab", VOCAB)
    for key, most in (("layers", max(2, blocks)), ("width", 64), ("heads", 4), ("kv_heads", 2), ("hidden", 192), ("context", 32),
                      ("positions", 64), ("vocab", VOCAB)):
        cut(m, key, most)
    if m["width"] % m["heads"]:
        m["heads"] = 4


def cut_model(m, method):
    if m.get("type") in ("gpt2", "llama"):
        cut_transformer(m, method.get("blocks", 0))
    elif m.get("type") == "mlp":
        m["hidden"] = [min(width, 192) for width in m["hidden"]]
    elif m.get("type") == "chain" and isinstance(m["input"], dict):
        cut(m["input"], "tokens", 32)


def cut_job(j):
    """Changes sizes and lengths only."""
    train, batch = j["train"], 64 if j["data"]["format"] in ("idx", "synthetic") else 8
    cut_model(j["model"], j.get("method", {}))
    train.pop("epochs", None)
    train["steps"] = STEPS
    cut(train, "global_batch", batch)
    if isinstance(train.get("micro_batch"), int):
        train["micro_batch"] = min(train["micro_batch"], train["global_batch"] // 2)
    cut(j.get("schedule", {}), "warmup_steps", STEPS // 20)
    for section in ("eval", "checkpoint"):
        if "every" in j.get(section, {}):
            j[section]["every"] = {"steps": STEPS // 2}
    for part in j.get("method", {}).get("each", []):
        if part.pop("epochs", None):
            part["steps"] = STEPS
    cut(j["data"], "samples", 1024)
    cut(j["data"], "ignore", VOCAB - 1)
    return j


# ---- data ----

SYMBOLS, FOLLOWERS = 16, 2


def make_text(n, first, seed):
    """Symbols that follow one another by a rule with a choice of two: n of them, and the entropy per symbol of the frequencies
    alone and of the rule. `first` is the number of the first symbol."""
    rule, rng = random.Random(1), random.Random(seed)
    after = [rule.sample(range(SYMBOLS), FOLLOWERS) for _ in range(SYMBOLS)]
    text, at = [], 0
    for _ in range(n):
        at = rng.choice(after[at])
        text.append(at)
    alone = -sum(text.count(s) / n * math.log(text.count(s) / n) for s in set(text))
    return [first + s for s in text], alone, math.log(FOLLOWERS)


def prepare(t, path):
    path = os.path.join(t.dir, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def write_text(t, path, form, seed):
    text, alone, rule = make_text(20000, 0 if form == "tokens" else ord("A"), seed)
    write_bytes(prepare(t, path), struct.pack(f"<{len(text)}H", *text) if form == "tokens" else bytes(text))
    return alone, rule


def write_images(t, files, n, seed):
    images, labels = separable(n, 10, 28, random.Random(seed))
    write_bytes(prepare(t, files["images"]), idx_bytes([n, 28, 28], images))
    write_bytes(prepare(t, files["labels"]), idx_bytes([n], labels))


def write_data(t, j):
    """Puts data where the job says. Returns what a model reaches that sees no input, and what the data allow."""
    data = j["data"]
    if data["format"] == "synthetic":
        return math.log(j["model"]["classes"]), 0
    for split, n, seed in (("train", 640, 1), ("val", 128, 2)):
        if split in data and data["format"] == "idx":
            write_images(t, data[split], n, seed)
        elif split in data:
            for i, path in enumerate([data[split]] if isinstance(data[split], str) else data[split]):
                limits = write_text(t, path, data["format"], 10 * seed + i)
    return (math.log(10), 0) if data["format"] == "idx" else limits


def write_folder(t, path):
    """A Hugging Face folder with random weights, where the example says."""
    start = write_job(t, {**BASE, "train": {"steps": 1, "global_batch": 1}}, "start.json")
    t.worker("--run", start, "--output", t.path("start"), "--quiet", cwd=t.dir)
    t.worker("--export", t.path("start"), "--hf", os.path.join(prepare(t, path)))


# ---- the cases ----

def losses(out):
    """The losses of every phase that trains."""
    curves = {}
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        for line in map(json.loads, f):
            if "loss" in line:
                curves.setdefault(line.get("phase", 0), []).append(line["loss"])
    return [curves[phase] for phase in sorted(curves)]


def mean_of_last(curve, n=20):
    last = curve[-n:]
    return sum(last) / len(last)


def check_phases(t, j, curves):
    """The partitions of sil learn one after another. Recovery begins with a model that has learned."""
    parts = curves[:-1] if j.get("method", {}).get("recovery_epochs") else curves
    for n, curve in enumerate(parts):
        t.check(mean_of_last(curve) < 0.9 * curve[0], f"phase {n}: the loss went from {curve[0]:.3f} to {mean_of_last(curve):.3f}")


@case
def test_examples_of_every_page_are_found(t):
    """What is not found is not trained."""
    labels = [label for label, _ in EXAMPLES]
    for page, least in (("README.md", 2), ("docs/job.md", 15), ("docs/huggingface.md", 2), ("docs/man/tutti-job.5", 1)):
        t.check(sum(label.startswith(page + " ") for label in labels) >= least, f"{page}: fewer than {least} examples")
    jobs = [p for p in os.listdir(os.path.join(ROOT, "docs", "examples")) if not p.startswith("profile")]
    t.check(all(f"docs/examples/{p} 1" in labels for p in jobs), f"of {jobs} only {labels} were found")


@case
def test_every_key_of_method_is_documented(t):
    """A refused key lists all known keys. Each of them is in a table of the section on methods."""
    with open(os.path.join(ROOT, "docs", "job.md"), encoding="utf-8") as f:
        section = f.read().split("## Training methods")[1].split("\n## ")[0]
    keys = re.findall(r"^\| `(?:method\.)?([a-z_]+)", section, re.M)
    local, sil = {"type": "local", "scheme": "chunked", "blocks": 2}, {"type": "sil"}
    for method in ({**local, "no": 0}, {**sil, "no": 0}, {**local, "head": {"hidden": 8, "no": 0}}, {**local, "each": [{"no": 0}, {}]},
                   {**sil, "each": [{"no": 0}, {}]}):
        refused = t.worker("--check", write_job(t, {**METHOD_BASE, "method": method}), expect=2)
        known = re.findall(r'"([a-z_]+)"', refused.err.split("known keys are")[1])
        t.check(known, f"{method}: no known keys in {refused.err}")
        for key in known:
            found = key in keys or f"`{key}`" in section or f".{key}`" in section
            t.check(found, f"docs/job.md does not have {key} of {json.dumps(method)}")


@case(each=["train", "eval", "checkpoint"])
def test_every_key_of_a_section_is_documented(t, section):
    with open(os.path.join(ROOT, "docs", "job.md"), encoding="utf-8") as f:
        page = f.read()
    given = METHOD_BASE.get(section, {"every": {"steps": 9}})
    refused = t.worker("--check", write_job(t, {**METHOD_BASE, section: {**given, "no": 0}}), expect=2)
    for key in re.findall(r'"([a-z_]+)"', refused.err.split("known keys are")[1]):
        t.check(f"`{section}.{key}`" in page, f"docs/job.md does not have {section}.{key}")


@case(each=EXAMPLES)
def test_documented_example_learns(t, value):
    _, example = value
    j = cut_job(whole_job(example))
    if "from" in j["model"]:
        write_data(t, BASE)
        write_folder(t, j["model"]["from"])
    blind, best = write_data(t, j)
    out = t.path("out")
    t.worker("--run", write_job(t, j), "--output", out, "--quiet", "--trace-steps", 0, cwd=t.dir)
    curves = losses(out)
    first, last = curves[0][0], mean_of_last(curves[-1])
    t.notes.append(f"loss {first:.3f} to {last:.3f}; without input {blind:.3f}, at best {best:.3f}")
    result = read_json(os.path.join(out, "result.json"))
    t.equal(result["ok"], True, "result.json: ok")
    check_phases(t, j, curves)
    local = j.get("method", {}).get("type") == "local"  # the losses of partitions are errors against label vectors
    for block in result.get("blocks", []) if local else []:
        t.check(block["loss"] < blind, f"block {block['block']}: the loss is {block['loss']:.3f}, and {blind:.3f} without the input")
    t.check(last < first - 0.3, f"the loss went from {first:.3f} to {last:.3f}")
    t.check(last < (blind + best) / 2, f"the loss is {last:.3f}, and {blind:.3f} without looking at the input; the data allow "
            f"{best:.3f}")


# ---- the table of what works together ----

COLUMNS = {
    "`backprop`": {"type": "backprop"},
    "`local`, chunked": {"type": "local", "scheme": "chunked", "blocks": 2},
    "`local`, greedy": {"type": "local", "scheme": "greedy"},
    "`local`, overlapping": {"type": "local", "scheme": "overlapping", "blocks": 2},
    "`sil`": {"type": "sil", "partitions": 2},
    "`sil`, concurrent": {"type": "sil", "partitions": 2, "concurrent": True},
}
SMALL_GPT2 = {"type": "gpt2", "layers": 3, "width": 16, "heads": 2, "vocab": 64, "context": 8}
SMALL_CONFIG = {"model_type": "gpt2", "n_layer": 3, "n_embd": 16, "n_head": 2, "vocab_size": 64, "n_positions": 8}
TOKEN_LAYERS = [{"op": "embedding", "out": 16}, {"repeat": 4, "block": [{"residual": [{"op": "attention", "heads": 2}]}]}]


def token_chain(tied):
    return {"type": "chain", "input": {"tokens": 8, "vocab": 64}, "layers": [*TOKEN_LAYERS, {"op": "lm_head", "tied": tied}]}


def sections(**given):
    return [given]


ROWS = {  # the sections of the jobs of each row
    "`mlp`": sections(),
    "`mlp` with the loss `mse`": sections(model={**METHOD_BASE["model"], "loss": "mse"}),
    "`chain` of images": sections(model={"type": "chain", "input": 16, "layers": [
        {"op": "linear", "out": 16}, {"residual": [{"op": "layernorm"}, {"op": "linear", "out": 16}]},
        {"op": "linear", "out": 16, "activation": "relu"}, {"op": "linear", "out": 4}]}),
    "`chain` of tokens": sections(model=token_chain(False)),
    "`chain` of tokens, `lm_head` tied": sections(model=token_chain(True)),
    "`gpt2`": sections(model=SMALL_GPT2),
    '`gpt2` with `"tied": false`': sections(model={**SMALL_GPT2, "tied": False}),
    "`llama`": sections(model={**SMALL_GPT2, "type": "llama", "hidden": 32}),
    "config.json of GPT-2": sections(model={"config": SMALL_CONFIG}),
    'the same, `"tie_word_embeddings": false`': sections(model={"config": {**SMALL_CONFIG, "tie_word_embeddings": False}}),
    "precision `fp32`": sections(precision="fp32"),
    "precision `bf16`, `fp16`": sections(precision="bf16") + sections(precision="fp16"),
    "precision `tf32` on cpu devices": sections(precision="tf32"),
    "policies `resident`, `stream`, `lru`, `harmony-pp`, `harmony-dp`": [
        {"memory": {"policy": policy}} for policy in ("resident", "stream", "lru", "harmony-pp", "harmony-dp")],
    "`memory.cycle_steps` 4": sections(memory={"cycle_steps": 4}),
    "`method.resident_steps` 4": sections(method={"resident_steps": 4}),
    "`eval.heads`": sections(eval={"every": {"steps": 4}, "heads": True}),
    '`train.grad_clip`, `"on_nonfinite": "skip"`': sections(train={"grad_clip": 1.0, "on_nonfinite": "skip"}),
}


def read_table():
    """The cells of the table, (row, column, cell), and the reasons: {number: (path, part of the message)}."""
    with open(os.path.join(ROOT, "docs", "methods.md"), encoding="utf-8") as f:
        text = f.read().split("## What works together\n")[1]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    reasons = re.findall(r"^(\d+)\. `([a-z_.]+)`: (.*)$", text, re.M)
    return ([(line[0], column, cell) for line in lines[1:] for column, cell in zip(lines[0][1:], line[1:]) if cell],
            {number: (path, part) for number, path, part in reasons})


@case
def test_table_of_combinations_is_true(t):
    cells, reasons = read_table()
    t.equal(sorted({row for row, _, _ in cells}), sorted(ROWS), "rows of the table in docs/methods.md")
    t.equal(sorted({column for _, column, _ in cells}), sorted(COLUMNS), "columns of the table")
    base = {**METHOD_BASE, "data": {"format": "synthetic", "samples": 64, "val_samples": 16}}
    for row, column, cell in cells:
        for given in ROWS[row]:
            for replicas, devices in ((1, 1), (1, 2), (2, 1), (2, 2)):
                j = {**base, **given, "method": {**COLUMNS[column], **given.get("method", {})},
                     "train": {"steps": 8, "global_batch": 8, "replicas": replicas, **given.get("train", {})}}
                refused = cell != "yes"
                found = t.worker("--check", write_job(t, j), "--devices", devices, expect=2 if refused else 0)
                if refused:
                    t.contains(found.err, reasons[cell][0] + ": ", reasons[cell][1])
