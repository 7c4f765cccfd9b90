"""Runs the program under strace: to list the system calls that touch its output, and to kill it or fail a call at
each of them.

strace counts the calls of each name and thread on its own, so a place in a run is (name, number): "the 7th fsync". The
main thread makes all of those that matter. A kill comes before the call is executed; since every call that changes
something is a place, killing at each of them sees every state in between.
"""
import os
import re
import shutil

CALLS = ("openat", "write", "ftruncate", "fsync", "fdatasync", "renameat", "renameat2", "rename", "mkdir", "mkdirat",
         "unlink", "unlinkat", "pwrite64", "writev")

_LINE = re.compile(r"^(\d+) +(\w+)\((.*)$")


def need(t):
    """Skips the case where strace is missing or may not trace."""
    if shutil.which("strace") is None:
        t.skip("strace is not installed")
    if t.command(["strace", "-f", "-o", os.devnull, "true"]).code != 0:
        t.skip("strace may not trace here")


def _environment():
    env = dict(os.environ)
    env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":detect_leaks=0"  # the leak checker cannot be traced
    return env


def _command(t, log, inject, options):
    trace = "trace=" + ",".join("?" + c for c in CALLS)
    return ["strace", "-f", "-y",  # no --seccomp-bpf: signals are not injected with it
             "-o", log, "-e", trace, *inject, t.program, *map(str, options)]


def places(t, out, *options):
    """Runs to the end and returns [(name, number, line)] of the main thread's calls that touch `out`."""
    log = t.path("strace.log")
    run = t.command(_command(t, log, [], options), env=_environment())
    t.equal(run.code, 0, "exit code under strace")
    counts, found, main = {}, [], None
    with open(log, encoding="utf-8", errors="replace") as f:
        for line in f:
            m = _LINE.match(line)
            if m is None:
                continue
            main = main or m[1]
            if m[1] != main:
                continue
            counts[m[2]] = counts.get(m[2], 0) + 1
            if out in m[3]:
                found.append((m[2], counts[m[2]], m[3].strip()))
    t.check(len(found) > 20, f"strace saw only {len(found)} calls on {out}")
    return found


def kill_at(t, name, number, *options):
    """Runs with SIGKILL at a place. Returns whether it was killed; else it ran to the end."""
    inject = ["-e", f"inject={name}:signal=SIGKILL:when={number}"]
    run = t.command(_command(t, os.devnull, inject, options), env=_environment())
    t.check(run.code in (0, -9, 137), f"killed at {name} #{number}: exit code {run.code}")
    return run.code != 0


def fail_at(t, name, number, errno, *options):
    """Runs with a call that fails."""
    inject = ["-e", f"inject={name}:error={errno}:when={number}"]
    return t.command(_command(t, os.devnull, inject, options), env=_environment())


def sanitized(program):
    """Is the program built with a sanitizer?"""
    with open(program, "rb") as f:
        data = f.read()
    return b"__asan_init" in data or b"__tsan_init" in data
