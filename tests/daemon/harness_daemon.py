"""A tuttid of the case's own, and a client for it. The cases themselves are run by ../cli/harness.py.

    d = Daemon(t, devices=1, restart_delay=10)   every keyword is an option: --devices 1 --restart-delay 10;
                                                 True: an option without a value
    d.start()                     waits until it serves (the greeting came); d.pid
    d.stop()                      SIGTERM, waits; the exit code must be 0 (expect=None: any). Returns a Run
    d.kill9()                     SIGKILL, waits. Workers live on
    d.signal(number); d.wait()    for other ends; wait(expect=CODE) returns a Run
    d.restart()                   kill9, then start on the same state and socket; restart(SIGTERM): that first
    d.log()                       all that it wrote to standard error, every life of it
    d.try_start(...)              another start on the same paths that is expected to fail: returns a Run
    d.state, d.socket, d.worker_socket, d.worker_log(job)   paths; d.socket is short enough
    d.workers()                   live workers of this daemon's worker.sock: [Worker(pid, job, attempt)]

    c = d.connect()               a Client; c.hello has the greeting's params
    c.call("show", id=1)          the result; raises RpcError (code, errno, path, message, hint, exit)
    c.send("submit", ...) -> id   without waiting; c.answer(id) waits for its result
    c.notify("ping")              no id: no answer comes
    c.send_raw(b"...")            bytes as they are
    c.read_line()                 the next line as an object (None: the daemon hung up); events are lines too
    c.watch(id=1, since=0)        then c.wait_event("ended"), c.wait_event(lambda e: e["step"] > 3), c.events (so far)
    c.close()                     and `with d.connect() as c:`
  A connection that ends while something is waited for raises Gone.

    d.call(method, **params)      the same on a fresh connection
    d.submit(spec, key=None)      returns the job; `dir` is the case's directory
    d.show(id), d.wait_job(id, "done")   the long form. wait_job: when its state is one of the words; fails when the job
                                  has ended in another one
    d.kept_events(id)             of an ended job: all that is kept on disk, by way of `watch`

    spec(out, changes, base=TINY) a job as an object; `changes` by dotted path, as in ../cli/files.py
    SLOW                          a base of many quick steps, with evaluations and checkpoints: a few seconds. For a job
                                  that does not end by itself: spec(out, {"train.steps": ENDLESS}, SLOW)
    reference(t, spec)            what an undisturbed `tutti-worker --run` of it leaves (files.outcome), computed once
    mid_run(t, d, out)            submits a SLOW job and stops its worker (SIGSTOP) in the middle: a MidRun with .id,
                                  .spec, .pid, .out and .thaw(); so a case has all the time it needs
    check_done(t, d, id, spec)    the job is done, with these bits, and its output has everything once
    until(condition, what)        waits for a condition; the only way to wait
    programs_for_others(t)        for a daemon of another user: Daemon(t, **programs_for_others(t)), with `prefix` or d.popen

Everything that a case started is ended with it: daemons, and workers by the path of their worker.sock. After each case
the logs of its daemons and workers are searched for reports of sanitizers (see guard).
"""
import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections import namedtuple

import harness
from files import TINY, check_output, job, leftovers, outcome, read_json, read_metrics, same_outcome, \
    steps_in_metrics, write_job
from harness import Failure, Run, once

TUTTID = WORKER = TUTTI = None  # paths; TUTTI stays None where there is no client. Set by test_daemon.py
TIMEOUT_S = harness.TIMEOUT_S

ENDLESS = 100_000_000

SLOW = {
    "schema": "job/v1",
    "name": "slow",
    "model": {"type": "mlp", "input": [8, 8], "hidden": [32, 48, 32], "classes": 4, "dropout": 0.1},
    "init": {"seed": 7},
    "data": {"format": "synthetic", "samples": 96, "val_samples": 40, "seed": 3, "noise": 0.3},
    "train": {"steps": 600, "global_batch": 24, "micro_batch": 8, "replicas": 1, "grad_clip": 1.0},
    "optimizer": {"type": "adamw", "lr": 1e-3},
    "eval": {"every": {"steps": 50}},
    "checkpoint": {"every": {"steps": 5}, "keep": 2},
}

Worker = namedtuple("Worker", "pid job attempt")

SIGKILL, SIGTERM, SIGUSR2 = signal.SIGKILL, signal.SIGTERM, signal.SIGUSR2
_SANITIZER = re.compile(r"(ERROR|WARNING|SUMMARY): (\w+)Sanitizer|runtime error:")


class Gone(Exception):
    """The daemon hung up, or is not there."""


class RpcError(Exception):
    def __init__(self, error):
        data = error.get("data") or {}
        self.code, self.message, self.data = error["code"], error["message"], data
        self.errno, self.path = data.get("errno"), data.get("path")
        self.hint, self.exit = data.get("hint"), data.get("exit")
        super().__init__(f"{self.code} {self.errno} at {self.path!r}: {self.message}")


