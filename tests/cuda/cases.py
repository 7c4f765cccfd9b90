"""What the Python tests of the cuda backend share: running cases as TAP, and a line to a daemon."""
import json
import shutil
import socket
import sys
import time

TIMEOUT_S = 3600  # only ends what hangs: no load on the machine comes near it


def run_cases(cases, root):
    """Runs (name, function) pairs, prints TAP, and what failed on stderr too, which meson shows. Removes `root`. Returns the exit
    code."""
    print(f"1..{len(cases)}", flush=True)
    bad = 0
    for number, (name, function) in enumerate(cases, 1):
        try:
            function()
            print(f"ok {number} - {name}", flush=True)
        except Exception as e:  # pylint: disable=broad-except
            bad += 1
            lines = "\n".join([f"not ok {number} - {name}", *("# " + line for line in str(e).splitlines() or [repr(e)])])
            print(lines, flush=True)
            print(lines, file=sys.stderr, flush=True)
    shutil.rmtree(root, ignore_errors=True)
    return 1 if bad else 0


def cases_of(names):
    """test_* of a module's globals()."""
    return [(name[5:].replace("_", " "), f) for name, f in names.items() if name.startswith("test_")]


class Wire:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(path)
        self.file = self.socket.makefile("rwb")
        self.file.readline()

    def call(self, method, **params):
        self.file.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
        self.file.flush()
        answer = json.loads(self.file.readline())
        assert "result" in answer, answer
        return answer["result"]

    def until(self, number, condition):
        deadline = time.monotonic() + TIMEOUT_S
        while not condition(shown := self.call("show", id=number)):
            assert shown["state"] not in ("done", "failed", "cancelled") and time.monotonic() < deadline, shown
            time.sleep(0.02)
        return shown
