#!/usr/bin/env python3
"""Whole jobs on simulated CUDA devices. Prints TAP. Usage: test_cuda_jobs.py TUTTID TUTTI_WORKER; the environment names the
simulator (LD_LIBRARY_PATH, CUDASIM_KERNELS). Every run is race-checked.

One job, every policy, 1, 2 and 4 devices, little and much memory, another interleaving each time: the same bits, and losses
within 1e-4 of the cpu backend's. The same through the daemon, and after kill -9.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

TUTTID, WORKER = map(os.path.abspath, sys.argv[1:3])
ROOT = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
TIMEOUT_S = 900

JOB = {
    "schema": "job/v1", "name": "cuda",
    "model": {"type": "mlp", "input": 48, "hidden": [40, 56, 32], "classes": 7, "activation": "gelu", "dropout": 0.1},
    "init": {"seed": 3},
    "data": {"format": "synthetic", "samples": 256, "val_samples": 40, "noise": 0.7},
    "train": {"steps": 12, "global_batch": 24, "micro_batch": 8, "grad_clip": 1.0},
    "optimizer": {"type": "adamw", "lr": 1e-3, "weight_decay": 0.01},
    "checkpoint": {"every": {"steps": 4}, "keep": 2},
}

MACHINES = [  # devices, memory of each, policy
    (1, "16MiB", "resident"), (2, "16MiB", "resident"), (1, "128KiB", "stream"), (1, "96KiB", "harmony-pp"),
    (2, "96KiB", "harmony-pp"), (4, "96KiB", "harmony-pp"), (2, "128KiB", "lru"), (4, "16MiB", "auto"),
]
SEEDS = 50
FAULTS = ["launch:900:sticky", "launch:120", "memcpy:150", "gemm:300", "device:1:gone@900"]  # of calls; some before the first checkpoint


def write_job():
    path = os.path.join(ROOT, "job.json")
    with open(path, "w") as f:
        json.dump(JOB, f)
    return path


def environment(seed, report=None):
    env = dict(os.environ, CUDASIM_SEED=str(seed), CUDASIM_DEVICES="4", CUDASIM_MEMORY="512M", CUDASIM_RACE="1")
    env.pop("TUTTI_BACKEND", None)
    if report is not None:
        env["CUDASIM_REPORT"] = report
    return env


def fresh(name):
    path = os.path.join(ROOT, name)
    shutil.rmtree(path, ignore_errors=True)
    return path


def losses(out):
    with open(os.path.join(out, "metrics.jsonl")) as f:
        return [line["loss"] for line in map(json.loads, f) if "lr" in line]


def outcome(out):
    with open(os.path.join(out, "result.json")) as f:
        result = json.load(f)
    return result["weights_hash"], losses(out)


def run(backend, devices, memory, policy, seed=1, out="out"):
    """Trains to the end; what it left, and that no race was seen and the bytes are the plan's."""
    path, report = fresh(out), os.path.join(ROOT, "report.json")
    if os.path.exists(report):
        os.remove(report)
    r = subprocess.run([WORKER, "--run", write_job(), "--backend", backend, "--devices", str(devices), "--device-memory", memory,
                        "--policy", policy, "--output", path, "--quiet", "--json"], env=environment(seed, report),
                       capture_output=True, text=True, timeout=TIMEOUT_S)
    if r.returncode != 0:
        raise AssertionError(f"exit code {r.returncode}: {r.stdout} {r.stderr}")
    if backend == "cuda":
        with open(report) as f:
            races = json.load(f)["races"]
        if races not in (0, []):
            raise AssertionError(f"races: {races}")
    return outcome(path)


def near(a, b):
    return len(a) == len(b) and all(abs(x - y) <= 1e-4 * max(abs(x), abs(y)) for x, y in zip(a, b))


# ---- cases ----

def first():
    if not hasattr(first, "found"):
        first.found = run("cuda", *MACHINES[0])
    return first.found


def case_machine(i):
    found = run("cuda", *MACHINES[i], seed=100 + i)
    assert found == first(), f"other bits on {MACHINES[i]}"


def case_losses_of_cpu():
    cpu = run("cpu", 1, "16MiB", "resident")
    assert near(cpu[1], first()[1]), f"losses: cpu {cpu[1]}, cuda {first()[1]}"


def case_seeds():
    for seed in range(SEEDS):
        found = run("cuda", 2, "96KiB", "harmony-pp", seed=seed)
        assert found == first(), f"other bits with seed {seed}"


