"""A worker that a daemon started (--serve), against a daemon of a few lines which the case plays itself."""
import fcntl
import json
import os
import select
import signal
import socket

import strace
from files import (DELETE, SMALL, check_output, checkpoint_steps, job, leftovers, outcome, read_json,
                   same_outcome, sha256, steps_in_metrics, write_job)
from harness import TIMEOUT_S, Failure, case

SECRET = "0123456789abcdef"
LEASE = {"devices": 2, "device_bytes": 256 << 10, "host_bytes": 64 << 20}
ENDLESS = 1_000_000  # steps; a constant schedule may be shortened afterwards
LONG = job(SMALL, {"train.steps": ENDLESS, "eval": {"every": {"steps": 50}}, "checkpoint": {"every": {"steps": 20}}})


class Daemon:
    """The daemon's side of worker.sock. It answers what it is told to, and notes every message."""

    def __init__(self, t, spec, lease=LEASE, dir=None):
        self.t, self.spec, self.lease, self.dir = t, spec, lease, dir or t.dir
        self.path, self.seen, self.connection = t.path("worker.sock"), [], None
        t.undo.append(self.vanish)
        self.listen()

    def listen(self):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(8)

    def vanish(self):
        """As if killed: the next one makes a new socket."""
        self.hang_up()
        self.listener.close()
        if os.path.exists(self.path):
            os.unlink(self.path)

    def hang_up(self):
        if self.connection is not None:
            self.connection.close()
            self.lines.close()
        self.connection = None

    def start(self, *options, command=(), job_id=3, attempt=1):
        program, env = self.t.program, {**os.environ, "TUTTI_SECRET": SECRET}
        if command:  # strace: the leak checker cannot be traced
            env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        self.t.program, prefix = (command[0], [*command[1:], program]) if command else (program, [])
        try:
            self.live = self.t.start(*prefix, "--serve", self.path, "--job", job_id, "--attempt", attempt, *options,
                                     env=env)
        finally:
            self.t.program = program
        return self.live

    def accept(self, phase):
        """A connection, and its hello."""
        self.hang_up()
        self.live.until(lambda: select.select([self.listener], [], [], 0.1)[0], "a connection")
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(TIMEOUT_S)
        self.lines = self.connection.makefile("r", encoding="utf-8")
        hello = self.next()
        self.t.equal(hello["method"], "hello", "the first message")
        found = {k: hello["params"][k] for k in ("protocol", "job", "secret", "phase")}
        self.t.equal(found, {"protocol": 1, "job": 3, "secret": SECRET, "phase": phase}, "hello")
        return hello

    def next(self):
        line = self.lines.readline()
        if not line.endswith("\n"):
            raise Failure("the worker hung up")
        self.seen.append(json.loads(line))
        return self.seen[-1]

    def hung_up(self):
        """Reads to the end; true when the worker ended the connection."""
        while self.lines.readline():
            pass
        return True

    def until(self, method, condition=lambda params: True):
        while True:
            m = self.next()
            if m["method"] == method and condition(m["params"]):
                return m

    def send(self, message):
        self.connection.sendall((json.dumps({"jsonrpc": "2.0", **message}) + "\n").encode())

    def give_job(self):
        hello = self.accept("new")
        self.send({"id": hello["id"], "result": {"spec": self.spec, "dir": self.dir, "lease": self.lease}})

    def stop(self):
        self.send({"method": "stop", "params": {"reason": "cancel"}})

    def take_outcome(self):
        """Answers it; the worker then exits with what it said."""
        m = self.until("outcome")
        self.send({"id": m["id"], "result": {}})
        run = self.live.wait()
        self.t.equal(run.code, m["params"]["exit"], "exit code, as the outcome said")
        return m["params"], run

    def serve(self, *options, **start):
        """A whole job, undisturbed."""
        self.start(*options, **start)
        self.give_job()
        result = self.take_outcome()
        self.hang_up()
        return result

    def events(self, method):
        return [m["params"] for m in self.seen if m["method"] == method]


