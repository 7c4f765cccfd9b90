#!/usr/bin/env python3
"""Predicted and measured time of a step, side by side, for a few jobs on cpu devices.
Usage: predict.py WORKER DIR [ROUNDS [JOB]]     (JOB: only those whose name contains it)

A round times the layers of a job (tutti-worker --time --force, into a cache of this run's own) and then trains it under several
policies and memories, on 1 and 2 devices; the trace of each run has the prediction by these times beside what happened. So
prediction and measurement are minutes apart at most, and what a computer does for others meanwhile meets both. It meets them
unevenly all the same: before each part the bench waits a while for a quiet moment, it counts what others used of the processor,
and of the rounds of a case only those count that were disturbed least. Of these: the median of all steps.

Columns: seconds per step, predicted and measured, and measured / predicted; then for each kind of stream the share of the
time that it is busy, predicted>measured; then how much longer than predicted tasks and copies themselves took: where these
are near 1 and `ratio` is not, the waiting is what differs; and `others`: cores that others used while it ran.
"""
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time

STEPS, TRACED = 16, 12
PARTS = (1, 2, 4)
DEVICES = (1, 2)
POLICIES = ("resident", "stream", "harmony-pp", "auto")
LANES = ("compute", "in", "out", "peer")
TASKS, COPIES = ("compute", "host"), ("in", "out", "peer")
JOBS = [  # name, width, depth, batch, micro-batch
    ("8 x 1024", 1024, 8, 128, 32),
    ("6 x 512", 512, 6, 512, 128),
    ("24 x 256", 256, 24, 256, 128),
]
AIM = 0.15
QUIET_CORES, QUIET_WAIT_S, QUIET_LOOK_S = 0.15, 5, 0.3
WAIT_S = 30  # in all


# ---- the computer ----


