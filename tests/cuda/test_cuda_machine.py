#!/usr/bin/env python3
"""Discovery on simulated CUDA devices: what --probe finds, measures and keeps, topology files, and memory that other processes use,
by the worker alone and through the daemon. Prints TAP. Usage: test_cuda_machine.py TUTTID TUTTI_WORKER; the environment names the
simulator (on_device).
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from cases import Wire, cases_of, run_cases

TUTTID, WORKER = map(os.path.abspath, sys.argv[1:3])
ROOT = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
TIMEOUT_S = 3600  # only ends what hangs: no load on the machine comes near it
MIB = 1 << 20
TOTAL, RESERVE = 1024 * MIB, 256 * MIB

JOB = {
    "schema": "job/v1", "name": "small",
    "model": {"type": "mlp", "input": 24, "hidden": [32], "classes": 5},
    "data": {"format": "synthetic", "samples": 64},
    "train": {"steps": 4, "global_batch": 8, "micro_batch": 4},
    "optimizer": {"type": "sgd", "lr": 0.1},
}


def fresh(name):
    path = os.path.join(ROOT, name)
    shutil.rmtree(path, ignore_errors=True)
    return path


def write(name, value):
    path = os.path.join(ROOT, name)
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.write(value if isinstance(value, str) else json.dumps(value))
    os.rename(path + ".new", path)
    return path


def environment(**settings):
    env = {**os.environ, "XDG_CACHE_HOME": os.path.join(ROOT, "cache"), "CUDASIM_DEVICES": "2", "CUDASIM_MEMORY": "1G", "CUDASIM_RACE": "0"}
    env.pop("TUTTI_BACKEND", None)
    env.update({f"CUDASIM_{k.upper()}": v for k, v in settings.items()})
    return env


def worker(*words, expect=0, env=None, **settings):
    r = subprocess.run([WORKER, *words], env=env or environment(**settings), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert r.returncode == expect, f"exit code {r.returncode} of {words}, not {expect}: {r.stdout} {r.stderr}"
    return r


def probe(*words, **settings):
    return json.loads(worker("--probe", "--json", *words, **settings).stdout)


def free(found):
    return [x["free_bytes"] for x in found["machine"]["devices"]]


def train(*words, expect=0, **settings):
    """Result and the simulator's report."""
    report = fresh("report.json")
    r = worker("--run", write("job.json", JOB), "--output", fresh("out"), "--quiet", "--json", *words, expect=expect, report=report, **settings)
    with open(report, encoding="utf-8") as f:
        return json.loads(r.stdout), json.load(f)


def has(text, *parts):
    for part in parts:
        assert part in text, f"no {part!r} in {text}"


def equal(found, want, what):
    assert found == want, f"{what}: {found}, not {want}"


# ---- --probe

def test_probe_finds_devices():
    found = probe()
    equal((found["backend"], found["backend_reason"]), ("cuda", "2 usable cuda devices found: cudasim"), "backend")
    equal((found["reserve_bytes"], found["measured"], found["cache"]), (RESERVE, False, None), "reserve and rates")
    devices = found["machine"]["devices"]
    equal([(x["index"], x["name"], x["bus_id"], x["memory_bytes"], x["free_bytes"]) for x in devices],
          [(0, "cudasim", "0000:01:00.0", TOTAL, TOTAL), (1, "cudasim", "0000:02:00.0", TOTAL, TOTAL)], "devices")
    assert devices[0]["uuid"] != devices[1]["uuid"] and devices[0]["uuid"].startswith("GPU-"), devices
    equal(found["machine"]["peers"], [[False, True], [True, False]], "peers")
    equal(probe(peer="0")["machine"]["peers"], [[False, False], [False, False]], "peers where none is direct")
    has(worker("--probe").stdout, "backend cuda: 2 usable cuda devices found", "device 1  cudasim, 1.00 GiB, free 1.00 GiB, for jobs 768.00 MiB")


def test_probe_without_devices():
    found = probe(devices="0")
    equal(found["backend"], "cpu", "backend")
    has(found["backend_reason"], "cuda cannot be used here", "CUDA_VISIBLE_DEVICES")
    has(worker("--probe", "--backend", "cuda", expect=2, devices="0").stderr, "no device")


