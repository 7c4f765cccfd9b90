"""Runs cases against a program and prints TAP.

A case is a function test_<subject>_<expected>(t) with the decorator @case. It gets a Case: a directory of its own,
t.worker() to run the program, and t.check/t.equal/t.skip. The first check that does not hold ends the case; what
the runner prints then has the commands of the case with all that they wrote.

    @case                      one case
    @case(each=["a", "b"])     a case for every value: test_x(t, value)
    @case(each=spread(...))    a sweep: where TUTTI_CASES asks for fewer cases, only some of the values
    @case(defect="words")      asserts what is right where the program is known to be wrong: while it fails it is
                               reported as skipped, with the words; remove the mark when the program is mended
                               (with TUTTI_TEST_DEFECTS in the environment the mark is ignored)

Cases run side by side, some more than there are cores since they wait a lot, and share nothing but `once` results.
Nothing here measures time: TIMEOUT_S only ends a program that hangs, and is long enough for a sanitizer on a slow
machine.
"""
import concurrent.futures
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

TIMEOUT_S = 3600  # only ends what hangs: no load on the machine comes near it
SHOWN_CHARS = 3000  # of one output of one command in a failure
SHOWN_COMMANDS = 6


def heed_signals():
    """What whoever started the tests ignores (nohup: SIGHUP, a shell's background: SIGINT) the programs would too."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


class Failure(Exception):
    pass


class Skip(Exception):
    pass


class Run:
    """A command that ended: its exit code (negative: the signal, as subprocess has it) and what it wrote."""

    def __init__(self, command, code, out, err):
        self.command, self.code, self.out, self.err = command, code, out, err

    def json(self):
        try:
            return json.loads(self.out)
        except ValueError as e:
            raise Failure(f"standard output is not JSON: {e}") from None

    def show(self):
        lines = ["$ " + " ".join(map(str, self.command)), f"exit code {self.code}"]
        for name, text in (("stdout", self.out), ("stderr", self.err)):
            if len(text) > SHOWN_CHARS:
                text = text[:SHOWN_CHARS] + f"\n[... {len(text)} characters]"
            lines += [f"{name}: {line}" for line in text.splitlines()] or [f"{name}: (empty)"]
        return lines


class Live:
    """A command that is running; stop it with kill, signal and wait. The case ends what is left."""

    def __init__(self, case, command, **popen):
        self.case, self.command = case, command
        self.out, self.err = tempfile.TemporaryFile(dir=case.dir), tempfile.TemporaryFile(dir=case.dir)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err, **popen)

    def alive(self):
        return self.process.poll() is None

    def until(self, condition, what):
        """Waits for a condition that the program will bring about; fails when it ends before."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            if not self.alive() and not condition():
                self.wait()
                raise Failure(f"the program ended before {what}")
            if time.monotonic() > deadline:
                self.kill()
                raise Failure(f"no {what} within {TIMEOUT_S} s")
            time.sleep(0.002)

    def signal(self, number):
        if self.alive():
            self.process.send_signal(number)

    def kill(self):
        self.signal(signal.SIGKILL)
        return self.wait()

    def wait(self):
        try:
            self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failure(f"{self.command} did not end within {TIMEOUT_S} s") from None
        self.out.seek(0)
        self.err.seek(0)
        run = Run(self.command, self.process.returncode, text(self.out.read()), text(self.err.read()))
        self.case.log.append(run)
        return run


def text(data):
    return data.decode("utf-8", "backslashreplace")


class Case:
    def __init__(self, program, directory):
        self.program, self.dir = program, directory
        self.log, self.notes, self.live, self.undo = [], [], [], []

    # ---- commands ----

    @staticmethod
    def run_to_end(command, **popen):
        """A program that a test has just copied may be busy for a moment: a child that another thread is starting
        has inherited the descriptor with which the copy was written."""
        for _ in range(1000):
            try:
                return subprocess.run(command, **popen)
            except OSError as e:
                if e.errno != errno.ETXTBSY:
                    raise
            time.sleep(0.01)
        return subprocess.run(command, **popen)

    def command(self, command, env=None, **popen):
        """Runs to the end."""
        try:
            r = self.run_to_end(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, env=env,
                           **popen)
        except subprocess.TimeoutExpired as e:
            self.log.append(Run(command, "none: killed", text(e.stdout or b""), text(e.stderr or b"")))
            raise Failure(f"did not end within {TIMEOUT_S} s") from None
        run = Run(command, r.returncode, text(r.stdout), text(r.stderr))
        self.log.append(run)
        return run

    def worker(self, *options, expect=0, **popen):
        """Runs the program; `expect`: the exit code, or None for any."""
        run = self.command([self.program, *map(str, options)], **popen)
        if expect is not None:
            self.equal(run.code, expect, "exit code")
        return run

    def start(self, *options, **popen):
        live = Live(self, [self.program, *map(str, options)], **popen)
        self.live.append(live)
        return live

    # ---- checks ----

    def check(self, condition, what):
        if not condition:
            raise Failure(what)

    def equal(self, found, expected, what):
        if found != expected:
            raise Failure(f"{what}: expected {shorten(expected)}, found {shorten(found)}")

    def contains(self, where, *parts, what="the text"):
        for part in parts:
            if part not in where:
                raise Failure(f"{what} lacks {part!r}: {shorten(where)}")

    def skip(self, why):
        raise Skip(why)

    # ---- files ----

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def fresh(self, name):
        """A path in the case's directory at which there is nothing."""
        path = self.path(name)
        shutil.rmtree(path, ignore_errors=True)
        return path

    def finish(self):
        for live in self.live:
            if live.alive():
                live.process.kill()
                live.process.wait()
            live.out.close()
            live.err.close()
        for undo in reversed(self.undo):
            undo()


