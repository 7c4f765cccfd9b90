#!/usr/bin/env python3
"""tools/gpu-first-run from end to end, on a machine made of the simulator: copies of its libraries on LD_LIBRARY_PATH, as if they
were the machine's, and an nvidia-smi of paper on PATH. Prints TAP. Usage: test_first_run.py SOURCE BUILD; the environment names the simulator (on_device).
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from cases import cases_of, run_cases

SOURCE, BUILD = map(os.path.abspath, sys.argv[1:3])
TOOL = os.path.join(SOURCE, "tools", "gpu-first-run")
ROOT = tempfile.mkdtemp()
TIMEOUT_S = 3600  # only ends what hangs: no load on the machine comes near it

JOB = {
    "schema": "job/v1", "name": "small",
    "model": {"type": "mlp", "input": 40, "hidden": [32, 48], "classes": 5, "activation": "gelu"},
    "data": {"format": "synthetic", "samples": 128, "val_samples": 32, "noise": 0.5},
    "train": {"steps": 10, "global_batch": 16, "micro_batch": 8, "grad_clip": 1.0},
    "optimizer": {"type": "adamw", "lr": 1e-3},
    "resources": {"devices": 2, "device_memory": "64KiB"},
    "output": "runs/small",
}
SMI = """#!/bin/sh
case "$*" in
  -L) echo "GPU 0: paper (UUID: GPU-0)" ;;
  --query-gpu=*) echo "index, name"; echo "0, paper" ;;
  topo*) echo "GPU0 GPU1" ;;
  *) exit 1 ;;
