"""What goes into tutti-worker and what comes out: job files, IDX files, output directories.

Everything is read here without the program's own code, so that a test of a file format is one.
"""
import copy
import gzip
import hashlib
import json
import os
import re
import struct

from harness import Failure

with open(os.path.join(os.path.dirname(__file__), "..", "..", "scheduler", "policies.def")) as f:
    POLICIES = re.findall(r'^POLICY\(\w+, "([^"]+)"\)', f.read(), re.MULTILINE)

# ---- jobs ----

DELETE = object()

SMALL = {
    "schema": "job/v1",
    "name": "small",
    "model": {"type": "mlp", "input": [8, 8], "hidden": [32, 48, 32], "classes": 4},
    "init": {"seed": 7},
    "data": {"format": "synthetic", "samples": 96, "val_samples": 40, "seed": 3, "noise": 0.3},
    "train": {"steps": 5, "global_batch": 24, "micro_batch": 8, "replicas": 1},
    "optimizer": {"type": "adamw", "lr": 3e-3},
    "eval": {"every": {"steps": 4}},
    "checkpoint": {"every": {"steps": 2}, "keep": 2},
}

# As few bytes and system calls as a job can have: for killing it at every one of them.
TINY = {
    "schema": "job/v1",
    "name": "tiny",
    "model": {"type": "mlp", "input": 6, "hidden": [5], "classes": 3},
    "data": {"format": "synthetic", "samples": 16, "val_samples": 4},
    "train": {"steps": 3, "global_batch": 4, "grad_clip": 1.0},
    "optimizer": {"type": "adamw", "lr": 3e-3},
    "eval": {"every": {"steps": 2}},
    "checkpoint": {"every": {"steps": 1}, "keep": 1},
}


def job(base, changes=None):
    """A copy with changes by dotted path: {"train.steps": 3, "eval": DELETE}."""
    j = copy.deepcopy(base)
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        node = j
        for p in parents:
            node = node.setdefault(p, {})
        if value is DELETE:
            node.pop(last, None)
        else:
            node[last] = value
    return j


def write_job(t, spec, name="job.json"):
    path = t.path(name)
    with open(path, "w") as f:
        json.dump(spec, f)
    return path


# ---- IDX ----

def idx_bytes(dims, data):
    return struct.pack(f">4B{len(dims)}I", 0, 0, 8, len(dims), *dims) + bytes(data)


def write_bytes(path, data):
    with open(path, "wb") as f:
        f.write(gzip.compress(data, mtime=0) if path.endswith(".gz") else data)
    return path


def separable(n, classes, side, rng):
    """Images of one bright row per class on a dim, noisy ground; labels. Easy to learn, and not by chance."""
    labels = [rng.randrange(classes) for _ in range(n)]
    images = bytearray()
    for label in labels:
        for y in range(side):
            images += bytes(rng.randrange(160, 256) if y == label else rng.randrange(0, 90) for _ in range(side))
    return bytes(images), bytes(labels)


def write_idx_pair(t, name, images, labels, side, suffix=""):
    n = len(labels)
    return {
        "images": write_bytes(t.path(f"{name}-images{suffix}"), idx_bytes([n, side, side], images)),
        "labels": write_bytes(t.path(f"{name}-labels{suffix}"), idx_bytes([n], labels)),
    }


# ---- output: the outcome that must be the same however a job ran ----

def read_json(path, **options):
    with open(path, encoding="utf-8") as f:
        return json.load(f, **options)


def read_metrics(out):
    """The lines of metrics.jsonl without what is measured: train (step, loss, lr, grad_norm) and evaluation
    (step, "val", loss, accuracy), numbers as they are written."""
    lines = []
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        for line in f:
            m = json.loads(line, parse_float=str)
            if "val/loss" in m:
                lines.append((m["step"], "val", m["val/loss"], m["val/accuracy"]))
            else:
                lines.append((m["step"], m["loss"], m["lr"], m.get("grad_norm")))
    return lines


def steps_in_metrics(out):
    """The newest step in metrics.jsonl, 0 when there is none; for following a run."""
    try:
        with open(os.path.join(out, "metrics.jsonl"), "rb") as f:
            f.seek(max(0, os.fstat(f.fileno()).st_size - 2000))
            lines = [line for line in f.read().split(b"\n")[:-1] if line.startswith(b'{"step":')]
    except OSError:
        return 0
    return json.loads(lines[-1])["step"] if lines else 0


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def outcome(out):
    """What two runs of one resolved spec have in common, to the bit."""
    return {
        "weights_hash": read_json(os.path.join(out, "result.json"))["weights_hash"],
        "model.safetensors": sha256(os.path.join(out, "model.safetensors")),
        "metrics": read_metrics(out),
    }


