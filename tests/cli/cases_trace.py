"""trace.json: some steps of a run as they were measured, beside the plan's prediction."""
import os
import signal

from files import (DELETE, SMALL, job, leftovers, outcome, plan_program, read_json, same_outcome, sha256, steps_in_metrics,
                   write_job)
from harness import case

ENDLESS = 1_000_000
SPEC = job(SMALL, {"train.steps": 9, "eval": DELETE, "checkpoint": DELETE, "model.dropout": 0.1})
WHERE = ["--policy", "harmony-pp", "--devices", 2, "--device-memory", "64KiB"]


def trace_of(out):
    return os.path.join(out, "trace.json")


def parts_of(t, path):
    """{"run": [events], "plan": [events]} of a trace, with names that are checked; events have their track."""
    trace = read_json(path)
    t.equal(trace["displayTimeUnit"], "ms", "displayTimeUnit")
    events = trace["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    tracks = {e["tid"]: (processes[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    parts = {}
    for name in processes.values():
        parts.setdefault(name.split("(")[1].rstrip(")"), [])
    for e in events:
        if e["ph"] != "X":
            continue
        process, track = tracks[e["tid"]]
        t.equal(process, processes[e["pid"]], f"the process of {e}")
        where, part = process.rstrip(")").split(" (")
        parts[part].append({**e, "track": (where, track)})
    return parts


def meaning(e):
    """An event without its times."""
    return e["name"], e["cat"], e["track"], tuple(sorted(e["args"].items()))


def check_part(t, name, events, cycle, runs):
    """Every instruction but drops once per run; times that the plan allows."""
    at = {(e["args"]["run"], e["args"]["instr"]): e for e in events}
    expected = {(run, i) for run in range(runs) for i, instr in enumerate(cycle) if instr["kind"] != "DROP"}
    t.equal(len(at), len(events), f"{name}: events, each once")
    t.equal(set(at), expected, f"{name}: runs and instructions")
    t.equal(min(e["ts"] for e in events), 0, f"{name}: the beginning")
    ends = {}
    for (run, i), e in sorted(at.items()):
        t.check(e["dur"] >= 0, f"{name}: {e}")
        slack = 1e-3  # of sums of decimal fractions
        t.check(e["ts"] >= ends.get(e["track"], 0) - slack, f"{name}: two at once on one track: {e}")
        ends[e["track"]] = e["ts"] + e["dur"]
        for instr, distance in cycle[i]["waits"]:
            before = at.get((run - distance, instr))  # none: a drop, or before the window
            t.check(before is None or e["ts"] >= before["ts"] + before["dur"] - slack,
                    f"{name}: {e} began before {before} had ended")


def check_trace(t, path, cycle, runs):
    parts = parts_of(t, path)
    t.equal(sorted(parts), ["plan", "run"], "parts")
    for name, events in parts.items():
        check_part(t, name, events, cycle, runs)
    t.equal([meaning(e) for e in parts["run"]], [meaning(e) for e in parts["plan"]], "events but for their times")
    moved = sum(e["args"]["bytes"] for e in parts["run"] if e["cat"] == "move" and e["args"]["run"] == 0)
    t.check(moved > 0, "no bytes in the trace")
    return moved


def cycle_of(t, path, *options):
    t.worker("--plan", path, *options, "--out", t.path("plan.json"), "--output", t.path("nothing"))
    return plan_program(read_json(t.path("plan.json")), "cycle")


@case(each=["harmony-pp", "stream", "resident"])
def test_trace_of_a_run_has_measured_and_predicted(t, policy):
    path, out = write_job(t, SPEC), t.path("out")
    where = ["--policy", policy, "--devices", 3, "--device-memory", "1MiB"]
    r = t.worker("--run", path, "--output", out, "--json", "--quiet", *where).json()
    moved = check_trace(t, trace_of(out), cycle_of(t, path, *where), 3)
    t.equal(moved, sum(r["step_bytes"][way] for way in ("in", "out", "peer")), "bytes of one step")
    t.equal(leftovers(out), [], "left behind")


@case
def test_trace_of_the_plan_alone_has_the_same_form(t):
    path, out = write_job(t, SPEC), t.path("out")
    t.worker("--run", path, "--output", out, "--quiet", *WHERE)
    t.worker("--plan", path, "--trace", t.path("plan-trace.json"), *WHERE)
    alone = parts_of(t, t.path("plan-trace.json"))
    t.equal(sorted(alone), ["plan"], "parts")
    both = parts_of(t, trace_of(out))
    t.equal([meaning(e) for e in alone["plan"]], [meaning(e) for e in both["run"]], "events but for their times")


@case(each=[("a short job", {"train.steps": 2}, 3, 2), ("one step", {"train.steps": 1}, 3, 1),
            ("a checkpoint after each step", {"checkpoint": {"every": {"steps": 1}, "keep": 1}}, 3, 1),
            ("an evaluation in the way", {"eval": {"every": {"steps": 4}}}, 3, 3),
            ("more than there is", {}, 100, 9), ("one", {}, 1, 1)])
def test_trace_has_as_many_steps_as_can_be(t, value):
    _, changes, steps, runs = value
    path, out = write_job(t, job(SPEC, changes)), t.path("out")
    t.worker("--run", path, "--output", out, "--quiet", "--trace-steps", steps, *WHERE)
    check_trace(t, trace_of(out), cycle_of(t, path, *WHERE), runs)


@case
def test_trace_changes_no_bits(t):
    spec = job(SPEC, {"eval": {"every": {"steps": 4}}, "checkpoint": {"every": {"steps": 3}, "keep": 2}})
    path, expected = write_job(t, spec), None
    for steps in (0, 3, 100):
        for options in ([], ["--delay-seed", 5]):
            out = t.fresh("out")
            t.worker("--run", path, "--output", out, "--quiet", "--trace-steps", steps, *WHERE, *options)
            expected = expected or outcome(out)
            same_outcome(t, out, expected, f"--trace-steps {steps} {options}")
            t.equal(os.path.exists(trace_of(out)), steps > 0, "trace.json")


@case
def test_trace_of_a_killed_run_is_that_of_the_run_that_goes_on(t):
    spec = job(SPEC, {"train.steps": 40, "checkpoint": {"every": {"steps": 3}, "keep": 2}})
    path, out = write_job(t, spec), t.path("out")
    live = t.start("--run", path, "--output", out, "--quiet", "--delay-seed", 2, *WHERE)
    live.until(lambda: steps_in_metrics(out) >= 10, "step 10")
    live.kill()
    t.check(not os.path.exists(trace_of(out)), "a trace of a run that did not end")
    with open(trace_of(out) + ".tmp", "w") as f:
        f.write("half of a trace")
    t.worker("--run", path, "--output", out, "--quiet", *WHERE)
    check_trace(t, trace_of(out), cycle_of(t, path, *WHERE), 3)
    t.equal(leftovers(out), [], "left behind")
    before = sha256(trace_of(out))
    with open(trace_of(out) + ".tmp", "w") as f:
        f.write("half of a trace")
    t.worker("--run", path, "--output", out, "--quiet", *WHERE)  # nothing is left to do
    t.equal(sha256(trace_of(out)), before, "the trace after a run that made no step")
    t.equal(leftovers(out), [], "left behind")


@case(each=[("complete", 3, 12), ("not complete", 1000, 3)])
def test_trace_of_a_stopped_run_is_written_if_complete(t, value):
    what, steps, after = value
    path, out = write_job(t, job(SPEC, {"train.steps": ENDLESS})), t.path("out")
    live = t.start("--run", path, "--output", out, "--quiet", "--trace-steps", steps, *WHERE)
    live.until(lambda: steps_in_metrics(out) >= after, f"step {after}")
    live.signal(signal.SIGTERM)
    t.equal(live.wait().code, 143, "exit code")
    if what == "complete":
        check_trace(t, trace_of(out), cycle_of(t, path, *WHERE), steps)
    elif steps_in_metrics(out) < steps:
        t.check(not os.path.exists(trace_of(out)), "a trace of steps that were not made")


@case
def test_trace_that_cannot_be_written_does_not_fail_the_job(t):
    path, out = write_job(t, SPEC), t.path("out")
    os.makedirs(os.path.join(trace_of(out), "in", "the", "way"))
    run = t.worker("--run", path, "--output", out, "--quiet", "--json", *WHERE)
    t.equal(run.json()["ok"], True, "ok")
    t.equal(len(run.err.splitlines()), 1, "lines on standard error")
    t.contains(run.err, trace_of(out), "cannot write", "not affected", what="the warning")
    t.equal(leftovers(out), [], "left behind")
    plain = t.path("plain")
    t.worker("--run", path, "--output", plain, "--quiet", *WHERE)
    same_outcome(t, out, outcome(plain), "without a trace")


@case(each=["--check", "--plan"])
def test_trace_steps_go_with_a_run(t, verb):
    run = t.worker(verb, write_job(t, SPEC), "--trace-steps", 3, expect=2)
    t.contains(run.err, f"--trace-steps: does not go with {verb}; it goes with --run", what="standard error")