esac
"""


def write(name, text, mode=0o644):
    path = os.path.join(ROOT, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, mode)
    return path


def runtime():
    """The CUDA runtime of this machine: not the folder from which tests take the simulator."""
    path = os.path.join(ROOT, "cuda")
    if not os.path.exists(path):
        os.mkdir(path)
        for name in ("libcudart.so.13", "libcublas.so.13"):
            shutil.copy(os.path.join(os.environ["CUDASIM_LIBS"], name), path)
    return path


def run(*words, smi=SMI, devices=2):
    """The exit code, what it printed, and the report ("": none)."""
    shutil.rmtree(os.path.join(ROOT, "out"), ignore_errors=True)
    write("bin/nvidia-smi", smi, 0o755)
    machine = {"CUDASIM_DEVICES": str(devices), "CUDASIM_MEMORY": "600M"}
    env = {**os.environ, "PATH": os.path.join(ROOT, "bin") + ":" + os.environ["PATH"], "XDG_CACHE_HOME": os.path.join(ROOT, "cache"),
           "LD_LIBRARY_PATH": runtime(), "CUDASIM_RACE": "0", **machine, "TUTTI_CUDA_REAL": " ".join("=".join(x) for x in machine.items())}
    env.pop("TUTTI_BACKEND", None)
    done = subprocess.run([TOOL, "--build", BUILD, "--out", os.path.join(ROOT, "out"), *words], env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False)
    try:
        with open(os.path.join(ROOT, "out", "report.txt"), encoding="utf-8") as f:
            return done.returncode, done.stdout, f.read()
    except OSError:
        return done.returncode, done.stdout, ""


def job():
    return write("small.json", json.dumps(JOB, indent=1))


def section(report, title):
    """What stands under "== title", up to the next one."""
    found = re.search(rf"^== {title}[^\n]*\n(.*?)(?=^== |\Z)", report, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title!r} in {report}"
    return found.group(1)


def has(text, *parts):
    for part in parts:
        assert part in text, f"no {part!r} in: {text}"


# ---- cases

def test_all_is_well():
    code, out, report = run("--job", job())
    assert code == 0, out
    has(section(report, "versions"), "0, paper", "GPU0 GPU1", "Cuda compilation tools")
    has(section(report, "devices"), "backend cuda: 2 usable cuda devices found: cudasim", '"backend":"cuda"')
    tests = section(report, "tests on the device")
    for name in ("cuda ops", "cuda contract 1", "cuda jobs", "cuda module"):
        assert re.search(rf"{name} +OK", tests), f"{name} did not run: {tests}"
    for name in ("cuda failures", "ptx2c", "gpu-first-run"):
        assert name not in tests, f"{name} ran, which is about the simulator: {tests}"
    links = section(report, "links")
    has(links, "(measured now)", '"link_bytes_per_s":{"in":')
    rates = json.loads(links[links.index("{"):])
    assert rates["link_bytes_per_s"]["in"] > 2 and rates["peer_bytes_per_s"] > 2, rates
    training = section(report, "training on cpu and cuda")
    assert re.search(r"^small-cpu +loss [0-9.]+ ", training, re.MULTILINE), training
    assert re.search(r"^small-cuda +loss [0-9.]+ ", training, re.MULTILINE), training
    found = re.search(r"same: losses differ by ([0-9.e+-]+) in the first 10 steps", training)
    assert found and 0 < float(found.group(1)) <= 1e-4, training  # other kernels: not the same bits
    with open(os.path.join(ROOT, "out", "small-cuda.json"), encoding="utf-8") as f:
        assert json.load(f)["backend"] == "cuda"
    has(section(report, "the same bits on cuda"), "small-cuda-resident", "same weights, swapped and resident")
    assert section(report, "result") == "all is well\n", report


def test_one_gpu_and_a_job_that_fails():
    """Most machines have one: tests and jobs for two share it. What fails is said and counted, and the rest is still done."""
    wrong = write("wrong.json", json.dumps({**JOB, "model": {**JOB["model"], "activation": "none such"}}))
    code, out, report = run("--job", job(), "--job", wrong, devices=1)
    assert code == 1, out
    has(section(report, "devices"), "1 usable cuda device found")
    assert re.search(r"cuda contract 1 +OK", section(report, "tests on the device")), report
    with open(os.path.join(BUILD, "meson-logs", "gpu-first-run.txt"), encoding="utf-8") as f:
        log = f.read()
    has(log, "resident on 1 x 16MiB", "test_release_and_acquire on cuda")
    assert "resident on 2 x 16MiB" not in log, "jobs ran on 2 devices"
    training = section(report, "training")
    has(training, "same: losses differ by", "FAILED: wrong-cpu", "none such", "FAILED: wrong-cuda", "FAILED: wrong: cpu and cuda")
    has(section(report, "the same bits on cuda"), "same weights, swapped and resident")
    assert section(report, "result") == "3 checks failed\n", report


def test_tests_find_the_machine_and_not_the_simulator():
    on_device, libs = os.path.join(SOURCE, "tests", "cuda", "on_device"), os.environ["CUDASIM_LIBS"]

    def path(real, before, *words):
        env = {**os.environ, "LD_LIBRARY_PATH": before, "TUTTI_CUDA_REAL": real, "TUTTI_WORKER": "false"}
        return subprocess.run([on_device, *words, "printenv", "LD_LIBRARY_PATH"], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=False).stdout

    assert path("", f"/a:{libs}:/b") == f"{libs}:/a:/b\n"
    assert path("1", f"{libs}:/a:{libs}:/b") == "/a:/b\n"
    assert path("1", libs) == ""
    assert path("1", libs, "--simulator") == "1..0 # SKIP needs the simulator\n"


def test_without_a_gpu_nothing_is_written():
    if any(os.path.exists(p) for p in ("/dev/nvidia0", "/dev/dxg")):
        return
    code, out, report = run("--job", job(), smi="#!/bin/sh\nexit 9\n")
    assert (code, report, os.path.exists(os.path.join(ROOT, "out"))) == (1, "", False), out
    has(out, "no NVIDIA GPU here")


def test_wrong_options():
    for words, says in ((["--bulid", "x"], "unknown option --bulid"), (["--job"], "--job needs a value"), (["a", "b"], "one report only")):
        code, out, _ = run(*words)
        assert code == 2, (words, out)
        has(out, says)
    code, out, report = run("--build", ROOT)
    assert code == 1 and report == "", out
    has(out, "is --build the folder of a build?")


sys.exit(run_cases(cases_of(globals()), ROOT))
