"""GPT-2 and Llama: the numbers are PyTorch's, the bits are the same everywhere, folders go in and come out as they were, and
what cannot be is refused. The golden files were made with PyTorch and transformers, see tests/golden/transformers/make.py.
cases_sample.py has what such models say."""
import json
import math
import os
import shutil
import random
import struct

from cases_bits import least_bytes, run_and_compare
from cases_spec import refused
from files import (DELETE, check_output, job, outcome, read_json, read_metrics, same_outcome, steps_in_metrics,
                   write_job)
from harness import case, once

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "transformers")
TOKENS = os.path.join(GOLDEN, "tokens.bin")
WANT = read_json(os.path.join(GOLDEN, "golden.json"))

# A job of the golden runs, but for the model.
BASE = {
    "schema": "job/v1",
    "name": "golden",
    "data": {"format": "tokens", "train": TOKENS, "shuffle": False},
    "train": {"steps": 10, "global_batch": 4, "micro_batch": 4, "replicas": 1, "grad_clip": 1.0},
    "optimizer": {"type": "adamw", "lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1},
}


def folder(name):
    return os.path.join(GOLDEN, name)


def folder_of_run(name):
    return folder(name.removesuffix("-smoothed"))


def from_folder(name, changes=None):
    return job(BASE, {"model": {"from": folder(name), "context": 16}, **(changes or {})})


def train(t, spec, name="out", *options):
    out = t.fresh(name)
    t.worker("--run", write_job(t, spec, f"{name}.json"), "--output", out, "--quiet", *options)
    return out


def steps_of(out):
    """The lines of metrics.jsonl about steps: (step, loss, lr, grad_norm) as numbers."""
    return [tuple(float(v) if v is not None else None for v in line) for line in read_metrics(out) if line[1] != "val"]


# ---- golden ----

@case(each=list(WANT["runs"]))
def test_transformers_train_as_pytorch_does(t, name):
    want, bf16 = WANT["runs"][name], name.endswith("bf16")
    spec = from_folder(folder_of_run(name), {"train.label_smoothing": want["label_smoothing"]})
    lines = steps_of(train(t, spec))
    t.equal(len(lines), 10, "steps")
    for (step, loss, _, norm), wanted, wanted_norm in zip(lines, want["losses"], want["grad_norms"]):
        off, off_norm = abs(loss / wanted - 1), abs(norm / wanted_norm - 1)
        t.check(off < (1e-4 if bf16 else 1e-5), f"step {step}: loss {loss}, PyTorch has {wanted}")
        t.check(off_norm < 1e-4, f"step {step}: gradient norm {norm}, PyTorch has {wanted_norm}")


@case
def test_transformers_train_in_micro_batches_of_any_size(t):
    """Sums in another order: the same to rounding."""
    for micro in (1, 2):
        lines = steps_of(train(t, from_folder("gpt2", {"train.micro_batch": micro})))
        for (step, loss, _, _), wanted in zip(lines, WANT["runs"]["gpt2"]["losses"]):
            t.check(abs(loss / wanted - 1) < 1e-5, f"micro-batches of {micro}, step {step}: {loss}, not {wanted}")


@case
def test_transformers_micro_batch_auto_saves_computing_twice(t):
    """Where memory is short, smaller micro-batches leave room for what is saved on the host."""
    spec = {"schema": "job/v1", "model": {"type": "gpt2", "layers": 4, "heads": 4, "width": 128, "vocab": 256, "context": 128},
            "data": {"format": "synthetic", "samples": 16}, "train": {"steps": 1, "global_batch": 8},
            "optimizer": {"type": "adamw", "lr": 1e-3}, "output": t.path("out")}
    memory = t.worker("--check", write_job(t, spec), "--devices", 1, "--json").json()["everything_bytes"] // 5
    where = ["--devices", 1, "--device-memory", memory, "--json"]

    def plan_of(micro_batch):
        return t.worker("--plan", write_job(t, {**spec, "train": {**spec["train"], "micro_batch": micro_batch}}), *where,
                        expect=None)

    auto = plan_of("auto").json()
    found = {rows: r.json()["iteration_s"] for rows in (8, 4, 2, 1) if (r := plan_of(rows)).code == 0}
    largest = max(found)
    t.check(auto["micro_batch_fwd"] < largest, f"auto is {auto['micro_batch_fwd']}, the largest of {found}")
    t.check(auto["iteration_s"] < 0.98 * found[largest], f"auto takes {auto['iteration_s']} of {found}")


@case
def test_transformers_micro_batch_auto_moves_less(t):
    """Of sizes that are as fast, a smaller one with more than a third less to move, but not of few tokens."""
    spec = {"schema": "job/v1", "model": {"type": "gpt2", "layers": 6, "heads": 6, "width": 384, "vocab": 256, "context": 256},
            "data": {"format": "synthetic", "samples": 16}, "train": {"steps": 1, "global_batch": 8},
            "optimizer": {"type": "adamw", "lr": 1e-3}, "output": t.path("out")}

    def plan_of(micro_batch, part):
        path = write_job(t, {**spec, "train": {**spec["train"], "micro_batch": micro_batch}})
        memory = t.worker("--check", path, "--devices", 1, "--json").json()["everything_bytes"] // part
        r = t.worker("--plan", path, "--devices", 1, "--device-memory", memory, "--json").json()
        return r["iteration_s"], r["host_in_bytes"] + r["host_out_bytes"], r["micro_batch_fwd"]

    auto, small, two, four = (plan_of(m, 4) for m in ("auto", 1, 2, 4))
    t.check(two[0] < 1.005 * four[0] and two[1] < four[1] * 2 / 3, f"2 are as fast as 4 and move less: {two}, {four}")
    t.check(small[0] < 1.005 * two[0] and small[1] < two[1] * 2 / 3, f"so would 1, of 256 tokens: {small}")
    t.check(auto[2] == 2, f"auto is {auto}")


# ---- folders ----

def read_tensors(path):
    """{name: (dtype, shape, bytes)} of a safetensors file."""
    with open(path, "rb") as f:
        data = f.read()
    (n,) = struct.unpack_from("<Q", data)
    entries = json.loads(data[8:8 + n])
    entries.pop("__metadata__", None)
    return {name: (e["dtype"], e["shape"], data[8 + n + e["data_offsets"][0]:8 + n + e["data_offsets"][1]])
            for name, e in entries.items()}


def read_folder(path):
    """The tensors of all files, as F32."""
    tensors = {}
    for name in sorted(os.listdir(path)):
        if name.endswith(".safetensors"):
            tensors |= read_tensors(os.path.join(path, name))
    for name, (dtype, shape, data) in tensors.items():
        if dtype == "BF16":
            data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
        tensors[name] = ("F32", shape, data)
    return tensors


def still(name):
    """One step at a rate that changes no bit."""
    return from_folder(name, {"train.steps": 1, "optimizer.lr": 1e-30})


CONFIG = {
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 96, "n_layer": 2, "n_embd": 32,
             "n_head": 4, "n_inner": 128, "n_positions": 24, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
             "tie_word_embeddings": True, "initializer_range": 0.02},
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96, "num_hidden_layers": 2,
              "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 56,
              "max_position_embeddings": 64, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
              "tie_word_embeddings": False},
}
CONFIG["llama-bf16"] = CONFIG["llama"]


