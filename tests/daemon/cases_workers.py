"""Workers: they outlive the daemon, are adopted, restarted, stopped, cancelled, queued; the bits stay the same."""
import hashlib
import json
import os
import random
import signal
import sqlite3
import struct
import subprocess
import sys
import time

from files import DELETE, checkpoint_steps, crc32c, read_json, read_metrics, steps_in_metrics
from cases_protocol import Puppet, puppets
from harness import case
from harness_daemon import (ENDLESS, SIGKILL, SIGTERM, SIGUSR2, SLOW, Client, Daemon, Gone, RpcError, check_done, mid_run,
                            process_state, spec, until)
from strace import sanitized


def refused(t, call, errno, exit_code, *words):
    """The call is answered with this error. Returns it."""
    try:
        found = call()
    except RpcError as e:
        t.equal((e.errno, e.exit), (errno, exit_code), f"errno and exit of {e}")
        t.contains(e.message, *words, what="the message")
        return e
    t.check(False, f"not refused but {found}")
    return None


def names(events):
    return [e["event"] for e in events]


def script(t, name, text):
    path = t.path(name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, 0o755)
    return path


def fake_worker(t, body):
    """A worker in Python that says hello and runs `body`, which has: job, attempt, lines, send(object)."""
    return script(t, "fake-worker", f"""#!{sys.executable} -I
import json, os, signal, socket, sys, time
a = dict(zip(sys.argv[1::2], sys.argv[2::2]))
job, attempt = int(a["--job"]), int(a["--attempt"])
link = socket.socket(socket.AF_UNIX)
link.connect(a["--serve"])
lines = link.makefile()
def send(message):
    link.sendall(json.dumps(dict(message, jsonrpc="2.0")).encode() + b"\\n")
send({{"id": 1, "method": "hello", "params": {{"protocol": 1, "job": job, "attempt": attempt,
      "secret": os.environ["TUTTI_SECRET"], "pid": os.getpid(), "phase": "new"}}}})
given = json.loads(lines.readline())
{body}
""")


def live_workers(d, job_id):
    return [w for w in d.workers() if w.job == job_id and process_state(w.pid) != "Z"]


def wait_free(d):
    """Until no device has an owner: a job has ended before its worker is gone."""
    until(lambda: all(x["job"] is None for x in d.call("devices")["devices"]), "free devices")


def status_on_disk(d, job_id):
    """What the state on disk holds of a job. While a daemon runs, its last changes may be missing."""
    db = sqlite3.connect(f"file:{d.state}/state.db?mode=ro", uri=True)
    try:
        return json.loads(db.execute("SELECT body FROM status WHERE id=?", (job_id,)).fetchone()[0])
    finally:
        db.close()


# ---- they outlive the daemon ----

@case(each=[("SIGKILL", SIGKILL), ("SIGUSR2", SIGUSR2)])
def test_worker_lives_through_the_end_of_its_daemon_and_is_adopted(t, value):
    d = Daemon(t, devices=2).start()
    run = mid_run(t, d)
    before = d.show(run.id)
    d.signal(value[1])
    d.wait(-9 if value[1] == SIGKILL else 0)
    t.equal([w.pid for w in live_workers(d, run.id)], [run.pid], "workers while there is no daemon")
    at = run.steps()
    run.thaw()
    until(lambda: run.steps() > at + 5, "steps without a daemon")
    run.freeze()
    d.start()
    t.contains(d.log(), f"worker {run.pid} is alive and was adopted", what="the daemon's log")
    after = d.show(run.id)
    for key in ("pid", "attempt", "state", "devices", "submitted_ms", "started_ms", "failures", "spec"):
        t.equal(after[key], before[key], f"{key} after the restart")
    owners = [x["job"] for x in d.call("devices")["devices"]]
    t.equal(owners, [run.id if i in before["devices"] else None for i in range(2)], "owners of the devices")
    if run.steps() < run.spec["train"]["steps"] - 20:  # not too quick
        with d.connect() as c:
            c.watch(id=run.id)
            run.thaw()
            c.wait_event("progress")  # it found the new daemon and tells of its job
    run.thaw()
    j = check_done(t, d, run.id, run.spec)
    t.equal((j["attempt"], j["failures"]), (1, 0), "attempt, failures")
    t.check(j["plan"] is not None and j["curve"] and j["evals"], "what was told to the first daemon is not known")
    events = d.kept_events(run.id)
    t.equal(names(events), ["submitted", "started", "ended"], "events")
    t.equal(events[1]["pid"], run.pid, "the worker that was started")
    t.equal(len(read_metrics(run.out)), len(set(read_metrics(run.out))), "lines of metrics.jsonl that differ")


@case
def test_worker_that_ends_without_a_daemon_hands_over_to_the_next(t):
    d = Daemon(t).start()
    run = mid_run(t, d)
    d.kill9()
    run.thaw()
    until(lambda: os.path.exists(os.path.join(run.out, "result.json")), "result")
    t.equal([w.pid for w in live_workers(d, run.id)], [run.pid], "workers that wait for a daemon")
    d.start()
    j = check_done(t, d, run.id, run.spec)
    t.equal((j["attempt"], j["failures"]), (1, 0), "attempt, failures")
    t.equal(names(d.kept_events(run.id)), ["submitted", "started", "ended"], "events")
    until(lambda: process_state(run.pid) == "Z", "end of the worker")


@case
def test_worker_that_ended_and_died_without_a_daemon_leaves_nothing_to_do(t):
    d = Daemon(t).start()
    run = mid_run(t, d)
    d.kill9()
    run.thaw()
    until(lambda: os.path.exists(os.path.join(run.out, "result.json")), "result")
    os.kill(run.pid, SIGKILL)  # as when it has waited long enough
    until(lambda: process_state(run.pid) == "Z", "end of the worker")
    d.start()
    j = check_done(t, d, run.id, run.spec)
    t.equal((j["attempt"], j["failures"]), (2, 0), "attempt, failures")
    t.equal(names(d.kept_events(run.id)), ["submitted", "started", "queued", "started", "ended"], "events")


