#!/usr/bin/env python3
"""End-to-end tests of tutti-worker's command line. Prints TAP. Usage: test_worker.py PATH_TO_TUTTI_WORKER [WORD...]

The cases are in cases_*.py, by what they are about; harness.py has how they are written and run.
"""
import importlib
import os
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is

import harness

# cases_digits.py and cases_phases.py need other programs: test_digits.py and test_phases.py run them.
here = os.path.dirname(os.path.abspath(__file__))
for name in sorted(os.listdir(here)):
    if name.startswith("cases_") and name.endswith(".py") and name not in ("cases_digits.py", "cases_phases.py"):
        importlib.import_module(name[:-3])

if __name__ == "__main__":
    sys.exit(harness.main(sys.argv))