def processes():
    """Every process that can be seen, as (pid, words of its command line)."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as f:
                found.append((int(entry), f.read().decode(errors="replace").split("\0")))
        except OSError:
            pass  # it has ended since the listing
    return found


def until(condition, what, each_s=0.005):
    """Waits until condition() is true and returns what it returned."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Failure(f"no {what} within {TIMEOUT_S} s")
        time.sleep(each_s)


def programs_for_others(t):
    """Options of a Daemon that runs as another user than the case: copies of tuttid and of the worker in the directory of
    the case. The other user may be unable to reach the built programs: nobody else may enter a clone in root's home."""
    return {key: shutil.copy(path, t.path(os.path.basename(path)))
            for key, path in (("program", TUTTID), ("worker", WORKER))}


# ---- client ----

class Client:
    def connect(self, path):
        """Connects. While the daemon's backlog is full, a socket with a timeout gets EAGAIN instead of waiting."""
        end = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return self.socket.connect(path)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)

    def __init__(self, path, greeted=True):
        """`greeted` False: does not read the greeting (it is then the first read_line)."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(TIMEOUT_S)
        self.rest, self.last_id = b"", 0
        self.answers, self.events = {}, []  # by id; event params in the order they came
        self.hello = None
        try:
            self.connect(path)
        except OSError as e:
            self.socket.close()
            raise Gone(f"{path}: {e}") from None
        if greeted:
            line = self.read_line()
            if line is None:
                raise Gone("no greeting")
            if line.get("method") != "hello":
                raise RpcError(line["error"]) if "error" in line else Failure(f"no greeting but {line}")
            self.hello = line["params"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    # ---- lines ----

    def send_raw(self, data):
        try:
            self.socket.sendall(data)
        except OSError as e:
            raise Gone(f"cannot send: {e}") from None

    def read_raw_line(self):
        """Bytes without the newline; None when the daemon hung up."""
        while b"\n" not in self.rest:
            try:
                more = self.socket.recv(1 << 16)
            except socket.timeout:
                raise Failure(f"the daemon said nothing for {TIMEOUT_S} s") from None
            except OSError:
                return None
            if not more:
                return None
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        return line

    def read_line(self):
        line = self.read_raw_line()
        if line is None:
            return None
        message = json.loads(line)
        if message.get("method") == "event":
            self.events.append(message["params"])
        return message

    # ---- requests ----

    def send(self, method, **params):
        self.last_id += 1
        message = {"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}
        self.send_raw(json.dumps(message).encode() + b"\n")
        return self.last_id

    def notify(self, method, **params):
        self.send_raw(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n")

    def answer(self, number):
        """The result of a request; others that come meanwhile are kept."""
        while number not in self.answers:
            line = self.read_line()
            if line is None:
                raise Gone("hung up before the answer")
            if "method" not in line:
                self.answers[line.get("id")] = line
        line = self.answers.pop(number)
        if "error" in line:
            raise RpcError(line["error"])
        return line["result"]

    def call(self, method, **params):
        return self.answer(self.send(method, **params))

    # ---- events ----

    def watch(self, **params):
        return self.call("watch", **params)

    def wait_event(self, match):
        """The first event that came or comes; `match`: its name, or a function of its params."""
        if isinstance(match, str):
            name = match
            match = lambda e: e["event"] == name  # noqa: E731
        at = 0
        while True:
            for e in self.events[at:]:
                if match(e):
                    return e
            at = len(self.events)
            line = self.read_line()
            if line is None:
                raise Gone(f"hung up before the event; had {[e['event'] for e in self.events][-20:]}")
            if "method" not in line:
                self.answers[line.get("id")] = line


# ---- daemon ----

class Daemon:
    DEFAULTS = {"devices": 2, "device_memory": "64MiB", "host_memory": "1GiB", "restart_delay": 10,
                "hang_timeout": TIMEOUT_S, "stop_timeout": TIMEOUT_S}

    def __init__(self, t, name="d", state=None, socket=None, program=None, env=None, prefix=(), **options):
        """`name` tells daemons of one case apart; `state`, `socket`: of another one, to share them; `prefix`: a command
        before the program; `env`: additions to the environment; an option that is None is left out."""
        self.t, self.name, self.prefix, self.extra_env = t, name, list(prefix), env or {}
        self.state = state or t.path(name + ".state")
        self.socket = socket or t.path(name + ".run", "tutti.sock")
        self.program = program or TUTTID
        self.options = {"worker": WORKER, **self.DEFAULTS, **options}
        self.process, self.pid, self.lives, self.popen = None, None, [], {}
        if not hasattr(t, "daemons"):
            t.daemons = []
            t.undo.append(lambda: [x.end() for x in t.daemons])
        t.daemons.append(self)

    @property
    def worker_socket(self):
        return os.path.join(os.path.dirname(self.socket), "worker.sock")

    def worker_log(self, job_id):
        return os.path.join(self.state, "logs", f"{job_id}.log")

    # ---- life ----

    def command(self, **more):
        command = [*self.prefix, self.program, "--user", "--state", self.state, "--socket", self.socket]
        for key, value in {**self.options, **more}.items():
            if value is True:
                command.append("--" + key.replace("_", "-"))
            elif value is not None:
                command += ["--" + key.replace("_", "-"), str(value)]
        return command

    def environment(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TUTTI_", "XDG_", "NOTIFY_", "JOURNAL_"))}
        env["TUTTI_PROFILE"] = "none"  # what was once measured here does not decide plans
        env.update(self.extra_env)
        return env

    def spawn(self, **more):
        """Starts it and does not wait for anything."""
        path = self.t.path(f"{self.name}.{len(self.lives)}.err")
        command = self.command(**more)
        with open(path, "wb") as err:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=err, stderr=err,
                                            env=self.environment(), cwd=self.t.dir, start_new_session=True,
                                            **self.popen)
        self.lives.append((command, path))
        self.pid = self.process.pid
        return self

    def start(self, **more):
        self.spawn(**more)
        until(self.serving, "greeting of the daemon")
        return self

    def serving(self):
        """Does this very process answer?"""
        if self.process.poll() is not None:
            run = self.wait(expect=None)
            raise Failure(f"the daemon ended with {run.code} before it served")
        try:
            with Client(self.socket) as c:
                if self.prefix:
                    self.pid = c.hello["pid"]
                return c.hello["pid"] == self.pid
        except Gone:
            return False

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        os.kill(self.pid, number)

    def wait(self, expect=0):
        try:
            code = self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"the daemon did not end within {TIMEOUT_S} s") from None
        command, path = self.lives[-1]
        run = Run(command, code, "", read(path))
        self.t.log.append(run)
        self.process = None
        self.check_clean(run.err)
        if expect is not None:
            self.t.equal(code, expect, "the daemon's exit code")
        return run

    def stop(self, expect=0):
        self.signal(SIGTERM)
        return self.wait(expect)

    def kill9(self):
        self.signal(SIGKILL)
        return self.wait(None)

    def restart(self, number=SIGKILL):
        self.signal(number)
        self.wait(-9 if number == SIGKILL else 0)
        return self.start()

    def try_start(self, **more):
        """Another process on the same paths, to its end."""
        return self.t.command(self.command(**more), env=self.environment())

    def log(self):
        return "".join(read(path) for _, path in self.lives)

    def workers(self):
        found = []
        for pid, words in processes():
            if "--serve" in words and self.worker_socket in words and "--job" in words:
                found.append(Worker(pid, int(words[words.index("--job") + 1]), int(words[words.index("--attempt") + 1])))
        return sorted(found)

    def check_clean(self, text):
        found = _SANITIZER.search(text)
        if found is not None:
            raise Failure(f"a sanitizer reports: {text[found.start():][:2000]}")

    def check_logs(self):
        self.check_clean(self.log())
        logs = os.path.join(self.state, "logs")
        for name in os.listdir(logs) if os.path.isdir(logs) else ():
            self.check_clean(read(os.path.join(logs, name)))

    def end(self):
        """What is left at the end of a case."""
        if self.alive():
            try:
                self.signal(SIGKILL)
            except ProcessLookupError:
                pass
            self.process.kill()
            self.process.wait()
            self.t.log.append(Run(*self.lives[-1][:1], "none: ended with the case", "", read(self.lives[-1][1])))
        while self.workers():
            for w in self.workers():
                try:
                    os.kill(w.pid, SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.002)

    # ---- requests ----

    def connect(self, **options):
        return Client(self.socket, **options)

    def call(self, method, **params):
        with self.connect() as c:
            return c.call(method, **params)

    def submit(self, spec_object, key=None):
        params = {"spec": spec_object, "dir": self.t.dir}
        if key is not None:
            params["key"] = key
        return self.call("submit", **params)

    def show(self, job_id):
        return self.call("show", id=job_id)

    def wait_job(self, job_id, *states):
        ends = ("done", "failed", "cancelled")
        with self.connect() as c:
            def there():
                j = c.call("show", id=job_id)
                if j["state"] in states:
                    return j
                if j["state"] in ends:
                    log = read(self.worker_log(job_id))[-2000:]
                    raise Failure(f"job {job_id} ended {j['state']}, not {states}: {j['error']}; its log: {log}")
                return None

            return until(there, f"job {job_id} in {states}")

    def wait_step(self, job_id, step):
        """Until it has made so many steps; its long form."""
        with self.connect() as c:
            def there():
                j = c.call("show", id=job_id)
                if j["step"] is not None and j["step"] >= step:
                    return j
                if j["ended_ms"] is not None:
                    raise Failure(f"job {job_id} ended {j['state']} before step {step}: {j['error']}")
                return None

            return until(there, f"step {step} of job {job_id}")

    def kept_events(self, job_id):
        with self.connect() as c:
            c.watch(id=job_id, since=0)
            c.wait_event("ended")
            return [e for e in c.events if e["event"] in KEPT]


KEPT = ("submitted", "started", "stopping", "restarting", "queued", "ended")


def read(path):
    try:
        with open(path, "rb") as f:
            return harness.text(f.read())
    except OSError:
        return ""


# ---- jobs ----

def spec(out, changes=None, base=TINY):
    return job(base, {"output": out, **(changes or {})})


def reference(t, spec_object):
    """{"weights_hash", "model.safetensors", "metrics"} of an undisturbed run by the worker's own command line."""
    plain = {k: v for k, v in spec_object.items() if k not in ("output", "resources", "queue")}

    def make():
        out = t.fresh("reference")
        t.command([WORKER, "--run", write_job(t, plain, "reference.json"), "--output", out, "--quiet"])
        found = outcome(out)
        shutil.rmtree(out)
        return found

    return once(("reference", json.dumps(plain, sort_keys=True)), make)


