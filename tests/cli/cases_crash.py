"""Killed at any moment, a job goes on from its last checkpoint to the same bits."""
import os
import random
import re
import shutil

import strace
from files import (SMALL, TINY, check_output, checkpoint_steps, job, leftovers, outcome, read_json,
                   same_outcome, steps_in_metrics, write_job)
from harness import case, once, spread


def arguments(t, out):
    path = write_job(t, TINY, "tiny.json")
    return "--run", path, "--output", out, "--quiet", "--threads", 1, "--device-memory", "1MiB"


def reference(t):
    def make():
        out = t.fresh("reference")
        t.worker(*arguments(t, out))
        return {**outcome(out), "steps": checkpoint_steps(out)}

    return dict(once("crash", make))


def places(t):
    """Every call of an undisturbed run that touches the output."""
    strace.need(t)

    def make():
        out = t.fresh("traced")
        return strace.places(t, out, *arguments(t, out))

    return once("crash places", make)


def check_finished(t, out, what):
    expected = reference(t)
    steps = expected.pop("steps")
    same_outcome(t, out, expected, what)
    t.equal(checkpoint_steps(out)[-1:], steps, f"{what}: the newest checkpoint")  # for the others see below
    t.equal(leftovers(out), [], f"{what}: left behind")
    check_output(out)


def finish(t, out, what):
    check_output(out)
    t.worker(*arguments(t, out))
    check_finished(t, out, what)


@case
def test_killing_covers_what_a_checkpoint_does(t):
    """The sweeps below are worth something only while they see the calls that a checkpoint consists of."""
    names = {name for name, _, _ in places(t)}
    t.check({"write", "fsync", "fdatasync", "renameat", "mkdirat", "unlinkat", "openat"} <= names, f"seen: {names}")


class Disk:
    """What a power loss could take away: paths whose bytes, and directories whose names, are not synced yet."""

    def __init__(self):
        self.dirty = set()

    def play(self, name, line):
        """One line of strace -y. Returns what is wrong with it, or None."""
        result = line.rsplit(" = ", 1)[-1]
        if result.startswith("-1"):
            return None
        fds = re.findall(r"\d+<([^>]*)>", line)
        names = re.findall(r'"([^"]*)"', line)
        if name in ("write", "ftruncate"):
            self.dirty.add(fds[0])
        elif name in ("fsync", "fdatasync"):
            self.dirty.discard(fds[0])
        elif name == "openat" and "O_CREAT" in line:
            self.dirty |= {os.path.join(fds[0], names[0]), fds[0]}
        elif name == "mkdirat":
            self.dirty |= {os.path.join(fds[0], names[0]), fds[0]}
        elif name == "renameat":
            source = os.path.join(fds[0], names[0])
            unsafe = [p for p in self.dirty if p == source or p.startswith(source + "/")]
            if unsafe and not names[1].endswith(".tmp"):
                return f"{names[0]} becomes {names[1]} before {unsafe} is synced"
            self.dirty = {p for p in self.dirty if p not in unsafe} | {fds[0]}
        elif name == "unlinkat" and ".old.tmp" in fds[0] and os.path.dirname(fds[0]) in self.dirty:
            return "an old checkpoint is removed before the new one is synced"
        return None


@case
def test_everything_is_synced_before_it_counts(t):
    """Power loss: a file gets its name when it is on the disk, and what it replaces goes when that is on the disk."""
    disk = Disk()
    for name, number, line in places(t):
        problem = disk.play(name, line)
        t.check(problem is None, f"{problem}: {name} #{number} {line}")
        if '"metrics.jsonl"' in line:
            disk.dirty = {p for p in disk.dirty if not p.endswith("/metrics.jsonl")}  # no bytes yet
    t.equal([p for p in disk.dirty if not p.endswith("/lock")], [], "not synced at the end")


