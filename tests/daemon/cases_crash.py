"""The daemon is killed, and its state damaged, at every place: an acknowledged job is there once, and runs once.

The sweeps attach strace to one thread of a daemon that serves, the loop or the pool (which is made to have one thread),
and kill the whole process at the Nth call of a name. First one undisturbed life of a job is recorded; then there is a
round for every call in it. Two rounds are not quite alike (what comes together is written together), so a place of the
recording may not come; most must.
"""
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import threading
import time

import strace
from cases_workers import names, script
from files import check_output, checkpoint_steps
from harness import case, once, random_cases, spread
from harness_daemon import (ENDLESS, SIGKILL, Client, Daemon, Gone, RpcError, check_done, mid_run, process_state, read,
                            spec, until)

# What changes a file, tells someone something, or starts a process.
CALLS = ("accept4", "bind", "clone", "clone3", "fdatasync", "fork", "fsync", "ftruncate", "kill", "link", "listen",
         "mkdir", "openat", "pidfd_open", "pwrite64", "pwritev", "rename", "sendmsg", "sendto", "unlink", "vfork",
         "write", "writev")
TRACE = "trace=" + ",".join("?" + c for c in CALLS)
LINE = re.compile(r"^(\d+) +(\w+)\((.*)$")

JOB = {"checkpoint.every": {"steps": 2}}


def need(t):
    strace.need(t)
    with open(t.program, "rb") as f:
        if b"__tsan_init" in f.read():
            t.skip("strace and the thread sanitizer do not go together")


# ---- strace on a daemon that runs ----

class Tracer:
    """strace on some threads. Ends with them, or with detach."""

    def __init__(self, t, tids, *injections):
        self.path, self.log = t.path("strace.err"), t.path("strace.log")
        command = ["strace", "-y", "-s", "4096", "-o", self.log, "-e", TRACE]
        for i in injections:
            command += ["-e", "inject=" + i]
        for tid in tids:
            command += ["-p", str(tid)]
        with open(self.path, "wb") as err:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=err, stderr=err)
        t.undo.append(self.end)
        until(lambda: read(self.path).count(" attached") >= len(tids) or self.process.poll() is not None, "strace")
        if read(self.path).count(" attached") < len(tids):
            self.process = None
            if "Operation not permitted" in read(self.path):
                t.skip("strace may not attach here")
            t.check(False, f"strace: {read(self.path)}")

    def detach(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self):
        if self.process is not None:
            self.process.wait()
        self.process = None
        return read(self.log)

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def threads(d):
    """The loop's thread, and those of the pool (there when something was read from the state)."""
    others = sorted(int(x) for x in os.listdir(f"/proc/{d.pid}/task") if int(x) != d.pid)
    return {"loop": [d.pid], "pool": others, "both": [d.pid, *others]}


def template(t):
    """A state with one job that is done. The pool of a daemon on it begins to work when that is shown."""
    def make():
        d = Daemon(t, "template").start()
        s = spec("template.out")
        check_done(t, d, d.submit(s, key="first")["id"], s)
        d.stop()
        kept = os.path.join(os.path.dirname(t.dir), "template")
        shutil.copytree(d.state, kept)
        return kept

    return once("crash template", make)


def on_template(t, name="d", **options):
    d = Daemon(t, name, env={"UV_THREADPOOL_SIZE": "1", "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") +
                             ":detect_leaks=0"}, devices=1, **options)  # the leak checker cannot be traced
    shutil.copytree(template(t), d.state)
    d.start()
    d.show(1)
    return d


def forget(t, d):
    """A round is over: its files are in the way of the others."""
    d.end()
    d.check_logs()
    for path in (d.state, os.path.dirname(d.socket), t.path("out")):
        shutil.rmtree(path, ignore_errors=True)
    t.daemons.remove(d)
    t.log.clear()


def places(log, who):
    """[(name, number)] of a recorded thread."""
    counts, found = {}, []
    for line in log.splitlines():
        m = re.match(r"^(?:\d+ +)?(\w+)\(", line)
        if m is not None:
            counts[m[1]] = counts.get(m[1], 0) + 1
            found.append((m[1], counts[m[1]]))
    return found


# ---- killed at every call of a job's life ----

def live(t, d, s):
    """Submits and follows to the end of job and worker, or of the daemon. Returns the acknowledged job, or None."""
    acknowledged = None
    try:
        with d.connect() as c:
            c.watch()
            acknowledged = c.call("submit", spec=s, dir=t.dir, key="the key")
            t.check(not acknowledged["duplicate"], "the first submit is a duplicate")
            c.wait_event("ended")
            until(lambda: not d.alive() or d.workers() == [], "end of the worker")
    except Gone:
        until(lambda: not d.alive(), "end of the daemon")
    return acknowledged