def check_done(t, d, job_id, spec_object, what="the job"):
    """Done, with the bits of an undisturbed run; every step once; nothing half there."""
    j = d.wait_job(job_id, "done")
    out = os.path.join(t.dir, spec_object["output"])
    t.equal((j["exit"], j["error"]), (0, None), f"{what}: exit and error")
    same_outcome(t, out, reference(t, spec_object), what)
    steps = [line[0] for line in read_metrics(out) if line[1] != "val"]
    t.equal(steps, list(range(1, spec_object["train"]["steps"] + 1)), f"{what}: steps in metrics.jsonl")
    t.equal(leftovers(out), [], f"{what}: left behind")
    check_output(out)
    t.equal(j["report"] and j["report"]["weights_hash"], reference(t, spec_object)["weights_hash"],
            f"{what}: weights_hash in the daemon's report")
    t.equal(j["report"], read_json(os.path.join(out, "result.json")), f"{what}: the report and result.json")
    return j


class MidRun:
    """A job whose worker was stopped in the middle."""

    def __init__(self, t, spec_object, job_id, pid):
        self.spec, self.id, self.pid = spec_object, job_id, pid
        self.out = os.path.join(t.dir, spec_object["output"])

    def thaw(self):
        try:
            os.kill(self.pid, signal.SIGCONT)
        except ProcessLookupError:
            pass

    def freeze(self):
        os.kill(self.pid, signal.SIGSTOP)
        until(lambda: process_state(self.pid) in "TZ", "stop of the worker")

    def steps(self):
        return steps_in_metrics(self.out)