@case
def test_new_output_directory_is_synced_in_its_parent(t):
    strace.need(t)
    parent = t.path("parent")
    os.mkdir(parent)
    calls = strace.places(t, parent, *arguments(t, os.path.join(parent, "out")))
    t.check(any(name == "mkdir" and line.startswith(f'"{parent}/out"') for name, _, line in calls), "no mkdir was seen")
    t.check(any(name == "fsync" and f"<{parent}>" in line for name, _, line in calls), f"no fsync of {parent}")


@case(each=["openat", "write", "fsync", "fdatasync", "renameat", "mkdir", "mkdirat", "unlinkat"])
def test_killed_at_every_call_resumes_to_the_same_bits(t, name):
    here = spread(p for p in places(t) if p[0] == name)
    t.check(here, f"no {name} to kill at")
    for _, number, _ in here:
        out, what = t.fresh("out"), f"killed at {name} #{number}"
        t.check(strace.kill_at(t, name, number, *arguments(t, out)), f"{what}: it ran to the end")
        finish(t, out, what)
        t.log.clear()


def interrupted(t):
    """An output that has everything to clean up and cut back: a step-2.tmp, and metrics beyond the checkpoint."""

    def make():
        out, last = t.fresh("interrupted"), [p for p in places(t) if p[0] == "renameat"]
        for name, number, _ in last:
            out = t.fresh("interrupted")
            strace.kill_at(t, name, number, *arguments(t, out))
            if leftovers(out) == ["step-2.tmp"] and checkpoint_steps(out) == [1] and steps_in_metrics(out) == 2:
                kept = os.path.join(os.path.dirname(t.dir), "interrupted")
                shutil.copytree(out, kept)
                return kept
        t.check(False, f"no rename of {last} leaves step-2.tmp")

    return once("crash interrupted", make)


@case(each=["openat", "write", "fsync", "renameat", "unlinkat"])
def test_killed_at_every_call_of_a_resumed_run(t, name):
    places(t)
    start = interrupted(t)

    def restart():
        out = t.fresh("out")
        shutil.copytree(start, out)
        return out

    out = restart()
    calls = strace.places(t, out, *arguments(t, out))
    check_finished(t, out, "resumed under strace")
    here = [p for p in calls if p[0] == name]
    if name != "openat":  # what the first sweep has not: cutting back and cleaning up
        here = here[: 8]
    for _, number, line in spread(here):
        out, what = restart(), f"killed again at {name} #{number}: {line}"
        t.check(strace.kill_at(t, name, number, *arguments(t, out)), f"{what}: it ran to the end")
        finish(t, out, what)
        t.log.clear()


def killed_after_the_last_checkpoint(t):
    """The output of a run that was killed when its last checkpoint was there and the one before not yet removed."""
    last = [p for p in places(t) if p[0] == "renameat" and '"step-2.old.tmp"' in p[2] and "= 0" in p[2]]
    t.equal(len(last), 1, "renames of step-2 to remove it")
    out = t.fresh("out")
    t.check(strace.kill_at(t, *last[0][:2], *arguments(t, out)), "it ran to the end")
    t.equal(checkpoint_steps(out), [2, 3], "checkpoints after the kill")
    return out


@case
def test_killed_after_the_last_checkpoint_keeps_no_more_than_asked(t):
    out = killed_after_the_last_checkpoint(t)
    t.worker(*arguments(t, out))
    t.equal(checkpoint_steps(out), reference(t)["steps"], "checkpoints, with keep 1")


@case
def test_killed_after_the_last_checkpoint_reports_the_same_result(t):
    out = killed_after_the_last_checkpoint(t)
    t.worker(*arguments(t, out))
    found, plain = read_json(os.path.join(out, "result.json")), t.fresh("plain")
    t.worker(*arguments(t, plain))
    for key in ("steps", "loss", "val_loss", "val_accuracy"):
        t.equal(found.get(key), read_json(os.path.join(plain, "result.json"))[key], f"result.json: {key}")


