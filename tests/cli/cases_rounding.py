"""Losses in bf16 and fp16 beside those of PyTorch in the same precision: tests/golden/transformers/precision.json, which
make.py there has made and explains."""
import json
import math
import os
import shutil
import struct

from cases_transformers import GOLDEN, folder, from_folder, steps_of, train
from files import read_json
from harness import case, once

HALVES = ("bf16", "fp16")
WANT = read_json(os.path.join(GOLDEN, "precision.json"))
STATES = range(WANT["states"])


def write_state(t, name, k):
    """A folder with initial state k of a model: the numbers of each tensor, moved on by k * WANT["move"] places."""
    to = t.fresh("state")
    os.mkdir(to)
    shutil.copy(os.path.join(folder(name), "config.json"), to)
    with open(os.path.join(folder(name), "model.safetensors"), "rb") as f:
        data = f.read()
    (n,) = struct.unpack_from("<Q", data)
    header, values = data[:8 + n], data[8 + n:]
    entries = json.loads(header[8:])
    entries.pop("__metadata__", None)
    parts, at = [], 0
    for begin, end in sorted(e["data_offsets"] for e in entries.values()):
        t.equal(begin, at, "where a tensor begins")
        cut = end - 4 * k * WANT["move"] % (end - begin)
        parts += [values[cut:end], values[begin:cut]]
        at = end
    with open(os.path.join(to, "model.safetensors"), "wb") as f:
        f.write(header + b"".join(parts))
    return to


def losses(t, name, k, precision):
    """Of ten steps from initial state k."""
    changes = {"precision": precision, "train.micro_batch": WANT["micro_batch"]}
    if precision == "fp16":
        changes["train.loss_scale"] = {"start": WANT["loss_scale"]}
    spec = from_folder(name, changes)
    spec["model"]["from"] = write_state(t, name, k)
    found = [loss for _, loss, *_ in steps_of(train(t, spec))]
    t.equal(len(found), 10, "steps")
    return found


def ours(t, name, precision):
    """The losses from every initial state."""
    return once(("rounding", name, precision), lambda: [losses(t, name, k, precision) for k in STATES])


def distance(runs, wide):
    """The root mean square of the distances to the losses in fp32."""
    off = [a - b for run, wide_run in zip(runs, wide) for a, b in zip(run, wide_run)]
    return math.sqrt(sum(x * x for x in off) / len(off))


@case(each=[(f"{name}; {precision}", name, precision) for name in WANT["runs"] for precision in ("fp32", *HALVES)])
def test_rounding_has_the_losses_of_pytorch(t, value):
    _, name, precision = value
    bound = 1e-5 if precision == "fp32" else 1e-2
    wanted = WANT["runs"][name][precision]
    t.equal(len(wanted), len(STATES), "initial states")
    for k, (found, want_of_k) in enumerate(zip(ours(t, name, precision), wanted)):
        for step, (loss, want) in enumerate(zip(found, want_of_k), 1):
            t.check(abs(loss / want - 1) < bound, f"state {k}, step {step}: loss {loss}, PyTorch has {want}")


@case(each=[(f"{name}; {precision}", name, precision) for name in WANT["runs"] for precision in HALVES])
def test_rounding_leads_no_further_from_fp32_than_in_pytorch(t, value):
    _, name, precision = value
    want = WANT["runs"][name]
    found = distance(ours(t, name, precision), ours(t, name, "fp32"))
    theirs = distance(want[precision], want["fp32"])
    t.check(0 < found <= theirs, f"the losses are {found} from those in fp32, PyTorch's {theirs}")