@case(each=["gpt2", "llama", "llama-bf16"])
def test_transformers_folder_comes_out_as_it_went_in(t, name):
    out, back = train(t, still(name)), t.path("back")
    r = t.worker("--export", out, "--hf", back, "--json").json()
    want, found = read_folder(folder(name)), read_folder(back)
    t.equal(sorted(found), sorted(want), "names of tensors")
    for tensor, value in want.items():
        t.check(found[tensor] == value, f"{tensor} differs")
    config = read_json(os.path.join(back, "config.json"))
    t.equal({key: config.get(key) for key in CONFIG[name]}, CONFIG[name], "config.json")
    t.equal(sorted(os.listdir(back)), ["config.json", "model.safetensors"], "files")
    parameters = sum(len(data) // 4 for _, _, data in want.values())
    t.equal((r["ok"], r["folder"], r["step"], r["files"]), (True, back, 1, 1), "the report")
    t.equal((r["tensors"], r["parameters"], r["bytes"]),
            (len(want), parameters, os.path.getsize(os.path.join(back, "model.safetensors"))), "the report's counts")
    t.equal(r["weights_hash"], read_json(os.path.join(out, "result.json"))["weights_hash"], "weights_hash")


@case(each=["gpt2", "llama"])
def test_transformers_folder_in_shards_holds_the_same(t, name):
    out, back = train(t, still(name)), t.path("back")
    r = t.worker("--export", out, "--hf", back, "--shard", "20KB", "--json").json()
    t.equal(read_folder(back), read_folder(folder(name)), "tensors")
    index = read_json(os.path.join(back, "model.safetensors.index.json"))
    files = sorted(set(index["weight_map"].values()))
    t.check(len(files) > 2 and r["files"] == len(files), f"files: {files}, the report says {r['files']}")
    t.equal(sorted(os.listdir(back)), sorted([*files, "config.json", "model.safetensors.index.json"]), "files")
    for tensor, file in index["weight_map"].items():
        t.check(tensor in read_tensors(os.path.join(back, file)), f"{tensor} is not in {file}")
    again = job(BASE, {"model": {"from": back, "context": 16}, "train.steps": 1, "optimizer.lr": 1e-30})
    same_outcome(t, train(t, again, "again"), {"weights_hash": r["weights_hash"]}, "trained from the export")


@case
def test_transformers_export_takes_the_checkpoint_that_was_asked_for(t):
    spec = from_folder("llama", {"train.steps": 4, "checkpoint": {"every": {"steps": 2}, "keep": 9}})
    out = train(t, spec)
    hashes = {}
    for step in ("2", "4", "last", None):
        options = ["--step", step] if step else []
        r = t.worker("--export", out, "--hf", t.fresh("hf"), "--json", *options).json()
        hashes[step] = (r["step"], r["weights_hash"])
    t.equal((hashes["2"][0], hashes["4"], hashes["last"]), (2, hashes[None], hashes[None]), "steps and hashes")
    t.check(hashes["2"][1] != hashes["4"][1], "two checkpoints have the same weights")
    with open(os.path.join(out, "model.safetensors"), "r+b") as f:
        f.seek(-1, os.SEEK_END)
        last = f.read(1)
        f.seek(-1, os.SEEK_END)
        f.write(bytes([last[0] ^ 1]))
    run = t.worker("--export", out, "--hf", t.fresh("hf"), expect=1)
    t.contains(run.err, os.path.join(out, "model.safetensors"), "damaged", what="standard error")
    t.check(not os.path.exists(t.path("hf")), "damaged weights were exported")


@case
def test_transformers_export_replaces_nothing_but_an_export(t):
    out, back = train(t, still("gpt2")), t.path("back")
    t.worker("--export", out, "--hf", back)
    t.contains(t.worker("--export", out, "--hf", back, expect=2).err, back, "--force", what="standard error")
    t.contains(t.worker("--export", out, "--hf", back, "--force").out, "1 file", what="the text")
    with open(os.path.join(back, "notes.txt"), "w") as f:
        f.write("mine")
    run = t.worker("--export", out, "--hf", back, "--force", expect=2)
    t.contains(run.err, "notes.txt", "choose another folder", what="standard error")
    t.check(os.path.exists(os.path.join(back, "notes.txt")), "a file was removed")
    t.equal([n for n in os.listdir(t.dir) if "tmp" in n], [], "left behind")


MLP = {"model": {"type": "mlp", "input": 6, "hidden": [5], "classes": 3},
       "data": {"format": "synthetic", "samples": 16}}


@case(each=[
    ("a model without a name", MLP, ["--hf", "back"], ["no gpt2 or llama model", "--out FILE"]),
    ("a file and a folder", None, ["--hf", "back", "--out", "file"], ["give one of them"]),
    ("neither", None, [], ["--out FILE", "--hf FOLDER"]),
    ("shards of a file", None, ["--out", "file", "--shard", "1MB"], ["--shard goes with"]),
    ("shards of nothing", None, ["--hf", "back", "--shard", "0"], ["--shard"]),
    ("no folder to be in", None, ["--hf", "no/back"], ["no/back", "parent folder"]),
])
def test_transformers_export_that_cannot_be_is_refused(t, value):
    _, changes, options, says = value
    out = train(t, job(BASE, {**changes, "train.steps": 1})) if changes else train(t, still("gpt2"))
    run = t.worker("--export", out, *options, expect=2, cwd=t.dir)
    t.contains(run.err, *says, what="standard error")
    t.check(not os.path.exists(t.path("back")) and not os.path.exists(t.path("file")), "something was written")


@case
def test_transformers_output_says_what_model_it_is(t):
    spec = from_folder("gpt2", {"train.steps": 2, "checkpoint": {"every": {"steps": 1}}})
    out = train(t, spec)
    path = os.path.join(out, "transformer.json")
    found, before = read_json(path), os.stat(path)
    t.equal({key: found.get(key) for key in CONFIG["gpt2"]}, CONFIG["gpt2"], "transformer.json")
    more = write_job(t, job(spec, {"train.steps": 3}), "more.json")
    t.worker("--run", more, "--output", out, "--quiet")
    after = os.stat(path)
    t.equal((after.st_ino, after.st_mtime_ns), (before.st_ino, before.st_mtime_ns), "transformer.json after a resume")
    os.remove(path)
    t.worker("--run", more, "--output", out, "--quiet")
    t.equal(read_json(path), found, "transformer.json of a finished job")
    mlp = train(t, job(BASE, {**MLP, "train.steps": 1}), "mlp")
    t.check(not os.path.exists(os.path.join(mlp, "transformer.json")), "an mlp has a transformer.json")


# ---- the same bits ----

SMALL_GPT2 = {"type": "gpt2", "layers": 2, "width": 32, "heads": 4, "context": 16, "vocab": 96, "dropout": 0.1}
SMALL_LLAMA = {"type": "llama", "layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 48, "context": 16, "vocab": 96,
               "dropout": 0.1}
SMALL_CHAIN = {
    "type": "chain",
    "input": {"tokens": 16, "vocab": 96},
    "layers": [
        {"op": "embedding", "out": 24},
        {"op": "positions", "count": 20, "dropout": 0.1},
        {"repeat": 2, "block": [{"block": [
            {"residual": [{"op": "layernorm"}, {"op": "attention", "heads": 4, "kv_heads": 2, "rope_theta": 100,
                                                "score_dropout": 0.2, "dropout": 0.1}]},
            {"residual": [{"op": "rmsnorm", "eps": 1e-6}, {"op": "swiglu", "hidden": 40}]}]}]},
        {"residual": [{"op": "linear", "out": 24, "activation": "silu"}]},
        {"op": "layernorm", "bias": False},
        {"op": "lm_head", "tied": True},
    ],
}
PER_TOKEN = {
    "type": "chain",
    "input": {"tokens": 16, "vocab": 96},
    "layers": [{"op": "embedding", "out": 20}, {"op": "mlp", "hidden": 32, "activation": "gelu_erf"},
               {"op": "linear", "out": 96}],
}
MODELS = {"gpt2": SMALL_GPT2, "llama": SMALL_LLAMA, "chain": SMALL_CHAIN, "linear per token": PER_TOKEN}


def model_job(name, changes=None):
    return job(BASE, {"model": MODELS[name], "init.seed": 5, "data.shuffle": True, "data.val": TOKENS, "train.steps": 6,
                      "train.micro_batch": 2, "eval": {"every": {"steps": 3}},
                      "checkpoint": {"every": {"steps": 2}, "keep": 2}, **(changes or {})})


def reference(t, name):
    """The outcome on one device where everything fits, with one thread."""

    def make():
        out = t.fresh("reference")
        t.worker("--run", write_job(t, model_job(name)), "--output", out, "--quiet", "--policy", "resident", "--devices", 1,
                 "--threads", 1)
        return outcome(out)

    return once(("transformers", name), make)


@case(each=[(f"{name}, {devices} devices", name, devices) for name in MODELS for devices in (1, 2)])
def test_transformers_bits_same_on_any_devices_and_memory(t, value):
    _, name, devices = value
    expected, path = reference(t, name), write_job(t, model_job(name))
    for update in ("host", "device"):
        options = ["--devices", devices, "--optimizer-on", update]
        least = least_bytes(t, path, *options)
        for memory in (least, "16MiB"):
            more = [*options, "--device-memory", memory, "--threads", 1 + (update == "host"), "--delay-seed", devices]
            run_and_compare(t, path, expected, " ".join(map(str, more)), *more)


@case
def test_transformers_bits_differ_when_the_model_does(t):
    hashes = [reference(t, name)["weights_hash"] for name in MODELS]
    t.equal(len(set(hashes)), len(MODELS), "different weights")


@case(each=["gpt2", "llama", "chain"])
def test_transformers_killed_while_training_resume_to_the_same_bits(t, name):
    rng, last = random.Random(name), 24
    path = write_job(t, model_job(name, {"train.steps": last, "eval.every": {"steps": 7}}))
    common = ["--run", path, "--quiet", "--devices", 2, "--device-memory", least_bytes(t, path, "--devices", 2)]
    plain, out = t.fresh("plain"), t.fresh("out")
    t.worker(*common, "--output", plain)
    kills = 0
    while steps_in_metrics(out) < last - 8:
        goal = steps_in_metrics(out) + rng.randrange(1, 7)
        live = t.start(*common, "--output", out, "--delay-seed", rng.randrange(1, 1000))
        live.until(lambda: steps_in_metrics(out) >= goal, f"step {goal}")
        kills += live.kill().code == -9
        check_output(out)
    t.worker(*common, "--output", out)
    same_outcome(t, out, outcome(plain), f"after {kills} kills")
    t.check(kills >= 1, f"only {kills} kills")


# ---- chains ----

@case(each=["chain", "linear per token"])
def test_transformers_chain_learns_and_its_weights_have_names(t, name):
    spec = model_job(name, {"train.steps": 60, "optimizer.lr": 1e-2, "eval": DELETE, "checkpoint": DELETE})
    out = train(t, spec)
    losses = [line[1] for line in steps_of(out)]
    t.check(losses[-1] < losses[0] - 0.5, f"the loss went from {losses[0]} to {losses[-1]}")
    names = list(read_tensors(os.path.join(out, "model.safetensors")))
    t.worker("--export", out, "--out", t.path("w"))  # a name twice would be refused
    if name == "chain":
        t.check({"layers.0.weight", "layers.2.0.1.qkv.weight", "layers.3.1.1.proj.weight", "layers.4.0.weight"} < set(names),
                f"names: {names}")
        t.check(not any(n.startswith("layers.6.") for n in names), "the tied head has weights of its own")


TOKEN_INPUT = {"tokens": 16, "vocab": 96}
EMBEDDING = {"op": "embedding", "out": 24}
LM_HEAD = {"op": "lm_head"}


def chain(*layers, **more):
    return {"type": "chain", "input": TOKEN_INPUT, "layers": list(layers), **more}


def deep(n):
    """A layer with so many inside."""
    return {"block": [{"op": "relu"}] * n}


# name, model, JSON path, words of the message
WRONG_CHAINS = [
    ("no embedding", chain({"op": "linear", "out": 96}), "model.layers[0]", ["works on vectors", "embedding"]),
    ("residual before the embedding", chain({"residual": [{"op": "relu"}]}), "model.layers[0]", ["works on vectors"]),
    ("second embedding", chain(EMBEDDING, EMBEDDING, LM_HEAD), "model.layers[1]", ["first layer"]),
    ("embedding inside", chain(EMBEDDING, {"residual": [EMBEDDING]}, LM_HEAD), "model.layers[1].residual[0].op",
     ["not inside another"]),
    ("embedding of numbers", {"type": "chain", "input": 16, "layers": [EMBEDDING]}, "model.layers[0]", ['"tokens": 64']),
    ("attention of numbers", {"type": "chain", "input": 16, "layers": [{"op": "attention", "heads": 2}]}, "model.layers[0]",
     ["works on sequences", '"tokens": 64']),
    ("positions of numbers", {"type": "chain", "input": 16, "layers": [{"op": "positions"}]}, "model.layers[0]",
     ["works on sequences"]),
    ("lm_head of numbers", {"type": "chain", "input": 16, "layers": [LM_HEAD]}, "model.layers[0]", ["works on sequences"]),
    ("layer after the loss", chain(EMBEDDING, LM_HEAD, {"op": "relu"}), "model.layers[2]", ["after the loss"]),
    ("lm_head inside", chain(EMBEDDING, {"block": [LM_HEAD]}), "model.layers[1].block[0].op", ["not inside another"]),
    ("tied to another width", chain(EMBEDDING, {"op": "linear", "out": 20}, {"op": "lm_head", "tied": True}),
     "model.layers[2].tied", ["as wide as the last"]),
    ("residual of another width", chain(EMBEDDING, {"residual": [{"op": "linear", "out": 20}]}, LM_HEAD),
     "model.layers[1]", ["24 elements go in and 20 come out"]),
    ("empty residual", chain(EMBEDDING, {"residual": []}, LM_HEAD), "model.layers[1].residual", ["at least one layer"]),
    ("too much inside", chain(EMBEDDING, deep(1024), LM_HEAD), "model.layers[1]", ["at most 1023"]),
    ("heads that do not divide", chain(EMBEDDING, {"op": "attention", "heads": 5}, LM_HEAD), "model.layers[1].heads",
     ["5 heads do not divide a width of 24"]),
    ("no heads", chain(EMBEDDING, {"op": "attention"}, LM_HEAD), "model.layers[1].heads", ["missing"]),
    ("key heads that do not divide", chain(EMBEDDING, {"op": "attention", "heads": 4, "kv_heads": 3}, LM_HEAD),
     "model.layers[1].kv_heads", ["3 do not divide 4 heads"]),
    ("odd heads that turn", chain(EMBEDDING, {"op": "attention", "heads": 8, "rope_theta": 1e4}, LM_HEAD),
     "model.layers[1].rope_theta", ["pairs", "3 elements"]),
    ("fewer positions than tokens", chain(EMBEDDING, {"op": "positions", "count": 8}, LM_HEAD), "model.layers[1].count",
     ["16"]),
    ("mlp without a width", chain(EMBEDDING, {"op": "mlp"}, LM_HEAD), "model.layers[1].hidden", ["missing"]),
    ("activation of swiglu", chain(EMBEDDING, {"op": "swiglu", "hidden": 8, "activation": "relu"}, LM_HEAD),
     "model.layers[1].activation", ["unknown key"]),
    ("mse of tokens", chain(EMBEDDING, {"op": "linear", "out": 96}, loss="mse"), "model.loss", ["mse does not work for tokens"]),
    ("fewer classes than tokens", chain(EMBEDDING, {"op": "linear", "out": 95}), "model.layers",
     ["95 classes", "vocabulary has 96"]),
    ("misspelt op", chain(EMBEDDING, {"op": "atention", "heads": 2}, LM_HEAD), "model.layers[1].op",
     ['did you mean "attention"']),
    ("op of a later version", chain(EMBEDDING, {"op": "conv"}, LM_HEAD), "model.layers[1].op", ["not supported yet"]),
    ("one token", {"type": "chain", "input": {"tokens": 1, "vocab": 9}, "layers": [EMBEDDING, LM_HEAD]},
     "model.input.tokens", ["from 2"]),
    ("no vocabulary", {"type": "chain", "input": {"tokens": 4}, "layers": [EMBEDDING, LM_HEAD]}, "model.input.vocab",
     ["missing"]),
    ("more than a row", {"type": "chain", "input": {"tokens": 1 << 20, "vocab": 96},
                         "layers": [{"op": "embedding", "out": 4096}, LM_HEAD]},
     "model.layers[0]", ["1048576 tokens of 4096 elements"]),
]


@case(each=WRONG_CHAINS)
def test_transformers_wrong_chain_is_refused(t, value):
    _, model, where, says = value
    refused(t, write_job(t, job(BASE, {"model": model})), where, says)


# ---- models by name, by config, from a folder ----

def gpt2(**more):
    return {**SMALL_GPT2, **more}


def llama(**more):
    return {**SMALL_LLAMA, **more}


def config(name, **more):
    return {"config": {**read_json(os.path.join(folder(name), "config.json")), **more}, "context": 16}


WRONG_MODELS = [
    ("unknown size", {"type": "gpt2", "size": "124"}, "model.size", ['did you mean "124M"', '"1.5B"']),
    ("size of the other", {"type": "llama", "size": "355M"}, "model.size", ['"7B"']),
    ("no shape", {"type": "gpt2"}, "model.layers", ["missing"]),
    ("no heads", {"type": "llama", "layers": 1, "width": 8}, "model.heads", ["missing"]),
    ("misspelt key", gpt2(hiden=3), "model.hiden", ['did you mean "hidden"']),
    ("key of the other", gpt2(kv_heads=2), "model.kv_heads", ["unknown key"]),
    ("activation of llama", llama(activation="relu"), "model.activation", ["unknown key"]),
    ("unknown activation", gpt2(activation="mish"), "model.activation", ['"gelu"']),
    ("heads that do not divide", gpt2(heads=5), "model", ["5 heads do not divide a width of 32"]),
    ("key heads that do not divide", llama(kv_heads=3), "model", ["3 heads of keys and values do not divide 4"]),
    ("odd heads that turn", llama(width=20, heads=4), "model", ["pairs", "5 elements"]),
    ("vocabulary of one", gpt2(vocab=1), "model.vocab", ["from 2"]),
    ("context of nothing", gpt2(context=0), "model.context", ["from 1"]),
    ("context beyond the positions", gpt2(context=32, positions=24), "model.context", ["32 tokens", "24 positions"]),
    ("context beyond those of a config", config("gpt2") | {"context": 25}, "model.context", ["25 tokens", "24 positions"]),
    ("context of too much", {"type": "llama", "size": "7B", "context": 1 << 20}, "model.context", ["1048576 tokens"]),
    ("dropout of everything", gpt2(dropout=1), "model.dropout", ["below 1"]),
    ("config and folder", {"config": {}, "from": "x"}, "model.config", ["keep one"]),
    ("config that is none", {"config": []}, "model.config", ["an object"]),
    ("config of no model", {"config": {}}, "model.config.model_type", ["missing", '"llama"']),
    ("config of another model", {"config": {"model_type": "bert"}}, "model.config.model_type", ['"bert"', "GPT-2"]),
    ("scaled rotary positions", config("llama", rope_scaling={"rope_type": "llama3", "factor": 8.0}),
     "model.config.rope_scaling", ["llama3", "only the rope_type \"default\""]),
    ("biases of llama", config("llama", attention_bias=True), "model.config.attention_bias", ["not supported"]),
    ("activation of a config", config("gpt2", activation_function="mish"), "model.config.activation_function", ["mish"]),
    ("scores scaled by layer", config("gpt2", scale_attn_by_inverse_layer_idx=True),
     "model.config.scale_attn_by_inverse_layer_idx", ["not supported"]),
    ("quantized weights", config("llama", quantization_config={"bits": 4}), "model.config.quantization_config",
     ["quantized"]),
    ("head of another size", config("llama", head_dim=16), "model.config.head_dim", ["hidden_size"]),
    ("type and config", config("gpt2") | {"type": "gpt2"}, "model.type", ["unknown key"]),
]


@case(each=WRONG_MODELS)
def test_transformers_wrong_model_is_refused(t, value):
    _, model, where, says = value
    refused(t, write_job(t, job(BASE, {"model": model})), where, says)


@case(each=[
    ("images", {"data": {"format": "idx", "train": {"images": "a", "labels": "b"}}}, "data.format", ["takes tokens"]),
    ("tokens for an mlp", {"model": MLP["model"]}, "data.format", ["takes numbers", '"gpt2"']),
    ("bytes of fewer", {"data": {"format": "bytes", "train": TOKENS}}, "data.format", ["model.vocab to 256"]),
    ("smoothing of everything", {"train.label_smoothing": 1}, "train.label_smoothing", ["below 1"]),
    ("smoothing of mse", {**MLP, "model": {**MLP["model"], "loss": "mse"}, "train.label_smoothing": 0.1},
     "train.label_smoothing", ["mse has no labels"]),
    ("unknown class", {"optimizer.no_decay": ["bias", "weights"]}, "optimizer.no_decay", ['"weights"', "embedding"]),
    ("class that is no list", {"optimizer.no_decay": "bias"}, "optimizer.no_decay", ["an array"]),
    ("steps of nothing", {"schedule": {"type": "step"}}, "schedule.every_steps", ["missing"]),
    ("gamma that grows", {"schedule": {"type": "step", "every_steps": 2, "gamma": 2}}, "schedule.gamma", ["from 0 to 1"]),
    ("gamma of another", {"schedule": {"type": "cosine", "gamma": 0.5}}, "schedule.gamma", ["unknown key"]),
])
def test_transformers_wrong_options_are_refused(t, value):
    _, changes, where, says = value
    refused(t, write_job(t, job(BASE, {"model": SMALL_GPT2, **changes})), where, says)


@case
def test_transformers_folder_that_is_none_is_refused(t):
    os.mkdir(t.path("empty"))
    path = write_job(t, job(BASE, {"model": {"from": t.path("empty"), "context": 16}}))
    refused(t, path, t.path("empty"), ["no config.json"])
    path = write_job(t, job(BASE, {"model": {"from": t.path("nowhere")}}))
    refused(t, path, t.path("nowhere"), ["cannot open the folder of a model"])
    path = write_job(t, job(BASE, {"model": {"from": folder("gpt2"), "context": 25}}))
    refused(t, path, "model.context", ["25 tokens", "24 positions"])


@case
def test_transformers_other_weights_are_another_job(t):
    """Not by the folder's name: by what is in it."""
    a, b = t.path("a"), t.path("b")
    shutil.copytree(folder("gpt2"), a)
    out = train(t, job(BASE, {"model": {"from": a, "context": 16}, "train.steps": 2}))
    shutil.move(a, b)
    t.worker("--run", write_job(t, job(BASE, {"model": {"from": b, "context": 16}, "train.steps": 3})), "--output", out, "--quiet")
    with open(os.path.join(b, "model.safetensors"), "r+b") as f:
        f.seek(-9, os.SEEK_END)
        byte = f.read(1)
        f.seek(-9, os.SEEK_END)
        f.write(bytes([byte[0] ^ 1]))
    run = t.worker("--run", write_job(t, job(BASE, {"model": {"from": b, "context": 16}, "train.steps": 4})), "--output", out,
                   "--quiet", expect=2)
    t.contains(run.err, "another spec", what="the message")


@case
def test_transformers_llama_goes_beyond_its_positions(t):
    """They are what it was made for, not what it has weights for."""
    out = train(t, job(BASE, {"model": {"from": folder("llama"), "context": 100}, "train.steps": 1,
                              "train.global_batch": 2, "train.micro_batch": 1}))
    t.check(math.isfinite(steps_of(out)[0][1]), "the loss is not finite")


@case(each=["gpt2", "llama"])
def test_transformers_config_and_keys_make_the_same_model(t, name):
    """One way to a model in three spellings; a size is a shape with a name."""
    keys = {"gpt2": {"type": "gpt2", "layers": 2, "width": 32, "heads": 4, "vocab": 96, "positions": 24, "context": 16},
            "llama": {"type": "llama", "layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 56, "vocab": 96,
                      "positions": 64, "context": 16, "eps": 1e-6}}[name]
    resolved = []
    for i, model in enumerate((keys, config(name), {"from": folder(name), "context": 16})):
        out = train(t, job(BASE, {"model": model, "train.steps": 1}), f"out{i}")
        resolved.append(read_json(os.path.join(out, "resolved.json")))
    t.equal(resolved[1], resolved[0], "config and keys")
    t.check(resolved[2].pop("from_crc32c"), "which weights it begins with is part of the job")
    t.equal(resolved[2], resolved[0], "folder and keys")


@case(each=[("gpt2 124M", 124439808), ("gpt2 1.5B", 1557611200), ("llama 15M", 15191712),
            ("llama 1.1B", 1100048384), ("llama 7B", 6738415616)])
def test_transformers_sizes_have_the_parameters_of_their_names(t, value):
    name, parameters = value
    kind, size = name.split()
    model = {"type": kind, "size": size, "context": 16}
    model |= {"positions": 1024} if kind == "gpt2" else {}
    spec = job(BASE, {"model": model, "train.global_batch": 1, "train.micro_batch": 1})
    r = t.worker("--check", write_job(t, spec), "--json", "--device-memory", "1TB", "--host-memory", "1TB", expect=None).json()
    t.equal(r.get("parameters"), parameters, f"parameters: {r}")


# ---- options ----

@case
def test_transformers_schedule_of_steps_goes_down_in_steps(t):
    spec = model_job("gpt2", {"train.steps": 9, "optimizer.lr": 0.25, "eval": DELETE, "checkpoint": DELETE, "schedule": {
        "type": "step", "warmup_steps": 2, "every_steps": 3, "gamma": 0.5, "min_lr_ratio": 0.3}})
    out = train(t, spec)
    t.equal([line[2] for line in steps_of(out)], [0.125, 0.25, 0.25, 0.25, 0.25, 0.125, 0.125, 0.125, 0.25 * 0.3], "lr in metrics.jsonl")
    found = read_json(os.path.join(out, "resolved.json"))["schedule"]
    t.equal(found, {"type": "step", "warmup_steps": 2, "min_lr_ratio": 0.3, "every_steps": 3, "gamma": 0.5}, "resolved.json")


@case
def test_transformers_no_decay_spares_the_classes_that_it_names(t):
    """Plain SGD, one step, a strong decay: what is spared is what it would be without any decay."""
    classes = {"matrix": ["fc.weight", "qkv.weight", "proj.weight"], "bias": [".bias"], "norm": ["ln_1.weight", "ln_2.weight"],
               "embedding": ["layers.0.weight", "layers.1.weight"]}

    def weights(name, **optimizer):
        spec = model_job("gpt2", {"train.steps": 1, "optimizer": {"type": "sgd", "lr": 0.1, **optimizer}, "eval": DELETE})
        out = train(t, spec, name)
        no_decay = read_json(os.path.join(out, "resolved.json"))["optimizer"].get("no_decay", 0)
        return read_tensors(os.path.join(out, "model.safetensors")), no_decay

    without, _ = weights("without")
    for i, (name, ends) in enumerate(classes.items()):
        found, bits = weights(name, weight_decay=0.5, no_decay=[name])
        t.equal(bits, 1 << i, f"no_decay of {name} in resolved.json")
        for tensor, value in found.items():
            is_spared = any(tensor.endswith(end) for end in ends) or (name == "norm" and tensor == "layers.4.weight")
            zero = tensor.endswith(".bias") and value == without[tensor]  # begins as 0: decay does nothing
            t.check(zero or (value == without[tensor]) == is_spared, f"no_decay {name}: {tensor}")
    default, bits = weights("default", weight_decay=0.5)
    t.equal((default, bits), weights("explicit", weight_decay=0.5, no_decay=["bias", "norm"]), "default and [bias, norm]")
    t.equal(weights("none", weight_decay=0.5, no_decay=[])[1], 0, "no_decay of nothing")


@case
def test_transformers_label_smoothing_is_part_of_the_job(t):
    plain, smooth = (train(t, model_job("gpt2", {"train.label_smoothing": s}), f"out{s}") for s in (0, 0.1))
    found = read_json(os.path.join(smooth, "resolved.json"))["model"][-1]
    t.check(abs(found["label_smoothing"] - 0.1) < 1e-8, f"resolved.json: {found}")
    t.check("label_smoothing" not in read_json(os.path.join(plain, "resolved.json"))["model"][-1], "smoothing of 0 is written")
    t.check(outcome(plain)["weights_hash"] != outcome(smooth)["weights_hash"], "the weights do not differ")


@case(each=["gpt2", "linear per token"])
def test_transformers_evaluation_tells_the_perplexity(t, name):
    out = train(t, model_job(name))
    with open(os.path.join(out, "metrics.jsonl")) as f:
        evals = [m for m in map(json.loads, f) if "val/loss" in m]
    t.equal([m["step"] for m in evals], [3, 6], "evaluations")
    for m in evals:
        t.check(abs(m["val/perplexity"] / math.exp(m["val/loss"]) - 1) < 1e-12, f"perplexity: {m}")
    result = read_json(os.path.join(out, "result.json"))
    t.check(abs(result["val_perplexity"] / evals[-1]["val/perplexity"] - 1) < 1e-6, f"result.json: {result}")
    mlp = train(t, job(BASE, {**MLP, "data.val_samples": 4, "train.steps": 1, "eval": {"every": {"steps": 1}}}), "mlp")
    t.check("val_perplexity" not in read_json(os.path.join(mlp, "result.json")), "an mlp has a perplexity")
