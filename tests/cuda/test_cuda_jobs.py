#!/usr/bin/env python3
"""Whole jobs on simulated CUDA devices. Prints TAP. Usage: test_cuda_jobs.py TUTTID TUTTI_WORKER WORKER_PHASES
[WORD...]: only the cases whose names contain every word. The environment names the simulator (on_device). Every run is
race-checked.

One job, every policy, 1, 2 and 4 devices, little and much memory, another interleaving each time: the same bits, and losses
within 1e-4 of the cpu backend's. The same through the daemon, and after kill -9.

With TUTTI_CUDA_REAL in the environment, on the GPUs of this machine, as many as there are: then nothing is race-checked, and
no device is made to fail.
"""
import array
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from cases import Wire, run_cases

TUTTID, WORKER, PHASES = map(os.path.abspath, sys.argv[1:4])
ROOT = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
TIMEOUT_S = 3600  # only ends what hangs: no load on the machine comes near it
REAL = bool(os.environ.get("TUTTI_CUDA_REAL"))

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
SEEDS = 3 if REAL else 50
FAULTS = [  # of calls, some before the first checkpoint; and the words with which a device is marked, None: none is
    ("launch:900:sticky", "launch failure"), ("memcpy:150:sticky", "ECC error"), ("device:1:gone@900", "busy or unavailable"),
    ("launch:120", None), ("memcpy:150", None), ("gemm:300", None),
]


METHODS = {  # tests/cli/cases_invariants.py draws many such jobs on virtual devices
    "chunked": {"type": "local", "scheme": "chunked", "blocks": [[0, 0], [1, 4]]},
    "greedy": {"type": "local", "scheme": "greedy", "head": {"hidden": 9}},
    "overlapping": {"type": "local", "scheme": "overlapping", "blocks": [[0, 1], [1, 4]]},
    "sil": {"type": "sil", "partitions": [1, 3], "recovery_epochs": 1},
    "sil, concurrent": {"type": "sil", "partitions": [1, 3], "concurrent": True},
}
METHOD_POLICIES = ["auto", "blocks", "harmony-pp", "lru", "resident", "stream"]


def write_job(steps=1, spec=None):
    """A job, by default JOB, with so many steps in a cycle."""
    path = os.path.join(ROOT, "job.json")
    job = dict(spec or JOB)
    if job.get("method", {}).get("type") != "local":
        job["memory"] = dict(job.get("memory", {}), cycle_steps=steps)
    elif job["method"]["scheme"] != "overlapping":
        job["method"] = dict(job["method"], resident_steps=steps)
    with open(path, "w") as f:
        json.dump(job, f)
    return path


def method_job(method):
    """A job as small as possible, since each run of a phase on the simulator takes a while."""
    return dict(JOB, method=method, data=dict(JOB["data"], samples=52), eval={"every": {"steps": 3}},
                model={"type": "mlp", "input": 12, "hidden": [16, 14, 10], "classes": 4, "activation": "tanh", "dropout": 0.1},
                train={"steps": 5, "global_batch": 12, "micro_batch": 4, "grad_clip": 0.5},
                checkpoint={"every": {"steps": 4}, "keep": 9})


def environment(seed, report=None):
    env = dict(os.environ, CUDASIM_SEED=str(seed), CUDASIM_MEMORY="512M", CUDASIM_RACE="1")
    env.pop("TUTTI_BACKEND", None)
    if not REAL:
        env["CUDASIM_DEVICES"] = "4"
    env["TUTTI_PROFILE"] = "none"
    if report is not None:
        env["CUDASIM_REPORT"] = report
    return env


def n_devices():
    if not hasattr(n_devices, "found"):
        r = subprocess.run([WORKER, "--probe", "--backend", "cuda", "--json"], env=environment(1), capture_output=True, text=True,
                           check=True, timeout=TIMEOUT_S)
        n_devices.found = len(json.loads(r.stdout)["machine"]["devices"])
    return n_devices.found


