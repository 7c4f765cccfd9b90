"""Several training steps in one run of the plan (memory.cycle_steps). Evaluations, checkpoints and the end come at the
steps that the job names, and no number of steps changes a bit, whatever the memory, the devices, kills and resumes.
"""
import os
import random
import signal

from files import (POLICIES, SMALL, TINY, check_output, checkpoint_steps, job, leftovers, outcome, read_json, read_metrics,
                   same_outcome, steps_in_metrics, write_job)
from harness import case, once

TOTAL = 23
# The pauses between evaluations and checkpoints: DENSE has at most 3 steps between two of them, SPARSE up to 9.
DENSE = job(SMALL, {"train.steps": TOTAL, "model.dropout": 0.1, "train.grad_clip": 1.0, "eval.every": {"steps": 5},
                    "checkpoint": {"every": {"steps": 3}, "keep": 100}})
SPARSE = job(DENSE, {"eval.every": {"steps": 11}, "checkpoint.every": {"steps": 9}})
JOBS = {"dense": DENSE, "sparse": SPARSE}
TIGHT = ["--devices", 2, "--device-memory", "24KiB"]
MACHINES = [["--devices", 1], TIGHT, ["--devices", 2, "--policy", "harmony-pp"], ["--device-memory", "40KiB"]]


def run(t, path, out, *options, **more):
    return t.worker("--run", path, "--output", out, "--quiet", *options, **more)


def reference(t, name):
    """The outcome of the job with one step in a cycle, which it has if it does not say."""
    def make():
        out = t.fresh("reference")
        run(t, write_job(t, JOBS[name]), out)
        return outcome(out)

    return once("steps " + name, make)


def cycle_job(t, name, k):
    return write_job(t, job(JOBS[name], {"memory.cycle_steps": k}), f"job-{k}.json")


@case(each=["dense 2", "dense 4", "dense 7", "sparse 2", "sparse 4", "sparse 7", "sparse 64", "sparse auto"])
def test_steps_of_a_cycle_do_not_change_bits(t, words):
    name, k = words.split()
    k = k if k == "auto" else int(k)
    for options in [[], [*TIGHT, "--delay-seed", 7]]:
        out = t.fresh("out")
        run(t, cycle_job(t, name, k), out, *options)
        same_outcome(t, out, reference(t, name), f"{name}, {k} steps in a cycle, {options}")
        every = JOBS[name]["checkpoint"]["every"]["steps"]
        t.equal(checkpoint_steps(out), [*range(every, TOTAL, every), TOTAL], "checkpoints")
        t.equal([m[0] for m in read_metrics(out) if m[1] != "val"], list(range(1, TOTAL + 1)), "steps in metrics.jsonl")
        t.equal(leftovers(out), [], "left behind")


@case(each=POLICIES)
def test_policy_does_not_change_bits(t, policy):
    out = t.path("out")
    memory = {"resident": "64MiB", "blocks": "64MiB", "lru": "40KiB"}.get(policy, "24KiB")
    run(t, cycle_job(t, "sparse", 4), out, "--policy", policy, "--devices", 2, "--device-memory", memory)
    same_outcome(t, out, reference(t, "sparse"), policy)


@case
def test_auto_micro_batch_does_not_depend_on_the_steps_of_a_cycle(t):
    sizes = []
    for k in [1, 4]:
        out = t.path(f"out-{k}")
        spec = job(SPARSE, {"memory.cycle_steps": k, "train.micro_batch": "auto"})
        run(t, write_job(t, spec, f"job-{k}.json"), out, *TIGHT)
        sizes.append((read_json(os.path.join(out, "resolved.json")), outcome(out)))
    t.equal(sizes[1], sizes[0], "resolved.json and outcome")


# ---- kills and stops ----

@case(each=[(1, [1]), (2, [2]), (3, [4]), (4, [7]), (5, [1, 2, 4, 7])])
def test_killed_resumes_to_the_same_bits(t, case_of):
    """Killed at random steps and resumed, on other machines and with other numbers of steps in a cycle."""
    seed, ks = case_of
    rng, out, name, kills = random.Random(seed), t.path("out"), "dense" if seed == 2 else "sparse", 0
    while steps_in_metrics(out) < TOTAL - 3:
        goal = steps_in_metrics(out) + rng.randrange(1, 6)
        options = [*rng.choice(MACHINES), "--delay-seed", rng.randrange(1, 1000)]
        live = t.start("--run", cycle_job(t, name, rng.choice(ks)), "--output", out, "--quiet", *map(str, options))
        live.until(lambda at=live, step=goal: steps_in_metrics(out) >= step or not at.alive(), f"step {goal}")
        kills += live.kill().code == -9
        check_output(out)
    run(t, cycle_job(t, name, ks[-1]), out)
    same_outcome(t, out, reference(t, name), f"after {kills} kills")