@case
def test_killed_before_its_result_replaces_that_of_an_earlier_run(t):
    out, shorter = t.fresh("out"), write_job(t, job(TINY, {"train.steps": 2}), "shorter.json")

    def begin():
        shutil.rmtree(out, ignore_errors=True)
        t.worker("--run", shorter, "--output", out, "--quiet")

    strace.need(t)
    begin()
    calls = strace.places(t, out, *arguments(t, out))
    last = [p for p in calls if p[0] == "renameat" and '"result.json"' in p[2]]
    t.equal(len(last), 1, "renames to result.json")
    begin()
    t.check(strace.kill_at(t, *last[0][:2], *arguments(t, out)), "it ran to the end")
    t.worker(*arguments(t, out))
    r = read_json(os.path.join(out, "result.json"))
    t.equal((r["steps"], r["total_steps"]), (3, 3), "steps in result.json")


@case
def test_finished_job_run_again_keeps_its_result(t):
    out = t.fresh("out")
    t.worker(*arguments(t, out))
    before = read_json(os.path.join(out, "result.json"))
    t.worker(*arguments(t, out))
    after = read_json(os.path.join(out, "result.json"))
    for key in ("weights_hash", "steps", "loss", "val_loss", "val_accuracy"):
        t.equal(after.get(key), before[key], f"result.json: {key}")


@case(each=[1, 2, 3])
def test_killed_again_and_again_resumes_to_the_same_bits(t, seed):
    """Every run is killed at a random place, so that some make no progress, until one gets through."""
    all_places, rng = places(t), random.Random(seed)
    for turn in range(2):
        out = t.fresh("out")
        kills = 0
        while kills < 8:
            name, number, _ = rng.choice(all_places)
            killed = strace.kill_at(t, name, number, *arguments(t, out))
            check_output(out)
            if not killed and kills > 0:
                break  # what it was to be killed at did not happen any more
            kills += killed
        finish(t, out, f"seed {seed}, turn {turn}, {kills} kills")
        t.log.clear()


@case(each=[("resident", 1), ("stream", 2), ("harmony-pp", 3)])
def test_killed_while_training_resumes_to_the_same_bits(t, value):
    """No strace: SIGKILL from outside, when a random number of steps has been reported; another policy each time."""
    policy, seed = value
    rng, last = random.Random(seed), 40
    path = write_job(t, job(SMALL, {"train.steps": last, "model.dropout": 0.1, "train.grad_clip": 1.0,
                                    "checkpoint.every": {"steps": 3}, "eval.every": {"steps": 7}}))
    common = ["--run", path, "--quiet", "--devices", 2, "--device-memory", "256KiB", "--policy", policy]
    plain, out = t.fresh("plain"), t.fresh("out")
    t.worker(*common, "--output", plain)
    kills = 0
    while steps_in_metrics(out) < last - 8:
        goal = steps_in_metrics(out) + rng.randrange(1, 9)
        live = t.start(*common, "--output", out, "--delay-seed", rng.randrange(1, 1000))
        live.until(lambda: steps_in_metrics(out) >= goal, f"step {goal}")
        kills += live.kill().code == -9
        check_output(out)
    t.worker(*common, "--output", out)
    same_outcome(t, out, outcome(plain), f"after {kills} kills")
    t.check(kills >= 2, f"only {kills} kills")


@case
def test_metrics_with_a_torn_line_are_cut_back(t):
    """A crash of the machine, not of the program, can tear a line or leave one from the future."""
    path = write_job(t, job(TINY, {"train.steps": 2}))
    more = write_job(t, TINY, "more.json")
    for tail in ('{"step":3,"loss":1.09', '{"step":3,"loss":1.0,"lr":0.003}\n', "\0" * 64, '\n\n{"step":2,"lo', "}\n"):
        out = t.fresh("out")
        t.worker("--run", path, "--output", out, "--quiet")
        with open(os.path.join(out, "metrics.jsonl"), "a", encoding="utf-8") as f:
            f.write(tail)
        t.worker("--run", more, "--output", out, "--quiet")
        expected = reference(t)
        # The run of two steps evaluated at its end, which is where the other one does too.
        t.equal(outcome(out)["metrics"], expected["metrics"], f"metrics after {tail!r}")
        t.equal(outcome(out)["weights_hash"], expected["weights_hash"], f"weights after {tail!r}")