def test_probe_counts_what_others_use():
    equal(free(probe(used="600M,0")), [TOTAL - 600 * MIB, TOTAL], "free")
    has(worker("--probe", used="900M").stdout, "device 0  cudasim, 1.00 GiB, free 124.00 MiB, for jobs 0 B")


def test_probe_of_some_devices_asks_no_other():
    found = probe("--only", "1", used="600M,100M")
    equal(free(found), [0, TOTAL - 100 * MIB], "free of the one that was asked")
    equal(len({x["uuid"] for x in found["machine"]["devices"]}), 2, "both are described")
    text = worker("--probe", "--only", "1").stdout
    has(text, "device 0  cudasim, 1.00 GiB, 0000:01", "device 1  cudasim, 1.00 GiB, free 1.00 GiB")
    for wrong in ("", ",", "1,", "x", "64", "1;2", "-1"):
        has(worker("--probe", "--only", wrong, expect=2).stderr, "--only: expected numbers below 64")
    has(worker("--probe", "--only", "0", "--measure", expect=2).stderr, "--only does not go with --measure")


# ---- --measure

def test_measured_rates_are_kept_for_the_same_devices():
    cache = fresh("cache")
    found = probe("--measure")
    machine = found["machine"]
    rates = (machine["link_bytes_per_s"], machine["peer_bytes_per_s"])
    assert found["measured"] and rates[0]["in"] > 2 and rates[0]["out"] > 2 and rates[1] > 2, found
    assert machine["peers"][0][1] > 2 and machine["peers"][0][0] is False, machine
    equal(os.path.dirname(found["cache"]), os.path.join(cache, "tutti"), "where it is kept")
    again = probe()
    equal((again["measured"], again["cache"]), (True, found["cache"]), "the second time")
    equal((again["machine"]["link_bytes_per_s"], again["machine"]["peer_bytes_per_s"]), rates, "its rates")
    has(worker("--probe").stdout, "(measured before)")
    equal(probe(devices="1")["measured"], False, "of other devices")
    equal(probe("--only", "0")["measured"], True, "of the same devices, though one was not asked")
    equal(probe(used="600M")["measured"], True, "of the same devices, with less free")
    with open(found["cache"], "w", encoding="utf-8") as f:
        f.write("{")
    r = worker("--probe", "--json")
    equal(json.loads(r.stdout)["measured"], False, "of a damaged file")
    has(r.stderr, found["cache"])


def test_measuring_needs_memory():
    r = worker("--probe", "--measure", expect=1, used="900M")
    has(r.stderr, "device 0 has", "measuring needs")


# ---- --machine

def test_topology_file_goes_elsewhere_and_back():
    path = os.path.join(ROOT, "machine.json")
    worker("--probe", "--out", path, used="600M,0")
    elsewhere = {k: v for k, v in environment().items() if k != "LD_LIBRARY_PATH" and not k.startswith("CUDASIM")}
    plan = json.loads(worker("--plan", write("job.json", JOB), "--machine", path, "--json", env=elsewhere).stdout)
    equal((plan["backend"], plan["verified"]), ("cuda", True), "a plan where there is no device")
    plain, _ = train()
    by_file, report = train("--machine", path)
    equal(by_file["weights_hash"], plain["weights_hash"], "bits of a run by the file")
    equal([x["kernels"] > 0 for x in report["devices"]], [False, True], "devices that computed: the one with more free")


def test_topology_file_chooses_devices():
    path = os.path.join(ROOT, "machine.json")
    machine = probe()["machine"]
    for index in (0, 1):
        machine_of_one = {**machine, "devices": [machine["devices"][index]], "peers": [[False]]}
        _, report = train("--machine", write("machine.json", machine_of_one))
        equal([x["kernels"] > 0 for x in report["devices"]], [index == 0, index == 1], f"devices of a file with number {index}")
    assert os.path.exists(path)


# ---- memory of others

