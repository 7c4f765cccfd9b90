#!/usr/bin/env python3
"""End-to-end tests of tutti-worker's command line. Prints TAP. Usage: test_worker.py PATH_TO_TUTTI_WORKER [WORD...]

The cases are in cases_*.py, by what they are about; harness.py has how they are written and run.
"""
import sys

import harness
import cases_bits  # noqa: F401
import cases_crash  # noqa: F401

if __name__ == "__main__":
    sys.exit(harness.main(sys.argv))
