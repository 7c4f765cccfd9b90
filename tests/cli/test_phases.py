#!/usr/bin/env python3
"""Tests of jobs with several phases, on a worker whose only method has three. Prints TAP.
Usage: test_phases.py PATH_TO_WORKER_PHASES [WORD...]"""
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is

import harness
import cases_phases  # registers its cases

if __name__ == "__main__":
    sys.exit(harness.main(sys.argv))
