#!/usr/bin/env python3
"""What the training methods give and cost, beside backpropagation.
Usage: methods.py WORKER MAKE_DIGITS DIR [--only PART] [--quick] [--seeds N] [--digits DIR] [--text FILE] [--json]
(`tools/bench methods ...`)

Parts:

  digits  a fully connected network of 6 layers classifies digits. Accuracy on other digits (mean and spread over the seeds),
          device memory with which everything stays on the device, bytes over the link with half of the memory that
          backpropagation needs, floating-point operations, seconds. Two controls train only a part of the network: the method sil
          with a first partition that makes one step at a rate that changes no weight. So its layers keep their random weights.
  text    a GPT of 8 blocks on bytes of text, with half of its state in device memory and a link of 1 GB/s: the loss after equal
          steps, and after equal bytes over the link
  swap    a GPT with 8 times the state that device memory holds, behind a link of 256 MB/s: bytes and seconds of a step
  link    predicted seconds of a step of a GPT with 1.5 billion parameters, on devices of 9 GB behind the link of
          tests/profiles/gpt2_xl.json

--digits (or TUTTI_DIGITS) is a folder with idx files as of MNIST, gzipped or not; without it, digits are generated. --text (or
TUTTI_TEXT) is a file; without it, the text is the licences of the distribution. --quick takes one seed and fewer steps.
"""
import argparse
import glob
import json
import math
import os
import shutil
import statistics
import subprocess
import sys

BACKPROP = {"type": "backprop"}
MB = 1e6
NO_WORK = {"total": math.nan, "sequential": math.nan}
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def local(scheme="chunked", **keys):
    return {"type": "local", "scheme": scheme, **keys}


