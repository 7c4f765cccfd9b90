"""What the cases about the methods `local` and `sil` share: small jobs, and everything that two runs of a job have in common
to the bit."""
import json
import os
import shutil
import struct

from files import (check_output, checkpoint_steps, crc32c, leftovers, read_json, read_safetensors, sha256,
                   steps_in_metrics, write_job)

MLP = {"type": "mlp", "input": 12, "hidden": [16, 14, 10], "classes": 4}
JOB = {
    "schema": "job/v1",
    "name": "parts",
    "model": MLP,
    "init": {"seed": 7},
    "data": {"format": "synthetic", "samples": 60, "val_samples": 20, "seed": 3, "noise": 0.3},
    "train": {"steps": 7, "global_batch": 12, "micro_batch": 4, "replicas": 1},
    "optimizer": {"type": "adamw", "lr": 0.01},
    "eval": {"every": {"steps": 4}},
    "checkpoint": {"every": {"steps": 3}, "keep": 100},
}
# Plain sums of gradients: after the first step, the momentum of a weight is its gradient, to the bit.
MOMENTUM = {"type": "sgd", "lr": 0.5, "momentum": 0.5}
STILL = 1e-30  # a learning rate that changes no weight
MEASURED = ("samples_per_s", "in_bytes", "out_bytes", "peer_bytes", "stall_s")
TIGHT = ["--devices", 2, "--device-memory", "24KiB"]


def local(scheme, blocks=None, **more):
    return {"type": "local", "scheme": scheme, **({} if blocks is None else {"blocks": blocks}), **more}


def sil(partitions, **more):
    return {"type": "sil", "partitions": partitions, **more}


def train(t, spec, name="out", *options, **more):
    """Trains a job to its end. Returns the output directory."""
    out = t.fresh(name)
    t.worker("--run", write_job(t, spec, name + ".json"), "--output", out, "--quiet", *options, **more)
    t.equal(leftovers(out), [], "left behind")
    return out


def figures(out, blocks=True):
    """The lines of metrics.jsonl without what is measured, numbers as they are written."""
    lines = []
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        for line in f:
            m = json.loads(line, parse_float=str)
            lines.append({k: v for k, v in m.items() if k not in MEASURED and (blocks or k != "blocks")})
    return lines


def training(lines):
    """Those of the lines that are about training steps."""
    return [m for m in lines if "lr" in m]


def block_losses(lines, block):
    """The losses of a block in all training steps, as text: equal numbers have equal texts."""
    return [m["blocks"][block]["loss"] for m in training(lines)]


def tensors(out, step, name="model"):
    """{name: (shape, values)} of a file of a checkpoint; empty if the checkpoint has no such file."""
    path = os.path.join(out, "checkpoints", f"step-{step}", f"{name}.safetensors")
    return read_safetensors(path)[0] if os.path.exists(path) else {}


def all_tensors(out, step):
    return {name: tensors(out, step, name) for name in ("model", "method", "optimizer")}


def state(out, step):
    return read_json(os.path.join(out, "checkpoints", f"step-{step}", "state.json"))


def bits(out):
    """What two runs of a job have in common: every byte of every checkpoint, and every figure."""
    check_output(out)
    found = {"figures": figures(out), "model": sha256(os.path.join(out, "model.safetensors")),
             "hash": read_json(os.path.join(out, "result.json"))["weights_hash"]}
    for step in checkpoint_steps(out):
        directory = os.path.join(out, "checkpoints", f"step-{step}")
        for name in sorted(os.listdir(directory)):
            found[f"step {step}: {name}"] = sha256(os.path.join(directory, name))
    return found


def same_bits(t, out, expected, what):
    found = bits(out)
    t.equal(sorted(found), sorted(expected), f"{what}: files")
    for key, value in expected.items():
        t.equal(found[key], value, f"{what}: {key}")


def bits_without_spec(out):
    """What two jobs have in common that train alike but are described differently: files name the hash of their job."""
    return {"figures": figures(out), "hash": read_json(os.path.join(out, "result.json"))["weights_hash"],
            "checkpoints": {step: all_tensors(out, step) for step in checkpoint_steps(out)},
            "groups": [state(out, step).get("groups") for step in checkpoint_steps(out)]}


def go_back(out, step):
    """Removes the checkpoints after `step`, so that the next run goes on from there."""
    for newer in checkpoint_steps(out):
        if newer > step:
            shutil.rmtree(os.path.join(out, "checkpoints", f"step-{newer}"))


def change_weight(out, step, name, index, value):
    """Writes `value` in place of a number in a checkpoint, with the checksums that it then must have."""
    directory = os.path.join(out, "checkpoints", f"step-{step}")
    for file in ("model.safetensors", "method.safetensors"):
        path = os.path.join(directory, file)
        with open(path, "rb") as f:
            data = bytearray(f.read())
        (n,) = struct.unpack_from("<Q", data)
        entry = json.loads(data[8 : 8 + n]).get(name)
        if entry is not None:
            break
    old = crc32c(bytes(data))
    struct.pack_into("<f", data, 8 + n + entry["data_offsets"][0] + 4 * index, value)
    with open(path, "wb") as f:
        f.write(data)
    replace_in_state(directory, old, crc32c(bytes(data)))


def change_state(out, step, key, value):
    """Writes `value` in place of a text in the state of a checkpoint."""
    directory, old = os.path.join(out, "checkpoints", f"step-{step}"), state(out, step)[key]
    replace_in_state(directory, f'"{key}":"{old}"', f'"{key}":"{value}"')


def replace_in_state(directory, old, new):
    """Replaces a text in state.json, and its checksum."""
    path = os.path.join(directory, "state.json")
    with open(path, "rb") as f:
        raw = f.read()
    raw = raw.replace(old.encode(), new.encode())
    raw = raw[: raw.rindex(b':"') + 2] + b'00000000"}\n'
    with open(path, "wb") as f:
        f.write(raw.replace(b'"self_crc32c":"00000000"', b'"self_crc32c":"' + crc32c(raw).encode() + b'"'))


def kill_after(t, path, out, step, *options):
    """Kills a run when metrics.jsonl has `step`. Returns whether the run was still going."""
    live = t.start("--run", path, "--output", out, "--quiet", *map(str, options))
    live.until(lambda: steps_in_metrics(out) >= step or not live.alive(), f"step {step}")
    code = live.kill().code
    check_output(out)
    return code == -9
