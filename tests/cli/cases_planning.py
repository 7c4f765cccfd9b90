"""What planning may take: refused by an estimate before it begins, held to its limit, stopped at once."""
import os
import re
import signal

from files import job, write_job
from harness import case

MIB = 1 << 20


def many_tasks(layers, micros, changes=None):
    """A spec of two kilobytes whose step has about 2 * layers * micros tasks."""
    base = {
        "schema": "job/v1",
        "name": "many",
        "model": {"type": "mlp", "input": 8, "hidden": [8] * (layers - 2), "classes": 4},
        "data": {"format": "synthetic", "samples": 2 * micros, "val_samples": 4},
        "train": {"steps": 2, "global_batch": micros, "micro_batch": 1},
        "optimizer": {"type": "adamw", "lr": 3e-3},
    }
    return job(base, changes)


@case(each=["--check", "--plan", "--run"])
def test_more_tasks_than_a_plan_holds_are_refused_before_planning(t, verb):
    path = write_job(t, many_tasks(512, 1024))
    t.check(os.path.getsize(path) < 4096, "the spec is large")
    r = t.worker(verb, path, "--backend", "cpu", "--output", t.path("out"), expect=2)
    t.contains(r.err, "1048576 tasks", "at most 262144", "train.micro_batch", "at most 256 micro-batches")
    t.check(not os.path.exists(t.path("out")), "it has an output")


@case(each=["--check", "--plan", "--run"])
def test_planning_beyond_the_host_memory_is_refused_with_what_would_do(t, verb):
    where = ["--backend", "cpu", "--host-memory", 300 * MIB, "--output", t.path("out")]
    path = write_job(t, many_tasks(50, 1024))
    r = t.worker(verb, path, *where, expect=5)
    t.contains(r.err, "resources.host_memory", "planning a step of", "300.00 MiB")
    rows = int(re.search(r"train.micro_batch of at least (\d+) instead of 1", r.err).group(1))
    enough = int(re.search(r"raise resources.host_memory to (\d+) bytes", r.err).group(1))
    # Both are enough, and less of either is not.
    t.worker("--check", path, "--backend", "cpu", "--host-memory", enough - MIB, expect=5)
    fewer = write_job(t, many_tasks(50, 1024, {"train.micro_batch": rows}), "fewer.json")
    t.worker("--check", fewer, *where)
    t.worker("--check", write_job(t, many_tasks(50, 1024, {"train.micro_batch": rows // 2}), "more.json"), *where, expect=5)
    t.check(not os.path.exists(t.path("out")), "it has an output")


@case
def test_small_planning_is_not_counted(t):
    """Jobs of a few thousand tasks are planned whatever the host memory, like the program itself is not counted."""
    t.worker("--check", write_job(t, many_tasks(10, 64)), "--backend", "cpu", "--host-memory", "200KB")


@case
def test_memory_of_planning_is_that_of_the_chosen_sizes(t):
    """Sizes with more tasks are planned after the chosen ones. What planning them took does not count."""
    model = {"type": "chain", "input": {"tokens": 512, "vocab": 16},
             "layers": [{"op": "embedding", "out": 4}, {"repeat": 60, "block": [{"op": "layernorm"}]}, {"op": "lm_head"}]}
    spec = many_tasks(3, 512, {"model": model, "train.micro_batch": "auto"})
    where = ["--backend", "cpu", "--device-memory", 2 * MIB, "--json"]
    auto = t.worker("--check", write_job(t, spec), *where).json()
    told = t.worker("--plan", t.path("job.json"), *where, "--no-what-if").json()["sizes_considered"]
    chosen = auto["resolved"]["micro_batch"]
    t.check(any(s["planned"] and s["micro_batch"] < chosen for s in told), f"no smaller size was planned: {told}")
    given = job(spec, {"train.micro_batch": chosen, "train.replicas": auto["resolved"]["replicas"]})
    same = t.worker("--check", write_job(t, given), *where).json()
    t.equal(auto["host_bytes"], same["host_bytes"], "host memory with the same sizes")


@case(each=["--check", "--plan", "--run"])
def test_planning_that_takes_more_than_its_limit_ends_with_an_error(t, verb):
    """As if the estimate were wrong."""
    path = write_job(t, many_tasks(20, 64))
    for limit in ("100KB", "1MB", "2MB"):
        r = t.worker(verb, path, "--backend", "cpu", "--planning-memory", limit, "--output", t.path("out"), expect=5)
        t.contains(r.err, "planning ran out of memory", "resources.host_memory", "train.micro_batch")
    t.check(not os.path.exists(t.path("out")), "it has an output")
    t.worker("--check", path, "--backend", "cpu", "--planning-memory", "64MB")


@case
def test_planning_error_of_every_policy_is_told(t):
    r = t.worker("--plan", write_job(t, many_tasks(20, 64)), "--policy", "all", "--backend", "cpu", "--planning-memory",
                 "1MB", "--json", expect=5)
    t.contains(r.out, "planning ran out of memory")


@case(each=["--check", "--plan", "--run"])
def test_interrupt_ends_planning_at_once(t, verb):
    """Planning takes seconds here. The program is interrupted when it has worked for a while, and ends by the signal."""
    path = write_job(t, many_tasks(50, 1024))
    live = t.start(verb, path, "--backend", "cpu", "--output", t.path("out"))
    live.until(lambda: resident_kib(live.process.pid) > 150 * 1024, "planning has begun")
    live.signal(signal.SIGINT)
    t.equal(live.wait().code, -signal.SIGINT, "how it ended")
    t.check(not os.path.exists(t.path("out")), "it has an output")


def resident_kib(pid):
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))
    except (OSError, AttributeError):
        return 0
