"""A daemon that cannot start workers for a while: no job is charged for it, every waiting job shows the reason, and the
daemon goes on by itself."""
import json
import os
import resource
import subprocess

import harness_daemon as h
from cases_machine import LOOKS, PAPER, changing_worker
from cases_protocol import Puppet
from cases_service import mount
from cases_workers import fake_worker, names, script
from harness import case
from harness_daemon import Daemon, check_done, programs_for_others, spec, until

QUICK = """
send({"id": 2, "method": "outcome", "params": {"state": "done", "exit": 0, "error": None, "report": {"loss": 1},
      "curve": [], "evals": [], "step": 3}})
lines.readline()
"""


def pause(d):
    return d.call("devices")["launch_pause"]


def paused(d, *words):
    """Until launching is paused for a reason with these words."""
    return until(lambda: (lambda p: p if p is not None and all(w in p["reason"] for w in words) else None)(pause(d)),
                 f"pause of launching with {words}")


def jobs(d):
    found, more = [], True
    while more:
        answer = d.call("list", after=found[-1]["id"] if found else 0)
        found, more = found + answer["jobs"], answer["more"]
    return found


def all_done(t, d, n):
    """Until n jobs are done. None failed, none was charged with a failure or an attempt."""
    def ended():
        found = jobs(d)
        t.equal([(j["id"], j["error"]) for j in found if j["state"] in ("failed", "cancelled")], [], "failed jobs")
        return found if all(j["state"] == "done" for j in found) else None

    found = until(ended, f"end of {n} jobs", each_s=0.05)
    t.equal(len(found), n, "jobs")
    t.equal({(j["failures"], j["attempt"], j["exit"]) for j in found}, {(0, 1, 0)}, "failures, attempt and exit")
    t.equal(pause(d), None, "the pause afterwards")


def count(d, words):
    return d.log().count(words)


# ---- the worker program ----

@case
def test_queue_of_200_jobs_survives_a_worker_program_that_is_away(t):
    worker = fake_worker(t, QUICK)
    os.rename(worker, worker + ".away")
    d = Daemon(t, devices=2, worker=worker, restart_delay=1).start()
    with d.connect() as c:
        for _ in range(200):
            c.call("submit", spec=spec("out"), dir=t.dir)
    until(lambda: paused(d, "No such file", worker)["failures"] > 6, "failed tries")
    for j in jobs(d):
        t.equal((j["state"], j["failures"], j["attempt"], j["devices"]), ("queued", 0, 0, []), f"job {j['id']}")
        t.contains(j["reason"], "cannot start workers", "No such file", what="the reason")
    t.contains(d.show(200)["reason"], "cannot start workers", what="the reason in the long form")
    t.check(pause(d)["since_ms"] >= jobs(d)[0]["submitted_ms"], "it began before it was needed")
    t.equal([x["job"] for x in d.call("devices")["devices"]], [None, None], "owners of the devices")
    t.equal(count(d, "cannot start workers"), 1, "lines in the log: one for many tries")
    os.rename(worker + ".away", worker)
    all_done(t, d, 200)
    t.equal(count(d, "workers can be started again"), 1, "lines about the end of the pause")
    t.equal(names(d.kept_events(1)), ["submitted", "started", "ended"], "events of a job")
    d.stop()


BROKEN = [
    ("is no program", "\x7fELF nonsense", ("of job 1 ended with code", "before it took its job")),  # execvp tries a shell
    ("may not be executed", None, ("cannot be started", "Permission denied")),
    ("lacks a shared library", "#!/bin/sh\necho 'error while loading shared libraries: libx.so.1' >&2\nexit 127\n",
     ("of job 1 ended with code 127", "before it took its job", "tutti logs 1")),
    ("crashes in its loader", "#!/bin/sh\nkill -SEGV $$\n", ("of job 1 was killed by signal 11", "before it took")),
    ("ends before it speaks", "#!/bin/sh\nexit 1\n", ("of job 1 ended with code 1", "before it took its job")),
    ("never speaks", "#!/bin/sh\nexec sleep 1000\n", ("of job 1 hung", "before it took its job")),
]