def check_life(t, d, s, acknowledged, what):
    """On a daemon that was started again: the retry of the submit finds the job or makes it, and there is one."""
    again = d.submit(s, key="the key")
    if acknowledged is not None:
        t.check(again["duplicate"], f"{what}: the acknowledged job is not there")
        t.equal(again["id"], acknowledged["id"], f"{what}: id")
        t.equal(again["submitted_ms"], acknowledged["submitted_ms"], f"{what}: submitted_ms")
    listed = d.call("list")["jobs"]
    t.equal([(j["id"], j["name"]) for j in listed], [(1, "tiny"), (again["id"], "tiny")], f"{what}: jobs")
    j = check_done(t, d, again["id"], s, what)
    t.equal((j["attempt"], j["failures"]), (1, 0), f"{what}: attempt, failures")
    events = d.kept_events(again["id"])
    t.equal(names(events), ["submitted", "started", "ended"], f"{what}: events")
    log = read(d.worker_log(again["id"]))
    t.equal(log.count("done at step"), 1, f"{what}: workers that ran it, by its log {log}")
    until(lambda: d.workers() == [], f"{what}: end of all workers")


@case(each=["loop", "pool"])
def test_killed_at_every_call_of_a_jobs_life(t, thread):
    need(t)
    s = spec("out", JOB)
    d = on_template(t, "recorded")
    tracer = Tracer(t, threads(d)[thread])
    live(t, d, s)
    here = places(tracer.detach(), thread)
    forget(t, d)
    wanted = {"loop": {"write", "accept4", "openat"}, "pool": {"pwrite64", "fdatasync", "write"}}[thread]
    t.check(wanted <= {name for name, _ in here}, f"the {thread} was seen to do only {here}")
    t.check(thread == "loop" or sum(name == "fdatasync" for name, _ in here) >= 3, f"commits: {here}")
    hits, acks = 0, 0
    here = spread(here)
    for name, number in here:
        what = f"killed at {name} #{number} of the {thread}"
        d = on_template(t, "d")
        tracer = Tracer(t, threads(d)[thread], f"{name}:signal=SIGKILL:when={number}")
        acknowledged = live(t, d, s)
        if d.alive():
            tracer.detach()
            d.kill9()
        else:
            tracer.wait()
            t.equal(d.wait(None).code, -9, f"{what}: exit code")
            hits += 1
        acks += acknowledged is not None
        d.start()
        check_life(t, d, s, acknowledged, what)
        d.stop()
        forget(t, d)
    t.check(hits >= len(here) * 0.7, f"only {hits} of {len(here)} calls came again")
    t.check(0 < acks < len(here), f"{acks} of {len(here)} submits were acknowledged before the kill")


# ---- killed while it starts ----

