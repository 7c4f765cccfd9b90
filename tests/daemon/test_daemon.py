#!/usr/bin/env python3
"""End-to-end tests of tuttid. Prints TAP. Usage: test_daemon.py TUTTID TUTTI_WORKER TUTTI [WORD...]

TUTTI is the client, or "none". The cases are in cases_*.py, by what they are about; harness_daemon.py has a daemon and a
client for them, ../cli/harness.py how cases are written and run.
"""
import importlib
import os
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.join(here, "..", "cli"))

import harness  # noqa: E402
import harness_daemon  # noqa: E402


def main(argv):
    if len(argv) < 4 or argv[1].startswith("-"):
        print(f"usage: {argv[0]} TUTTID TUTTI_WORKER TUTTI|none [WORD...]", file=sys.stderr)
        return 2
    harness_daemon.TUTTID, harness_daemon.WORKER = (os.path.abspath(p) for p in argv[1:3])
    harness_daemon.TUTTI = None if argv[3] == "none" else os.path.abspath(argv[3])
    for name in sorted(os.listdir(here)):
        if name.startswith("cases_") and name.endswith(".py"):
            importlib.import_module(name[:-3])  # this directory comes before ../cli, which has some of the same names
    harness_daemon.guard()
    return harness.main([argv[0], harness_daemon.WORKER, *argv[4:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv))