def fresh(name):
    path = os.path.join(ROOT, name)
    shutil.rmtree(path, ignore_errors=True)
    return path


def losses(out):
    with open(os.path.join(out, "metrics.jsonl")) as f:
        return [line["loss"] for line in map(json.loads, f) if "lr" in line]


def figures(out):
    """The lines of metrics.jsonl without what is measured."""
    measured = ("samples_per_s", "in_bytes", "out_bytes", "peer_bytes", "stall_s")
    with open(os.path.join(out, "metrics.jsonl")) as f:
        return [{k: v for k, v in line.items() if k not in measured} for line in map(json.loads, f)]


def numbers(value):
    """All numbers in figures, in order."""
    if isinstance(value, dict):
        value = [value[k] for k in sorted(value)]
    return [n for v in value for n in numbers(v)] if isinstance(value, list) else [value] * isinstance(value, (int, float))


def outcome(out):
    with open(os.path.join(out, "result.json")) as f:
        result = json.load(f)
    return result["weights_hash"], losses(out)


def run(backend, devices, memory, policy, seed=1, out="out", worker=None, steps=1, spec=None):
    """Trains to the end; what it left, and that no race was seen and the bytes are the plan's."""
    path, report = fresh(out), os.path.join(ROOT, "report.json")
    if os.path.exists(report):
        os.remove(report)
    r = subprocess.run([worker or WORKER, "--run", write_job(steps, spec), "--backend", backend, "--devices", str(devices), "--device-memory", memory,
                        "--policy", policy, "--output", path, "--quiet", "--json"], env=environment(seed, report),
                       capture_output=True, text=True, timeout=TIMEOUT_S)
    if r.returncode != 0:
        raise AssertionError(f"exit code {r.returncode}: {r.stdout} {r.stderr}")
    if backend == "cuda" and not REAL:
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


def case_precision(name):
    """Training in 16 bits, with updates on the devices and on the host's cores, which write 16-bit weights too."""
    spec = dict(JOB, precision=name, train=dict(JOB["train"], steps=5))
    found = {}
    for i, (devices, memory, policy) in enumerate((m for m in MACHINES[:5:2] if m[0] <= n_devices())):
        for update in ("device", "host"):
            where = f"{policy} on {devices} x {memory}, updates on the {update}"
            found[where] = run("cuda", devices, memory, policy, seed=500 + i, spec=dict(spec, memory={"optimizer_on": update}))
    expected = next(iter(found.values()))
    assert len(expected[1]) == 5 and expected != first(), expected
    for where, result in found.items():
        assert result == expected, f"other bits with {where}"


def case_steps():
    """Several steps in a cycle, of which 3 leave a remainder before the checkpoints at every fourth step."""
    for i, machine in enumerate(MACHINES):
        if machine[0] <= n_devices():
            for steps in (3, 4):
                found = run("cuda", *machine, seed=300 + i, steps=steps)
                assert found == first(), f"other bits with {steps} steps in a cycle on {machine}"


def case_phases():
    """A job of three phases (tests/cli/worker_phases.c): the same bits on every machine, and the losses of the cpu."""
    plain = run("cuda", *MACHINES[0], worker=PHASES)
    for i, machine in enumerate(MACHINES[1:]):
        if machine[0] <= n_devices():
            found = run("cuda", *machine, seed=200 + i, worker=PHASES)
            assert found == plain, f"other bits on {machine}"
    cpu = run("cpu", 1, "16MiB", "resident", worker=PHASES)
    assert near(cpu[1], plain[1]), f"losses: cpu {cpu[1]}, cuda {plain[1]}"