def ask(args, job, verb, *options):
    """The answer of the worker to a job, or None if the job does not fit."""
    path = os.path.join(args.directory, "job.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"schema": "job/v1", "output": os.path.join(args.directory, "out"), **job}, f)
    r = subprocess.run([args.worker, verb, path, "--json", *map(str, options)], capture_output=True, text=True)
    if r.returncode == 5:
        return None
    if r.returncode != 0:
        sys.exit(f"{json.dumps(job['method'])}: {r.stdout}{r.stderr}")
    return json.loads(r.stdout)


def run(args, job, *options):
    """Trains a job. Returns its report, and the lines of its metrics."""
    out = os.path.join(args.directory, "out")
    shutil.rmtree(out, ignore_errors=True)
    report = ask(args, job, "--run", "--quiet", "--trace-steps", 0, *options)
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    shutil.rmtree(out, ignore_errors=True)
    return report, lines


def print_table(title, columns, rows):
    """Prints a table in Markdown."""
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    sys.stdout.flush()


# ---- digits ----

EPOCHS, RATE, LABEL_RATE = 5, 2e-3, 4e-3
HIDDEN = [256] * 5


def adamw(rate):
    return {"type": "adamw", "lr": rate, "weight_decay": 0.01}


def sil(kappa, cut=3, **keys):
    return {"type": "sil", "partitions": [cut], "kappa": kappa, "each": [{"optimizer": adamw(LABEL_RATE)}, {}], **keys}


def frozen(cut):
    """Layers before the cut keep their initial weights."""
    return {"type": "sil", "partitions": [cut], "each": [{"steps": 1, "optimizer": {"type": "sgd", "lr": 1e-30}}, {}]}


DIGITS = {
    "backpropagation": BACKPROP,
    "greedy": local("greedy"),
    "chunked(2)": local(blocks=2),
    "chunked(3)": local(blocks=3),
    "overlapping(3)": local("overlapping", blocks=3),
    "SIL, kappa 1": sil(1),
    "SIL, kappa 3": sil(3),
    "SIL, kappa 10": sil(10),
    "SIL, kappa 10, no rate of its own": {**sil(10), "each": [{}, {}]},
    "SIL, kappa 3, one epoch of recovery": sil(3, recovery_epochs=1),
    "SIL, kappa 3, concurrent": sil(3, concurrent=True),
    "control: random first half": frozen(3),
    "control: only the last layer": frozen(5),
}


def find_digits(args):
    """The `data` section of the jobs."""
    folder = args.digits
    if not folder:
        folder = os.path.join(args.directory, "digits")
        subprocess.run([args.make_digits, folder, "--train", "8500", "--test", "1500"], check=True, stdout=subprocess.DEVNULL)
    ending = ".gz" if os.path.exists(os.path.join(folder, "train-images-idx3-ubyte.gz")) else ""
    section = {"format": "idx", "scale": [-0.42, 2.82]}
    for split, name in (("train", "train"), ("val", "t10k")):
        section[split] = {"images": os.path.join(folder, f"{name}-images-idx3-ubyte{ending}"),
                          "labels": os.path.join(folder, f"{name}-labels-idx1-ubyte{ending}")}
    return section


def digits_job(data, method, seed):
    return {"model": {"type": "mlp", "input": [28, 28], "hidden": HIDDEN, "classes": 10, "activation": "relu"},
            "init": {"seed": seed}, "data": data, "method": method, "optimizer": adamw(RATE),
            "train": {"epochs": EPOCHS, "global_batch": 50, "micro_batch": 50, "replicas": 1},
            "schedule": {"type": "cosine", "warmup_steps": 20, "min_lr_ratio": 0.05}, "eval": {"every": {"epochs": EPOCHS}}}


def measure_digits(args, data, name, memory):
    method, accuracies, seconds = DIGITS[name], [], []
    for seed in range(1, args.seeds + 1):
        report, _ = run(args, digits_job(data, method, seed), "--device-memory", memory)
        accuracies.append(100 * report["val_accuracy"])
        seconds.append(report["seconds"])
    moved = report["counted_bytes"]
    peaks = [phase["device_peak_bytes"][0] for phase in report.get("phases", [])] or [report["devices"][0]["peak_bytes"]]
    resident = ask(args, digits_job(data, method, 1), "--check", "--policy", "resident")
    return {"accuracy": statistics.mean(accuracies), "spread": max(accuracies) - min(accuracies), "accuracies": accuracies,
            "resident_bytes": resident["least_device_bytes"], "peak_bytes": max(peaks), "steps": report["steps"],
            "moved_bytes": moved["in"] + moved["out"], "flops": report.get("flops", NO_WORK), "seconds": statistics.mean(seconds)}


def bench_digits(args):
    data = find_digits(args)
    full = ask(args, digits_job(data, BACKPROP, 1), "--check", "--policy", "resident")["least_device_bytes"]
    found = {name: measure_digits(args, data, name, full // 512 * 256) for name in DIGITS}
    print_table(f"Digits: 784-{HIDDEN[0]}x{len(HIDDEN)}-10 on {args.digits_name}, {EPOCHS} epochs, {args.seeds} seeds, with "
                f"{full / 2 / MB:.2f} MB of device memory",
                ("method", "accuracy, %", "spread", "device MB, resident", "device MB, used", "steps", "kB a step", "MB in all",
                 "GFLOP", "of them in sequence", "seconds"),
                [(name, f"{r['accuracy']:.1f}", f"{r['spread']:.1f}", f"{r['resident_bytes'] / MB:.2f}", f"{r['peak_bytes'] / MB:.2f}",
                  str(r["steps"]), f"{r['moved_bytes'] / r['steps'] / 1e3:.0f}", f"{r['moved_bytes'] / MB:.0f}",
                  f"{r['flops']['total'] / 1e9:.0f}", f"{r['flops']['sequential'] / 1e9:.0f}", f"{r['seconds']:.1f}")
                 for name, r in found.items()])
    return found


# ---- models of text ----

def find_text(args):
    if args.text:
        return args.text
    path = os.path.join(args.directory, "text.txt")
    with open(path, "wb") as out:
        for name in sorted(glob.glob("/usr/share/common-licenses/*")):
            if not os.path.islink(name):
                with open(name, "rb") as f:
                    out.write(f.read())
    return path


def text_job(text, method, layers, width, batch, micro, steps):
    return {"model": {"type": "gpt2", "layers": layers, "width": width, "heads": 4, "vocab": 256, "context": 64, "tied": False},
            "init": {"seed": 1}, "data": {"format": "bytes", "train": text}, "method": method,
            "train": {"steps": steps, "global_batch": batch, "micro_batch": micro, "replicas": 1, "grad_clip": 1.0},
            "optimizer": adamw(1e-3)}


def share_of_state(args, job, parts):
    return ask(args, {**job, "method": BACKPROP}, "--check")["state_bytes"] // parts // 256 * 256


def mean_loss(lines, n=20):
    return statistics.mean(line["loss"] for line in lines[-n:])


def until(lines, budget):
    """The lines of the steps that move at most `budget` bytes together."""
    moved, found = 0, []
    for line in lines:
        moved += line["in_bytes"] + line["out_bytes"]
        if moved > budget:
            break
        found.append(line)
    return found


def bench_text(args):
    steps, text, found = 100 if args.quick else 400, find_text(args), {}
    for name, method in (("backpropagation", BACKPROP), ("chunked(2)", local(blocks=2)), ("chunked(4)", local(blocks=4))):
        job = text_job(text, method, 8, 192, 8, 4, steps)
        memory = share_of_state(args, job, 2)
        report, lines = run(args, job, "--device-memory", memory, "--link", "1GB")
        found[name] = {"lines": [line for line in lines if "loss" in line], "cycle_steps": report.get("cycle_steps", 1),
                       "cycle_limit": report.get("cycle_limit"), "seconds": report["seconds"], "flops": report.get("flops", NO_WORK)}
    totals = {name: sum(line["in_bytes"] + line["out_bytes"] for line in r["lines"]) for name, r in found.items()}
    budget = min(totals.values())
    for name, r in found.items():
        lines = r.pop("lines")
        affordable = until(lines, budget)
        r.update(loss=mean_loss(lines), step_bytes=totals[name] / len(lines), steps_for_bytes=len(affordable),
                 loss_for_bytes=mean_loss(affordable) if affordable else None)
    print_table(f"Text: a GPT of 8 blocks, width 192, on {args.text_name}, with {memory / MB:.1f} MB of device memory and a link of 1 GB/s",
                ("method", "k", "MB a step", f"loss after {steps} steps", f"steps in {budget / 1e9:.2f} GB", "loss then", "GFLOP a step",
                 "seconds a step"),
                [(name, str(r["cycle_steps"]), f"{r['step_bytes'] / MB:.1f}", f"{r['loss']:.3f}", str(r["steps_for_bytes"]),
                  f"{r['loss_for_bytes']:.3f}" if r["loss_for_bytes"] else "-", f"{r['flops']['total'] / steps / 1e9:.1f}",
                  f"{r['seconds'] / steps:.3f}") for name, r in found.items()])
    return found


def bench_swap(args):
    steps, text, found = 32 if args.quick else 64, find_text(args), {}
    methods = [("backpropagation", BACKPROP)] + [(f"chunked(16), k = {k}", local(blocks=16, resident_steps=k)) for k in (1, 4, 16)]
    for name, method in methods:
        job = text_job(text, method, 16, 256, 4, 4, steps)
        memory = share_of_state(args, job, 8)
        report, _ = run(args, job, "--device-memory", memory, "--link", "256MB")
        moved = report["counted_bytes"]
        found[name] = {"step_bytes": (moved["in"] + moved["out"]) / steps, "seconds": report["seconds"] / steps, "loss": report["loss"],
                       "peak_bytes": report["devices"][0]["peak_bytes"], "policy": report["policy"], "weights": report["weights_hash"]}
    parameters = ask(args, job, "--check")["parameters"]
    print_table(f"Swap: a GPT of 16 blocks, width 256, {parameters / 1e6:.1f} M parameters with {16 * parameters / MB:.0f} MB of state, on "
                f"{memory / MB:.1f} MB of device memory behind a link of 256 MB/s, {steps} steps",
                ("method", "policy", "MB a step", "bytes a step and parameter", "device MB", "seconds a step", "weights"),
                [(name, r["policy"], f"{r['step_bytes'] / MB:.1f}", f"{r['step_bytes'] / parameters:.2f}", f"{r['peak_bytes'] / MB:.1f}",
                  f"{r['seconds']:.3f}", r["weights"]) for name, r in found.items()])
    return found


# ---- a large model, predicted ----

GTX_1080_TI_FLOPS = 11.3e12


def bench_link(args):
    with open(os.path.join(ROOT, "tests", "profiles", "gpt2_xl.json"), encoding="utf-8") as f:
        link = json.load(f)["link"]
    rate, peers = int(link["swap_bytes_per_s"]), int(link["p2p_bytes_per_s"])
    found = []
    for batch in (4,) if args.quick else (1, 4, 16):
        for devices in (1, 2, 4):
            machine = {"schema": "machine/v1", "backend": "cuda", "devices": [{"memory_bytes": 9e9, "free_bytes": 9e9}] * devices,
                       "link_bytes_per_s": rate, "all_links_bytes_per_s": rate, "peer_bytes_per_s": peers,
                       "host_memory_bytes": 256e9, "device_flops_per_s": GTX_1080_TI_FLOPS}
            row = {"batch": batch, "devices": devices}
            for name, method in (("backprop", BACKPROP), ("chunked", local(blocks=8, max_cycle_seconds=600))):
                job = {"model": {"type": "gpt2", "size": "1.5B", "context": 1024, "tied": False}, "method": method,
                       "data": {"format": "synthetic", "samples": 1024}, "optimizer": adamw(1e-4),
                       "train": {"steps": 1000, "global_batch": batch, "micro_batch": min(batch, 4), "replicas": 1},
                       "resources": {"devices": devices, "host_memory": "250GB"}}
                plan = ask(args, job, "--plan", "--no-what-if", "--machine", json.dumps(machine))
                k = plan.get("cycle_steps", 1)
                row[name] = {"k": k, "seconds": plan["iteration_s"] / k, "plan_s": plan["plan_s"],
                             "host_bytes": (plan["host_in_bytes"] + plan["host_out_bytes"]) / k, "limit": plan.get("cycle_limit")}
            found.append(row)
    print_table(f"Link: GPT-2 1.5B, tied false, predicted for devices of 9 GB and {GTX_1080_TI_FLOPS / 1e12} TFLOP/s, which share a link of "
                f"{rate / 1e9:.1f} GB/s each way; chunked(8)",
                ("samples a step", "devices", "backpropagation, s", "GB a step", "chunked(8), s", "GB a step", "k", "what limits k"),
                [(str(r["batch"]), str(r["devices"]), f"{r['backprop']['seconds']:.2f}", f"{r['backprop']['host_bytes'] / 1e9:.1f}",
                  f"{r['chunked']['seconds']:.2f}", f"{r['chunked']['host_bytes'] / 1e9:.1f}", str(r["chunked"]["k"]),
                  r["chunked"]["limit"] or "") for r in found])
    return found


PARTS = {"digits": bench_digits, "text": bench_text, "swap": bench_swap, "link": bench_link}


def main():
    p = argparse.ArgumentParser(prog="tools/bench methods", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("worker")
    p.add_argument("make_digits")
    p.add_argument("directory")
    p.add_argument("--only", choices=PARTS)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--seeds", type=int)
    p.add_argument("--digits", default=os.environ.get("TUTTI_DIGITS"))
    p.add_argument("--text", default=os.environ.get("TUTTI_TEXT"))
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    args.seeds = args.seeds or (1 if args.quick else 3)
    args.digits_name = os.path.basename(os.path.abspath(args.digits)) if args.digits else "generated digits"
    args.text_name = os.path.basename(args.text) if args.text else "licences"
    os.makedirs(args.directory, exist_ok=True)
    found = {name: part(args) for name, part in PARTS.items() if args.only in (None, name)}
    if args.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