def same_outcome(t, out, expected, what):
    found = outcome(out)
    for key, value in expected.items():
        t.equal(found[key], value, f"{what}: {key}")


# ---- plan files ----

def plan_rows(plan, table, found=None):
    """The rows of a table of a plan file as dictionaries, by the names of the columns. `found`: rows of this form that
    stand elsewhere in the file. A row may lack columns at its end."""
    return [dict(zip(plan["columns"][table], row)) for row in (plan[table] if found is None else found)]


def plan_program(plan, name):
    """The instructions of a program of a plan file, as dictionaries."""
    return plan_rows(plan, "instrs", plan["programs"][name])


# ---- safetensors ----

def read_safetensors(path):
    """{name: (shape, floats)} and the metadata; fails on anything that the format does not allow."""
    with open(path, "rb") as f:
        data = f.read()
    if len(data) < 8:
        raise Failure(f"{path}: no header")
    (n,) = struct.unpack_from("<Q", data)
    header = data[8 : 8 + n]
    if len(header) < n or header[:1] != b"{":
        raise Failure(f"{path}: the header of {n} bytes is cut short or does not begin with a brace")
    entries = json.loads(header)
    metadata = entries.pop("__metadata__", {})
    tensors, at = {}, 0
    for name, e in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = e["data_offsets"]
        count = 1
        for d in e["shape"]:
            count *= d
        if e["dtype"] != "F32" or begin != at or end - begin != 4 * count:
            raise Failure(f"{path}: {name} is {e}, but the tensor before it ends at {at}")
        tensors[name] = (e["shape"], struct.unpack_from(f"<{count}f", data, 8 + n + begin))
        at = end
    if 8 + n + at != len(data):
        raise Failure(f"{path}: the tensors end at {8 + n + at}, the file at {len(data)}")
    return tensors, metadata


# ---- checkpoints ----

def _crc_table():
    table = []
    for i in range(256):
        for _ in range(8):
            i = (i >> 1) ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    return table


_CRC = _crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC[(crc ^ byte) & 0xFF]
    return f"{crc ^ 0xFFFFFFFF:08x}"


def checkpoint_steps(out):
    """Steps of the checkpoints, ascending. What is not a checkpoint must be something unfinished, *.tmp."""
    steps = []
    directory = os.path.join(out, "checkpoints")
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        if name.endswith(".tmp"):
            continue
        if not name.startswith("step-") or not name[5:].isdigit():
            raise Failure(f"{directory}: {name} is neither a checkpoint nor *.tmp")
        steps.append(int(name[5:]))
    return sorted(steps)


def check_checkpoint(out, step):
    """A checkpoint is complete, and its checksums are those of its files. Returns its state."""
    directory = os.path.join(out, "checkpoints", f"step-{step}")
    names = sorted(os.listdir(directory))
    if [n for n in names if n != "method.safetensors"] != ["model.safetensors", "optimizer.safetensors", "state.json"]:
        raise Failure(f"{directory} has {names}")
    with open(os.path.join(directory, "state.json"), "rb") as f:
        raw = f.read()
    state = json.loads(raw)
    own = state["self_crc32c"]
    if crc32c(raw.replace(own.encode() + b'"}\n', b'00000000"}\n')) != own:
        raise Failure(f"{directory}/state.json: its checksum is not {own}")
    if state["step"] != step or sorted(f["name"] for f in state["files"]) != names[:-1]:
        raise Failure(f"{directory}/state.json is of another step or other files: {state}")
    for f in state["files"]:
        with open(os.path.join(directory, f["name"]), "rb") as g:
            data = g.read()
        if (len(data), crc32c(data)) != (f["bytes"], f["crc32c"]):
            raise Failure(f"{directory}/{f['name']} has {len(data)} bytes, CRC-32C {crc32c(data)}, "
                          f"but state.json says {f}")
    return state


def check_output(out):
    """What must hold at every moment of a run, whatever happened to it: nothing is half there under its name."""
    for step in checkpoint_steps(out):
        check_checkpoint(out, step)
    for name in ("result.json", "resolved.json", "trace.json", "transformer.json"):
        path = os.path.join(out, name)
        if os.path.exists(path):
            read_json(path)
    if os.path.exists(os.path.join(out, "model.safetensors")):
        read_safetensors(os.path.join(out, "model.safetensors"))


def leftovers(out):
    """Unfinished things, anywhere below."""
    return [name for _, dirs, files in os.walk(out) for name in dirs + files if name.endswith(".tmp")]