@case(each=[2, 4, 7])
def test_stopped_at_the_end_of_a_cycle_resumes_to_the_same_bits(t, k):
    path, out = cycle_job(t, "sparse", k), t.path("out")
    live = t.start("--run", path, "--output", out, "--quiet", "--delay-seed", "5")
    live.until(lambda: steps_in_metrics(out) >= 3 or not live.alive(), "step 3")
    live.signal(signal.SIGTERM)
    stopped = live.wait()
    t.check(stopped.code in (0, 128 + signal.SIGTERM), f"exit code {stopped.code}")
    result = read_json(os.path.join(out, "result.json"))
    t.equal((result["steps"], result["stopped"]), (checkpoint_steps(out)[-1], stopped.code != 0), "steps, stopped")
    run(t, cycle_job(t, "sparse", 1), out, *TIGHT)
    same_outcome(t, out, reference(t, "sparse"), f"after a stop at step {result['steps']}")


# ---- limits ----

@case
def test_too_many_tasks_name_the_limit(t):
    """One step of about 5000 tasks is small enough for a plan, but 64 of them are not."""
    spec = job(TINY, {"data.samples": 800, "train.global_batch": 800, "train.micro_batch": 1,
                      "memory.cycle_steps": 64})
    refused = t.worker("--check", write_job(t, spec), expect=None)
    t.check(refused.code != 0, "a cycle of too many tasks was accepted")
    t.contains(refused.err, "memory.cycle_steps", "tasks than a plan can hold", "steps in a cycle")


@case
def test_planning_memory_names_the_limit(t):
    spec = job(TINY, {"data.samples": 80, "train.global_batch": 80, "train.micro_batch": 1,
                      "memory.cycle_steps": 64, "resources.host_memory": "100MiB"})
    refused = t.worker("--check", write_job(t, spec), expect=None)
    t.check(refused.code != 0, "a cycle that is too large to plan was accepted")
    t.contains(refused.err, "memory.cycle_steps", "steps in a cycle")


@case(each=[(0, "1"), (65, "64"), ("many", "auto")])
def test_number_of_steps_is_checked(t, case_of):
    k, part = case_of
    refused = t.worker("--check", cycle_job(t, "dense", k), expect=None)
    t.check(refused.code != 0, f"{k} was accepted")
    t.contains(refused.err, "memory.cycle_steps", part)


LOCAL = {"schema": "job/v1", "model": {"type": "gpt2", "layers": 8, "width": 64, "heads": 4, "vocab": 256, "context": 16,
                                       "tied": False},
         "data": {"format": "synthetic", "samples": 64}, "train": {"steps": 400, "global_batch": 8, "micro_batch": 4, "replicas": 1},
         "method": {"type": "local", "scheme": "chunked", "blocks": 8}, "optimizer": {"type": "adamw", "lr": 1e-3}}


@case
def test_reason_for_the_chosen_steps(t):
    """The largest number is named as the limit only if it was chosen, and the gain only if another number was chosen."""
    path = write_job(t, LOCAL)
    for memory in ("2500KiB", "3MiB"):
        plan = t.worker("--plan", path, "--no-what-if", "--device-memory", memory, "--json").json()
        largest = plan["cycle_limit"] == "most steps that a cycle can have"
        t.equal(largest, plan["cycle_steps"] == 64, f"{memory}: {plan['cycle_steps']} steps, limit: {plan['cycle_limit']}")


@case
def test_more_steps_are_not_chosen_without_host_memory_for_the_plan_of_one(t):
    """The plan of one step was made when all host memory was free. It must also fit beside the graphs and the plan of more
    steps, which take over 60 MB here with four steps, and do not count with two."""
    path = write_job(t, {
        "schema": "job/v1", "model": {"type": "mlp", "input": 10, "hidden": [800] * 12, "classes": 4, "activation": "tanh"},
        "data": {"format": "synthetic", "samples": 64}, "optimizer": {"type": "adamw", "lr": 1e-3},
        "train": {"steps": 4, "global_batch": 64, "micro_batch": 1, "replicas": 1}, "memory": {"policy": "blocks", "optimizer_on": "device"},
        "method": {"type": "local", "scheme": "greedy"}, "resources": {"device_memory": "24MiB", "host_memory": "130MiB"}})
    plan = t.worker("--plan", path, "--no-what-if", "--json").json()
    t.equal((plan["cycle_steps"], plan["cycle_limit"]), (2, "host memory"), "steps in a cycle, and their limit")