@case
def test_worker_that_died_without_a_daemon_is_started_again(t):
    """As after a reboot: no failure of the job, and it goes on from its checkpoint."""
    d = Daemon(t).start()
    run = mid_run(t, d)
    kept = checkpoint_steps(run.out)[-1]
    d.kill9()
    os.kill(run.pid, SIGKILL)
    until(lambda: process_state(run.pid) == "Z", "end of the worker")
    d.start()
    with d.connect() as c:
        c.watch(id=run.id, since=0)
        t.equal(c.wait_event("resumed")["step"], kept, "the step it goes on from")
    j = check_done(t, d, run.id, run.spec)
    t.equal((j["attempt"], j["failures"]), (2, 0), "attempt, failures")
    t.equal(names(d.kept_events(run.id)), ["submitted", "started", "queued", "started", "ended"], "events")


@case
def test_another_process_with_the_pid_of_a_dead_worker_is_left_alone(t):
    """The pid of a dead worker may be given to anyone. Here a process of ours has it, by way of the state."""
    d = Daemon(t).start()
    run = mid_run(t, d)
    d.kill9()
    os.kill(run.pid, SIGKILL)
    until(lambda: process_state(run.pid) == "Z", "end of the worker")
    innocent = subprocess.Popen(["sleep", "1000"])
    try:
        status = status_on_disk(d, run.id)
        found = json.dumps(status)
        t.check(str(run.pid) in found, "the state does not name the worker's pid")
        replace_status(d, run.id, found.replace(str(run.pid), str(innocent.pid)))
        d.start()
        t.check("adopted" not in d.log(), "it took another process for its worker")
        d.call("cancel", id=run.id, now=True)
        d.wait_job(run.id, "cancelled", "done")
        t.equal(innocent.poll(), None, "exit code of the process that is none of its workers")
    finally:
        innocent.kill()
        innocent.wait()


def state_bytes(d):
    """All that the files of the state hold, free pages and the write-ahead log included."""
    found = b""
    for name in sorted(os.listdir(d.state)):
        path = os.path.join(d.state, name)
        if os.path.isfile(path):
            with open(path, "rb") as f:
                found += f.read()
    return found


@case
def test_secret_of_a_worker_is_not_in_the_state(t):
    """Whoever reads the state or a backup of it cannot speak for a worker."""
    d = Daemon(t, devices=1, worker=puppets(t)).start()
    p = Puppet(d, d.submit(spec("out"))["id"])
    secret, hashed = p.words["secret"], hashlib.sha256(p.words["secret"].encode()).hexdigest()
    t.equal(len(secret), 32, "characters of the secret")
    t.check(secret.encode() not in state_bytes(d), "the state holds the secret")
    t.check(hashed.encode() in state_bytes(d), "the state does not hold its hash")
    for wrong in (hashed, secret[:-1], secret + "0", secret.upper(), ""):
        with Client(d.worker_socket, greeted=False) as c:
            refused(t, lambda: c.call("hello", **{**p.words, "secret": wrong}), "ESRCH", 1, "no job of this daemon waits for this worker")
    p.outcome()
    d.stop()


@case
def test_worker_of_an_older_daemon_is_known_by_its_secret_in_clear(t):
    """tuttid 0.1.0 wrote the secret itself. Its workers outlive an upgrade; the state forgets the secret then."""
    d = Daemon(t, devices=1, worker=puppets(t)).start()
    p = Puppet(d, d.submit(spec("out"))["id"])
    secret = p.words["secret"]
    d.kill9()
    status = status_on_disk(d, 1)
    del status["secret_sha256"]
    replace_status(d, 1, json.dumps({**status, "secret": secret}))
    d.start()
    t.contains(d.log(), f"worker {p.pid} is alive and was adopted")
    with Client(d.worker_socket, greeted=False) as c:
        refused(t, lambda: c.call("hello", **{**p.words, "phase": "running", "secret": "0" * 32}), "ESRCH", 1)
    p.link = Client(d.worker_socket, greeted=False)
    t.equal(p.link.call("hello", **{**p.words, "phase": "running"}), {}, "the answer to the worker")
    until(lambda: "secret_sha256" in status_on_disk(d, 1), "the hash on disk")
    d.kill9()
    status = status_on_disk(d, 1)
    t.equal((status.get("secret"), status["secret_sha256"]), (None, hashlib.sha256(secret.encode()).hexdigest()),
            "secret and hash on disk afterwards")
    d.start()
    p.link = Client(d.worker_socket, greeted=False)
    t.equal(p.link.call("hello", **{**p.words, "phase": "running"}), {}, "the answer after another restart")
    p.outcome()
    t.equal(d.wait_job(1, "done")["attempt"], 1, "attempt")
    d.stop()


def replace_status(d, job_id, body):
    """Changes the status of a job on disk, with its checksum (state_rows.c); the daemon does not run."""
    db = sqlite3.connect(f"{d.state}/state.db")
    with db:
        numbers = db.execute("SELECT id, ended_ms, uid, bytes FROM status WHERE id=?", (job_id,)).fetchone()
        crc = int(crc32c(struct.pack("<4Q", *numbers) + body.encode() + b"\0"), 16)
        db.execute("UPDATE status SET body=?, crc=? WHERE id=?", (body, crc, job_id))
    db.close()


# ---- they die ----

def deadly(t):
    kinds = [SIGKILL, signal.SIGABRT]
    return kinds if sanitized(t.program) else kinds + [signal.SIGSEGV]  # a sanitizer makes a report of that one