def process_state(pid):
    """The letter of proc(5): R, S, D, T (stopped), Z. "Z" when it has ended, with all its threads, or is not there."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            letter = f.read().rsplit(")", 1)[1].split()[0]
        return "D" if letter in "ZX" and len(os.listdir(f"/proc/{pid}/task")) > 1 else letter
    except OSError:
        return "Z"


def mid_run(t, d, out="out", at=20, changes=None):
    """The job has made at least `at` steps, the daemon knows of a checkpoint, and many more steps are to come. It may
    be that another such job was done before it, one that was too short."""
    steps = 1000
    while True:
        s = spec(out, {"train.steps": steps, **(changes or {})}, SLOW)
        with d.connect() as c:
            job_id = c.call("submit", spec=s, dir=t.dir)["id"]
            c.watch(id=job_id, since=0)
            pid = c.wait_event("started")["pid"]
            c.wait_event(lambda e: e["event"] in ("checkpoint", "ended"))
        run = MidRun(t, s, job_id, pid)
        until(lambda: run.steps() >= at or process_state(pid) == "Z", f"step {at}")
        try:
            run.freeze()
        except ProcessLookupError:
            pass
        if process_state(pid) == "T" and run.steps() < s["train"]["steps"] - 50:
            return run
        run.thaw()  # this machine was too quick, or too busy: a longer one
        d.wait_job(job_id, "done")
        shutil.rmtree(run.out)
        steps *= 3


# ---- cases ----

def guard():
    """Wraps every registered case: afterwards no log of its daemons and workers may hold a sanitizer's report."""
    def wrapped(function):
        @functools.wraps(function)
        def run(t, *arguments):
            function(t, *arguments)
            for d in getattr(t, "daemons", ()):
                d.check_logs()

        return run

    harness.CASES[:] = [(name, wrapped(f), a, defect) for name, f, a, defect in harness.CASES]