def case_kill_and_resume():
    out = fresh("killed")
    command = [WORKER, "--run", write_job(), "--backend", "cuda", "--devices", "2", "--device-memory", "96KiB", "--output", out,
               "--quiet"]
    process = subprocess.Popen(command, env=environment(7), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    folder = os.path.join(out, "checkpoints")
    while process.poll() is None and not (os.path.isdir(folder) and any("." not in n for n in os.listdir(folder))):
        time.sleep(0.002)
    process.kill()
    process.wait()
    subprocess.run(command, env=environment(8), check=True, capture_output=True, timeout=TIMEOUT_S)
    assert outcome(out) == first(), "other bits after a kill"


class Wire:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.file = self.socket.makefile("rwb")
        self.file.readline()

    def call(self, method, **params):
        self.file.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
        self.file.flush()
        answer = json.loads(self.file.readline())
        assert "result" in answer, answer
        return answer["result"]


def through_daemon(name, first_attempt=None):
    """Trains on 2 of the daemon's devices; returns the job. The daemon gives its workers a clean environment, so theirs comes
    from a script in the worker's place. `first_attempt`: faults that only attempt 1 meets."""
    script, names = fresh(name + ".sh"), ("LD_LIBRARY_PATH", "CUDASIM_KERNELS", "CUDASIM_SEED", "CUDASIM_DEVICES", "CUDASIM_MEMORY")
    with open(script, "w") as f:
        f.write("#!/bin/sh\n" + "".join(f"export {n}='{environment(9)[n]}'\n" for n in names))
        if first_attempt is not None:
            f.write(f'case "$*" in *"--attempt 1") export CUDASIM_FAULT={first_attempt};; esac\n')
        f.write(f"exec '{WORKER}' \"$@\"\n")
    os.chmod(script, 0o700)
    path = os.path.join(ROOT, "s")
    daemon = subprocess.Popen([TUTTID, "--user", "--socket", path, "--state", fresh(name + ".state"), "--backend", "cuda", "--worker",
                               script, "--restart-delay", "10"], stderr=subprocess.PIPE, text=True)
    try:
        while daemon.poll() is None and not os.path.exists(path):
            time.sleep(0.01)
        assert daemon.poll() is None, daemon.stderr.read()
        wire = Wire(path)
        devices = wire.call("devices")
        assert devices["backend"] == "cuda" and len(devices["devices"]) == 4, devices
        job = dict(JOB, output=fresh(name), resources={"devices": 2, "device_memory": "96KiB"})
        number = wire.call("submit", spec=job, dir=ROOT)["id"]
        deadline = time.monotonic() + TIMEOUT_S
        while (shown := wire.call("show", id=number))["state"] not in ("done", "failed", "cancelled"):
            assert time.monotonic() < deadline, shown
            time.sleep(0.02)
        assert shown["state"] == "done", shown["error"]
        assert outcome(job["output"]) == first(), "other bits through the daemon"
        return shown
    finally:
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(TIMEOUT_S) == 0, "the daemon's end"


def case_daemon():
    assert through_daemon("daemon")["attempt"] == 1


def case_fault(fault):
    """A device error ends the worker; the next one goes on from the checkpoint, to the same bits."""
    shown = through_daemon("fault", fault)
    assert shown["attempt"] == 2, shown


def main():
    cases = [(f"{m[2]} on {m[0]} x {m[1]} has the same bits", lambda i=i: case_machine(i)) for i, m in enumerate(MACHINES)]
    cases += [("losses are within 1e-4 of the cpu's", case_losses_of_cpu), (f"{SEEDS} interleavings, the same bits and no race", case_seeds),
              ("a kill and a resume leave the same bits", case_kill_and_resume), ("the same bits through the daemon", case_daemon)]
    cases += [(f"a job goes on after {fault}", lambda fault=fault: case_fault(fault)) for fault in FAULTS]
    print(f"1..{len(cases)}", flush=True)
    bad = 0
    for number, (name, function) in enumerate(cases, 1):
        try:
            function()
            print(f"ok {number} - {name}", flush=True)
        except Exception as e:
            bad += 1
            print(f"not ok {number} - {name}")
            print("\n".join("# " + line for line in repr(e).splitlines()), flush=True)
    shutil.rmtree(ROOT, ignore_errors=True)
    return 1 if bad else 0


sys.exit(main())
