"""The daemon as a service: what it tells systemd, its unit, its man pages; and a job whose disk is full."""
import os
import re
import shutil
import socket
import subprocess

import harness_daemon as h
from harness import Failure, case
from harness_daemon import SIGTERM, SLOW, Daemon, check_done, spec, until

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def read(*names):
    with open(os.path.join(ROOT, *names)) as f:
        return f.read()


# ---- systemd ----

@case
def test_service_manager_hears_ready_watchdog_and_stopping(t):
    path = t.path("notify")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.settimeout(h.TIMEOUT_S)
    listener.bind(path)
    d = Daemon(t, env={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"}).start()
    t.equal(listener.recv(64), b"READY=1", "the first message")
    t.equal(listener.recv(64), b"WATCHDOG=1", "the next")
    d.signal(SIGTERM)
    heard = listener.recv(64)
    while heard == b"WATCHDOG=1":
        heard = listener.recv(64)
    t.equal(heard, b"STOPPING=1", "at the end")
    d.wait()


@case
def test_user_unit_starts_the_daemon_and_leaves_workers_alone(t):
    unit = read("daemon", "tuttid-user.service.in")
    t.contains(unit, "Type=notify", "ExecStart=@bindir@/tuttid --user", "KillMode=process", "WatchdogSec=", "WantedBy=default.target")
    stop = int(re.search(r"TimeoutStopSec=(\d+)", unit)[1])
    t.check(stop > 90, "systemd must wait longer than --stop-timeout's default")


@case
def test_user_unit_starts_the_daemon_again_and_lets_workers_pin_memory(t):
    """After every end but a stop: SIGUSR2 (an upgrade) ends with code 0, which on-failure takes for the last word."""
    lines = read("daemon", "tuttid-user.service.in").splitlines()
    for line in ("Restart=always", "RestartPreventExitStatus=2", "StartLimitIntervalSec=0", "LimitMEMLOCK=infinity",
                 "NoNewPrivileges=yes"):
        t.check(line in lines, f"the unit lacks {line}")


@case
def test_user_unit_is_one_that_systemd_takes(t):
    if shutil.which("systemd-analyze") is None:
        t.skip("systemd-analyze is not installed")
    unit, runtime = t.path("tuttid.service"), t.path("runtime")
    os.mkdir(runtime, 0o700)
    with open(unit, "w", encoding="utf-8") as f:
        f.write(read("daemon", "tuttid-user.service.in").replace("@bindir@", os.path.dirname(h.TUTTID)))
    run = t.command(["systemd-analyze", "--user", "--man=no", "--recursive-errors=no", "verify", unit],
                    env={**os.environ, "XDG_RUNTIME_DIR": runtime})
    t.equal((run.code, [line for line in run.err.splitlines() if "tuttid" in line]), (0, []), "exit code, complaints")


# ---- man pages ----

def options_of(program, *words):
    out = subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", out))


def in_page(page):
    return set(re.findall(r"--[a-z][a-z-]+", read("docs", "man", page).replace("\\-", "-")))


@case
def test_man_page_of_the_daemon_has_every_option(t):
    t.equal(options_of(h.TUTTID, "--help") - in_page("tuttid.8"), set(), "options that tuttid.8 lacks")


@case
def test_man_page_of_the_client_has_every_command(t):
    if h.TUTTI is None:
        t.skip("there is no client")
    overview = subprocess.run([h.TUTTI, "help"], capture_output=True, text=True, check=True).stdout
    commands = re.findall(r"^  ([a-z]+) ", overview, re.M)
    page = read("docs", "man", "tutti.1")
    t.check(len(commands) >= 13, f"commands of the overview: {commands}")
    missing = [c for c in commands if not re.search(rf"^\.B[A-Z]* .*\b{c}\b", page, re.M)]
    t.equal(missing, [], "commands that tutti.1 lacks")


@case
def test_man_page_of_the_job_has_every_key_of_the_docs(t):
    keys = set(re.findall(r"^\| `([a-z]+)", read("docs", "job.md").split("## Models")[0], re.M))
    page = read("docs", "man", "tutti-job.5")
    t.check({"model", "data", "train", "queue"} <= keys | {"queue"}, f"keys of job.md: {keys}")
    t.equal([k for k in sorted(keys) if not re.search(rf"^\.B {k}$", page, re.M)], [], "keys that tutti-job.5 lacks")


# ---- a full disk ----

def mount(t, path, size):
    os.makedirs(path, exist_ok=True)
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path],
                                           capture_output=True).returncode != 0:
        t.skip("cannot mount a small tmpfs here")
    t.undo.append(lambda: subprocess.run(["umount", "-l", path], capture_output=True))


@case
def test_job_on_a_full_disk_pauses_and_goes_on_when_there_is_room(t):
    small = t.path("small")
    mount(t, small, "300k")
    d = Daemon(t, restart_delay=20).start()
    job = spec("small/out", {"checkpoint.keep": 50, "train.steps": 300}, SLOW)
    number = d.submit(job)["id"]
    paused = until(lambda: (lambda j: j if j["reason"].startswith("paused") else None)(d.show(number)), "pause")
    t.equal(paused["state"], "queued", "state")
    t.contains(paused["reason"], "disk is full")
    t.equal(paused["failures"], 0, "failures")
    t.check(paused["checkpoint_step"] > 0, "an earlier checkpoint is there")
    if subprocess.run(["mount", "-o", "remount,size=100m", small], capture_output=True).returncode != 0:
        raise Failure("cannot make room")
    d.wait_job(number, "done")
    check_done(t, d, number, job)


# ---- a worker that speaks but does nothing ----

IDLER = """#!/usr/bin/env python3
import json, os, socket, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
link = socket.socket(socket.AF_UNIX)
link.connect(options["--serve"])
def say(**message):
    link.sendall(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n")
say(id=1, method="hello", params={"protocol": 1, "job": int(options["--job"]), "attempt": int(options["--attempt"]),
                                  "secret": os.environ["TUTTI_SECRET"], "pid": os.getpid(), "phase": "new"})
while True:
    say(method="alive", params={})
    time.sleep(0.05)
"""


@case
def test_worker_that_is_alive_but_makes_no_step_is_given_up(t):
    program = t.path("idler")
    with open(program, "w") as f:
        f.write(IDLER)
    os.chmod(program, 0o700)
    d = Daemon(t, worker=program, step_timeout=1, hang_timeout=600, restart_delay=1).start()
    number = d.submit(spec("out"))["id"]
    ended = d.wait_job(number, "failed")
    t.contains(ended["error"]["message"], "no step")
    restarts = [e for e in d.kept_events(number) if e["event"] == "restarting"]
    t.equal(len(restarts), 3, "restarts")