@case(each=[1, 2])
def test_worker_killed_at_random_steps_resumes_to_the_same_bits(t, seed):
    rng = random.Random(seed)
    d = Daemon(t, devices=1, restart_delay=1).start()
    run = mid_run(t, d, changes={"eval.every": {"steps": 7}, "checkpoint.every": {"steps": 4}})
    pid, killed, used = run.pid, 0, []
    with d.connect() as c:
        c.watch(id=run.id)
        while True:
            # Frozen here. The daemon has heard of a checkpoint of this worker: it is the first failure in a row.
            sig = deadly(t)[killed % len(deadly(t))]
            used.append(sig)
            os.kill(pid, sig)
            if sig != SIGKILL:
                os.kill(pid, signal.SIGCONT)
            killed += 1
            again = c.wait_event("restarting")
            t.equal((again["failures"], again["in_s"]), (1, 0.001), "failures and delay of a job that gets on")
            t.contains(again["why"], f"signal {int(sig)}", what="why")
            started, resumed = c.wait_event("started"), c.wait_event("resumed")
            t.equal(started["attempt"], killed + 1, "attempt")
            t.check(resumed["step"] > 0, "it began anew")
            c.events.clear()
            if killed == 6:
                break
            goal = resumed["step"] + rng.randrange(4, 60)
            pid = started["pid"]
            e = c.wait_event(lambda e: e["event"] == "ended" or e["event"] == "checkpoint" and e["step"] >= goal)
            if e["event"] == "ended":
                break
            try:
                os.kill(pid, signal.SIGSTOP)
            except ProcessLookupError:
                break
            c.events.clear()
            if run.steps() > run.spec["train"]["steps"] - 50:
                os.kill(pid, signal.SIGCONT)
                break
    j = check_done(t, d, run.id, run.spec, f"killed {killed} times")
    t.equal(j["attempt"], killed + 1, "attempts")
    kept = names(d.kept_events(run.id))
    t.equal(kept, ["submitted", "started"] + ["restarting", "started"] * killed + ["ended"], "events")


@case(each=[("that ends at once", "sys.exit(1)", "ended with code 1 and no outcome"),
            ("that kills itself", "os.kill(os.getpid(), signal.SIGSEGV)", "was killed by signal 11")])
def test_worker_fails_every_time(t, value):
    """At most three restarts in a row, each after twice the time; then the job has failed, and says why."""
    _, line, why = value
    worker = fake_worker(t, f"print('tried by attempt', attempt, flush=True)\n{line}")
    d = Daemon(t, worker=worker, restart_delay=8).start()
    j = d.wait_job(d.submit(spec("out"))["id"], "failed")
    events = d.kept_events(j["id"])
    t.equal(names(events), ["submitted"] + ["started", "restarting"] * 3 + ["started", "ended"], "events")
    again = [e for e in events if e["event"] == "restarting"]
    t.equal([(e["failures"], e["in_s"]) for e in again], [(1, 0.008), (2, 0.016), (3, 0.032)], "back-off")
    t.equal([e["attempt"] for e in events if e["event"] == "started"], [1, 2, 3, 4], "attempts")
    for e in again:
        t.contains(e["why"], why, what="why")
    t.equal((j["exit"], j["attempt"], j["failures"]), (1, 4, 4), "exit, attempt, failures")
    t.contains(j["error"]["message"], why, "4 times", f"tutti logs {j['id']}", what="the error")
    t.equal(events[-1]["error"], j["error"], "the error in the event")
    log = d.call("logs", id=j["id"])
    t.equal(log["text"].split("tried by attempt ")[1:], ["1\n", "2\n", "3\n", "4\n"], "the job's log")
    wait_free(d)
    d.stop()
    d.start()
    for key in ("state", "exit", "error", "attempt", "ended_ms"):
        t.equal(d.show(j["id"])[key], j[key], f"{key} after a restart of the daemon")


@case
def test_failures_are_counted_anew_after_a_checkpoint(t):
    """Six workers die one after the other; every second one after a new checkpoint."""
    body = """
if attempt % 2 == 0:
    send({"method": "checkpoint", "params": {"step": 10 * attempt}})
if attempt == 7:
    send({"id": 2, "method": "outcome", "params": {"state": "done", "exit": 0, "error": None, "report": {"loss": 1},
          "curve": [], "evals": [], "step": 3}})
    lines.readline()
    sys.exit(0)
while True:
    time.sleep(1000)
"""
    d = Daemon(t, worker=fake_worker(t, body), restart_delay=4).start()
    with d.connect() as c:
        job_id = c.call("submit", spec=spec("out"), dir=t.dir)["id"]
        c.watch(id=job_id, since=0)
        for attempt in range(1, 7):
            pid = c.wait_event(lambda e: e["event"] == "started" and e["attempt"] == attempt)["pid"]
            if attempt % 2 == 0:
                c.wait_event(lambda e: e["event"] == "checkpoint" and e["step"] == 10 * attempt)
            os.kill(pid, SIGKILL)
        c.wait_event("ended")
        found = [(e["failures"], e["in_s"]) for e in c.events if e["event"] == "restarting"]
    # 1: none. 2: a checkpoint, 1 failure. 3: without one since. 4: with one. 5, 6 the same.
    t.equal(found, [(1, 0.004), (1, 0.004), (2, 0.008), (1, 0.004), (2, 0.008), (1, 0.004)], "failures and back-off")
    t.equal(d.wait_job(job_id, "done")["attempt"], 7, "attempt")


@case
def test_back_off_of_one_job_does_not_hold_up_others(t):
    d = Daemon(t, devices=1, restart_delay=3600000).start()
    run = mid_run(t, d)
    os.kill(run.pid, SIGKILL)
    other = spec("other")
    check_done(t, d, d.submit(other)["id"], other)
    j = d.show(run.id)
    t.equal((j["state"], j["failures"]), ("queued", 1), "state and failures of the other one")
    t.contains(j["reason"], "signal 9", "restart 1 of 3", what="reason")
    t.equal([e["in_s"] for e in events_so_far(d, run.id) if e["event"] == "restarting"], [60.0], "the longest delay")
    d.stop()
    d.start()  # forgets the back-off
    check_done(t, d, run.id, run.spec)