def plain(t, spec, name="plain"):
    """The same job with --run, elsewhere."""
    out = t.fresh(name)
    t.worker("--run", write_job(t, spec, name + ".json"), "--output", out, "--quiet")
    return outcome(out)


def check_whole_curve(t, points, step):
    """From the first step on, however many of them make a point: there are 128 to 256 points, or one for each step."""
    t.check(points[0][0] <= max(1, step // 64), f"the curve at step {step} begins at {points[0][0]}")


def finish(t, daemon, out, spec, what):
    """Goes on with the job, shortened to end soon, and compares with an undisturbed run."""
    last = checkpoint_steps(out)[-1] + 5
    daemon.spec = job(spec, {"train.steps": last})
    o, _ = daemon.serve()
    t.equal((o["state"], o["step"], o["report"]["steps"]), ("done", last, last), "outcome")
    same_outcome(t, out, {"weights_hash": plain(t, daemon.spec)["weights_hash"]}, what)
    t.equal(leftovers(out), [], "left behind")
    return o


# ---- done ----

@case
def test_serve_trains_to_the_same_bits_as_run(t):
    d = Daemon(t, SMALL)
    o, run = d.serve()
    out = t.path("runs", "small")
    t.equal((o["state"], o["exit"], o["error"], o["step"]), ("done", 0, None, 5), "outcome")
    t.equal(o["report"], read_json(os.path.join(out, "result.json")), "report and result.json")
    same_outcome(t, out, plain(t, SMALL), "served")
    t.equal([p[0] for p in o["curve"]], [1, 2, 3, 4, 5], "steps of the curve")
    t.equal([e[0] for e in o["evals"]], [4, 5], "steps of the evaluations")
    t.contains(run.out, "small: done at step 5 of 5", o["report"]["weights_hash"], what="the log")


@case
def test_serve_trains_a_job_that_was_accepted_with_keys_that_are_refused_now(t):
    d = Daemon(t, job(SMALL, {"queue": {"priority": "high", "preemptible": False, "time_limit": "1d"}}))
    o, _ = d.serve()
    t.equal((o["state"], o["step"]), ("done", 5), "outcome")
    same_outcome(t, t.path("runs", "small"), plain(t, SMALL), "served")


@case
def test_serve_reports_plan_progress_and_events(t):
    d = Daemon(t, SMALL)
    o, _ = d.serve()
    (planned,) = d.events("planned")
    t.equal(planned["output"], t.path("runs", "small"), "output")
    t.equal(planned["resolved"], {"micro_batch": 8, "replicas": 1, "precision": "fp32", "total_steps": 5}, "resolved")
    plan = planned["plan"]
    t.equal((plan["devices"], plan["device_bytes"]), (2, 256 << 10), "the lease")
    t.equal(plan["step_bytes"], o["report"]["step_bytes"], "step_bytes")
    t.equal(len(plan["device_peak_bytes"]), 2, "peaks")
    t.check(plan["iteration_s"] > 0 and planned["state_bytes"] > planned["parameters"] > 0, f"planned: {planned}")
    t.equal([e["step"] for e in d.events("checkpoint")], [2, 4, 5], "checkpoints")
    t.equal([e["step"] for e in d.events("eval")], [4, 5], "evaluations")
    names = [m["method"] for m in d.seen]
    t.equal(names[:3], ["hello", "planning", "planned"], "the first messages")
    t.equal(names[-1], "outcome", "the last message")
    for i, m in enumerate(d.seen):
        if m["method"] in ("eval", "checkpoint") and d.seen[i - 1]["method"] == "progress":
            t.equal(d.seen[i - 1]["params"]["step"], m["params"]["step"], f"progress before {m['method']}")
    last = d.events("progress")[-1]
    t.equal((last["step"], last["total_steps"], last["eta_s"]), (5, 5, 0), "the last progress")
    for key in ("in", "out", "peer"):
        t.equal(last[key + "_bytes"], 5 * plan["step_bytes"][key], key + "_bytes")
    t.check(0 <= last["stall_share"] <= 1 and last["samples_per_s"] > 0, f"progress: {last}")


@case
def test_serve_measures_speed_over_whole_runs_of_a_cycle(t):
    """The results of 8 steps become known at once. They took the time of their run, and not the time of one step."""
    spec = job(SMALL, {"train.steps": 8, "memory.cycle_steps": 8, "eval": DELETE, "checkpoint": DELETE})
    d = Daemon(t, spec)
    d.serve("--delay-seed", "3")
    last = d.events("progress")[-1]
    with open(t.path("runs", "small", "metrics.jsonl"), encoding="utf-8") as f:
        measured = [m["samples_per_s"] for m in map(json.loads, f) if "loss" in m][-1]
    t.equal((last["step"], last["eta_s"]), (8, 0), "the last progress")
    t.check(0 < last["samples_per_s"] <= 1.01 * measured, f"{last['samples_per_s']} samples/s, but in metrics {measured}")


@case
def test_serve_hides_its_secret(t):
    d = Daemon(t, LONG)
    live = d.start()
    d.accept("new")
    for name in ("environ", "cmdline"):
        with open(f"/proc/{live.process.pid}/{name}", "rb") as f:
            t.check(SECRET.encode() not in f.read(), f"the secret is in {name}")


@case
def test_serve_of_a_complete_job_reports_it_again(t):
    d = Daemon(t, SMALL)
    first, _ = d.serve()
    before = sha256(t.path("runs", "small", "result.json"))
    d.seen.clear()
    again, _ = d.serve(attempt=2)
    for key in ("state", "exit", "report", "curve", "evals", "step"):
        t.equal(again[key], first[key], key)
    t.equal(d.events("progress"), [], "progress of a job that is complete")
    t.equal(sha256(t.path("runs", "small", "result.json")), before, "result.json")


@case
def test_serve_takes_paths_against_dir(t):
    os.makedirs(t.path("home"))
    d = Daemon(t, job(SMALL, {"output": "here/it/is"}), dir=t.path("home"))
    d.serve()
    check_output(t.path("home", "here", "it", "is"))


@case
def test_serve_lets_the_spec_decide_where_the_lease_does_not(t):
    d = Daemon(t, job(SMALL, {"resources": {"devices": 3, "device_memory": "1MiB"}}), lease={})
    d.serve()
    plan = d.events("planned")[0]["plan"]
    t.equal((plan["devices"], plan["device_bytes"]), (3, 1 << 20), "devices and bytes of each")


# ---- stopped ----

@case
def test_serve_chooses_sizes_that_do_not_depend_on_the_lease(t):
    """A job with one device gets half of the host memory that it gets with two. Sizes are chosen with what one device
    gets, for as many devices as the job can use and the daemon has."""
    model = {"type": "chain", "input": {"tokens": 512, "vocab": 16},
             "layers": [{"op": "embedding", "out": 4}, {"repeat": 60, "block": [{"op": "layernorm"}]}, {"op": "lm_head"}]}
    spec = job(SMALL, {"model": model, "data.samples": 2048, "train": {"steps": 1, "global_batch": 512},
                       "resources": {"devices": {"min": 1, "max": 8}, "device_memory": "2MiB"}})
    found, d = [], Daemon(t, spec)
    for devices in (1, 2):
        d.spec = job(spec, {"output": t.fresh("out")})
        d.lease = {"devices": devices, "device_bytes": 2 << 20, "host_bytes": devices * 70000000, "host_bytes_each": 70000000,
                   "all_devices": 2}
        d.start()
        d.give_job()
        planned = d.until("planned")["params"]
        d.stop()
        d.take_outcome()
        d.hang_up()
        t.equal(planned["plan"]["devices"], devices, "devices")
        found.append((planned["resolved"]["micro_batch"], planned["resolved"]["replicas"]))
    t.equal(found[0], found[1], "micro-batch and replicas with one device and with two")


@case
def test_serve_stops_with_a_checkpoint_and_goes_on(t):
    d, out = Daemon(t, LONG), t.path("runs", "small")
    d.start()
    d.give_job()
    d.until("progress", lambda p: p["step"] >= 3)
    d.stop()
    o, run = d.take_outcome()
    steps = checkpoint_steps(out)
    t.equal((o["state"], o["exit"], o["error"], o["step"]), ("stopped", 130, None, steps[-1]), "outcome")
    t.equal(o["report"], read_json(os.path.join(out, "result.json")), "report and result.json")
    t.equal((o["report"]["stopped"], o["report"]["steps"]), (True, steps[-1]), "report")
    t.contains(run.err, "asked to stop: cancel", what="the log")
    after = finish(t, d, out, LONG, "stopped and gone on")
    t.equal(d.events("resumed")[-1], {"step": steps[-1], "numerics_changed": False}, "resumed")
    check_whole_curve(t, after["curve"], after["step"])


@case(each=[("SIGTERM", signal.SIGTERM, 143), ("SIGINT", signal.SIGINT, 130), ("SIGHUP", signal.SIGHUP, 129)])
def test_serve_heeds_signals(t, value):
    _, number, code = value
    d, out = Daemon(t, LONG), t.path("runs", "small")
    d.start()
    d.give_job()
    d.until("progress", lambda p: p["step"] >= 2)
    d.live.signal(number)
    o, _ = d.take_outcome()
    t.equal((o["state"], o["exit"], o["step"]), ("stopped", code, checkpoint_steps(out)[-1]), "outcome")


@case
def test_serve_stopped_before_it_began_trains_no_step(t):
    d, out = Daemon(t, LONG), t.path("runs", "small")
    d.start()
    hello = d.accept("new")
    answer = {"jsonrpc": "2.0", "id": hello["id"], "result": {"spec": d.spec, "dir": d.dir, "lease": d.lease}}
    stop = {"jsonrpc": "2.0", "method": "stop", "params": {"reason": "shutdown"}}
    d.connection.sendall((json.dumps(stop) + "\n" + json.dumps(answer) + "\n").encode())
    o, _ = d.take_outcome()
    t.equal((o["state"], o["exit"], o["report"], "step" in o), ("stopped", 130, None, False), "outcome")
    t.check(not os.path.exists(out), "there is an output")


# ---- a daemon that goes and comes ----

@case
def test_serve_outlives_the_daemon_and_finds_the_next(t):
    d, out = Daemon(t, LONG), t.path("runs", "small")
    d.start()
    d.give_job()
    planned = d.until("planned")
    seen = d.until("progress", lambda p: p["step"] >= 2)["params"]["step"]
    for _ in range(2):
        d.vanish()
        goal = steps_in_metrics(out) + 10
        d.live.until(lambda: steps_in_metrics(out) >= goal, f"step {goal} without a daemon")
        d.listen()
        hello = d.accept("running")
        d.send({"id": hello["id"], "result": {}})
        t.equal([d.next()["method"], d.next()["method"]], ["planned", "curve"], "the first messages to a new daemon")
        t.equal(d.seen[-2]["params"], planned["params"], "planned")
        points = d.seen[-1]["params"]["points"]
        now = d.until("progress")["params"]["step"]
        check_whole_curve(t, points, now)
        t.check(now > seen, f"step {seen}, then {now}")
        seen = now
    d.stop()
    o, run = d.take_outcome()
    t.equal(o["state"], "stopped", "state")
    t.contains(run.err, "the daemon is gone", "the daemon is back", what="the log")
    finish(t, d, out, LONG, "without a daemon for a while")


@case
def test_serve_hands_its_outcome_to_the_next_daemon(t):
    d = Daemon(t, SMALL)
    d.start()
    d.give_job()
    first = d.until("outcome")["params"]
    d.vanish()  # before it answered
    d.listen()
    hello = d.accept("running")
    d.send({"id": hello["id"], "result": {}})
    o, _ = d.take_outcome()
    t.equal(o, first, "the outcome, said again")


@case
def test_serve_waits_for_a_daemon_that_is_not_there_yet(t):
    d = Daemon(t, SMALL)
    d.listener.close()
    os.unlink(d.path)
    d.start()
    d.listen()
    d.give_job()
    t.equal(d.take_outcome()[0]["state"], "done", "state")


def refuse(d, hello):
    d.send({"id": hello["id"], "error": {"code": -32000, "message": "wrong secret", "data": {"errno": "EACCES"}}})


@case
def test_serve_refused_at_once_ends(t):
    d = Daemon(t, SMALL)
    d.start()
    refuse(d, d.accept("new"))
    run = d.live.wait()
    t.equal(run.code, 1, "exit code")
    t.contains(run.err, "wrong secret", what="the log")
    t.check(not os.path.exists(t.path("runs")), "a refused worker wrote something")


@case
def test_serve_refused_while_running_writes_a_checkpoint_and_ends(t):
    d, out = Daemon(t, LONG), t.path("runs", "small")
    d.start()
    d.give_job()
    d.until("progress", lambda p: p["step"] >= 2)
    d.hang_up()
    refuse(d, d.accept("running"))
    t.check(d.hung_up(), "")
    run = d.live.wait()
    t.equal(run.code, 1, "exit code")
    t.contains(run.err, "wrong secret", what="the log")
    t.equal(read_json(os.path.join(out, "result.json"))["stopped"], True, "result.json: stopped")
    t.equal(d.events("outcome"), [], "outcomes")
    finish(t, d, out, LONG, "refused and gone on")


# ---- killed ----

@case
def test_serve_killed_goes_on_to_the_same_bits(t):
    d, out = Daemon(t, LONG), t.path("runs", "small")
    for attempt in (1, 2, 3):
        d.start(attempt=attempt)
        d.give_job()
        d.until("checkpoint")
        d.until("progress")
        d.live.kill()
        check_output(out)
        t.check(not os.path.exists(os.path.join(out, "result.json")), "a killed worker has a result")
    o = finish(t, d, out, LONG, "killed and gone on")
    check_whole_curve(t, o["curve"], o["step"])


# ---- the output is another's ----

def hold_lock(t, out):
    os.makedirs(out)
    lock = open(os.path.join(out, "lock"), "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    t.undo.append(lock.close)
    return lock


@case
def test_serve_waits_for_an_earlier_attempt_to_die(t):
    d, out = Daemon(t, SMALL), t.path("runs", "small")
    lock = hold_lock(t, out)
    live = d.start()
    d.give_job()

    def at_the_lock():
        links = f"/proc/{live.process.pid}/fd"
        return any(os.path.realpath(os.path.join(links, n)) == os.path.join(out, "lock") for n in os.listdir(links))

    live.until(at_the_lock, "the lock")
    lock.close()
    t.equal(d.take_outcome()[0]["state"], "done", "state")


@case
def test_serve_gives_up_a_lock_that_stays(t):
    d, out = Daemon(t, SMALL), t.path("runs", "small")
    hold_lock(t, out)
    o, _ = d.serve()
    t.equal((o["state"], o["exit"], o["error"]["errno"], o["retry"]), ("failed", 1, "EBUSY", True), "outcome")
    t.equal(os.listdir(out), ["lock"], "what is in an output that is another's")


@case
def test_serve_leaves_the_output_of_another_spec_alone(t):
    d, out = Daemon(t, SMALL), t.path("runs", "small")
    d.serve()
    before = {n: sha256(os.path.join(out, n)) for n in ("result.json", "resolved.json", "model.safetensors")}
    d.spec = job(SMALL, {"init.seed": 8})
    o, _ = d.serve()
    t.equal((o["state"], o["exit"], o["error"]["errno"], o["retry"]), ("failed", 2, "EEXIST", False), "outcome")
    t.equal({n: sha256(os.path.join(out, n)) for n in before}, before, "files of the other job")


# ---- failed ----

FILES = {"train": {"images": "no-such-images", "labels": "no-such-labels"}}
FAILURES = [
    ("a spec that is wrong", {"train.steps": DELETE}, 2, "EINVAL", "train"),
    ("a key that is misspelt", {"train.micro_bach": 8}, 2, "EINVAL", "train.micro_bach"),
    ("a missing file", {"data": {"format": "idx", **FILES}, "eval": DELETE}, 2, "ENOENT", "no-such-images"),
    ("a model that does not fit", {"resources.device_memory": "8KiB"}, 5, "ENOSPC", ""),
    ("divergence", {"optimizer": {"type": "sgd", "lr": 1e30}}, 1, "EDOM", ""),
]


@case(each=FAILURES)
def test_serve_reports_a_failure_that_no_retry_helps(t, value):
    what, changes, code, errno, path = value
    d = Daemon(t, job(SMALL, changes), lease={})
    o, run = d.serve()
    t.equal((o["state"], o["exit"], o["retry"], o["report"]), ("failed", code, False, None), f"outcome: {o}")
    t.equal(o["error"]["errno"], errno, "errno")
    t.contains(o["error"]["path"], path, what="path")
    t.contains(run.err, o["error"]["message"], what="the log")
    t.equal("least_device_bytes" in o["error"], code == 5, "least_device_bytes")
    if code == 5:
        least = o["error"]["least_device_bytes"]
        d.lease = {"device_bytes": least + 255 & ~255}
        t.equal(d.serve()[0]["state"], "done", f"with {least} bytes")
    out = t.path("runs", "small")
    if code == 1:
        r = read_json(os.path.join(out, "result.json"))
        t.equal((r["ok"], r["exit"], r["message"]), (False, 1, o["error"]["message"]), "result.json")
        t.equal(r["steps"], o["step"], "steps in result.json")
    elif code == 2:
        t.check(not os.path.exists(out), "a job that was refused has an output")


@case
def test_serve_asks_for_a_retry_after_an_io_error(t):
    strace.need(t)
    d, out = Daemon(t, SMALL), t.path("runs", "small")
    under = ["strace", "-f", "-o", os.devnull, "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=1"]
    o, _ = d.serve(command=under)
    t.equal((o["state"], o["exit"], o["error"]["errno"], o["retry"]), ("failed", 1, "EIO", True), f"outcome: {o}")
    t.equal(read_json(os.path.join(out, "result.json"))["ok"], False, "result.json: ok")
    d.serve(attempt=2)
    same_outcome(t, out, plain(t, SMALL), "after the I/O error")


@case
def test_serve_says_that_the_disk_is_full_and_asks_for_a_retry(t):
    disk = t.path("disk")
    os.mkdir(disk)
    if os.getuid() != 0 or t.command(["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", disk]).code != 0:
        t.skip("a file system cannot be mounted here")
    t.undo.append(lambda: t.command(["umount", "-l", disk]))
    d = Daemon(t, job(SMALL, {"output": "disk/out"}))
    o, _ = d.serve()
    t.equal((o["state"], o["exit"], o["error"]["errno"], o["retry"]), ("failed", 1, "ENOSPC", True), f"outcome: {o}")
    t.contains(o["error"]["message"], "the disk is full", what="the message")
    t.check("least_device_bytes" not in o["error"], "a full disk is taken for a misfit")
    t.command(["mount", "-o", "remount,size=4m", disk])
    t.equal(d.serve(attempt=2)[0]["state"], "done", "state with more room")


# ---- usage ----

@case(each=[("no job", ["--serve", "x", "--attempt", 1]), ("no attempt", ["--serve", "x", "--job", 1]),
            ("no socket", ["--job", 1, "--attempt", 1]), ("two verbs", ["--serve", "x", "--run", "y"]),
            ("job 0", ["--serve", "x", "--job", 0, "--attempt", 1])])
def test_serve_with_wrong_options_is_refused(t, value):
    t.worker(*value[1], expect=2)


@case
def test_serve_without_a_secret_is_refused(t):
    run = t.worker("--serve", t.path("worker.sock"), "--job", 1, "--attempt", 1, expect=2)
    t.contains(run.err, "TUTTI_SECRET", what="standard error")