def busy_s():
    """Seconds that all processors were busy so far, and that this bench and its children were."""
    with open("/proc/stat", encoding="ascii") as f:
        user, nice, system, _, _, irq, softirq, steal = map(int, f.readline().split()[1:9])
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return ((user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK"),
            sum(u.ru_utime + u.ru_stime for u in own))


class Others:
    """Cores that others use from its beginning to `cores`."""

    def __init__(self):
        self.at, (self.all, self.own) = time.monotonic(), busy_s()

    def cores(self):
        both, own = busy_s()
        return max(0, (both - self.all) - (own - self.own)) / max(time.monotonic() - self.at, 1e-3)


waited_s = 0


def wait_for_quiet():
    """A while; and not again and again on a computer that is never quiet."""
    global waited_s
    end = time.monotonic() + min(QUIET_WAIT_S, WAIT_S - waited_s)
    while time.monotonic() < end:
        others = Others()
        time.sleep(QUIET_LOOK_S)
        waited_s += QUIET_LOOK_S
        if others.cores() <= QUIET_CORES:
            return


# ---- the worker ----


def job(width, depth, batch, micro, directory):
    return {"schema": "job/v1", "name": "predict",
            "model": {"type": "mlp", "input": 784, "hidden": [width] * depth, "classes": 10, "activation": "relu"},
            "data": {"format": "synthetic", "samples": batch, "shuffle": False},
            "train": {"steps": STEPS, "global_batch": batch, "micro_batch": micro},
            "optimizer": {"type": "adamw", "lr": 1e-3}, "output": os.path.join(directory, "out")}


class Worker:
    def __init__(self, program, directory):
        self.program, self.directory = program, directory
        self.env = {k: v for k, v in os.environ.items() if k != "TUTTI_PROFILE"}
        self.env.update(XDG_CACHE_HOME=os.path.join(directory, "cache"), TUTTI_BACKEND="cpu", OMP_NUM_THREADS="1")

    def __call__(self, *options):
        """The result as JSON; None when the job does not fit."""
        shutil.rmtree(os.path.join(self.directory, "out"), ignore_errors=True)
        run = subprocess.run([self.program, *map(str, options), "--json"], env=self.env, capture_output=True, text=True)
        if run.returncode == 5:
            return None
        if run.returncode != 0:
            sys.exit(f"{' '.join(map(str, options))}: {run.stdout}{run.stderr}")
        return json.loads(run.stdout)


# ---- traces ----


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


def steps_s(events):
    """Between the ends of two steps."""
    ends = {}
    for e in events:
        ends[e["args"]["run"]] = max(ends.get(e["args"]["run"], 0), e["ts"] + e["dur"])
    times = sorted(ends.values())
    return [(b - a) * 1e-6 for a, b in zip(times, times[1:])]


def lanes_s(events):
    """Of one step, how long each kind of stream was busy."""
    runs = 1 + max(e["args"]["run"] for e in events)
    busy = dict.fromkeys((*LANES, "host"), 0)
    for e in events:
        busy[e["lane"]] += e["dur"] * 1e-6 / runs
    return busy


# ---- cases ----


class Case:
    """One job, number of devices, memory and policy; `rounds` of (others, steps and lanes predicted, measured)."""

    def __init__(self, name, devices, part, policy):
        self.name, self.devices, self.part, self.policy = name, devices, part, policy
        self.rounds = []

    def add(self, others, parts):
        self.rounds.append((others, steps_s(parts["plan"]), steps_s(parts["run"]), lanes_s(parts["plan"]),
                            lanes_s(parts["run"])))

    def figures(self):
        least = min(r[0] for r in self.rounds)
        rounds = [r for r in self.rounds if r[0] <= max(least, QUIET_CORES)]

        def mean(which):
            return {lane: statistics.mean(r[which][lane] for r in rounds) for lane in (*LANES, "host")}

        return (statistics.mean(r[0] for r in rounds), statistics.median(s for r in rounds for s in r[1]),
                statistics.median(s for r in rounds for s in r[2]), mean(3), mean(4))

    def print(self):
        """Returns measured / predicted; None where it does not fit."""
        row = f"  {self.devices:7} {'1/' + str(self.part):>6} {self.policy:<11}"
        if not self.rounds:
            print(row + "  does not fit")
            return None
        others, predicted, measured, plan, run = self.figures()
        row += f" {predicted:9.4f} {measured:9.4f} {measured / predicted:6.2f} "
        for lane in (*LANES, "host"):
            by = 1 if lane == "host" else self.devices
            row += f" {100 * plan[lane] / predicted / by:4.0f}>{100 * run[lane] / measured / by:<4.0f}"
        for lanes in TASKS, COPIES:
            a, b = sum(run[x] for x in lanes), sum(plan[x] for x in lanes)
            row += f" {a / b:6.2f}" if b > 0 else f" {'-':>6}"
        print(f"{row} {others:6.2f}", flush=True)
        return measured / predicted


def measure(worker, path, cases, full):
    for case in cases:
        wait_for_quiet()
        others = Others()
        memory = full[case.devices] // case.part // 256 * 256
        if worker("--run", path, "--quiet", "--trace-steps", TRACED, "--devices", case.devices, "--policy", case.policy,
                  "--device-memory", memory) is not None:
            case.add(others.cores(), read_trace(os.path.join(worker.directory, "out", "trace.json")))


def run_job(worker, rounds, name, width, depth, batch, micro):
    path = os.path.join(worker.directory, "job.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(job(width, depth, batch, micro, worker.directory), f)
    full = {n: worker("--check", path, "--policy", "resident", "--devices", n)["least_device_bytes"] for n in DEVICES}
    cases = [Case(name, n, part, policy) for n in DEVICES for part in PARTS for policy in POLICIES]
    for i in range(rounds):
        wait_for_quiet()
        others = Others()
        worker("--time", path, "--micro-batches", micro, "--force")
        print(f"{name}, batch {batch} in micro-batches of {micro}: round {i + 1} of {rounds}, load "
              f"{os.getloadavg()[0]:.1f}, others used {others.cores():.2f} cores while layers were timed", flush=True)
        measure(worker, path, [c for c in cases if i == 0 or c.rounds], full)
    print(f"  {'devices':>7} {'memory':>6} {'policy':<11} {'predicted':>9} {'measured':>9} {'ratio':>6} "
          + "".join(f" {lane:<9}" for lane in (*LANES, "host")) + "  tasks copies others")
    return [r for r in (c.print() for c in cases) if r is not None]


def main():
    directory = os.path.abspath(sys.argv[2])
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    only = sys.argv[4] if len(sys.argv) > 4 else ""
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    worker = Worker(os.path.abspath(sys.argv[1]), directory)
    ratios = [r for j in JOBS if only in j[0] for r in run_job(worker, rounds, *j)]
    within = sum(1 for r in ratios if abs(r - 1) <= AIM)
    print(f"{within} of {len(ratios)} cases within {100 * AIM:.0f} %; measured / predicted: median "
          f"{statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
