#!/usr/bin/env python3
"""End-to-end tests of make-digits and of the example jobs that read what it makes. Prints TAP.
Usage: test_digits.py PATH_TO_MAKE_DIGITS PATH_TO_TUTTI_WORKER [WORD...]"""
import os
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is

import harness
import cases_digits

if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(harness.main(sys.argv[:1]))
    cases_digits.WORKER = os.path.abspath(sys.argv[2])
    sys.exit(harness.main(sys.argv[:2] + sys.argv[3:]))
