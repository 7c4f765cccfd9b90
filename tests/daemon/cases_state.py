"""The durable state over a daemon's whole life: databases of older versions, jobs that ended long ago, pruning, backups."""
import json
import os
import re
import shutil
import sqlite3
import stat
import struct
import threading
import time

from cases_client import need_client, tutti
from cases_crash import TRACE, hold_log, need, quietly_serving, read_bytes
from cases_protocol import Puppet, idle_daemon, submit_many
from files import crc32c
from harness import case, spread
from harness_daemon import SIGKILL, SIGTERM, Daemon, RpcError, read, spec, until

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "state-v1")


def database(d):
    """The daemon's database, to look at while it runs."""
    return sqlite3.connect(f"file:{d.state}/state.db?mode=ro", uri=True)


def version_of(path):
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    version = db.execute("PRAGMA user_version").fetchone()[0]
    db.close()
    return version


def refused(t, errno, function, *arguments, **more):
    try:
        function(*arguments, **more)
    except RpcError as e:
        t.equal(e.errno, errno, f"errno of {e}")
        return e
    t.check(False, f"{errno} did not come")


# ---- an older version ----

def lay_out_version_1(d, log):
    """Without a log, as the old daemon left it at its end; with one, as if it had been killed."""
    os.makedirs(d.state)
    path = os.path.join(d.state, "state.db")
    shutil.copy(os.path.join(GOLDEN, "state.db"), path)
    if not log:
        return
    db = sqlite3.connect(path)
    db.execute("PRAGMA wal_autocheckpoint=0")
    db.execute("UPDATE jobs SET body=body")
    db.commit()
    for name in ("state.db", "state.db-wal"):
        shutil.copy(os.path.join(d.state, name), os.path.join(d.state, name + ".copy"))
    db.close()
    for name in ("state.db", "state.db-wal"):
        os.rename(os.path.join(d.state, name + ".copy"), os.path.join(d.state, name))


@case(each=[False, True])
def test_database_of_version_1_opens_with_every_job_event_and_key(t, log):
    d = Daemon(t, devices=1)  # its queued jobs ask for two
    lay_out_version_1(d, log)
    with open(os.path.join(GOLDEN, "told.json"), encoding="utf-8") as f:
        told = json.load(f)
    for life in range(2):
        d.start()
        with d.connect() as c:
            jobs = [c.call("show", id=j["id"]) for j in c.call("list")["jobs"]]
            for j in jobs:
                j.pop("seq")
                j.pop("log_bytes")
                t.equal((j.pop("needs"), j.pop("predicted_left_s")), (None, None), "needs, which version 1 did not have")
            c.watch(since=0)
            c.wait_event("gap")
            events = [e for e in c.events if e["event"] != "gap"]
        t.equal(jobs, told["jobs"], f"jobs in life {life}")
        t.equal(events[:len(told["events"])], told["events"], f"events in life {life}")
        db = database(d)
        t.equal(dict(db.execute("SELECT id, key FROM jobs")),
                {1: "0:key of done", 2: "0:key of failed", 3: None, 4: "0:key of running", 5: "0:key of queued",
                 6: "0:key of never"}, "keys")
        db.close()
        if os.getuid() == 0:  # keys are a user's own, and root's here
            for j in told["jobs"]:
                if j["id"] != 3:
                    key = "key of " + ("never" if j["id"] == 6 else j["name"].split("-")[0])
                    again = d.call("submit", spec=j["spec"], dir=j["dir"], key=key)
                    t.equal((again["id"], again["duplicate"]), (j["id"], True), f"a retry with {key}")
            refused(t, "EEXIST", d.call, "submit", spec=spec("x"), dir=t.dir, key="key of done")
        t.equal(version_of(os.path.join(d.state, "state.db")), 2, "version")
        t.equal(version_of(os.path.join(d.state, "state-v1.db")), 1, "version of the copy that was kept")
        copy = os.stat(os.path.join(d.state, "state-v1.db"))
        if life == 0:
            first = copy
        t.equal(copy.st_mtime_ns, first.st_mtime_ns, "when the copy was made")
        d.restart(SIGTERM if log else SIGKILL)
        d.stop()


@case
def test_damaged_database_of_version_1_is_refused_and_left_alone(t):
    d = Daemon(t, devices=1)
    lay_out_version_1(d, False)
    path = os.path.join(d.state, "state.db")
    db = sqlite3.connect(path)
    db.execute("UPDATE status SET body=replace(body, 'done', 'gone') WHERE id=1")
    db.commit()
    db.close()
    result = d.try_start()
    t.equal(result.code, 1, "exit code")
    t.contains(result.err, path, "row 1 of table status", what="standard error")
    t.equal(version_of(path), 1, "version")


# ---- killed while it starts ----