def events_so_far(d, job_id):
    """Kept events of a job that has not ended: watched from the beginning until the newest is there."""
    with d.connect() as c:
        newest = c.watch(id=job_id, since=0)["seq"]
        c.call("ping")
        wanted = newest
        while not any(e["seq"] >= wanted or e["event"] == "restarting" for e in c.events):
            if c.read_line() is None:
                raise Gone("hung up")
        return c.events


@case
def test_hung_worker_is_killed_and_started_again(t):
    d = Daemon(t, hang_timeout=4).start()
    with d.connect() as c:
        run = mid_run(t, d)
        c.watch(id=run.id, since=0)
        e = c.wait_event("restarting")
        t.contains(e["why"], "hung", what="why")
        t.equal(e["failures"], 1, "failures")
        t.check(c.wait_event("resumed")["step"] > 0, "it began anew")
    j = check_done(t, d, run.id, run.spec)
    t.check(j["attempt"] >= 2, f"attempt {j['attempt']}")


@case
def test_worker_that_makes_no_step_is_killed_and_started_again(t):
    body = """
while attempt == 1:
    send({"method": "alive", "params": {}})
    time.sleep(0.1)
send({"id": 2, "method": "outcome", "params": {"state": "done", "exit": 0, "error": None, "report": {"loss": 1},
      "curve": [], "evals": [], "step": 3}})
lines.readline()
"""
    d = Daemon(t, step_timeout=3, worker=fake_worker(t, body)).start()
    job_id = d.submit(spec("out"))["id"]
    t.equal(d.wait_job(job_id, "done")["attempt"], 2, "attempt")
    events = d.kept_events(job_id)
    t.equal(names(events), ["submitted", "started", "restarting", "started", "ended"], "events")
    t.contains(events[2]["why"], "no step", what="why")


@case
def test_worker_that_reports_a_wrong_spec_is_not_started_again(t):
    d = Daemon(t).start()
    data = {"format": "idx", "train": {"images": "none", "labels": "none"}}
    j = d.submit(spec("out", {"data": data, "eval": DELETE}))
    j = d.wait_job(j["id"], "failed")
    t.equal((j["exit"], j["attempt"], names(d.kept_events(j["id"]))), (2, 1, ["submitted", "started", "ended"]),
            "exit, attempt, events")
    t.contains(j["error"]["message"] + j["error"]["path"], "none", what="the error")


@case
def test_daemon_that_slept_itself_takes_no_worker_for_hung(t):
    """Stopped for longer than --hang-timeout, it wakes with a clock that says that no worker spoke for too long, while what
    they said waits in the socket."""
    d = Daemon(t, hang_timeout=5).start()
    job_id = d.submit(spec("out", {"train.steps": ENDLESS}, SLOW))["id"]
    d.wait_step(job_id, 20)
    d.signal(signal.SIGSTOP)
    begin = time.monotonic()
    until(lambda: time.monotonic() > begin + 8, "time to pass")
    d.signal(signal.SIGCONT)
    step = d.show(job_id)["step"]
    d.wait_step(job_id, step + 200)
    j = d.show(job_id)
    t.equal((j["attempt"], j["failures"], j["state"]), (1, 0, "running"), "attempt, failures, state")


# ---- the daemon is stopped ----

@case
def test_sigterm_checkpoints_jobs_and_the_next_daemon_goes_on(t):
    d = Daemon(t, devices=2).start()
    run, waiting = mid_run(t, d, changes={"resources": {"devices": 2}}), spec("waiting")
    queued = d.submit(waiting)
    before = checkpoint_steps(run.out)[-1]
    with d.connect() as c:
        c.watch(id=run.id)
        d.signal(SIGTERM)
        t.equal(c.wait_event("stopping")["by"], "shutdown", "by whom")
        run.thaw()
        c.wait_event(lambda e: e["event"] == "checkpoint" and e["step"] > before)
    d.wait(0)
    t.equal([n for n in os.listdir(os.path.dirname(d.socket)) if not n.endswith(".lock")], [], "sockets that are left")
    t.equal(d.workers(), [], "workers that are left")
    kept, at = checkpoint_steps(run.out)[-1], run.steps()
    t.equal(kept, at, "the checkpoint is that of the last step")
    t.check(before < kept < run.spec["train"]["steps"], f"stopped at step {kept}")
    status = status_on_disk(d, run.id)
    t.check(any(k.startswith("used") and v > 0 for k, v in status.items()), f"its time so far is not kept: {status}")
    d.start()
    with d.connect() as c:
        c.watch(id=run.id, since=0)
        e = c.wait_event("resumed")
        t.equal((e["step"], e["numerics_changed"]), (kept, False), "the step it goes on from, and the same bits")
    j = check_done(t, d, run.id, run.spec)
    t.equal((j["attempt"], j["failures"]), (2, 0), "attempt, failures")
    t.equal(names(d.kept_events(run.id)), ["submitted", "started", "stopping", "queued", "started", "ended"], "events")
    t.equal(check_done(t, d, queued["id"], waiting)["attempt"], 1, "attempt of the one that waited")
    t.equal(d.stop().code, 0, "exit code with nothing to do")


@case
def test_submits_are_refused_while_the_daemon_stops(t):
    d = Daemon(t).start()
    run = mid_run(t, d)  # its worker does not stop before it is let
    with d.connect() as c:
        c.watch(id=run.id)
        d.signal(SIGTERM)
        c.wait_event("stopping")
        refused(t, lambda: c.call("submit", spec=spec("late"), dir=t.dir), "ESHUTDOWN", 3, "stopping")
        refused(t, lambda: d.submit(spec("late")), "ESHUTDOWN", 3, "stopping")
        t.equal(c.call("show", id=run.id)["state"], "stopping", "state")
        t.equal(c.call("list")["jobs"][-1]["id"], run.id, "the newest job")
        run.thaw()
        d.wait(0)
    d.start()
    t.equal(d.call("list")["jobs"][-1]["id"], run.id, "the newest job after the restart")
    check_done(t, d, run.id, run.spec)


