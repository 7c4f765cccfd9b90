"""What --check and --plan say that a job needs of a machine, against the plan, and against the memory that a worker takes."""
import os

import strace
from files import DELETE, SMALL, job, write_job
from harness import case

MIB = 1 << 20
# The state of these jobs is much larger than the program, and than the device that they get.
LARGE = {
    "chain": (job(SMALL, {"model": {"type": "mlp", "input": 64, "hidden": [1536] * 6, "classes": 4}, "train.steps": 4,
                          "train.grad_clip": 1.0}), 24 * MIB),
    "long rows": (job(SMALL, {"model": {"type": "gpt2", "layers": 2, "heads": 2, "width": 128, "vocab": 50257,
                                        "context": 64, "dropout": 0}, "data": {"format": "synthetic", "samples": 16},
                              "eval": DELETE,
                              "train": {"steps": 2, "global_batch": 8, "micro_batch": 4}}), 80 * MIB),
    "cycles": (job(SMALL, {"model": {"type": "mlp", "input": 64, "hidden": [1536] * 6, "classes": 4}, "train.steps": 5,
                           "memory": {"cycle_steps": 2}}), 30 * MIB),
}


def needs(t, verb, path, *options):
    return t.worker(verb, path, "--json", *options).json()


def peak_bytes(t, *options):
    """The most memory that the worker had, without the files that it maps (its code and libraries)."""
    live = t.start(*options)
    _, status, used = os.wait4(live.process.pid, 0)
    live.process.returncode = os.waitstatus_to_exitcode(status)
    t.equal(live.wait().code, 0, "exit code")
    return used.ru_maxrss * 1024


@case(each=["one phase", "two devices", "several phases", "local updates"])
def test_verbs_agree_and_the_numbers_are_those_of_the_plans(t, what):
    changes = {"several phases": {"method": {"type": "sil", "partitions": 2}, "train": {"steps": 12, "global_batch": 24}},
               "local updates": {"method": {"type": "local", "scheme": "chunked", "blocks": 2, "resident_steps": 2}}}
    where = ["--devices", 2 if what == "two devices" else 1, "--device-memory", "1MiB", "--backend", "cpu"]
    path = write_job(t, job(SMALL, changes.get(what)))
    check, plan = needs(t, "--check", path, *where), needs(t, "--plan", path, *where, "--no-what-if")
    found = check["needs"]
    t.equal(plan["needs"], found, "what --plan says")
    t.equal((found["steps"], len(found["device_bytes"]), found["times"]), (check["steps"], check["devices"], "analytic"),
            "steps, devices and source of the times")
    peaks = [p["device_peak_bytes"] for p in check["phases"]] if "phases" in check else [plan["device_peak_bytes"]]
    for d, bytes in enumerate(found["device_bytes"]):
        t.check(bytes >= max(p[d] for p in peaks), f"device {d}: {bytes} bytes, but the plans use {peaks}")
        t.check(bytes <= MIB, f"device {d} has less than {bytes} bytes")
    if what == "one phase":
        t.equal(found["step_ns"], round(plan["iteration_s"] * 1e9), "the time of a step")
    t.check(found["step_ns"] > 0, "the time of a step")
    host = found["host_bytes"]
    t.check(plan["host_bytes"] <= host["running"] < min(host["loading"], host["saving"]), f"host bytes {host}")
    text = t.worker("--check", path, *where).out
    t.contains(text, "planning ", "loading ", "saving ", " a step, ")


@case(each=LARGE)
def test_host_bytes_are_what_a_worker_takes(t, name):
    """The memory of a device of the backend cpu is host memory too, so it counts here. A second run only loads."""
    if strace.sanitized(t.program):
        t.skip("a sanitizer takes memory of its own")
    spec, memory = LARGE[name]
    where = ["--backend", "cpu", "--devices", 1, "--device-memory", memory, "--host-memory", "2GiB", "--threads", 2]
    path, out = write_job(t, spec), t.path("out")
    found = needs(t, "--check", path, *where)["needs"]
    device, host = sum(found["device_bytes"]), found["host_bytes"]
    run = ["--run", path, "--output", out, "--quiet", *map(str, where)]
    whole, again = peak_bytes(t, *run), peak_bytes(t, *run)
    most = max(host.values()) + device
    t.check(0.8 * most <= whole <= most, f"a run takes {whole} bytes, and {most} are predicted: {found}")
    t.check(again <= host["loading"] + device, f"loading takes {again} bytes: {found}")
    check = peak_bytes(t, "--check", path, *map(str, where))
    t.check(check <= host["planning"], f"planning takes {check} bytes: {found}")


@case
def test_a_plan_of_a_profile_has_no_needs(t):
    profile = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "profiles")
    name = sorted(n for n in os.listdir(profile) if n.endswith(".json"))[0]
    r = t.worker("--plan-profile", os.path.join(profile, name), "--rows", 1, "--batch", 8, "--devices", 1,
                 "--device-memory", "80GB", "--json", "--no-what-if", expect=None)
    t.check("needs" not in r.json(), "needs of a profile")
