"""Sockets whose files are removed under a running daemon: it listens again at the same path, and steals nobody's place."""
import os
import shutil
import signal
import socket
import stat

from harness import case
from harness_daemon import Client, Daemon, Gone, check_done, mid_run, process_state, spec, until

AGAIN = "was removed; the daemon listens there again"


def answers(d, path=None):
    """Does this very daemon answer at its socket?"""
    try:
        with Client(path or d.socket) as c:
            return c.hello["pid"] == d.pid
    except Gone:
        return False


def freeze(d):
    os.kill(d.pid, signal.SIGSTOP)
    until(lambda: process_state(d.pid) == "T", "stop of the daemon")


def thaw(d):
    os.kill(d.pid, signal.SIGCONT)


def remove_directory(d):
    shutil.rmtree(os.path.dirname(d.socket))


def replace_directory(d):
    directory = os.path.dirname(d.socket)
    os.rename(directory, directory + ".away")
    os.mkdir(directory, 0o700)


REMOVALS = [
    ("tutti.sock", lambda d: os.unlink(d.socket)),
    ("worker.sock", lambda d: os.unlink(d.worker_socket)),
    ("both and their lock", lambda d: [os.unlink(p) for p in (d.socket, d.worker_socket, d.worker_socket + ".lock")]),
    ("the directory", remove_directory),
    ("the directory, with another in its place", replace_directory),
]


@case(each=REMOVALS)
def test_daemon_listens_again_after_the_removal_of(t, value):
    """Those who are connected notice nothing; a running job goes on and hands over; new clients and workers get in."""
    d = Daemon(t, devices=2, restart_delay=1).start()
    run = mid_run(t, d)
    with d.connect() as c:
        c.watch(id=run.id)
        value[1](d)
        until(lambda: AGAIN in d.log() and answers(d), "the daemon at its socket")
        until(lambda: os.path.exists(d.worker_socket), "worker.sock")
        t.equal(c.call("ping"), {}, "the answer to one that was connected before")
        for path in (d.socket, d.worker_socket):
            t.equal(stat.S_IMODE(os.stat(path).st_mode), 0o600, f"mode of {path}")
        other = spec("other")
        check_done(t, d, d.submit(other)["id"], other)  # its worker found worker.sock
        run.thaw()
        c.wait_event("ended")
    j = check_done(t, d, run.id, run.spec)
    t.equal((j["attempt"], j["failures"]), (1, 0), "attempt, failures")
    t.check("cannot reach" not in d.log(), "it complained")
    second = Daemon(t, name="second", socket=d.socket).try_start()
    t.equal(second.code, 1, "exit code of a second daemon on this socket")
    t.contains(second.err, "another tuttid serves this directory of sockets")
    d.stop()
    t.check(not os.path.exists(d.socket) and not os.path.exists(d.worker_socket), "a stopped daemon left its sockets")


@case
def test_worker_finds_its_daemon_through_a_socket_that_came_back(t):
    """The next daemon adopts a worker whose socket was removed meanwhile."""
    d = Daemon(t, devices=1, restart_delay=1).start()
    run = mid_run(t, d)
    os.unlink(d.worker_socket)
    until(lambda: os.path.exists(d.worker_socket), "worker.sock")
    d.restart()
    os.unlink(d.worker_socket)
    until(lambda: os.path.exists(d.worker_socket), "worker.sock")
    run.thaw()
    j = check_done(t, d, run.id, run.spec)
    t.equal((j["attempt"], j["failures"]), (1, 0), "attempt, failures")
    d.stop()


@case(each=["a socket", "a file", "a directory"])
def test_place_of_a_socket_that_somebody_took_is_not_stolen(t, what):
    d = Daemon(t, restart_delay=1).start()
    with d.connect() as c:
        freeze(d)
        os.unlink(d.socket)
        other = socket.socket(socket.AF_UNIX)
        if what == "a socket":
            other.bind(d.socket)
            other.listen()
        elif what == "a file":
            os.close(os.open(d.socket, os.O_CREAT | os.O_WRONLY))
        else:
            os.mkdir(d.socket)
        before = os.lstat(d.socket).st_ino
        thaw(d)
        until(lambda: "another file has replaced" in d.log(), "complaint")
        t.contains(d.log(), d.socket, "remove it")
        t.equal(c.call("ping"), {}, "the answer to one that was connected before")
        t.equal(os.lstat(d.socket).st_ino, before, "the file in its place")
        other.close()
        if what == "a directory":
            os.rmdir(d.socket)
        else:
            os.unlink(d.socket)
        until(lambda: answers(d), "the daemon at its socket")
    t.equal(d.log().count("another file has replaced"), 1, "lines in the log")
    freeze(d)
    os.unlink(d.socket)
    os.close(os.open(d.socket, os.O_CREAT | os.O_WRONLY))
    os.kill(d.pid, signal.SIGTERM)
    thaw(d)
    d.wait()
    t.check(os.path.exists(d.socket), "at its end it removed a file that is not its own")


@case
def test_place_that_another_daemon_took_is_not_stolen(t):
    first = Daemon(t, name="first", restart_delay=1).start()
    freeze(first)
    remove_directory(first)
    second = Daemon(t, name="second", socket=first.socket, restart_delay=1).start()
    thaw(first)
    until(lambda: "another tuttid serves" in first.log(), "complaint of the first")
    t.check(answers(second), "the second lost its socket")
    job = spec("out")
    check_done(t, second, second.submit(job)["id"], job)
    second.stop()
    until(lambda: answers(first), "the first at its socket")
    t.equal(first.log().count("another tuttid serves"), 1, "lines in the log")
    first.stop()


@case
def test_socket_that_was_touched_is_still_the_daemons(t):
    """A link, a new mode, new times: the inode's ctime changes, and the socket is the same."""
    d = Daemon(t, restart_delay=1).start()
    for change in (lambda: os.chmod(d.socket, 0o660), lambda: os.utime(d.socket), lambda: os.link(d.socket, t.path("l"))):
        change()
        d.call("ping")
    os.unlink(d.worker_socket)  # a later look than those above has seen all of it
    until(lambda: AGAIN in d.log(), "another look")
    t.check("cannot reach" not in d.log(), "it took its own socket for another's")
    t.check(answers(d), "it does not answer")
    d.stop()