@case(each=BROKEN)
def test_worker_program_that(t, value):
    """Until its hello is answered a worker does not know its job, so its end cannot be the job's fault."""
    _, text, words = value
    good = fake_worker(t, QUICK)
    broken = script(t, "w", text if text is not None else "#!/bin/sh\n")
    if text is None:
        os.chmod(broken, 0o644)
        if os.access(broken, os.X_OK):
            t.skip("this user may execute anything")
    d = Daemon(t, devices=1, worker=broken, restart_delay=1, hang_timeout=1).start()
    ids = [d.submit(spec("out"))["id"] for _ in range(3)]
    seen = paused(d, *words)
    until(lambda: pause(d)["failures"] > 2, "failed tries")
    for job_id in ids:
        j = d.show(job_id)
        t.equal((j["state"], j["reason"] if j["reason"] != "starting" else seen["reason"], j["failures"]),
                ("queued", seen["reason"], 0), f"job {job_id}")
    t.equal(count(d, "cannot start workers"), 1, "lines in the log")
    os.rename(good, broken)
    all_done(t, d, 3)
    if "libx" in (text or ""):
        t.contains(d.call("logs", id=1)["text"], "libx.so.1", what="the job's log")
    d.stop()


@case
def test_watchers_of_waiting_jobs_hear_of_a_pause_once(t):
    worker = t.path("missing")
    d = Daemon(t, worker=worker, restart_delay=1).start()
    with d.connect() as one, d.connect() as every:
        every.watch()
        job_id = one.call("submit", spec=spec("out"), dir=t.dir)["id"]
        one.watch(id=job_id, since=0)
        why = one.wait_event("launch_paused")["why"]
        t.contains(why, "cannot start workers", "No such file")
        until(lambda: pause(d)["failures"] > 4, "failed tries")
        script(t, "missing", "#!/bin/sh\nexit 9\n")
        again = one.wait_event(lambda e: e["event"] == "launch_paused" and e["why"] != why)
        t.contains(again["why"], "ended with code 9")
        tries = pause(d)["failures"]
        until(lambda: pause(d)["failures"] > tries + 2, "failed tries")
        os.rename(fake_worker(t, QUICK), worker)
        one.wait_event("ended")
        every.wait_event("ended")
        for c in (one, every):
            found = [e["event"] for e in c.events if e["event"] != "gap"]
            t.equal(found, ["submitted", "launch_paused", "launch_paused", "launch_resumed", "started", "ended"], "events")
            t.equal({e["job"] for e in c.events if e["event"].startswith("launch")}, {0}, "the job of such an event")
    d.stop()


@case
def test_pause_leaves_everything_else_as_it_is(t):
    """Running jobs go on; submit, cancel, logs, a restart of the daemon and its end work as ever."""
    worker = t.path("worker")
    os.symlink(h.WORKER, worker)
    d = Daemon(t, devices=2, worker=worker, restart_delay=1).start()
    run = h.mid_run(t, d)
    os.unlink(worker)
    ids = [d.submit(spec(f"out{i}"))["id"] for i in range(4)]
    paused(d, "No such file")
    t.equal(d.show(run.id)["state"], "running", "the job that was there before")
    t.equal(d.call("cancel", id=ids[0])["state"], "cancelled", "a cancelled job that waited")
    t.equal(d.call("cancel", id=ids[1], now=True)["state"], "cancelled", "a cancelled job that waited")
    t.equal(d.call("logs", id=ids[2])["text"], "", "its log")
    run.thaw()
    check_done(t, d, run.id, run.spec)
    t.equal(pause(d)["reason"][:20], "cannot start workers", "the pause")
    d.restart()
    paused(d, "No such file")
    t.equal((d.show(ids[2])["failures"], d.show(ids[2])["attempt"]), (0, 0), "failures, attempt after a restart")
    d.restart(h.SIGTERM)
    paused(d, "No such file")
    os.symlink(h.WORKER, worker)
    for i in (2, 3):
        j = check_done(t, d, ids[i], spec(f"out{i}"))
        t.equal((j["failures"], j["attempt"]), (0, 1), "failures, attempt")
    d.stop()


