"""What a worker may do: it has no privileges, whatever the daemon has, and cannot get any."""
import os
import shutil

from cases_workers import SIGKILL
from harness import case
from harness_daemon import Daemon, check_done, mid_run, programs_for_others, until

CAP_SETUID, CAP_SETPCAP = 1 << 7, 1 << 8


def status(pid, thread=None):
    """/proc/PID/status, or that of one of its threads."""
    path = f"/proc/{pid}/status" if thread is None else f"/proc/{pid}/task/{thread}/status"
    with open(path, encoding="utf-8") as f:
        return dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)


def check_confined(t, daemon, worker):
    """Every thread of the worker is without privileges."""
    has = int(status(daemon)["CapEff"], 16)
    for thread in os.listdir(f"/proc/{worker}/task"):
        found = status(worker, thread)
        t.equal(found["NoNewPrivs"], "1", f"NoNewPrivs of thread {thread}")
        for key in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            t.equal(int(found[key], 16), 0, f"{key} of thread {thread}")
        if has & CAP_SETPCAP:
            t.equal(int(found["CapBnd"], 16), 0, f"CapBnd of thread {thread}")


@case
def test_worker_has_no_privileges_and_cannot_get_any(t):
    d = Daemon(t, devices=1).start()
    run = mid_run(t, d)
    check_confined(t, d.pid, run.pid)
    run.thaw()
    check_done(t, d, run.id, run.spec)
    d.stop()


@case
def test_worker_of_a_user_with_ambient_capabilities_cannot_become_root(t):
    """CAP_SETUID in the ambient set survives every exec of a user that is not root, and setuid(0) needs nothing else."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        t.skip("needs root and setpriv")
    os.chown(t.dir, 65534, 65534)
    d = Daemon(t, devices=1, **programs_for_others(t),
               prefix=["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+setuid",
                       "--ambient-caps=+setuid"]).start()
    t.check(int(status(d.pid)["CapEff"], 16) & CAP_SETUID, "the daemon has no CAP_SETUID: this case shows nothing")
    run = mid_run(t, d)
    t.equal(status(run.pid)["Uid"].split(), ["65534"] * 4, "users of the worker")
    check_confined(t, d.pid, run.pid)
    run.thaw()
    check_done(t, d, run.id, run.spec)
    d.stop()


@case
def test_worker_inherits_neither_descriptors_nor_ignored_signals(t):
    read_end, write_end = os.pipe()
    try:
        d = Daemon(t, devices=1, prefix=["sh", "-c", "trap '' USR1 QUIT; exec \"$@\"", "sh"])
        d.popen = {"pass_fds": [write_end]}
        d.start()
        pipe = os.readlink(f"/proc/self/fd/{write_end}")
        links = lambda pid: [os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")]  # noqa: E731
        t.check(pipe in links(d.pid), "the daemon does not have the descriptor: this case shows nothing")
        run = mid_run(t, d)
        t.check(pipe not in links(run.pid), "the worker has a descriptor that is none of its business")
        found = status(run.pid)
        t.equal(int(found["SigIgn"], 16) & (1 << 9 | 1 << 2), 0, "ignored signals (USR1, QUIT)")
        t.equal(int(found["SigBlk"], 16), 0, "blocked signals")
        os.kill(run.pid, SIGKILL)
        until(lambda: d.show(run.id)["failures"] == 1, "end of the worker")
        d.call("cancel", id=run.id, now=True)
        d.wait_job(run.id, "cancelled")
        d.stop()
    finally:
        os.close(read_end)
        os.close(write_end)
