"""SIGTERM, SIGINT and SIGHUP stop a run after a checkpoint; it goes on from there to the same bits."""
import os
import random
import signal

from files import (SMALL, check_checkpoint, check_output, checkpoint_steps, job, leftovers, outcome, read_json,
                   read_metrics, same_outcome, steps_in_metrics, write_job)
from harness import case

ENDLESS = 1_000_000  # steps; a constant schedule may be shortened afterwards
SPEC = job(SMALL, {"train.steps": ENDLESS, "model.dropout": 0.1, "train.grad_clip": 1.0,
                   "eval": {"every": {"steps": 6}}, "checkpoint": {"every": {"steps": ENDLESS}, "keep": 2}})
WHERE = ["--devices", 2, "--policy", "stream", "--device-memory", "256KiB"]


def stop(t, out, number, after, *options):
    """Starts the endless job, stops it with a signal when `after` more steps are known, and returns how it ended."""
    path, goal = write_job(t, SPEC), steps_in_metrics(out) + after
    live = t.start("--run", path, "--output", out, *WHERE, *options)
    live.until(lambda: steps_in_metrics(out) >= goal, f"step {goal}")
    live.signal(number)
    return live.wait()


def finish_and_compare(t, out, steps):
    """The same job, shortened to `steps`, after its stops and without any."""
    path, plain = write_job(t, job(SPEC, {"train.steps": steps}), "short.json"), t.fresh("plain")
    for where in (out, plain):
        t.worker("--run", path, "--output", where, "--quiet", *WHERE)
    same_outcome(t, out, outcome(plain), "stopped and gone on")
    t.equal(leftovers(out), [], "left behind")


@case(each=[("SIGTERM", signal.SIGTERM, 143), ("SIGINT", signal.SIGINT, 130),
            ("SIGHUP", signal.SIGHUP, 129)])
def test_signal_stops_with_a_checkpoint_and_advice(t, value):
    _, number, code = value
    out = t.fresh("out")
    run = stop(t, out, number, 3)
    t.equal(run.code, code, "exit code")
    steps = checkpoint_steps(out)
    t.equal(len(steps), 1, "checkpoints")
    state = check_checkpoint(out, steps[0])
    t.equal(state["data_position"], steps[0] * SPEC["train"]["global_batch"], "data_position")
    t.contains(run.err, f"checkpoint at step {steps[0]}", "run the same command again to go on", what="standard error")
    t.contains(run.out, f"stopped at step {steps[0]} of {ENDLESS}", what="standard output")
    t.equal(max(line[0] for line in read_metrics(out)), steps[0], "last step in metrics.jsonl")
    t.equal(leftovers(out), [], "left behind")
    t.check(not os.path.exists(os.path.join(out, "model.safetensors")), "a stopped job has a final model")
    finish_and_compare(t, out, steps[0] + 5)


@case
def test_signal_again_and_again_gives_the_same_bits(t):
    out, rng = t.fresh("out"), random.Random(5)
    for _ in range(4):
        run = stop(t, out, rng.choice((signal.SIGTERM, signal.SIGINT)), rng.randrange(1, 7), "--quiet",
                   "--delay-seed", rng.randrange(1, 1 << 20))
        t.check(run.code in (143, 130), f"exit code {run.code}")
        t.check(len(checkpoint_steps(out)) <= 2, "more checkpoints than to keep")
    finish_and_compare(t, out, checkpoint_steps(out)[-1] + 3)


@case
def test_signal_with_json_reports_that_it_stopped(t):
    out = t.fresh("out")
    run = stop(t, out, signal.SIGTERM, 2, "--json", "--quiet")
    t.equal(run.code, 143, "exit code")
    r = run.json()
    t.equal((r["ok"], r["stopped"], r["total_steps"]), (True, True, ENDLESS), "result")
    t.equal(r["steps"], checkpoint_steps(out)[-1], "steps")
    t.equal(read_json(os.path.join(out, "result.json"))["stopped"], True, "result.json: stopped")


@case
def test_second_signal_ends_at_once_and_loses_no_checkpoint(t):
    out = t.fresh("out")
    stop(t, out, signal.SIGTERM, 2, "--quiet")
    before = checkpoint_steps(out)
    live = t.start("--run", write_job(t, SPEC), "--output", out, "--quiet", *WHERE)
    goal = steps_in_metrics(out) + 2
    live.until(lambda: steps_in_metrics(out) >= goal, f"step {goal}")
    live.signal(signal.SIGTERM)
    live.signal(signal.SIGTERM)
    run = live.wait()
    t.check(run.code in (143, -signal.SIGTERM), f"exit code {run.code}")
    check_output(out)
    t.check(checkpoint_steps(out)[:1] == before, f"checkpoints: {before}, then {checkpoint_steps(out)}")
    finish_and_compare(t, out, checkpoint_steps(out)[-1] + 2)


@case
def test_signal_during_start_leaves_an_output_that_runs(t):
    """Whatever it was doing: planning, making directories, restoring."""
    out = t.fresh("out")
    for _ in range(8):
        live = t.start("--run", write_job(t, SPEC), "--output", out, "--quiet", *WHERE)
        live.signal(signal.SIGTERM)
        run = live.wait()
        t.check(run.code in (143, -signal.SIGTERM), f"exit code {run.code}")
        check_output(out)
    finish_and_compare(t, out, (checkpoint_steps(out) or [0])[-1] + 3)


@case
def test_ignored_signal_stays_ignored(t):
    """As under nohup: what was ignored when the program started does not stop it."""
    out = t.fresh("out")
    script = 'trap "" HUP; "$0" --run "$1" --output "$2" --quiet --delay-seed 3 & kill -HUP $!; wait $!'
    run = t.command(["sh", "-c", script, t.program, write_job(t, SMALL), out])
    t.equal(run.code, 0, "exit code")