def case_method(name):
    """One step after another with everything resident; then on drawn machines, with drawn numbers of steps in a cycle, and killed
    and resumed: the same bits. The figures are near those of the cpu."""
    rng, spec = random.Random(name), method_job(METHODS[name])

    def train(*machine, **more):
        found = run(*machine, spec=spec, **more)
        return found[0], figures(os.path.join(ROOT, "out"))

    want = train("cuda", 1, "16MiB", "resident")
    for seed in range(5):
        devices, policy, steps = rng.randrange(1, min(4, n_devices()) + 1), rng.choice(METHOD_POLICIES), rng.choice([2, 3, 5])
        memory = "16MiB" if policy == "resident" else "32KiB"
        found = train("cuda", devices, memory, policy, seed=500 + seed, steps=steps)
        assert found == want, f"other bits on {devices} x {memory}, {policy}, {steps} steps in a cycle"
    out = kill_and_resume(spec, 1 if METHODS[name]["type"] == "local" or "concurrent" in name else rng.randrange(2, 8))
    assert (outcome(out)[0], figures(out)) == want, "other bits after a kill"
    cpu = train("cpu", 1, "16MiB", "resident")
    assert near(numbers(cpu[1]), numbers(want[1])), f"figures: cpu {cpu[1]}, cuda {want[1]}"


def case_one_part():
    """One block, and one partition, are backpropagation, to the bit."""
    want = run("cuda", 1, "16MiB", "resident", spec=method_job({"type": "backprop"})), figures(os.path.join(ROOT, "out"))
    for method in ({"type": "local", "scheme": "chunked", "blocks": 1}, {"type": "sil", "partitions": 1}):
        found = run("cuda", min(2, n_devices()), "32KiB", "auto", seed=600, spec=method_job(method))
        assert (found, figures(os.path.join(ROOT, "out"))) == want, f"{method} is not backpropagation"


def tight(method, seed, **changes):
    """Runs a job with a method on two devices with little memory. Returns the output directory."""
    run("cuda", min(2, n_devices()), "32KiB", "auto", seed=seed, spec={**method_job(method), **changes})
    return os.path.join(ROOT, "out")


def optimizer_state(out, step):
    """{name: bytes} of the tensors in a checkpoint's state of the optimizer."""
    with open(os.path.join(out, "checkpoints", f"step-{step}", "optimizer.safetensors"), "rb") as f:
        data = f.read()
    begin = 8 + int.from_bytes(data[:8], "little")
    return {name: data[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]]
            for name, entry in json.loads(data[8:begin]).items() if name != "__metadata__"}


def case_greedy():
    """Blocks that are listed one by one are greedy, to the bit."""
    want = figures(tight({"type": "local", "scheme": "greedy"}, 610))
    assert figures(tight({"type": "local", "scheme": "chunked", "blocks": [[0, 0], [1, 1], [2, 4]]}, 611)) == want


def case_mean():
    """After the first step, the momentum of a weight is its gradient. That of a shared layer is the mean of both, to the bit."""
    def gradients(scheme, blocks):
        out = tight({"type": "local", "scheme": scheme, "blocks": blocks}, 620, checkpoint={"every": {"steps": 1}, "keep": 9},
                    optimizer={"type": "sgd", "lr": 0.1, "momentum": 0.9},
                    train={"steps": 1, "global_batch": 12, "micro_batch": 4})
        return {name: array.array("f", data) for name, data in optimizer_state(out, 1).items()}

    lower, upper = gradients("chunked", [[0, 1], [2, 4]]), gradients("chunked", [[0, 0], [1, 4]])
    both, shared = gradients("overlapping", [[0, 1], [1, 4]]), 0
    for name, found in both.items():
        want = lower[name] if name.startswith(("layers.0.", "heads.")) else upper[name]
        if name.startswith("layers.1."):
            assert lower[name] != upper[name], f"{name}: equal gradients say nothing"
            want = array.array("f", [array.array("f", [a + b])[0] * 0.5 for a, b in zip(lower[name], upper[name])])
            shared += 1
        assert found == want, f"the gradient of {name}"
    assert shared == 2, "weight and bias of the shared layer"