@case
def test_killed_at_every_call_of_a_start(t):
    """On a state with a log to recover, a job that runs and one that waits."""
    need(t)
    d = Daemon(t, devices=1).start()
    run = mid_run(t, d)
    waiting = spec("waiting")
    waiting_id = d.submit(waiting, key="w")["id"]
    d.kill9()
    saved = t.path("saved")
    shutil.copytree(d.state, saved)
    # The threads are not followed: nothing is written by others before it serves.
    d.prefix = ["strace", "-D", "-y", "-o", t.path("start.log"), "-e", TRACE]
    d.start()
    d.kill9()
    here, counts = [], {}
    for line in read(t.path("start.log")).splitlines():
        m = re.match(r"^(?:\d+ +)?(\w+)\((.*)$", line)
        if m is None:
            continue
        counts[m[1]] = counts.get(m[1], 0) + 1
        if t.dir in m[2] or m[1] in ("bind", "listen"):
            here.append((m[1], counts[m[1]]))
        if "tutti.sock" in m[2] and m[1] == "bind":
            break
    t.check({"pwrite64", "unlink", "bind", "openat"} <= {n for n, _ in here}, f"seen: {here}")
    hits, here = 0, spread(here)
    for name, number in here:
        shutil.rmtree(d.state)
        shutil.copytree(saved, d.state)
        d.prefix = ["strace", "-D", "-o", os.devnull, "-e", TRACE, "-e", f"inject={name}:signal=SIGKILL:when={number}"]
        d.spawn()
        until(lambda: not d.alive() or quietly_serving(d), "end or greeting")
        if d.alive():
            d.signal(SIGKILL)
        else:
            hits += 1
        t.equal(d.wait(None).code, -9, f"exit code, killed at {name} #{number}")
        d.prefix = []
        d.start()
        t.equal([(j["id"], j["state"]) for j in d.call("list", after=run.id - 1)["jobs"]],
                [(run.id, "running"), (waiting_id, "queued")], f"jobs after a kill at {name} #{number}")
        t.contains(d.log(), f"worker {run.pid} is alive and was adopted", what="the log")
        d.kill9()
        t.log.clear()
    t.check(hits >= len(here) // 8, f"only {hits} of {len(here)} kills")
    d.start()
    run.thaw()
    t.equal(check_done(t, d, run.id, run.spec)["attempt"], 1, "attempt")
    check_done(t, d, waiting_id, waiting)


def quietly_serving(d):
    try:
        with Client(d.socket) as c:
            d.pid = c.hello["pid"]
            return True
    except Gone:
        return False


# ---- power loss: nothing is told before it is synced ----

@case
def test_everything_is_synced_before_it_is_told(t):
    """Kills do not need a sync; power loss does. So: whenever the daemon says something, its log has been synced."""
    need(t)
    d = on_template(t)
    tracer = Tracer(t, threads(d)["both"])
    s = spec("out", JOB)
    live(t, d, s)
    dirty, told, commits = set(), [], 0
    for line in tracer.detach().splitlines():
        m = LINE.match(line)
        if m is None:
            continue
        files = re.findall(r"^\d+<([^>]*)>", m[3])
        if m[2] in ("pwrite64", "pwritev", "write", "ftruncate") and files and "/state.db" in files[0]:
            if not files[0].endswith("-shm"):
                dirty.add(files[0])
        elif m[2] in ("fdatasync", "fsync") and files:
            commits += files[0] in dirty
            dirty.discard(files[0])
        elif m[2] in ("write", "writev", "sendmsg", "sendto") and files and "socket:" in files[0]:
            for word in ('duplicate', 'started', 'ended', 'spec'):
                if f'\\"{word}\\"' in m[3]:
                    t.equal(dirty, set(), f"not synced when {word} is told: {line[:300]}")
                    told.append(word)
    t.check({"duplicate", "started", "ended", "spec"} <= set(told), f"seen to be told: {told}")
    t.check(commits >= 3, f"only {commits} commits")
    check_life(t, d, s, {**d.show(2)}, "traced")


@case
def test_new_state_directory_is_synced_in_its_parents(t):
    need(t)
    d = Daemon(t, state=t.path("a", "b", "state"))
    d.prefix = ["strace", "-D", "-y", "-o", t.path("start.log"), "-e", TRACE]
    d.start()
    d.kill9()
    log = read(t.path("start.log"))
    made = [p for p in re.findall(r'mkdir\("([^"]*)", \w+\) = 0', log) if p.startswith(t.dir) and ".run" not in p]
    t.check({t.path("a"), t.path("a", "b"), d.state} <= set(made), f"directories that were made: {made}")
    for path in made:
        parent = os.path.dirname(path)
        after = log[log.index(f'mkdir("{path}"'):]
        t.check(re.search(r"f(data)?sync\(\d+<" + re.escape(parent) + ">", after) is not None,
                f"{path} was made, and {parent} not synced")


# ---- cancel ----

@case(each=["running", "starting"])
def test_killed_at_every_call_of_a_cancel(t, phase):
    """An acknowledged cancel is carried out by the next daemon."""
    need(t)
    s = spec("out", {"train.steps": 2000, "checkpoint.every": {"steps": 100}})
    worker = {"worker": script(t, "w", "#!/bin/sh\nexec sleep 1000\n")} if phase == "starting" else {}

    def begin():
        d = on_template(t, **worker)
        if phase == "running":
            run = mid_run(t, d, changes={"train.steps": ENDLESS})
            return d, run.id, run
        job_id = d.submit(s)["id"]
        until(lambda: "started, attempt" in d.log(), "worker")
        return d, job_id, None

    def cancel(d, job_id, run):
        """Returns whether it was acknowledged."""
        acknowledged = False
        try:
            with d.connect() as c:
                c.watch(id=job_id)
                number = c.send("cancel", id=job_id)
                if run is not None:
                    run.thaw()
                c.answer(number)
                acknowledged = True
                c.wait_event("ended")
        except Gone:
            until(lambda: not d.alive(), "end of the daemon")
            if run is not None:
                run.thaw()
        return acknowledged

    for thread in ("pool", "loop"):
        d, job_id, run = begin()
        tracer = Tracer(t, threads(d)[thread])
        cancel(d, job_id, run)
        here = places(tracer.detach(), thread)
        forget(t, d)
        t.check(here, "nothing was seen")
        for name, number in spread(here[:: max(1, len(here) // 40)]):
            what = f"{phase}, killed at {name} #{number} of the {thread}"
            d, job_id, run = begin()
            tracer = Tracer(t, threads(d)[thread], f"{name}:signal=SIGKILL:when={number}")
            acknowledged = cancel(d, job_id, run)
            tracer.detach()
            if d.alive():
                d.kill9()
            else:
                d.wait(-9)
            d.start()
            if not acknowledged:
                d.call("cancel", id=job_id)
            j = d.wait_job(job_id, "cancelled")
            t.equal((j["exit"], j["error"]), (130, None), f"{what}: exit, error")
            t.equal(names(d.kept_events(job_id))[-1], "ended", f"{what}: the last event")
            until(lambda: d.call("devices")["devices"][0]["job"] is None, f"free device, {what}")
            forget(t, d)


# ---- killed at random, under load ----

@case(each=[1, 2])
def test_killed_at_random_under_load(t, seed):
    """Clients submit and retry, jobs run, and the daemon is killed again and again."""
    rng, n_jobs, rounds = random.Random(seed), 24, 10
    d = Daemon(t, devices=2).start()
    specs = [spec(f"out{i}", {"name": f"job{i}", "init.seed": 1 + i % 3, "train.steps": 3 + 40 * (i % 3)})
             for i in range(n_jobs)]
    acknowledged, problems, over = {}, [], threading.Event()

    def submit_all(numbers):
        for i in numbers:
            while not over.is_set():
                try:
                    j = d.submit(specs[i], key=f"key {i}")
                    acknowledged.setdefault(i, j["id"])
                    if acknowledged[i] != j["id"]:
                        problems.append(f"job {i} is {acknowledged[i]} and {j['id']}")
                    break
                except Gone:
                    time.sleep(0.001)
                except RpcError as e:
                    problems.append(f"job {i}: {e}")
                    return

    clients = [threading.Thread(target=submit_all, args=(range(k, n_jobs, 3),)) for k in range(3)]
    for c in clients:
        c.start()
    try:
        for _ in range(rounds):
            time.sleep(rng.random() ** 2 * 0.2)  # no check depends on it: a moment to be killed at
            d.kill9()
            known = dict(acknowledged)
            d.start()
            there = {j["id"] for j in d.call("list")["jobs"]}
            t.check(set(known.values()) <= there, f"lost: {set(known.values()) - there}")
            t.log.clear()
        for c in clients:
            c.join()
    finally:
        over.set()
    t.equal(problems, [], "problems")
    t.equal(sorted(acknowledged), list(range(n_jobs)), "jobs that were acknowledged")
    listed = d.call("list")["jobs"]
    t.equal(sorted(j["name"] for j in listed), sorted(s["name"] for s in specs), "jobs, each once")
    t.equal({j["name"]: j["id"] for j in listed}, {specs[i]["name"]: acknowledged[i] for i in acknowledged}, "ids")
    for i, job_id in acknowledged.items():
        j = check_done(t, d, job_id, specs[i], f"job {i}")
        t.equal((j["attempt"], j["failures"]), (1, 0), f"job {i}: attempt, failures")
        t.equal(names(d.kept_events(job_id)), ["submitted", "started", "ended"], f"job {i}: events")
        again = d.submit(specs[i], key=f"key {i}")
        t.equal((again["id"], again["duplicate"]), (job_id, True), f"job {i}: a retry after all")
    with d.connect() as c:
        c.watch(since=0)
        c.wait_event(lambda e: e["event"] == "ended" and len([x for x in c.events if x["event"] == "ended"]) == n_jobs)
        seqs = [e["seq"] for e in c.events if e["event"] != "gap"]
        t.equal(seqs, sorted(set(seqs)), "event numbers ascend")


@case
def test_daemon_and_workers_killed_at_random(t):
    """Both at once, as when the power goes: nothing is lost, and the bits are the same."""
    rng = random.Random(3)
    d = Daemon(t, devices=2).start()
    specs = [spec(f"out{i}", {"name": f"job{i}", "train.steps": 400, "checkpoint.every": {"steps": 5}})
             for i in range(4)]
    ids = [d.submit(s)["id"] for s in specs]
    for _ in range(6):
        time.sleep(rng.random() * 0.1)  # a moment to be killed at
        d.kill9()
        for w in d.workers():
            try:
                os.kill(w.pid, SIGKILL)
            except ProcessLookupError:
                pass
            until(lambda: process_state(w.pid) == "Z", "end of a worker")
        d.start()
        t.log.clear()
    for job_id, s in zip(ids, specs):
        j = check_done(t, d, job_id, s)
        t.equal(j["failures"], 0, "failures: that of the machine is none of the job")


# ---- two daemons ----

def snapshot(*directories):
    """Everything there is to see of files, without changing it."""
    found = {}
    for directory in directories:
        for parent, dirs, files in os.walk(directory):
            for name in [".", *dirs, *files]:
                path = os.path.normpath(os.path.join(parent, name))
                s = os.lstat(path)
                content = None
                if name in files and not path.endswith(".sock"):
                    with open(path, "rb") as f:
                        content = f.read()
                found[path] = (s.st_ino, s.st_mode, s.st_mtime_ns, s.st_ctime_ns, s.st_size, content)
    return found


@case(each=["the same state and socket", "the same state", "the same socket", "the same directory of sockets"])
def test_second_daemon_goes_away_and_touches_nothing(t, same):
    d = Daemon(t, devices=1).start()
    s = spec("before")
    check_done(t, d, d.submit(s)["id"], s)
    d.kept_events(1)  # all is written, and the idle daemon moves it from the log into the database
    until(lambda: os.path.getsize(os.path.join(d.state, "state.db-wal")) == 0, "end of the log")
    socket_dir = os.path.dirname(d.socket)
    other = Daemon(t, "other",
                   state=d.state if "state" in same else None,
                   socket=d.socket if "socket" in same else None, devices=1)
    if same == "the same directory of sockets":
        other.socket = os.path.join(socket_dir, "other.sock")  # worker.sock would be the same
    with d.connect() as c:
        before = snapshot(d.state, socket_dir)
        for _ in range(2):
            result = other.try_start()
            t.equal(result.code, 1, "exit code")
            t.contains(result.err, "another tuttid serves this", what="standard error")
            t.contains(result.err, d.state if "state" in same else socket_dir, what="standard error")
            t.equal(len(result.err.splitlines()), 1, "lines on standard error")
        after = snapshot(d.state, socket_dir)
        if same == "the same directory of sockets":  # its own lock may lie there
            after = {k: v for k, v in after.items() if k in before and k != socket_dir}
            before = {k: v for k, v in before.items() if k != socket_dir}
        t.equal(after, before, "files")
        t.equal(c.call("ping"), {}, "answer on an old connection")
    t.equal(d.call("list")["jobs"][0]["state"], "done", "state on a new connection")
    run = mid_run(t, d)
    t.equal(other.try_start().code, 1, "exit code while a job runs")
    run.thaw()
    t.equal(check_done(t, d, run.id, run.spec)["attempt"], 1, "attempt")
    s = spec("after")
    check_done(t, d, d.submit(s)["id"], s)  # worker.sock answers as well
    d.kill9()
    other.start()  # nothing is in the way any more


@case(each=["fresh", "after kill -9"])
def test_fifty_daemons_start_and_one_serves(t, state):
    d = Daemon(t)
    s = spec("out")
    if state != "fresh":
        d.start()
        d.wait_job(d.submit(s, key="k")["id"], "done")
        d.kill9()
    n = random_cases(50)
    racers = []
    t.undo.append(lambda: [(p.kill(), p.wait()) for p, _ in racers])
    for i in range(n):
        path = t.path(f"racer{i}.err")
        with open(path, "wb") as err:
            racers.append((subprocess.Popen(d.command(), stdin=subprocess.DEVNULL, stdout=err, stderr=err,
                                            env=d.environment()), path))
    until(lambda: sum(p.poll() is None for p, _ in racers) <= 1, "end of all but one")
    for p, path in racers:
        if p.poll() is not None:
            t.equal(p.returncode, 1, f"exit code of one that lost; it wrote {read(path)}")
            t.contains(read(path), "another tuttid serves this", what="what one that lost wrote")
    winner = [p for p, _ in racers if p.poll() is None]
    t.equal(len(winner), 1, "daemons that serve")
    until(lambda: quietly_serving(d), "greeting")
    t.equal(d.pid, winner[0].pid, "who answers")
    if state != "fresh":
        t.equal([j["state"] for j in d.call("list")["jobs"]], ["done"], "jobs")
    job = d.submit(s, key="k")
    check_done(t, d, job["id"], s)
    t.equal(job["id"], 1, "id")
    winner[0].terminate()
    t.equal(winner[0].wait(), 0, "exit code of the one that served")


# ---- damaged state ----

def everything(d):
    """All that a daemon tells of its jobs, without what differs from start to start."""
    with d.connect() as c:
        jobs = [c.call("show", id=j["id"]) for j in c.call("list")["jobs"]]
        seq = c.watch(since=0)["seq"]
        ended = lambda: sum(e["event"] == "ended" for e in c.events)  # noqa: E731
        while ended() < len(jobs) and not any(e["event"] == "gap" for e in c.events):
            if c.read_line() is None:
                raise Gone("hung up")
        events = [e for e in c.events if e["event"] != "gap"]
    for j in jobs:
        j.pop("seq")
        j.pop("log_bytes")
    return {"jobs": jobs, "events": events, "seq": seq}


def damaged_fixture(t):
    """A state with six ended jobs, cleanly stopped: (bytes of state.db, bytes of state.mark, what its daemon tells)."""
    def make():
        d = Daemon(t, "fixture", devices=1).start()
        for i in range(3):
            s = spec(f"fixture{i}", {"name": f"fixture-{i}", "init.seed": i})
            d.wait_job(d.submit(s, key=f"key {i}")["id"], "done")
        run = mid_run(t, d, "fixture.out")
        for i in range(2):
            d.call("cancel", id=d.submit(spec("never", {"name": f"never-{i}"}), key=f"n{i}")["id"])
        d.call("cancel", id=run.id, now=True)
        d.wait_job(run.id, "cancelled")
        d.stop()
        t.equal(sorted(os.listdir(d.state)), ["lock", "logs", "state.db", "state.mark"],
                "files after a clean stop")
        data, mark = read_bytes(d.state, "state.db"), read_bytes(d.state, "state.mark")
        d.start()
        told = everything(d)
        d.stop()
        t.check(len(told["jobs"]) >= 6, "jobs are missing")
        return data, mark, told

    return once("damage", make)


def read_bytes(*path):
    with open(os.path.join(*path), "rb") as f:
        return f.read()


def lay_out(d, data, mark):
    """A state directory with nothing but these two files."""
    shutil.rmtree(d.state, ignore_errors=True)
    os.makedirs(d.state)
    for name, content in (("state.db", data), ("state.mark", mark)):
        with open(os.path.join(d.state, name), "wb") as f:
            f.write(content)


def judge(t, d, data, fixture, what):
    """A daemon on these bytes: refuses with the file's name, or tells what is right. Returns which."""
    _, mark, told = fixture
    lay_out(d, data, mark)
    d.spawn()
    until(lambda: not d.alive() or quietly_serving(d), "end or greeting")
    if not d.alive():
        result = d.wait(None)
        t.equal(result.code, 1, f"{what}: exit code")
        t.contains(result.err, os.path.join(d.state, "state.db"), what=f"{what}: standard error")
        t.equal(len(result.err.splitlines()), 1, f"{what}: lines on standard error")
        t.log.clear()
        return "refused"
    found = everything(d)
    for key in ("jobs", "events"):
        t.equal(found[key], told[key], f"{what}: {key}")
    t.check(found["seq"] >= told["events"][-1]["seq"], f"{what}: event numbers went back to {found['seq']}")
    t.check(found["seq"] < 1 << 40, f"{what}: event numbers jumped to {found['seq']}")
    d.kill9()
    t.log.clear()
    return "served"


@case(each=["header", "schema", "rows 0", "rows 1", "rows 2"])
def test_flipped_bits_are_found(t, where):
    fixture = damaged_fixture(t)
    data = fixture[0]
    rng = random.Random(where)
    begin = min(m.start() for m in re.finditer(rb"CREATE (TABLE|INDEX)", data[:8192]))
    if where == "header":
        offsets = list(range(0, 108, 1))
    elif where == "schema":
        offsets = list(range(begin - 60, 4096, 3))
    else:
        offsets = list(range(4096 + 37 * int(where[-1]), len(data), 37 * 3 * (len(data) // 40960 + 1)))
    d, found = Daemon(t), {"refused": 0, "served": 0}
    for at in spread(offsets):
        bit = 1 << rng.randrange(8)
        flipped = bytearray(data)
        flipped[at] ^= bit
        found[judge(t, d, bytes(flipped), fixture, f"bit {bit:#x} of byte {at} of {len(data)}")] += 1
    t.check(found["refused"] > 0, f"{found}")


@case
def test_truncated_state_is_found(t):
    fixture = damaged_fixture(t)
    data = fixture[0]
    d, found = Daemon(t), {"refused": 0, "served": 0}
    sizes = [1, 15, 16, 50, 99, 100, 101, 512, 2048, 4095, 4096, 4097, *range(8192, len(data), 4096), len(data) - 4095,
             len(data) - 1]
    for size in sizes:
        found[judge(t, d, data[:size], fixture, f"truncated to {size} of {len(data)} bytes")] += 1
    t.equal(found, {"refused": len(sizes), "served": 0}, "starts")


@case
def test_zeroed_and_swapped_pages_are_found(t):
    fixture = damaged_fixture(t)
    data = fixture[0]
    d = Daemon(t)
    pages = [data[i:i + 4096] for i in range(0, len(data), 4096)]
    for i in range(len(pages)):
        judge(t, d, b"".join([*pages[:i], bytes(4096), *pages[i + 1:]]), fixture, f"page {i} zeroed")
    for i in range(1, len(pages) - 1):
        judge(t, d, b"".join([*pages[:i], pages[i + 1], pages[i], *pages[i + 2:]]), fixture, f"pages {i}, {i + 1} swapped")
    for table in (b"jobs", b"status", b"events", b"meta"):  # SQLite would find nothing wrong with it
        renamed = data[:4096].replace(table, table[:-1] + b"x") + data[4096:]
        t.equal(judge(t, d, renamed, fixture, f"table {table} renamed"), "refused", f"{table} lost")
    t.equal(judge(t, d, os.urandom(len(data)), fixture, "noise"), "refused", "noise")
    t.equal(judge(t, d, b"not a database\n" * 500, fixture, "text"), "refused", "text")
    t.equal(judge(t, d, data, fixture, "undamaged"), "served", "undamaged")


@case(each=[("jobs", "id", "UPDATE jobs SET body = replace(body, 'fixture', 'fixturf') WHERE id=2", 2),
            ("jobs", "id", "UPDATE jobs SET spec = replace(spec, '\"steps\":3', '\"steps\":4') WHERE id=3", 3),
            ("jobs", "id", "UPDATE jobs SET key = '0:another' WHERE id=1", 1),
            ("jobs", "id", "UPDATE jobs SET crc = crc + 1 WHERE id=1", 1),
            ("status", "id", "UPDATE status SET body = replace(body, 'done', 'fail') WHERE id=1", 1),
            ("status", "id", "UPDATE status SET crc = 0 WHERE id=3", 3),
            ("status", "id", "DELETE FROM status WHERE id=2", 2),
            ("events", "seq", "UPDATE events SET body = replace(body, 'submitted', 'submitten') WHERE seq=1", 1),
            ("events", "seq", "UPDATE events SET job = 3 WHERE seq=1", 1),
            ("events", "seq", "UPDATE events SET crc = 7 WHERE seq=2", 2)])
def test_row_that_does_not_match_its_checksum(t, value):
    """As SQLite sees it all is well; the checksums do not match."""
    table, _, sql, row = value
    data, mark, _ = damaged_fixture(t)
    d = Daemon(t)
    lay_out(d, data, mark)
    path = os.path.join(d.state, "state.db")
    db = sqlite3.connect(path)
    with db:
        t.equal(db.execute(sql).rowcount, 1, f"rows changed by {sql}")
    db.close()
    result = d.try_start()
    t.equal(result.code, 1, f"exit code after {sql}")
    t.contains(result.err, path, f"row {row} of table {table}", what="standard error")


@case
def test_state_of_a_newer_version_is_refused_and_left_alone(t):
    data, mark, _ = damaged_fixture(t)
    d = Daemon(t)
    lay_out(d, data, mark)
    path = os.path.join(d.state, "state.db")
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=99")
    db.execute("CREATE TABLE newer(x)")
    db.commit()
    db.close()
    before = read(path)
    result = d.try_start()
    t.equal(result.code, 1, "exit code")
    t.contains(result.err, path, "newer", "99", what="standard error")
    t.equal(read(path), before, "the file")


def hold_log(d):
    """A reader with an open transaction: while it is there the daemon cannot fold its log into the database."""
    db = sqlite3.connect(f"file:{d.state}/state.db?mode=ro", uri=True, isolation_level=None)
    db.execute("BEGIN")
    db.execute("SELECT count(*) FROM meta").fetchall()
    return db


def killed_with_a_log(t, d):
    """Four jobs that are done, and then kill -9 with all of it in the log: (a copy of the state, what was told)."""
    d.start()
    holder = hold_log(d)
    for i in range(4):
        d.wait_job(d.submit(spec(f"out{i}", {"name": f"job-{i}"}), key=f"k{i}")["id"], "done")
    told = {"jobs": everything(d)["jobs"], "events": [e for i in range(1, 5) for e in d.kept_events(i)]}
    d.kill9()
    saved = t.path("saved")
    shutil.copytree(d.state, saved)
    holder.close()
    t.check(os.path.getsize(os.path.join(saved, "state.db-wal")) > 40000, "there is no log of changes")
    return saved, told


def lay_out_saved(d, saved):
    shutil.rmtree(d.state)
    shutil.copytree(saved, d.state)


@case
def test_damaged_log_of_changes_loses_nothing_silently(t):
    """state.db-wal after kill -9, damaged: everything acknowledged is there, or it is refused and left as it is."""
    d = Daemon(t, devices=1)
    saved, told = killed_with_a_log(t, d)
    data = read_bytes(saved, "state.db-wal")
    rng, found = random.Random(9), {"refused": 0, "served": 0}
    for turn in range(random_cases(30)):
        lay_out_saved(d, saved)
        at = rng.randrange(len(data))
        with open(os.path.join(d.state, "state.db-wal"), "r+b") as f:
            if turn % 3 == 0:
                f.truncate(at)
            else:
                f.seek(at)
                f.write(bytes([data[at] ^ 1 << rng.randrange(8)]))
        damaged = read_bytes(d.state, "state.db-wal")
        d.spawn()
        until(lambda: not d.alive() or quietly_serving(d), "end or greeting")
        if not d.alive():
            result = d.wait(None)
            t.equal(result.code, 1, f"exit code with damage at {at}")
            t.contains(result.err, os.path.join(d.state, "state.db"), "--accept-older-state",
                       what=f"standard error with damage at {at}")
            t.equal(read_bytes(d.state, "state.db-wal"), damaged, "the log")
            t.equal(read_bytes(d.state, "state.db"), read_bytes(saved, "state.db"), "the database")
            found["refused"] += 1
        else:
            served = everything(d)
            t.equal((served["jobs"], served["events"]), (told["jobs"], told["events"]), f"with damage at {at}")
            found["served"] += 1
            d.kill9()
        t.log.clear()
    t.check(found["refused"] > 0, f"{found}")


@case(each=["state.db", "state.db-wal", "state.mark", "all but the mark", "older database"])
def test_lost_files_are_noticed_and_ids_are_not_given_out_again(t, lost):
    d = Daemon(t, devices=1)
    d.start()
    d.stop()
    older = read_bytes(d.state, "state.db")
    saved, told = killed_with_a_log(t, d)
    lay_out_saved(d, saved)
    names_of_lost = ["state.db", "state.db-wal"] if lost in ("all but the mark", "older database") else [lost]
    for name in names_of_lost:
        os.unlink(os.path.join(d.state, name))
    if lost == "older database":
        with open(os.path.join(d.state, "state.db"), "wb") as f:
            f.write(older)
    before = {n: read_bytes(d.state, n) for n in os.listdir(d.state) if n.startswith("state.")}
    result = d.try_start()
    t.equal(result.code, 1, "exit code")
    t.contains(result.err, d.state + "/state.", "--accept-older-state", what="standard error")
    t.equal({n: read_bytes(d.state, n) for n in os.listdir(d.state) if n.startswith("state.")}, before, "the files")
    d.start(accept_older_state=True)
    t.contains(d.log(), "--accept-older-state", "refused-1", what="the log")
    jobs = d.call("list")["jobs"]
    t.equal(len(jobs), 4 if lost == "state.mark" else 0, "jobs that are left")
    new = d.submit(spec("new"), key="k0" if lost != "state.mark" else None)
    t.check(new["id"] > 4, f"the next job has id {new['id']}")
    with d.connect() as c:
        t.check(c.watch()["seq"] >= told["events"][-1]["seq"], "event numbers went back")
    d.restart()  # and from now on it is the state
    t.check(d.show(new["id"])["id"] == new["id"], "the new job")
    d.stop()


# ---- a disk that is full or fails ----

def small_disk(t, kilobytes):
    """A mounted tmpfs, or the case is skipped."""
    if os.geteuid() != 0:
        t.skip("only root can mount a small disk")
    path = t.path("disk")
    os.mkdir(path)
    if t.command(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,mode=700", "tmpfs", path]).code != 0:
        t.skip("no tmpfs can be mounted here")
    t.undo.insert(0, lambda: subprocess.run(["umount", "-l", path], check=False))
    return path


def fill(path):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while True:
            os.write(fd, bytes(4096))
    except OSError:
        pass
    os.close(fd)


@case
def test_full_disk_refuses_submits_and_goes_on_when_there_is_room(t):
    disk = small_disk(t, 512)
    d = Daemon(t, state=os.path.join(disk, "state"), devices=1).start()
    s = spec("first")
    check_done(t, d, d.submit(s, key="a")["id"], s)
    fill(os.path.join(disk, "filler"))
    refusals = 0
    for i in range(200):  # the log of changes has some room of its own
        try:
            d.submit(spec("never", {"name": f"job-{i}", "output": f"o{i}"}), key=f"fill {i}")
        except RpcError as e:
            t.equal((e.errno, e.exit), ("EAGAIN", 1), f"errno, exit of {e}")
            t.contains(e.message, "full", "not submitted", what="the message")
            refusals += 1
            if refusals == 3:
                break
    t.check(refusals == 3, f"{refusals} refusals on a full disk")
    t.equal(d.call("ping"), {}, "answer to ping")
    with d.connect() as c:
        before = [j["id"] for j in c.call("list")["jobs"]]
        for job_id in before:
            c.call("show", id=job_id)
    os.unlink(os.path.join(disk, "filler"))
    again = spec("second")
    j = until(lambda: accepted(d, again, f"fill {i}"), "room")
    t.check(j["id"] not in before and not j["duplicate"], "the refused job was there after all")
    check_done(t, d, j["id"], again)
    for job_id in before:
        d.wait_job(job_id, "done")
    listed = d.call("list")["jobs"]
    t.equal(len({j["name"] for j in listed if j["name"].startswith("job")}),
            len([j for j in listed if j["name"].startswith("job")]), "jobs, each once")
    d.restart()
    t.equal([x["id"] for x in d.call("list")["jobs"]], [x["id"] for x in listed], "jobs after a restart")
    t.equal(d.stop().code, 0, "exit code")


def accepted(d, s, key):
    try:
        return d.submit(s, key=key)
    except RpcError:
        return None


@case
def test_full_disk_does_not_lose_the_outcome_of_a_job(t):
    """What must be written is tried again until there is room."""
    disk = small_disk(t, 512)
    d = Daemon(t, state=os.path.join(disk, "state"), devices=1).start()
    run = mid_run(t, d)
    fill(os.path.join(disk, "filler"))
    try:
        for i in range(200):
            d.submit(spec("never", {"output": f"o{i}"}))
        t.skip("this disk does not get full")
    except RpcError as e:
        t.equal(e.errno, "EAGAIN", "errno")
    run.thaw()
    until(lambda: os.path.exists(os.path.join(run.out, "result.json")), "result")
    t.equal(d.call("ping"), {}, "answer to ping")
    t.check(d.alive(), "it is not alive")
    os.unlink(os.path.join(disk, "filler"))
    j = check_done(t, d, run.id, run.spec)
    t.equal((j["attempt"], j["failures"]), (1, 0), "attempt, failures")
    d.restart()
    t.equal(d.show(run.id)["state"], "done", "state after a restart")


@case
def test_full_disk_of_an_output_pauses_the_job(t):
    """Its last checkpoint stays, it is no failure, and when there is room it goes on to the same bits."""
    disk = small_disk(t, 16384)
    d = Daemon(t, devices=1).start()
    run = mid_run(t, d, os.path.join(disk, "out"))
    fill(os.path.join(disk, "filler"))
    with d.connect() as c:
        c.watch(id=run.id)
        run.thaw()
        e = c.wait_event(lambda e: e["event"] in ("queued", "ended", "restarting"))
        t.equal(e["event"], "queued", "what follows a full disk")
        t.contains(e["why"], "paused", what="why")
    j = d.show(run.id)
    t.equal((j["state"], j["failures"], j["error"]), ("queued", 0, None), "state, failures, error")
    t.contains(j["reason"], "paused", what="reason")
    check_output(run.out)
    kept = checkpoint_steps(run.out)[-1]
    os.unlink(os.path.join(disk, "filler"))
    d.restart()  # which does not wait any longer
    with d.connect() as c:
        c.watch(id=run.id, since=0)
        t.equal(c.wait_event("resumed")["step"], kept, "the step it goes on from")
    t.equal(check_done(t, d, run.id, run.spec)["failures"], 0, "failures")


@case(each=[("fdatasync", "EIO"), ("pwrite64", "EIO"), ("pwrite64", "ENOSPC"), ("fdatasync", "ENOSPC")])
def test_failing_disk(t, value):
    """A sync or write that fails: no acknowledgement, and an end; what a failed sync left is unknown, so nothing is
    tried again. A write for which there is no room: an answer that says so."""
    call, error = value
    need(t)
    d = on_template(t)
    tracer = Tracer(t, threads(d)["pool"], f"{call}:error={error}:when=1+")
    s = spec("out")
    full = (call, error) == ("pwrite64", "ENOSPC")
    try:
        acknowledged = d.submit(s, key="the key")
        t.check(False, f"acknowledged: {acknowledged}")
    except Gone:
        t.check(not full, "it ended because there was no room")
    except RpcError as e:
        t.check(full, f"answered instead of ending: {e}")
        t.equal(e.errno, "EAGAIN", "errno")
    if full:
        tracer.detach()
        t.equal(d.call("ping"), {}, "answer to ping")
    else:
        result = d.wait(1)
        tracer.wait()
        t.contains(result.err, "cannot write", os.path.join(d.state, "state.db"), what="standard error")
        d.start()
    check_life(t, d, s, None, f"{call} {error}")
    t.equal(d.stop().code, 0, "exit code")


@case
def test_failing_disk_leaves_workers_running(t):
    need(t)
    d = on_template(t)
    run = mid_run(t, d)
    tracer = Tracer(t, threads(d)["pool"], "fdatasync:error=EIO:when=1+")
    try:
        d.submit(spec("other"))
    except Gone:
        pass
    d.wait(1)
    tracer.wait()
    t.check(process_state(run.pid) != "Z", "the worker is gone")
    d.start()
    run.thaw()
    t.equal(check_done(t, d, run.id, run.spec)["attempt"], 1, "attempt")