def shorten(value, chars=1500):
    s = repr(value)
    return s if len(s) <= chars else s[:chars] + f"... ({len(s)} characters)"


# ---- shared results ----

_once = {}
_once_lock = threading.Lock()


def once(key, make):
    """The result of make(), computed by the first case that asks."""
    with _once_lock:
        lock, box = _once.setdefault(key, (threading.Lock(), []))
    with lock:
        if not box:
            box.append(make())
    return box[0]


def random_cases(usual):
    """The number of random cases, which TUTTI_CASES changes as in tests/cases.h."""
    n = int(os.environ.get("TUTTI_CASES", usual))
    return n if n >= 0 else min(-n, usual)


def spread(values):
    """The values that a sweep tries: all of them, or as many as random_cases() allows, from all parts of the list."""
    values = list(values)
    n = min(random_cases(len(values)), len(values))
    return [values[i * len(values) // n] for i in range(n)]


# ---- registry and runner ----

CASES = []  # (name, function, arguments, defect)


def case(function=None, *, each=None, defect=None):
    def register(f):
        name = f.__name__.removeprefix("test_").replace("_", " ")
        if each is None:
            CASES.append((name, f, (), defect))
        for value in each or ():
            label = value[0] if isinstance(value, tuple) else value
            CASES.append((f"{name}: {label}", f, (value,), defect))
        return f

    return register if function is None else register(function)


def scratch_parent():
    """Memory, where there is some: the tests sync a lot, and none depends on a disk."""
    shm = "/dev/shm"
    if os.access(shm, os.W_OK) and os.path.isdir(shm) and shutil.disk_usage(shm).free > 48 << 20:
        return shm
    return None


def choose(words):
    """Indices of the cases that every word fits. "@crash" fits the cases of cases_crash.py, and any other word the cases
    whose names contain it."""
    def fits(name, function, word):
        return function.__module__ == "cases_" + word[1:] if word.startswith("@") else word in name

    return [i for i, (name, function, _, _) in enumerate(CASES) if all(fits(name, function, word) for word in words)]


def execute(program, root, number, index):
    """Runs a case, which is the number-th of this run. Returns the lines to print and whether they are good."""
    name, function, arguments, defect = CASES[index]
    t = Case(program, os.path.join(root, str(index)))
    os.mkdir(t.dir)
    problem = None
    try:
        function(t, *arguments)
    except Skip as e:
        return [f"ok {number} - {name} # SKIP {e}"], True
    except Failure as e:
        problem = str(e).splitlines()
    except Exception:
        problem = traceback.format_exc().splitlines()
    finally:
        t.finish()
        if problem is None or "TUTTI_TEST_KEEP" not in os.environ:
            shutil.rmtree(t.dir, ignore_errors=True)
    if problem is None:
        gone = [] if defect is None else [f"# case {number}: remove the mark, this defect is gone: {defect}"]
        return [f"ok {number} - {name}", *gone], True
    if defect is not None and "TUTTI_TEST_DEFECTS" not in os.environ:
        return [f"ok {number} - {name} # SKIP known defect: {defect}"], True
    lines = [f"not ok {number} - {name}"] + ["# " + p for p in problem + t.notes]
    for run in t.log[-SHOWN_COMMANDS:]:
        lines += ["#   " + line for line in run.show()]
    return lines, False


def main(argv):
    heed_signals()
    os.environ.setdefault("TUTTI_PROFILE", "none")  # plans are compared: what was once measured here does not decide them
    if len(argv) < 2 or argv[1].startswith("-"):
        print(f"usage: {argv[0]} PROGRAM [WORD...]\n\nRuns the cases whose names contain every WORD; @NAME chooses those of "
              "cases_NAME.py. With TUTTI_TEST_KEEP in the environment the directories of failed cases are kept.",
              file=sys.stderr)
        return 2
    program = os.path.abspath(argv[1])
    chosen = choose(argv[2:])
    root = tempfile.mkdtemp(prefix="tutti-cli-", dir=scratch_parent())
    os.chmod(root, 0o711)  # a case may run the program as another user
    failed = 0
    print(f"1..{len(chosen)}", f"# {len(chosen)} of {len(CASES)} cases", sep="\n")
    try:
        with concurrent.futures.ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1))) as pool:
            for future in [pool.submit(execute, program, root, n, i) for n, i in enumerate(chosen, 1)]:
                lines, good = future.result()
                print("\n".join(lines), flush=True)
                if not good:
                    print("\n".join(lines), file=sys.stderr, flush=True)  # meson shows this of a TAP test, not that
                    failed += 1
    finally:
        if failed and "TUTTI_TEST_KEEP" in os.environ:
            print(f"# kept: {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)
    return 1 if failed else 0
