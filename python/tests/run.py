#!/usr/bin/python3
"""Runs the tests of the Python package.

    python/tests/run.py plain    those that need no PyTorch
    python/tests/run.py jobs     a broker and peers, without PyTorch
    python/tests/run.py torch    those that need it; ends with 77 where it is not here

WEFT and WEFT_DOC_DATA name the programs; without them those of build/release are taken.
"""

import importlib.util
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SUITES = {
    "plain": ["test_program", "test_terms", "test_weights", "test_wheel", "test_real.Local", "test_real.Plans",
              "test_real.Served"],
    "jobs": ["test_real.Broker"],
    "torch": ["test_export", "test_training", "test_large_data", "test_torch_jobs", "test_notebook"],
}


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in SUITES:
        print(__doc__, file=sys.stderr)
        return 2
    if sys.argv[1] == "torch" and importlib.util.find_spec("torch") is None:
        print("skipped: PyTorch is not here (./dev install torch)", file=sys.stderr)
        return 77
    sys.path.insert(0, HERE)
    tests = unittest.defaultTestLoader.loadTestsFromNames(SUITES[sys.argv[1]])
    result = unittest.TextTestRunner(verbosity=1).run(tests)
    for test, reason in result.skipped:
        print(f"skipped: {test}: {reason}")
    return 0 if result.wasSuccessful() and result.testsRun else 1


if __name__ == "__main__":
    sys.exit(main())