def test_job_takes_the_device_with_the_most_free():
    for used, want in (("0,100M", 0), ("100M,0", 1)):
        result, report = train(used=used)
        equal([x["kernels"] > 0 for x in report["devices"]], [want == 0, want == 1], f"devices that computed with {used}")
        equal(result["devices"][0]["capacity_bytes"], TOTAL - RESERVE, "its memory: what is free, less the reserve")


def test_job_that_asks_for_more_than_is_free_is_refused():
    r = worker("--run", write("job.json", JOB), "--output", fresh("out"), "--device-memory", "800MiB", expect=5, used="600M,500M")
    has(r.stderr, "asks for 800.00 MiB on 1 device", "device 0 (cudasim) has 424.00 MiB of 1.00 GiB free", "device 1 (cudasim) has 524.00 MiB")
    r = worker("--run", write("job.json", JOB), "--output", fresh("out"), expect=5, used="900M,900M")
    has(r.stderr, "too little is free")
    assert not os.path.exists(os.path.join(ROOT, "out")), "the output was made"


# ---- the daemon

def in_daemon(function):
    """With --restart-delay 0 it looks before every start. What others use is read from a file, by a script in the worker's place: the
    daemon gives its workers a clean environment."""
    names = ("LD_LIBRARY_PATH", "CUDASIM_KERNELS", "CUDASIM_DEVICES", "CUDASIM_MEMORY", "CUDASIM_RACE")
    script = write("worker.sh", "#!/bin/sh\n" + "".join(f"export {n}='{environment()[n]}'\n" for n in names) +
                   f"export CUDASIM_USED=\"$(cat '{ROOT}/used')\"\nexec '{WORKER}' \"$@\"\n")
    os.chmod(script, 0o700)
    path = os.path.join(ROOT, "s")
    log = os.path.join(ROOT, "daemon.log")
    with open(log, "w", encoding="utf-8") as err:
        daemon = subprocess.Popen([TUTTID, "--user", "--socket", path, "--state", fresh("state"), "--backend", "cuda", "--worker", script,
                                   "--restart-delay", "0"], stderr=err)
    try:
        while daemon.poll() is None and not os.path.exists(path):
            time.sleep(0.01)
        assert daemon.poll() is None, open(log, encoding="utf-8").read()
        function(Wire(path))
    finally:
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(TIMEOUT_S) == 0, "the daemon's end"


def submit(wire, **resources):
    return wire.call("submit", spec={**JOB, "output": fresh("job"), "resources": resources}, dir=ROOT)["id"]


def test_daemon_hands_out_what_others_leave():
    write("used", "600M,100M")

    def check(wire):
        found = wire.call("devices")
        equal([(x["free_bytes"], x["memory_bytes"]) for x in found["devices"]],
              [(424 * MIB, 168 * MIB), (924 * MIB, 668 * MIB)], "free, and for jobs")
        j = wire.until(submit(wire), lambda j: j["state"] == "done")
        equal((j["devices"], j["report"]["devices"][0]["capacity_bytes"]), ([1], 668 * MIB), "what a job gets")

    in_daemon(check)


def test_daemon_waits_for_memory_that_others_took():
    write("used", "0,0")

    def check(wire):
        write("used", "900M,700M")
        number = submit(wire, device_memory="500MiB")  # admitted: the devices have had that
        j = wire.until(number, lambda j: "has" in j["reason"])
        equal((j["state"], j["attempt"], j["reason"]),
              ("queued", 0, "waits for 1 device with 500.00 MiB: device 0 (cudasim) has 0 B for jobs, device 1 (cudasim) has 68.00 MiB for jobs"),
              "a job that does not fit now")
        equal([x["free_bytes"] for x in wire.call("devices")["devices"]], [124 * MIB, 324 * MIB], "what the daemon shows")
        small = submit(wire)
        equal(wire.until(small, lambda j: j["state"] == "done")["devices"], [1], "the job behind it, which takes what there is")
        write("used", "900M,0")
        equal(wire.until(number, lambda j: j["state"] == "done")["devices"], [1], "the job, when there is room again")

    in_daemon(check)


sys.exit(run_cases(cases_of(globals()), ROOT))