@case
def test_job_that_fails_by_itself_is_still_charged_after_a_pause(t):
    worker = t.path("w")
    d = Daemon(t, worker=worker, restart_delay=1).start()
    job_id = d.submit(spec("out"))["id"]
    paused(d, "No such file")
    os.rename(fake_worker(t, "sys.exit(3)"), worker)
    j = d.wait_job(job_id, "failed")
    t.equal((j["failures"], j["attempt"]), (4, 4), "failures, attempt")
    t.contains(j["error"]["message"], "ended with code 3")
    d.stop()


@case
def test_private_daemon_gives_up_where_nobody_waits_for_an_administrator(t):
    """`tutti run` in a script must end."""
    read_end, write_end = os.pipe()
    try:
        d = Daemon(t, worker=t.path("missing"), restart_delay=1, private=read_end)
        d.popen = {"pass_fds": [read_end]}
        d.start()
        j = d.wait_job(d.submit(spec("out"))["id"], "failed")
        t.contains(j["error"]["message"], "cannot start workers", "No such file", "4 times")
        d.stop()
    finally:
        os.close(read_end)
        os.close(write_end)


@case
def test_client_shows_why_jobs_wait(t):
    if h.TUTTI is None:
        t.skip("there is no client")
    d = Daemon(t, worker=t.path("missing"), restart_delay=1).start()
    d.submit(spec("out"))
    paused(d, "No such file")

    def tutti(*words):
        run = t.command([h.TUTTI, "--socket", d.socket, *words])
        t.equal(run.code, 0, f"exit code of {words}")
        return run.out

    t.contains(tutti("ls"), "cannot start workers")
    t.contains(tutti("show", "1"), "cannot start workers", "No such file")
    t.contains(tutti("devices"), "cannot start workers", "failed tries")
    t.contains(json.loads(tutti("ls", "--json"))[0]["reason"], "cannot start workers")
    t.contains(json.loads(tutti("devices", "--json"))["launch_pause"]["reason"], "cannot start workers")
    d.stop()


# ---- descriptors, processes, disks ----

@case
def test_without_descriptors_jobs_wait_and_are_done_when_there_are_some(t):
    d = Daemon(t, devices=2, worker=fake_worker(t, QUICK), restart_delay=1).start()
    with d.connect() as c:
        limits = resource.prlimit(d.pid, resource.RLIMIT_NOFILE)
        used = [int(n) for n in os.listdir(f"/proc/{d.pid}/fd")]
        free = next(n for n in range(len(used) + 1) if n not in used)
        resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (free, limits[1]))  # not one more
        for _ in range(20):
            c.call("submit", spec=spec("out"), dir=t.dir)
        def seen():
            p = c.call("devices")["launch_pause"]
            return p is not None and p["failures"] > 4 and p
        t.contains(until(seen, "pause of launching")["reason"], "Too many open files")
        for j in c.call("list")["jobs"]:
            t.equal((j["state"], j["failures"], j["attempt"]), ("queued", 0, 0), "state, failures, attempt")
            t.contains(j["reason"], "Too many open files", what="the reason")
        resource.prlimit(d.pid, resource.RLIMIT_NOFILE, limits)
    all_done(t, d, 20)
    d.stop()


@case
def test_state_disk_without_inodes_keeps_jobs_waiting(t):
    small = t.path("small")
    mount(t, small, "8m,nr_inodes=24")
    d = Daemon(t, devices=1, state=os.path.join(small, "state"), worker=fake_worker(t, QUICK), restart_delay=1).start()
    crowd = []
    try:
        while True:
            crowd.append(os.path.join(small, f"f{len(crowd)}"))
            os.close(os.open(crowd[-1], os.O_CREAT | os.O_WRONLY))
    except OSError:
        crowd.pop()
    for _ in range(5):
        d.submit(spec("out"))
    reason = until(lambda: (lambda p: p if p["failures"] > 4 else None)(paused(d, "No space left")), "failed tries")["reason"]
    t.contains(reason, "cannot open the job's log", "/logs/1.log")
    t.equal({(j["state"], j["failures"], j["attempt"]) for j in jobs(d)}, {("queued", 0, 0)}, "jobs")
    for path in crowd:
        os.unlink(path)
    all_done(t, d, 5)
    d.stop()


