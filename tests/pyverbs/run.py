"""Runs rdma-core's pyverbs tests on one device and writes one JSON line for each.

A line has the test's name, its outcome and the reason.

    run.py FOLDER RESULTS [options of the suite]

The suite is Debian's (package python3-pyverbs, which ships it compressed); it is unpacked to
FOLDER/tests.
"""
import gzip
import json
import multiprocessing
import os
import shutil
import sys
import unittest

SHIPPED = "/usr/share/doc/rdma-core/tests"


def unpack(folder):
    os.makedirs(folder)
    for name in os.listdir(SHIPPED):
        path = os.path.join(SHIPPED, name)
        if name.endswith(".gz"):
            with gzip.open(path) as packed, open(os.path.join(folder, name[:-3]), "wb") as plain:
                shutil.copyfileobj(packed, plain)
        elif name.endswith(".py"):
            shutil.copy(path, folder)


class Results(unittest.TextTestResult):
    """Records the result of each test."""

    lines = None

    def keep(self, test, outcome, reason=""):
        name = test.id().removeprefix("tests.")
        json.dump({"test": name, "outcome": outcome, "reason": reason}, self.lines)
        self.lines.write("\n")

    def addSuccess(self, test):
        super().addSuccess(test)
        self.keep(test, "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.keep(test, "skipped", str(reason))

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.keep(test, "failed", str(err[1]))

    def addError(self, test, err):
        super().addError(test, err)
        self.keep(test, "failed", str(err[1]))


def main():
    folder, results = sys.argv[1:3]
    del sys.argv[1:3]
    unpack(os.path.join(folder, "tests"))
    sys.path[0:0] = [folder, os.path.join(folder, "tests")]
    from args_parser import parser
    import tests

    parser.parse_args()
    # The suite passes devices to other processes, which it expects to be forks of this one. Since
    # Python 3.14 they are not by default.
    multiprocessing.set_start_method("fork")
    suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
    with open(results, "w", buffering=1) as Results.lines:
        ended = unittest.TextTestRunner(resultclass=Results, verbosity=2).run(suite)
    sys.exit(not ended.wasSuccessful())


main()
