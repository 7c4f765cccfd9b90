#!/usr/bin/env python3
"""End-to-end tests of tutti-worker's command line. Prints TAP. Usage: test_worker.py PATH_TO_TUTTI_WORKER [WORD...]

The cases are in cases_*.py, by what they are about; harness.py has how they are written and run.
"""
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is

import harness
import cases_bits  # noqa: F401
import cases_crash  # noqa: F401
import cases_data  # noqa: F401
import cases_docs  # noqa: F401
import cases_checkpoint  # noqa: F401
import cases_export  # noqa: F401
import cases_failures  # noqa: F401
import cases_group  # noqa: F401
import cases_machine  # noqa: F401
import cases_plan  # noqa: F401
import cases_planning  # noqa: F401
import cases_profile  # noqa: F401
import cases_replicas  # noqa: F401
import cases_rules  # noqa: F401
import cases_sample  # noqa: F401
import cases_serve  # noqa: F401
import cases_signals  # noqa: F401
import cases_spec  # noqa: F401
import cases_svg  # noqa: F401
import cases_trace  # noqa: F401
import cases_tokens  # noqa: F401
import cases_transformers  # noqa: F401
import cases_usage  # noqa: F401

if __name__ == "__main__":
    sys.exit(harness.main(sys.argv))