def case_first_partition():
    """It is the same whatever follows."""
    want, found = ([line for line in figures(tight(method, 630)) if line["phase"] == 0]
                   for method in ({"type": "sil", "partitions": [1]}, {"type": "sil", "partitions": [1, 2], "recovery_epochs": 1}))
    assert len(want) > 5 and found == want, f"{found}, not {want}"


def case_kept_outputs():
    """No weight moves. So the last partition has the same losses on the kept outputs as the whole network on the samples."""
    method = {"type": "sil", "partitions": [1, 3], "recovery_epochs": 1}
    out = tight(method, 640, optimizer={"type": "sgd", "lr": 1e-30}, train={"epochs": 1, "global_batch": 12, "micro_batch": 4},
                model={**method_job(method)["model"], "dropout": 0})
    kept, fresh = ([line["loss"] for line in figures(out) if line["phase"] == phase and "lr" in line] for phase in (4, 5))
    assert len(set(kept)) > 3 and kept == fresh, f"{kept}, not {fresh}"


def case_losses_of_cpu():
    cpu = run("cpu", 1, "16MiB", "resident")
    assert near(cpu[1], first()[1]), f"losses: cpu {cpu[1]}, cuda {first()[1]}"


def case_seeds():
    for seed in range(SEEDS):
        found = run("cuda", min(2, n_devices()), "96KiB", "harmony-pp", seed=seed)
        assert found == first(), f"other bits with seed {seed}"


