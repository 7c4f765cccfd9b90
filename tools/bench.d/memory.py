#!/usr/bin/env python3
"""Host memory of a job that does not fit its device, planned and measured; and what a step takes.
Usage: memory.py WORKER DIR [--only WORD] [--steps N] [--json]   (`tools/bench memory ...`)

Columns, in MB: weights, gradients and optimizer state; the device; what the plan keeps on the host (state, and activations that
wait there for the backward pass); the most that the process held, without the device's arena, which a cpu device has in host
memory too, and without its files (code and libraries); that by what the plan keeps; seconds of a step, the first two left out.
A billion parameters need 17 GB of host memory, and a few minutes.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
from peers import LATE, follow, rates

MB = 1e6
WARMUP = 2


def gpt(layers, heads, width, vocab, batch, memory):
    model = {"type": "gpt2", "layers": layers, "heads": heads, "width": width, "vocab": vocab, "context": 256, "dropout": 0}
    return model, batch, memory


ROWS = {
    "GPT 6 x 384": gpt(6, 6, 384, 256, 8, 60_000_000),
    "GPT-2 124M": gpt(12, 12, 768, 50257, 4, 350_000_000),
    "GPT of a billion": gpt(36, 16, 1536, 256, 4, 512_000_000),
}


def status(pid):
    """{field: bytes} of what the process holds."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        lines = [line.split() for line in f]
    return {words[0][:-1]: 1024 * int(words[1]) for words in lines if words[-1] == "kB"}


def ask(worker, *args):
    r = subprocess.run([worker, *map(str, args), "--json"], capture_output=True, text=True)
    found = json.loads(r.stdout)
    if r.returncode != 0:
        sys.exit(found["message"])
    return found


def measure(args, name):
    model, batch, memory = ROWS[name]
    out, path = os.path.join(args.directory, "out"), os.path.join(args.directory, "job.json")
    shutil.rmtree(out, ignore_errors=True)
    steps = WARMUP + args.steps
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"schema": "job/v1", "name": "memory", "model": model, "data": {"format": "synthetic", "samples": 4 * batch},
                   "train": {"steps": steps + LATE, "global_batch": batch}, "optimizer": {"type": "adamw", "lr": 1e-4},
                   "output": out}, f)
    where = ["--devices", 1, "--device-memory", memory, "--host-memory", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    state = ask(args.worker, "--check", path, *where)
    plan = ask(args.worker, "--plan", path, *where, "--no-what-if")
    process = subprocess.Popen([args.worker, "--run", path, "--quiet", "--trace-steps", "0", *map(str, where)],
                               stdout=subprocess.DEVNULL)
    try:  # ended when its steps are made: the checkpoint at the end is not what is measured
        if follow(process, out, steps) is None:
            sys.exit(f"{name}: ended before its steps were made")
        held = status(process.pid)
    finally:
        process.kill()
        process.wait()
    seconds = [batch / rate for rate in rates(out)[WARMUP:steps]]
    shutil.rmtree(out, ignore_errors=True)
    peak = held["VmHWM"] - held["RssFile"] - plan["device_peak_bytes"][0]
    return {"row": name, "parameters": state["parameters"], "state_bytes": state["state_bytes"], "device_bytes": memory,
            "host_bytes": plan["host_bytes"], "peak_bytes": peak, "ratio": peak / plan["host_bytes"],
            "step_s": statistics.mean(seconds), "micro_batch": plan["micro_batch_fwd"], "in_bytes": plan["host_in_bytes"],
            "out_bytes": plan["host_out_bytes"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worker", type=os.path.abspath)
    parser.add_argument("directory", type=os.path.abspath)
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    names = [name for name in ROWS if args.only in name]
    if not names:
        sys.exit("no such row; there are: " + "; ".join(ROWS))
    shutil.rmtree(args.directory, ignore_errors=True)
    os.makedirs(args.directory)
    if not args.json:
        print(f"{'':18} {'parameters':>10} {'state':>8} {'device':>8} {'planned':>8} {'measured':>8} {'ratio':>6} {'in, out':>15} {'s/step':>8}")
    found = []
    for name in names:
        m = measure(args, name)
        found.append(m)
        if not args.json:
            print(f"{name:18} {m['parameters'] / 1e6:9.1f}M {m['state_bytes'] / MB:8.0f} {m['device_bytes'] / MB:8.0f} "
                  f"{m['host_bytes'] / MB:8.0f} {m['peak_bytes'] / MB:8.0f} {m['ratio']:6.3f} "
                  f"{m['in_bytes'] / MB:7.0f} {m['out_bytes'] / MB:7.0f} {m['step_s']:8.2f}", flush=True)
    if args.json:
        print(json.dumps({"rows": found}, indent=1))


if __name__ == "__main__":
    main()