@case
def test_second_sigterm_ends_at_once_and_the_next_daemon_goes_on(t):
    d = Daemon(t).start()
    run = mid_run(t, d)
    with d.connect() as c:
        c.watch(id=run.id)
        d.signal(SIGTERM)
        c.wait_event("stopping")
        t.check(d.alive(), "it did not wait for the checkpoint")
        d.signal(SIGTERM)
        run_of_it = d.wait(None)  # although the worker is stopped
        t.check(run_of_it.code >= 0, f"killed by signal {-run_of_it.code}")
    t.equal([w.pid for w in live_workers(d, run.id)], [run.pid], "workers while there is no daemon")
    d.start()
    run.thaw()
    j = check_done(t, d, run.id, run.spec)
    t.equal(j["failures"], 0, "failures: nothing failed")
    t.equal(names(d.kept_events(run.id)), ["submitted", "started", "stopping", "queued", "started", "ended"], "events")


@case
def test_worker_that_does_not_stop_in_time_is_killed_and_goes_on_later(t):
    d = Daemon(t, stop_timeout=0).start()
    run = mid_run(t, d)
    kept = checkpoint_steps(run.out)[-1]
    d.signal(SIGTERM)
    d.wait(0)
    t.equal(live_workers(d, run.id), [], "workers that are left")
    d.start()
    with d.connect() as c:
        c.watch(id=run.id, since=0)
        t.equal(c.wait_event("resumed")["step"], kept, "the step it goes on from")
    t.equal(check_done(t, d, run.id, run.spec)["failures"], 0, "failures")


@case
def test_worker_stopped_from_outside_is_started_again(t):
    """SIGTERM to a worker: it writes a checkpoint and ends; nobody wanted the job to end."""
    d = Daemon(t).start()
    run = mid_run(t, d)
    os.kill(run.pid, SIGTERM)
    run.thaw()
    j = check_done(t, d, run.id, run.spec)
    t.equal(j["attempt"], 2, "attempt")
    t.equal(names(d.kept_events(run.id)), ["submitted", "started", "restarting", "started", "ended"], "events")


# ---- the private daemon ----

@case(each=["running", "starting", "idle"])
def test_private_daemon_ends_with_whoever_started_it(t, phase):
    reader, writer = os.pipe()
    sleepy = script(t, "w", "#!/bin/sh\nexec sleep 1000\n")
    d = Daemon(t, devices="auto", private=reader, **({"worker": sleepy} if phase == "starting" else {}))
    d.popen = {"pass_fds": (reader,)}
    d.start()
    os.close(reader)
    run, before, pid = None, None, None
    if phase == "running":
        run = mid_run(t, d)
        before, pid = checkpoint_steps(run.out)[-1], run.pid
    elif phase == "starting":
        d.submit(spec("out"))
        until(lambda: "started, attempt 1" in d.log(), "worker")
        pid = int(d.log().split(": worker ")[1].split()[0])
    t.equal(d.call("ping"), {}, "answer to ping")
    os.close(writer)
    if run is not None:  # a worker that goes on before the daemon has noticed could finish the job
        until(lambda: "has ended: stopping" in d.log(), "the daemon's end")
        run.thaw()
    t.contains(d.wait(0).err, "the program that started this daemon has ended", what="the daemon's log")
    t.check(pid is None or process_state(pid) == "Z", "the worker is left running")
    t.equal(d.workers(), [], "workers that are left")
    t.equal([n for n in os.listdir(os.path.dirname(d.socket)) if n.endswith(".sock")], [], "sockets that are left")
    if run is not None:
        kept = checkpoint_steps(run.out)[-1]
        t.check(before < kept < run.spec["train"]["steps"], f"checkpoint {kept} after {before}")
        t.equal(status_on_disk(d, run.id)["state"], "cancelled", "state of the job")


@case
def test_private_daemon_gives_a_job_the_devices_it_asks_for(t):
    reader, writer = os.pipe()
    d = Daemon(t, devices="auto", private=reader)
    d.popen = {"pass_fds": (reader,)}
    d.start()
    os.close(reader)
    answer = d.call("devices")
    t.equal((answer.get("auto"), answer["devices"]), (True, []), "devices")
    s = spec("out", {"resources": {"devices": 5, "device_memory": "1MiB"}})
    j = check_done(t, d, d.submit(s)["id"], s)
    t.equal(len(j["devices"]), 5, "devices of the job")
    os.close(writer)
    d.wait(0)


# ---- cancel ----

@case
def test_cancel_of_a_queued_job_ends_it_at_once(t):
    d = Daemon(t, devices=1).start()
    run = mid_run(t, d)
    queued, last = d.submit(spec("never")), spec("last")
    last_id = d.submit(last)["id"]
    answer = d.call("cancel", id=queued["id"])
    t.equal((answer["id"], answer["state"], answer["exit"], answer["error"], answer["started_ms"]),
            (queued["id"], "cancelled", 130, None, None), "the answer")
    t.check(answer["ended_ms"] >= answer["submitted_ms"], "when it ended")
    t.equal(names(d.kept_events(queued["id"])), ["submitted", "ended"], "events")
    again = d.call("cancel", id=queued["id"], now=True)
    t.equal(again, answer, "the answer to a second cancel")
    d.restart()
    t.equal(d.show(queued["id"])["state"], "cancelled", "state after a restart")
    run.thaw()
    check_done(t, d, run.id, run.spec)
    check_done(t, d, last_id, last)
    t.check(not os.path.exists(t.path("never")), "the cancelled job ran")


