"""Runs tests of Python's own suite: suite.py OUTCOMES NAME...

OUTCOMES gets a line for each test, `passed NAME`, `failed NAME` or `skipped NAME`; a test of which
a subtest fails has failed. NAME is a module of the package test, or a test as OUTCOMES has it.
"""

import os
import sys
import threading
import unittest

from test import support

# Modules whose tests of the resource "network" stay on the loopback interface.
LOCAL = "test.test_socketserver"
# Its tests wait forever where the hypervisor does not loop back.
LEFT_OUT = "VSOCK"


class Outcomes(unittest.TextTestResult):
    """Writes the outcome of each test."""

    def startTest(self, test):
        super().startTest(test)
        self.outcome = "passed"

    def stopTest(self, test):
        super().stopTest(test)
        self.note(self.outcome, test)

    def note(self, outcome, test):
        print(outcome, test.id(), file=self.file, flush=True)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome = "skipped"

    def fail(self, test):
        self.outcome = "failed"
        if not isinstance(test, unittest.TestCase):
            # Something that a module or a class needs.
            self.note("failed", test)

    def addError(self, test, err):
        super().addError(test, err)
        self.fail(test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.fail(test)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.outcome = "failed"


def without_those_left_out(tests):
    """The tests of a suite, in suites as before: modules and classes are set up by them."""
    if isinstance(tests, unittest.TestCase):
        return tests
    left = [without_those_left_out(test) for test in tests
            if not isinstance(test, unittest.TestCase) or LEFT_OUT not in test.id()]
    return type(tests)(left)


def main():
    Outcomes.file = open(sys.argv[1], "w")
    names = sys.argv[2:]
    support.use_resources = ["cpu", "network"] if names[0].startswith(LOCAL) else ["cpu"]
    tests = without_those_left_out(unittest.defaultTestLoader.loadTestsFromNames(names))
    unittest.TextTestRunner(resultclass=Outcomes, verbosity=2).run(tests)
    Outcomes.file.close()
    # Threads that a failed test has left must not hold the end up.
    if threading.active_count() > 1:
        sys.stderr.flush()
        os._exit(0)


main()
