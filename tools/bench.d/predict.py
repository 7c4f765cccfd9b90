#!/usr/bin/env python3
"""Predicted and measured time of a step, side by side, for a few jobs on cpu devices. Usage: predict.py WORKER DIR

Each job's layers are timed first (tutti-worker --time, into a cache of this run's own), so that the plan goes by measured
times. Then it is trained under several policies and memories, and the trace of the run is laid beside the prediction in the
same file. Columns: seconds per step, predicted, measured and measured / predicted; then for each kind of stream the share
of the time that it is busy, predicted>measured; then how much longer than predicted tasks and copies themselves took:
where `tasks` is far from 1 the streams share cores, where it is near 1 and `ratio` is not, the waiting is what differs.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys

STEPS, TRACED = 24, 16
PARTS = (1, 2, 4)
LANES = ("compute", "in", "out", "peer")
JOBS = [  # name, width, depth, batch, micro-batch, devices, policies
    ("8 x 1024, 1 device", 1024, 8, 256, 64, 1, ("resident", "harmony-pp", "stream", "lru")),
    ("8 x 1024, 2 devices", 1024, 8, 256, 64, 2, ("resident", "harmony-pp", "stream")),
    ("24 x 256, 1 device", 256, 24, 256, 128, 1, ("resident", "harmony-pp")),
]
AIM = 0.15


def job(width, depth, batch, micro, directory):
    return {"schema": "job/v1", "name": "predict",
            "model": {"type": "mlp", "input": 784, "hidden": [width] * depth, "classes": 10, "activation": "relu"},
            "data": {"format": "synthetic", "samples": batch, "shuffle": False},
            "train": {"steps": STEPS, "global_batch": batch, "micro_batch": micro},
            "optimizer": {"type": "adamw", "lr": 1e-3}, "output": os.path.join(directory, "out")}


def worker(program, env, *options):
    """The result as JSON; None when the job does not fit."""
    run = subprocess.run([program, *map(str, options), "--json"], env=env, capture_output=True, text=True)
    if run.returncode == 5:
        return None
    if run.returncode != 0:
        sys.exit(f"{' '.join(map(str, options))}: {run.stdout}{run.stderr}")
    return json.loads(run.stdout)


def read_trace(path):
    """By part ("plan", "run"): the events, each with its lane."""
    with open(path, encoding="utf-8") as f:
        events = json.load(f)["traceEvents"]
    part, lane, parts = {}, {}, {"plan": [], "run": []}
    for e in events:
        if e.get("name") == "process_name":
            part[e["pid"]] = (e["args"]["name"].startswith("host"), e["args"]["name"].split("(")[1].rstrip(")"))
        elif e.get("name") == "thread_name":
            lane[e["pid"], e["tid"]] = e["args"]["name"]
    for e in events:
        if e["ph"] == "X":
            host, name = part[e["pid"]]
            e["lane"] = "host" if host else lane[e["pid"], e["tid"]]
            parts[name].append(e)
    return parts


def step_s(events):
    """Between the ends of two steps, in the middle."""
    ends = {}
    for e in events:
        ends[e["args"]["run"]] = max(ends.get(e["args"]["run"], 0), e["ts"] + e["dur"])
    times = sorted(ends.values())
    return statistics.median(b - a for a, b in zip(times, times[1:])) * 1e-6


def busy_s(events, *lanes):
    """Of one step."""
    runs = 1 + max(e["args"]["run"] for e in events)
    return sum(e["dur"] for e in events if e["lane"] in lanes) * 1e-6 / runs


def over(a, b):
    return f"{a / b:5.2f}" if b > 0 else f"{'-':>5}"


def print_row(policy, memory, parts, devices):
    plan, run = parts["plan"], parts["run"]
    predicted, measured = step_s(plan), step_s(run)
    row = f"  {policy:<12} {memory:>6} {predicted:10.4f} {measured:10.4f} {measured / predicted:6.2f} "
    for lane in LANES:
        row += f" {100 * busy_s(plan, lane) / predicted / devices:4.0f}>{100 * busy_s(run, lane) / measured / devices:<4.0f}"
    row += f" {100 * busy_s(plan, 'host') / predicted:4.0f}>{100 * busy_s(run, 'host') / measured:<4.0f}"
    tasks, copies = ("compute", "host"), ("in", "out", "peer")
    row += f" {over(busy_s(run, *tasks), busy_s(plan, *tasks))} {over(busy_s(run, *copies), busy_s(plan, *copies))}"
    print(row, flush=True)
    return measured / predicted


def main():
    program, directory = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    env = {k: v for k, v in os.environ.items() if k != "TUTTI_PROFILE"}
    env.update(XDG_CACHE_HOME=os.path.join(directory, "cache"), TUTTI_BACKEND="cpu", OMP_NUM_THREADS="1")
    ratios = []
    for name, width, depth, batch, micro, devices, policies in JOBS:
        path = os.path.join(directory, "job.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(job(width, depth, batch, micro, directory), f)
        where = ["--devices", devices]
        shutil.rmtree(os.path.join(directory, "out"), ignore_errors=True)
        worker(program, env, "--time", path, "--micro-batches", micro)
        full = worker(program, env, "--check", path, "--policy", "resident", *where)["least_device_bytes"]
        print(f"{name}, batch {batch} in micro-batches of {micro}")
        print(f"  {'policy':<12} {'memory':>6} {'predicted':>10} {'measured':>10} {'ratio':>6} "
              + "".join(f" {lane:<9}" for lane in (*LANES, "host")) + " tasks copies")
        for share in PARTS:
            for policy in policies:
                shutil.rmtree(os.path.join(directory, "out"), ignore_errors=True)
                options = [*where, "--policy", policy, "--device-memory", full // share // 256 * 256]
                if worker(program, env, "--run", path, "--quiet", "--trace-steps", TRACED, *options) is None:
                    print(f"  {policy:<12} {'1/' + str(share):>6}  does not fit")
                    continue
                ratios.append(print_row(policy, f"1/{share}", read_trace(os.path.join(directory, "out", "trace.json")), devices))
    within = sum(1 for r in ratios if abs(r - 1) <= AIM)
    print(f"measured / predicted: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}; "
          f"{within} of {len(ratios)} within {100 * AIM:.0f} %")


if __name__ == "__main__":
    main()