@case
def test_cancel_of_a_running_job_keeps_a_checkpoint_from_which_it_can_go_on(t):
    d = Daemon(t, devices=1).start()
    run = mid_run(t, d)
    before = checkpoint_steps(run.out)[-1]
    with d.connect() as c:
        c.watch(id=run.id)
        answer = c.call("cancel", id=run.id)
        t.equal((answer["state"], answer["exit"]), ("stopping", None), "state and exit in the answer")
        t.equal(c.wait_event("stopping")["by"], "cancel", "by whom")
        t.equal(c.call("cancel", id=run.id)["state"], "stopping", "state in the second answer")
        run.thaw()
        e = c.wait_event("ended")
        t.equal((e["state"], e["exit"], e["error"]), ("cancelled", 130, None), "the event")
    j = d.show(run.id)
    t.equal((j["state"], j["exit"], j["error"]), ("cancelled", 130, None), "the job")
    t.equal(names(d.kept_events(run.id)), ["submitted", "started", "stopping", "ended"], "events")
    kept = checkpoint_steps(run.out)[-1]
    t.check(before < kept == run.steps() < run.spec["train"]["steps"], f"checkpoint {kept} after {before}")
    t.equal(read_json(os.path.join(run.out, "result.json"))["stopped"], True, "result.json: stopped")
    t.check(not os.path.exists(os.path.join(run.out, "model.safetensors")), "there is a model")
    t.equal(d.call("cancel", id=run.id), short(d, run.id), "the answer to a cancel of an ended job")
    again = d.submit(run.spec)
    t.check(again["id"] != run.id and not again["duplicate"], "it is not a new job")
    with d.connect() as c:
        c.watch(id=again["id"], since=0)
        t.equal(c.wait_event("resumed")["step"], kept, "the step it goes on from")
    check_done(t, d, again["id"], run.spec)


def short(d, job_id):
    return next(j for j in d.call("list", after=job_id - 1, limit=1)["jobs"])


@case
def test_cancel_now_kills(t):
    d = Daemon(t, devices=1).start()
    run = mid_run(t, d)  # its worker is stopped: it can only be killed
    at = checkpoint_steps(run.out)
    d.call("cancel", id=run.id, now=True)
    j = d.wait_job(run.id, "cancelled")
    t.equal((j["exit"], j["error"], j["failures"]), (130, None, 0), "exit, error, failures")
    until(lambda: process_state(run.pid) == "Z", "end of the worker")
    t.equal(checkpoint_steps(run.out), at, "checkpoints")
    other = spec("other")
    check_done(t, d, d.submit(other)["id"], other)  # the device is free again
    again = d.submit(run.spec)
    check_done(t, d, again["id"], run.spec)


@case
def test_cancel_then_cancel_now_kills_a_worker_that_does_not_stop(t):
    d = Daemon(t, devices=1).start()
    run = mid_run(t, d)
    t.equal(d.call("cancel", id=run.id)["state"], "stopping", "state")
    t.equal(d.call("cancel", id=run.id, now=True)["state"], "stopping", "state")
    t.equal(d.wait_job(run.id, "cancelled")["exit"], 130, "exit")
    t.equal(names(d.kept_events(run.id)), ["submitted", "started", "stopping", "ended"], "events")


@case(each=[False, True])
def test_cancel_of_a_job_whose_worker_has_not_said_hello(t, now):
    d = Daemon(t, devices=1, worker=script(t, "w", "#!/bin/sh\nexec sleep 1000\n")).start()
    job_id = d.submit(spec("out"))["id"]
    until(lambda: "started, attempt 1" in d.log(), "worker")
    d.call("cancel", id=job_id, now=now)
    j = d.wait_job(job_id, "cancelled")
    t.equal((j["exit"], j["error"]), (130, None), "exit, error")
    t.equal(names(d.kept_events(job_id))[-1], "ended", "the last event")
    wait_free(d)


@case
def test_cancel_right_after_submit_always_ends_cancelled_or_done(t):
    """At whatever moment of the start it comes."""
    d = Daemon(t, devices=2).start()
    endless = spec("out", {"train.steps": ENDLESS}, SLOW)
    rng = random.Random(5)
    with d.connect() as c:
        c.watch()
        for i in range(16):
            s = {**endless, "output": f"out{i}"}
            job_id = c.call("submit", spec=s, dir=t.dir)["id"]
            for _ in range(rng.randrange(0, 30)):  # something to do that takes a random while
                c.call("show", id=job_id)
            c.call("cancel", id=job_id)
            e = c.wait_event(lambda e: e["job"] == job_id and e["event"] == "ended")
            t.equal((e["state"], e["exit"]), ("cancelled", 130), f"job {i}")
            t.equal(c.call("show", id=job_id)["attempt"], 1, f"job {i}: attempt")
    until(lambda: d.workers() == [], "end of all workers")


@case
def test_cancelled_job_stays_cancelled_when_the_daemon_is_killed(t):
    """Acknowledged is acknowledged: the next daemon carries it out."""
    d = Daemon(t, devices=1).start()
    run = mid_run(t, d)
    d.call("cancel", id=run.id)
    d.restart()
    run.thaw()
    j = d.wait_job(run.id, "cancelled")
    t.equal((j["exit"], j["attempt"]), (130, 1), "exit, attempt")
    run = mid_run(t, d, "out2")
    d.call("cancel", id=run.id)
    d.kill9()
    os.kill(run.pid, SIGKILL)
    d.start()
    t.equal(d.wait_job(run.id, "cancelled")["attempt"], 1, "attempt")
    t.equal(names(d.kept_events(run.id)), ["submitted", "started", "stopping", "ended"], "events")


@case
def test_cancel_of_a_job_that_waits_for_its_restart(t):
    d = Daemon(t, worker=fake_worker(t, "sys.exit(1)"), restart_delay=3600000).start()
    job_id = d.submit(spec("out"))["id"]
    until(lambda: d.show(job_id)["failures"] == 1, "failure")
    t.equal(d.call("cancel", id=job_id)["state"], "cancelled", "state")
    t.equal(names(d.kept_events(job_id)), ["submitted", "started", "restarting", "ended"], "events")