@case
def test_directory_of_logs_that_is_gone_keeps_jobs_waiting(t):
    d = Daemon(t, devices=1, worker=fake_worker(t, QUICK), restart_delay=1).start()
    os.rename(os.path.join(d.state, "logs"), t.path("away"))
    for _ in range(3):
        d.submit(spec("out"))
    paused(d, "cannot open the job's log", "No such file")
    os.rename(t.path("away"), os.path.join(d.state, "logs"))
    all_done(t, d, 3)
    d.stop()


@case
def test_something_else_in_the_place_of_one_log_fails_that_job_alone(t):
    d = Daemon(t, devices=1, worker=fake_worker(t, QUICK), restart_delay=1).start()
    os.mkdir(d.worker_log(1))
    first, second = d.submit(spec("out"))["id"], d.submit(spec("out"))["id"]
    d.wait_job(second, "done")
    t.contains(d.wait_job(first, "failed")["error"]["message"], "cannot open the job's log", "Is a directory")
    t.equal(pause(d), None, "pause")
    d.stop()


@case
def test_forks_that_fail_keep_jobs_waiting(t):
    """A user who has reached the limit of processes. Root has no such limit, so the daemon is another user's then."""
    d = Daemon(t, devices=1, restart_delay=1, **programs_for_others(t))
    if os.geteuid() == 0:
        os.chown(t.dir, 65534, 65534)
        d.popen = {"user": 65534, "group": 65534, "extra_groups": []}
    d.start()
    before = resource.getrlimit(resource.RLIMIT_NPROC)[0]

    def limit(processes):
        word = "unlimited" if processes == resource.RLIM_INFINITY else processes
        subprocess.run(["prlimit", f"--pid={d.pid}", f"--nproc={word}:"], check=True, **d.popen)

    with d.connect() as c:
        limit(1)
        for i in range(5):
            c.call("submit", spec=spec(f"out{i}"), dir=t.dir)
        until(lambda: paused(d, "Resource temporarily unavailable", "limit of processes")["failures"] > 4, "failed tries")
        t.equal({(j["state"], j["failures"], j["attempt"]) for j in jobs(d)}, {("queued", 0, 0)}, "jobs")
        limit(before)
    all_done(t, d, 5)
    d.stop()


# ---- the probe of the devices ----

@case
def test_devices_that_cannot_be_looked_at_keep_jobs_waiting(t):
    """The look comes before the first worker, and needs the same program."""
    path = changing_worker(t, PAPER)
    d = Daemon(t, worker=path, **LOOKS).start()
    os.rename(path, path + ".away")
    ids = [d.submit(spec("x"))["id"] for _ in range(3)]
    until(lambda: paused(d, "cannot be started", "No such file")["failures"] > 3, "failed tries")
    t.equal({(j["state"], j["failures"], j["attempt"]) for j in jobs(d)}, {("queued", 0, 0)}, "jobs")
    t.equal(count(d, "cannot start workers"), 1, "lines in the log")
    os.rename(path + ".away", path)
    for job_id in ids:
        Puppet(d, job_id).outcome()
        d.wait_job(job_id, "done")
    t.equal(pause(d), None, "pause")
    d.stop()


@case(each=[("is missing", None), ("lacks a shared library", "#!/bin/sh\nexit 127\n")])
def test_daemon_does_not_start_where_the_worker_program(t, value):
    """It would take a machine with GPUs for one without, and serve cpu devices for good."""
    worker = t.path("none") if value[1] is None else script(t, "w", value[1])
    run = Daemon(t, worker=worker, devices=None, device_memory=None).try_start()
    t.equal(run.code, 1, "exit code")
    t.contains(run.err, worker, "no job can be started", "--worker")