def case_stalls():
    """The devices do not count; the report has it from the traced steps. A job whose tensors come and go must wait for them."""
    run("cuda", 1, "96KiB", "stream", out="stalls")
    with open(os.path.join(ROOT, "stalls", "result.json")) as f:
        result = json.load(f)
    assert 0 < result["stall_share"] < 1 and result["stall_traced_steps"] == 3, result
    with open(os.path.join(ROOT, "stalls", "metrics.jsonl")) as f:
        assert not any("stall_s" in line for line in map(json.loads, f)), "stalls of single steps are not known"
    out = fresh("untraced")
    r = subprocess.run([WORKER, "--run", write_job(), "--backend", "cuda", "--devices", "1", "--output", out, "--quiet", "--trace-steps",
                        "0"], env=environment(1), capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    with open(os.path.join(out, "result.json")) as f:
        result = json.load(f)
    assert result["stall_share"] is None and "stall_traced_steps" not in result and "stalled" not in r.stdout, (result, r.stdout)


def checkpoints(out):
    folder = os.path.join(out, "checkpoints")
    return [n for n in os.listdir(folder) if "." not in n] if os.path.isdir(folder) else []


def kill_and_resume(spec=None, number=1):
    """Kills a run when it has written so many checkpoints, and runs it to the end. Returns the output."""
    out = fresh("killed")
    command = [WORKER, "--run", write_job(spec=spec), "--backend", "cuda", "--devices", str(min(2, n_devices())), "--device-memory",
               "96KiB", "--output", out, "--quiet"]
    process = subprocess.Popen(command, env=environment(7), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while process.poll() is None and len(checkpoints(out)) < number:
        time.sleep(0.002)
    process.kill()
    process.wait()
    subprocess.run(command, env=environment(8), check=True, capture_output=True, timeout=TIMEOUT_S)
    return out


def case_kill_and_resume():
    assert outcome(kill_and_resume()) == first(), "other bits after a kill"


def said(log):
    log.seek(0)
    return log.read()


def through_daemon(name, first_attempt="", devices=2, there=4):
    """Trains on so many of the daemon's devices; returns the job, the devices at its end, and the daemon's log. The daemon gives its
    workers a clean environment, so theirs comes from a script in the worker's place. `first_attempt`: settings for attempt 1 alone."""
    script, names = fresh(name + ".sh"), ("LD_LIBRARY_PATH", "CUDASIM_KERNELS", "CUDASIM_SEED", "CUDASIM_DEVICES", "CUDASIM_MEMORY")
    env = dict(environment(9), **({} if REAL else {"CUDASIM_DEVICES": str(there)}))
    with open(script, "w") as f:
        f.write("#!/bin/sh\n" + "".join(f"export {n}='{env[n]}'\n" for n in names if n in env))
        if first_attempt:
            f.write(f'case "$*" in *"--attempt 1") export {first_attempt};; esac\n')
        f.write(f"exec '{WORKER}' \"$@\"\n")
    os.chmod(script, 0o700)
    path = os.path.join(ROOT, "s")
    log = open(fresh(name + ".log"), "w+")
    daemon = subprocess.Popen([TUTTID, "--user", "--socket", path, "--state", fresh(name + ".state"), "--backend", "cuda", "--worker",
                               script, "--restart-delay", "10"], stderr=log)
    try:
        while daemon.poll() is None and not os.path.exists(path):
            time.sleep(0.01)
        assert daemon.poll() is None, "the daemon ended: " + said(log)
        wire = Wire(path)
        found = wire.call("devices")
        assert found["backend"] == "cuda" and len(found["devices"]) == there, found
        job = dict(JOB, output=fresh(name), resources={"devices": devices, "device_memory": "96KiB"})
        number = wire.call("submit", spec=job, dir=ROOT)["id"]
        deadline = time.monotonic() + TIMEOUT_S
        while (shown := wire.call("show", id=number))["state"] not in ("done", "failed", "cancelled"):
            assert time.monotonic() < deadline, shown
            time.sleep(0.02)
        assert shown["state"] == "done", shown["error"]
        assert outcome(job["output"]) == first(), "other bits through the daemon"
        return shown, wire.call("devices")["devices"], said(log)
    finally:
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(TIMEOUT_S) == 0, "the daemon's end"


def marks(devices):
    return [(x["index"], x["errors"], x["reason"]) for x in devices if x["state"] == "suspect"]


def case_daemon():
    shown, devices, _ = through_daemon("daemon", devices=min(2, n_devices()), there=n_devices())
    assert shown["attempt"] == 1 and marks(devices) == [], (shown, devices)


def case_fault(fault, words):
    """A device error ends the worker; the next one goes on from the checkpoint, to the same bits. A device that broke is
    marked, and the next attempt is made on others."""
    shown, devices, _ = through_daemon("fault", f"CUDASIM_FAULT={fault}")
    assert shown["attempt"] == 2, shown
    found = marks(devices)
    assert len(found) == (words is not None), (found, devices)
    if words is not None:
        assert found[0][1] == 1 and words in found[0][2] and found[0][0] not in shown["devices"], (found, shown["devices"])


def case_fault_in_forward_phase():
    """A device fails in a batch of a forward-only phase, whose batches do not count as steps: the job stands where phase 0
    ended. The loop looks for a call that such a batch makes."""
    for call in range(100, 3000, 40):
        out = fresh("forward")
        r = subprocess.run([PHASES, "--run", write_job(), "--backend", "cuda", "--devices", "1", "--output", out, "--quiet"],
                           env=dict(environment(1), CUDASIM_FAULT=f"launch:{call}:sticky"), capture_output=True, text=True,
                           timeout=TIMEOUT_S)
        if "of phase 1 (" in r.stderr:
            break
    assert "the devices failed in batch " in r.stderr, r.stderr
    with open(os.path.join(out, "result.json")) as f:
        result = json.load(f)
    assert (result["ok"], result["steps"]) == (False, JOB["train"]["steps"] + 2), result


def case_fault_of_one_of_two():
    """The job has one device, and goes on with the other."""
    shown, devices, _ = through_daemon("one", "CUDASIM_FAULT=launch:600:sticky", devices=1, there=2)
    assert (shown["attempt"], shown["devices"]) == (2, [1]), shown
    assert [x["state"] for x in devices] == ["suspect", "ok"] and "launch failure" in devices[0]["reason"], devices


def case_fault_of_the_only_device():
    """The job goes on with it after a while, and its success clears the mark."""
    shown, devices, log = through_daemon("only", "CUDASIM_FAULT=launch:600:sticky", devices=1, there=1)
    assert (shown["attempt"], shown["failures"]) == (2, 1), shown
    assert marks(devices) == [] and devices[0]["state"] == "ok", devices
    assert "device 0 (cudasim) is suspect, errors in a row: 1; job 1 reported: " in log and "device 0 is ok again" in log, log


def case_device_that_is_not_found(n):
    """The worker is given two devices and finds n: it names those that are missing, and the job goes on when they are back."""
    shown, devices, log = through_daemon("missing", f"CUDASIM_DEVICES={n}", there=2)
    assert (shown["attempt"], shown["failures"]) == (2, 1) and marks(devices) == [], (shown, devices)
    for device in range(2):
        assert (f"device {device} (cudasim) is suspect" in log) == (device >= n), log


def case_profile():
    """Layers are timed on the device, without a race, and a plan by these times has the same bits."""
    report, path = os.path.join(ROOT, "report.json"), fresh("profiled")
    env = dict(environment(5, report), XDG_CACHE_HOME=os.path.join(ROOT, "cache"))
    del env["TUTTI_PROFILE"]
    for words in (["--time", write_job(), "--micro-batches", "4,8"],
                  ["--run", write_job(), "--devices", str(min(2, n_devices())), "--device-memory", "96KiB", "--output", path, "--quiet"]):
        r = subprocess.run([WORKER, *words, "--backend", "cuda", "--json"], env=env, capture_output=True, text=True,
                           timeout=TIMEOUT_S)
        assert r.returncode == 0, f"exit code {r.returncode}: {r.stdout} {r.stderr}"
        if not REAL:
            with open(report) as f:
                assert json.load(f)["races"] in (0, []), "races"
    assert json.loads(r.stdout)["profile"] == "measured", r.stdout
    assert outcome(path) == first(), "other bits by measured times"


def main():
    cases = [(f"{m[2]} on {m[0]} x {m[1]} has the same bits", lambda i=i: case_machine(i)) for i, m in enumerate(MACHINES)
             if m[0] <= n_devices()]
    cases += [(f"{name} has the same bits on any machine, with updates anywhere", lambda name=name: case_precision(name))
              for name in ("bf16", "fp16")]
    cases += [("several steps in a cycle have the same bits on every machine", case_steps),
              ("three phases have the same bits on every machine", case_phases), *((f"method {name} has the same bits on any machine, and the figures of the cpu", lambda n=name: case_method(n)) for name in METHODS), ("one block or partition is backpropagation", case_one_part),
              ("method greedy is one block for each layer", case_greedy),
              ("method overlapping takes the mean of two gradients", case_mean),
              ("method sil has the same first partition whatever follows", case_first_partition),
              ("method sil keeps outputs that equal a fresh forward pass", case_kept_outputs), ("losses are within 1e-4 of the cpu's", case_losses_of_cpu), ("measured times change no bits", case_profile), (f"{SEEDS} interleavings, the same bits and no race", case_seeds),
              ("stalls are taken from traced steps", case_stalls), ("a kill and a resume leave the same bits", case_kill_and_resume), ("the same bits through the daemon", case_daemon)]
    cases += [] if REAL else [(f"a job goes on after {fault}", lambda f=fault, w=words: case_fault(f, w)) for fault, words in FAULTS]
    cases += [] if REAL else [("a failure in a forward-only phase counts no batches", case_fault_in_forward_phase),
              ("a job goes on on the other device", case_fault_of_one_of_two),
              ("a job goes on on the only device", case_fault_of_the_only_device)]
    cases += [] if REAL else [(f"a job goes on after {2 - n} devices were not found", lambda n=n: case_device_that_is_not_found(n))
                              for n in (1, 0)]
    return run_cases([c for c in cases if all(word in c[0] for word in sys.argv[4:])], ROOT)


sys.exit(main())