@case(each=[("stopped", {}), ("failed", {"error": {"errno": "EIO", "path": "", "message": "no"}, "retry": True})])
def test_cancel_of_a_job_whose_worker_has_handed_over_and_not_gone(t, value):
    """Its job is back in the queue, and the worker that has only to exit takes its time."""
    outcome = {"state": value[0], "exit": 1, "error": None, "report": None, "curve": [], "evals": [], "step": 3,
               **value[1]}
    body = f"""
send({{"id": 2, "method": "outcome", "params": json.loads({json.dumps(json.dumps(outcome))})}})
lines.readline()
time.sleep(1000)
"""
    d = Daemon(t, devices=1, worker=fake_worker(t, body), restart_delay=3600000).start()
    with d.connect() as c:
        job_id = c.call("submit", spec=spec("out"), dir=t.dir)["id"]
        c.watch(id=job_id, since=0)
        c.wait_event("restarting")
        c.call("cancel", id=job_id)
        t.equal(c.wait_event("ended")["state"], "cancelled", "state")
    t.equal(d.show(job_id)["exit"], 130, "exit")
    t.equal(names(d.kept_events(job_id)), ["submitted", "started", "restarting", "ended"], "events")


@case
def test_cancel_of_no_job(t):
    d = Daemon(t).start()
    refused(t, lambda: d.call("cancel", id=7), "ENOENT", 6, "7")


# ---- the queue ----

@case
def test_one_device_serves_first_come_first_served(t):
    d = Daemon(t, devices=1).start()
    run = mid_run(t, d, "first")
    specs = [spec(f"out{i}", {"init.seed": i}) for i in range(6)]
    ids = [d.submit(s)["id"] for s in specs]
    t.equal([j["state"] for j in d.call("list", after=run.id - 1)["jobs"]], ["running"] + ["queued"] * 6, "states")
    run.thaw()
    for job_id, s in zip(ids, specs):
        check_done(t, d, job_id, s)
    with d.connect() as c:
        c.watch(since=0)
        c.wait_event(lambda e: e["event"] == "ended" and e["job"] == ids[-1])
        found = [(e["event"], e["job"]) for e in c.events if e["event"] in ("started", "ended") and e["job"] >= run.id]
    expected = [(what, i) for i in [run.id, *ids] for what in ("started", "ended")]
    t.equal(found, expected, "starts and ends, one after the other")


@case
def test_nobody_overtakes_a_job_that_waits_for_two_devices(t):
    d = Daemon(t, devices=2).start()
    run = mid_run(t, d, "one")
    both, single = spec("two", {"resources": {"devices": 2}}), spec("three")
    both_id, single_id = d.submit(both)["id"], d.submit(single)["id"]
    owners = [x["job"] for x in d.call("devices")["devices"]]
    t.equal(sorted(owners, key=str), sorted([run.id, None], key=str), "owners while one device is free")
    # A third job that could run at once shows that the daemon is done with deciding: it is queued as well.
    third = d.submit(spec("four"))["id"]
    states = [d.show(i)["state"] for i in (run.id, both_id, single_id, third)]
    t.equal(states, ["running", "queued", "queued", "queued"], "states")
    run.thaw()
    j = check_done(t, d, both_id, both)
    t.equal(sorted(j["devices"]), [0, 1], "devices of the job that wants two")
    check_done(t, d, single_id, single)
    d.wait_job(third, "done")
    with d.connect() as c:
        c.watch(since=0)
        for job_id in (single_id, third):
            c.wait_event(lambda e: e["event"] == "ended" and e["job"] == job_id)
        order = [(e["event"], e["job"]) for e in c.events if e["event"] in ("started", "ended")]
    t.check(order.index(("started", both_id)) > order.index(("ended", run.id)), f"two began too early: {order}")
    t.check(order.index(("started", single_id)) > order.index(("ended", both_id)), f"one overtook: {order}")
    wait_free(d)


@case
def test_devices_show_their_owners(t):
    d = Daemon(t, devices=3, device_memory="2MiB").start()
    a, b = mid_run(t, d, "a", changes={"resources": {"devices": 2}}), mid_run(t, d, "b")
    answer = d.call("devices")
    t.equal([(x["index"], x["memory_bytes"]) for x in answer["devices"]], [(i, 2 << 20) for i in range(3)], "devices")
    owned = {i: x["job"] for i, x in enumerate(answer["devices"])}
    for run, n in ((a, 2), (b, 1)):
        j = d.show(run.id)
        t.equal(len(j["devices"]), n, "devices of a job")
        t.equal([owned[i] for i in j["devices"]], [run.id] * n, "their owner")
    for run in (a, b):
        run.thaw()
        check_done(t, d, run.id, run.spec)
    wait_free(d)


@case
def test_job_takes_as_many_devices_as_are_free_between_its_least_and_most(t):
    d = Daemon(t, devices=3).start()
    run = mid_run(t, d, "one")
    s = spec("some", {"resources": {"devices": {"min": 1, "max": 3}}})
    j = check_done(t, d, d.submit(s)["id"], s)
    t.equal(len(j["devices"]), 2, "devices while one was taken")
    t.check(not set(j["devices"]) & set(d.show(run.id)["devices"]), "a device was given to two")
    run.thaw()
    check_done(t, d, run.id, run.spec)
    wait_free(d)
    s = spec("all", {"resources": {"devices": {"min": 1, "max": 3}}})
    t.equal(len(check_done(t, d, d.submit(s)["id"], s)["devices"]), 3, "devices when all were free")


@case(each=[("devices", {"devices": 3}, "3 devices", "has 2"),
            ("device memory", {"device_memory": "65MiB"}, str(65 << 20), str(64 << 20)),
            ("host memory", {"host_memory": "2GiB"}, str(2 << 30), str(1 << 30)),
            ("at least too many devices", {"devices": {"min": 3, "max": 4}}, "3 devices", "has 2")])