def calls_of_a_start(t, d, **more):
    """[(name, number)] of the calls on files of the case, up to the socket for clients."""
    d.prefix = ["strace", "-D", "-y", "-o", t.path("start.log"), "-e", TRACE]
    d.start(**more)
    d.kill9()
    d.prefix = []
    found, counts = [], {}
    for line in read(t.path("start.log")).splitlines():
        m = re.match(r"^(?:\d+ +)?(\w+)\((.*)$", line)
        if m is None:
            continue
        counts[m[1]] = counts.get(m[1], 0) + 1
        if d.state in m[2]:
            found.append((m[1], counts[m[1]]))
        if "tutti.sock" in m[2] and m[1] == "bind":
            break
    return found


@case(each=["new", "version 1", "older"])
def test_killed_at_every_call_of_a_start_that_changes_the_state(t, kind):
    """It makes the state, migrates it, or takes an older one knowingly. The next start finds all that was there."""
    need(t)
    d, more = Daemon(t, devices=1, worker="/nonexistent/worker", restart_delay=3600000), {}
    if kind == "version 1":
        lay_out_version_1(d, True)
    elif kind == "older":
        lay_out_version_1(d, False)
        d.start()
        t.equal(d.submit(spec("x"))["id"], 7, "an id")
        d.stop()
        shutil.copy(os.path.join(d.state, "state-v1.db"), os.path.join(d.state, "state.db"))
        more = {"accept_older_state": True}
    else:
        os.makedirs(d.state)
    saved = t.path("saved")
    shutil.copytree(d.state, saved)
    calls, hits = spread(calls_of_a_start(t, d, **more)), 0
    for name, number in calls:
        shutil.rmtree(d.state)
        shutil.copytree(saved, d.state)
        d.prefix = ["strace", "-D", "-o", os.devnull, "-e", TRACE, "-e", f"inject={name}:signal=SIGKILL:when={number}"]
        d.spawn(**more)
        until(lambda: not d.alive() or quietly_serving(d), "end or greeting")
        hits += not d.alive()
        if d.alive():
            d.signal(SIGKILL)
        d.wait(None)
        d.prefix = []
        d.start(**more)
        t.equal(ids(d), [] if kind == "new" else list(range(1, 7)), f"jobs after a kill at {name} #{number}")
        t.equal(d.submit(spec("x"))["id"], {"new": 1, "version 1": 7, "older": 8}[kind],
                f"the next id after a kill at {name} #{number}")
        d.kill9()
        d.start()  # without the option: it is the state now
        d.kill9()
        t.log.clear()
    t.check(hits >= len(calls) // 2, f"only {hits} of {len(calls)} kills")


# ---- jobs that ended long ago ----

def cancelled_jobs(d, n):
    """n jobs that ended while the daemon's device was taken by job 1: ids 2 to n + 1."""
    ids = submit_many(d, n + 1)
    with d.connect() as c:
        for number in [c.send("cancel", id=i) for i in sorted(ids)[1:]]:
            c.answer(number)


@case
def test_ended_jobs_are_found_like_live_ones(t):
    d = idle_daemon(t)
    cancelled_jobs(d, 20)
    for life in range(2):
        with d.connect() as c:
            t.equal([j["id"] for j in c.call("list")["jobs"]], list(range(1, 22)), "all")
            t.equal([j["id"] for j in c.call("list", active=True)["jobs"]], [1], "live ones")
            page = c.call("list", after=5, limit=3)
            t.equal(([j["id"] for j in page["jobs"]], page["more"]), ([6, 7, 8], True), "a page")
            page = c.call("list", after=18, limit=3)
            t.equal(([j["id"] for j in page["jobs"]], page["more"]), ([19, 20, 21], False), "the last page")
            ended = c.call("show", id=7)["ended_ms"]
            recent = c.call("list", ended_after_ms=int(time.time() * 1000) + 10**6)["jobs"]
            t.equal([j["id"] for j in recent], [1], "live ones, and those that will have ended")
            recent = c.call("list", ended_after_ms=1)["jobs"]
            t.equal(len(recent), 21, "live ones, and those that ever ended")
            t.equal(c.call("cancel", id=7)["ended_ms"], ended, "cancelled again")
            t.equal(c.call("logs", id=7), {"text": "", "offset": 0, "end": True}, "its log")
            c.watch(id=7, since=0)
            t.equal(c.wait_event("ended")["state"], "cancelled", "its event")
        if life == 0:
            d.restart()
    d.stop()


@case
def test_key_of_an_ended_job_is_still_taken(t):
    d = idle_daemon(t)
    d.submit(spec("first"))
    ended = d.submit(spec("x"), key="the key")["id"]
    d.call("cancel", id=ended)
    for _ in range(2):
        again = d.submit(spec("x"), key="the key")
        t.equal((again["id"], again["duplicate"], again["state"]), (ended, True, "cancelled"), "the retry")
        e = refused(t, "EEXIST", d.submit, spec("y"), key="the key")
        t.contains(e.message, f"job {ended}", what="the message")
        d.restart()
    t.equal(d.submit(spec("y"))["id"], ended + 1, "the next id")  # refused ones are not counted
    d.stop()


# ---- pruning ----

def ids(d):
    return [j["id"] for j in d.call("list")["jobs"]]


@case
def test_oldest_ended_jobs_are_pruned_with_their_events_and_logs(t):
    d = idle_daemon(t, keep_jobs=5)
    cancelled_jobs(d, 12)
    for i in range(1, 14):
        with open(d.worker_log(i), "a", encoding="utf-8") as f:
            f.write("x\n")
    until(lambda: len(ids(d)) == 6, "pruning")
    left = ids(d)
    t.equal(left[0], 1, "the live job")
    gone = sorted(set(range(2, 14)) - set(left))
    for i in gone:
        refused(t, "ENOENT", d.show, i)
        refused(t, "ENOENT", d.call, "logs", id=i)
        refused(t, "ENOENT", d.call, "watch", id=i)
        refused(t, "ENOENT", d.call, "cancel", id=i)
    t.equal(sorted(int(n.split(".")[0]) for n in os.listdir(os.path.join(d.state, "logs"))), left, "logs")
    d.restart()
    t.equal(ids(d), left, "after a restart")
    with d.connect() as c:
        c.watch(since=0)
        gap = c.wait_event("gap")
        t.equal(sorted({e["job"] for e in c.events if e["event"] == "submitted"}), left, "events")
        t.check(gap["seq"] > max(e["seq"] for e in c.events if e["event"] == "submitted"), "the gap's number")
    t.equal(d.submit(spec("x"))["id"], 14, "the next id")
    d.stop()


@case
def test_ids_of_pruned_jobs_are_not_given_out_again(t):
    d = idle_daemon(t, keep_jobs=1)
    cancelled_jobs(d, 3)
    Puppet(d, 1).die()
    d.call("cancel", id=1, now=True)
    until(lambda: len(ids(d)) == 1, "pruning")
    d.restart(SIGTERM)
    t.equal(d.submit(spec("x"))["id"], 5, "the next id")
    d.stop()


def age(d, job_id, ended_ms, size=None):
    """Changes on disk when a job ended, with the checksum of its status; the daemon does not run."""
    db = sqlite3.connect(os.path.join(d.state, "state.db"))
    with db:
        body, uid, was = db.execute("SELECT body, uid, bytes FROM status WHERE id=?", (job_id,)).fetchone()
        size = was if size is None else size
        crc = int(crc32c(struct.pack("<4Q", job_id, ended_ms, uid, size) + body.encode() + b"\0"), 16)
        db.execute("UPDATE status SET ended_ms=?, bytes=?, crc=? WHERE id=?", (ended_ms, size, crc, job_id))
    db.close()


@case
def test_jobs_are_pruned_by_age_and_by_bytes(t):
    d = idle_daemon(t, keep_days=2, keep_bytes="1MiB", keep_jobs=0)
    cancelled_jobs(d, 6)
    d.stop()
    now, day = int(time.time() * 1000), 86400000
    for i, days in ((2, 3), (3, 1), (4, 2.5)):
        age(d, i, int(now - days * day))
    d.start()
    until(lambda: ids(d) == [1, 3, 5, 6, 7], "pruning by age")
    d.stop()
    for i in (3, 5, 6, 7):
        age(d, i, now - 1000 * (100 - i), 400000)  # two of four fit
    d.start()
    until(lambda: ids(d) == [1, 6, 7], "pruning by bytes")
    d.stop()


@case
def test_nothing_is_pruned_without_limits(t):
    d = idle_daemon(t, keep_days=0, keep_bytes=0, keep_jobs=0)
    cancelled_jobs(d, 5)
    d.stop()
    for i in range(2, 7):
        age(d, i, 1, 1 << 40)
    d.start()
    t.equal(ids(d), list(range(1, 7)), "jobs")
    d.restart(SIGTERM)
    t.equal(ids(d), list(range(1, 7)), "jobs")
    d.stop()


# ---- the log is folded ----

@case
def test_quiet_daemon_has_everything_in_the_database_itself(t):
    """So a copy of state.db alone is a good one."""
    d = idle_daemon(t)
    t.equal(version_of(os.path.join(d.state, "state.db")), 2, "version right after the start")
    submit_many(d, 30)
    until(lambda: os.path.getsize(os.path.join(d.state, "state.db-wal")) == 0, "end of the log")
    shutil.copy(os.path.join(d.state, "state.db"), t.path("alone.db"))
    db = sqlite3.connect(t.path("alone.db"))
    t.equal([r[0] for r in db.execute("SELECT id FROM jobs ORDER BY id")], list(range(1, 31)), "jobs in the copy")
    t.equal(db.execute("PRAGMA integrity_check").fetchone()[0], "ok", "integrity")
    db.close()
    d.stop()


# ---- backup ----

@case
def test_backup_while_it_runs_and_restore(t):
    need_client(t)
    d = idle_daemon(t)
    submit_many(d, 40)
    end = threading.Event()

    def load():
        with d.connect() as c:
            while not end.is_set():
                c.call("submit", spec=spec("load"), dir=t.dir)

    threads = [threading.Thread(target=load) for _ in range(2)]
    for th in threads:
        th.start()
    known = max(ids(d)[:40])
    run = tutti(t, "backup", "copy.db", d=d)
    end.set()
    for th in threads:
        th.join()
    t.contains(run.out, "copy.db", what="standard output")
    t.equal(stat.S_IMODE(os.stat(t.path("copy.db")).st_mode), 0o600, "mode")
    t.equal([n for n in os.listdir(t.dir) if n.endswith(".new")], [], "what is left over")
    t.equal([n for n in os.listdir(d.state) if "backup" in n], [], "what is left in the state directory")
    db = sqlite3.connect(t.path("copy.db"))
    t.equal(db.execute("PRAGMA integrity_check").fetchone()[0], "ok", "integrity")
    there = [r[0] for r in db.execute("SELECT id FROM jobs ORDER BY id")]
    t.equal(there, list(range(1, len(there) + 1)), "jobs in the copy")
    t.check(len(there) >= known, f"{len(there)} jobs in the copy")
    db.close()
    newest = len(d.call("list", active=True, after=0)["jobs"]) and d.submit(spec("newest"))["id"]
    d.stop()
    for name in ("state.db", "state.db-wal"):
        if os.path.exists(os.path.join(d.state, name)):
            os.unlink(os.path.join(d.state, name))
    shutil.copy(t.path("copy.db"), os.path.join(d.state, "state.db"))
    result = d.try_start()
    t.equal(result.code, 1, "exit code without --accept-older-state")
    t.contains(result.err, "--accept-older-state", what="standard error")
    d.start(accept_older_state=True)
    t.equal(len(d.call("list")["jobs"]), min(len(there), 1000), "jobs")
    t.equal(d.submit(spec("x"))["id"], newest + 1, "the next id")
    d.restart()
    d.stop()


@case
def test_backup_with_its_log_left_behind_is_refused(t):
    """The log of the state before it would be read into the copy."""
    need_client(t)
    d = idle_daemon(t)
    submit_many(d, 3)
    tutti(t, "backup", "copy.db", d=d)
    holder = hold_log(d)
    submit_many(d, 3)
    d.kill9()
    log = read_bytes(d.state, "state.db-wal")
    t.check(len(log) > 0, "there is no log")
    holder.close()
    shutil.copy(t.path("copy.db"), os.path.join(d.state, "state.db"))
    with open(os.path.join(d.state, "state.db-wal"), "wb") as f:
        f.write(log)
    result = d.try_start()
    t.equal(result.code, 1, "exit code")
    t.contains(result.err, "state.db-wal", "does not belong", what="standard error")
    d.start(accept_older_state=True)
    t.equal(ids(d), [1, 2, 3], "jobs")
    t.equal(d.submit(spec("x"))["id"], 7, "the next id")
    d.stop()


@case
def test_pieces_of_a_backup(t):
    d = idle_daemon(t)
    submit_many(d, 3)
    with d.connect() as c:
        copy = c.call("backup")
        refused(t, "EAGAIN", c.call, "backup")
        refused(t, "ESTALE", c.call, "backup", copy=copy["copy"] + 1, offset=0)
        refused(t, "EINVAL", c.call, "backup", offset=0)
        refused(t, "EINVAL", c.call, "backup", copy=copy["copy"])
        piece = c.call("backup", copy=copy["copy"], offset=copy["bytes"] - 4)
        t.equal((piece["offset"], piece["end"], len(piece["data"])), (copy["bytes"], True, 8), "the last piece")
        refused(t, "ESTALE", c.call, "backup", copy=copy["copy"], offset=0)  # it was fetched
        t.equal(c.call("backup")["copy"], copy["copy"] + 1, "another one")
    d.stop()


@case
def test_backup_to_a_place_that_cannot_be_written(t):
    need_client(t)
    d = idle_daemon(t)
    run = tutti(t, "backup", "no/such/dir/copy.db", d=d, expect=None)
    t.check(run.code != 0, "exit code")
    t.contains(run.err, "no/such/dir/copy.db", what="standard error")
    d.stop()