def test_asking_for_more_than_there_is(t, value):
    d = Daemon(t).start()
    _, ask, *words = value
    e = refused(t, lambda: d.submit(spec("out", {"resources": ask})), "ENOSPC", 5, *words)
    t.check(e.path.startswith("resources."), f"path {e.path}")
    t.equal(d.call("list")["jobs"], [], "jobs")
    s = spec("out", {"resources": {"devices": 2, "device_memory": "64MiB", "host_memory": "1GiB"}})
    check_done(t, d, d.submit(s)["id"], s)  # as much as there is


@case
def test_job_that_does_not_fit_its_lease_fails_with_the_least_memory_that_would_do(t):
    d = Daemon(t, device_memory="1KiB").start()
    j = d.wait_job(d.submit(spec("out"))["id"], "failed")
    t.equal((j["exit"], j["attempt"], j["error"]["errno"]), (5, 1, "ENOSPC"), "exit, attempt, errno")


# ---- the time limit ----

@case
def test_time_limit_ends_a_job_with_a_checkpoint(t):
    d = Daemon(t, devices=1).start()
    job_id = d.submit(spec("out", {"train.steps": ENDLESS, "queue": {"time_limit": 3}}, SLOW))["id"]
    j = d.wait_job(job_id, "failed")
    t.equal((j["exit"], j["error"]["errno"], j["error"]["path"]), (1, "ETIME", "queue.time_limit"), "exit and error")
    events = d.kept_events(job_id)
    t.equal(names(events), ["submitted", "started", "stopping", "ended"], "events")
    t.equal(events[2]["by"], "limit", "by whom")
    kept = checkpoint_steps(t.path("out"))[-1]
    t.equal(kept, steps_in_metrics(t.path("out")), "the checkpoint is that of the last step")
    t.contains(j["error"]["message"], "limit of 3 s", f"step {kept}", what="the error")
    again = spec("out", {"train.steps": ENDLESS}, SLOW)  # without a limit it goes on
    with d.connect() as c:
        job_id = c.call("submit", spec=again, dir=t.dir)["id"]
        c.watch(id=job_id, since=0)
        t.equal(c.wait_event("resumed")["step"], kept, "the step it goes on from")
        c.call("cancel", id=job_id, now=True)
        c.wait_event("ended")


@case
def test_time_limit_that_is_over_holds_across_daemons(t):
    """The limit is over, the worker has been asked, and the daemon dies: the next one does not start the job again."""
    d = Daemon(t, devices=1).start()
    run = mid_run(t, d, changes={"queue": {"time_limit": 4}})  # stopped: it cannot obey
    with d.connect() as c:
        c.watch(id=run.id, since=0)
        t.equal(c.wait_event("stopping")["by"], "limit", "by whom")
    d.restart()
    run.thaw()
    j = d.wait_job(run.id, "failed")
    t.equal((j["error"]["errno"], j["attempt"]), ("ETIME", 1), "errno, attempt")


@case
def test_time_limit_also_ends_a_job_whose_worker_does_not_stop(t):
    """Asked because of the limit, it dies: no failure that another attempt could mend."""
    d = Daemon(t, devices=1).start()
    run = mid_run(t, d, changes={"queue": {"time_limit": 4}})
    with d.connect() as c:
        c.watch(id=run.id, since=0)
        c.wait_event("stopping")
    os.kill(run.pid, SIGKILL)
    j = d.wait_job(run.id, "failed")
    t.equal((j["error"]["errno"], j["attempt"], j["exit"]), ("ETIME", 1, 1), "errno, attempt, exit")


# ---- replicas ----

@case
def test_job_with_replicas_is_done_on_two_devices(t):
    d = Daemon(t, devices=2).start()
    s = spec("out", {"train": {"steps": 6, "global_batch": 24, "micro_batch": 3, "replicas": 2, "grad_clip": 1.0},
                     "resources": {"devices": 2}}, SLOW)
    job_id = d.submit(s)["id"]
    j = check_done(t, d, job_id, s)
    t.equal((j["resolved"]["replicas"], j["resolved"]["micro_batch"]), (2, 3), "resolved")
    t.equal((j["report"]["replicas"], len(j["report"]["devices"]), j["plan"]["devices"]), (2, 2, 2), "the report")
    t.check(j["report"]["step_bytes"]["peer"] > 0, "two devices had nothing to say to each other")
    d.stop()


# ---- sizes that are "auto" ----

@case
def test_sizes_do_not_depend_on_what_is_free(t):
    """Sizes are chosen for the devices that a job can use, whether they are free when it starts or not."""
    d = Daemon(t, devices=2).start()
    auto = {"train": {"steps": 6, "global_batch": 512}, "model.hidden": [256, 256], "resources": {"devices": {"min": 1, "max": 2}}}

    def run_one(out):
        s = spec(out, auto)
        j = d.wait_job(d.submit(s)["id"], "done")
        return len(j["devices"]), j["resolved"]["micro_batch"], j["resolved"]["replicas"], j["report"]["weights_hash"]

    free = run_one("free")
    other = mid_run(t, d)
    busy = run_one("busy")
    other.thaw()
    check_done(t, d, other.id, other.spec)
    t.equal((free[0], busy[0]), (2, 1), "devices of the two jobs")
    t.equal(free[1:], busy[1:], "sizes and weights")
    t.equal(free[2], 2, "replicas for two devices")


@case
def test_virtual_devices_that_the_daemon_lacks_do_not_count(t):
    d = Daemon(t, devices=2).start()
    s = spec("out", {"train": {"steps": 6, "global_batch": 512}, "model.hidden": [256, 256],
                     "resources": {"devices": {"min": 1, "max": 8}}})
    j = d.wait_job(d.submit(s)["id"], "done")
    t.equal((len(j["devices"]), j["resolved"]["replicas"]), (2, 2), "devices and replicas")
    d.stop()
