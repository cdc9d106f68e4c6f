"""Runs rdma-core's pyverbs tests on one device and writes one JSON line for each.

A line has the test's name, its outcome and the reason.

    run.py FOLDER RESULTS [options of the suite]

The suite is Debian's (package python3-pyverbs, which ships it compressed); it is unpacked to
FOLDER/tests. Since rdma-core 56 it asks `rdma link show -j` for the network interface of the
device. That command asks the kernel, which does not know a device of the stand-in, so another one
takes its place.
"""
import gzip
import json
import multiprocessing
import os
import shutil
import sys
import unittest

SHIPPED = "/usr/share/doc/rdma-core/tests"
# The instance has the address of this interface.
NETDEV = "lo"


def unpack(folder):
    os.makedirs(folder)
    for name in os.listdir(SHIPPED):
        path = os.path.join(SHIPPED, name)
        if name.endswith(".gz"):
            with gzip.open(path) as packed, open(os.path.join(folder, name[:-3]), "wb") as plain:
                shutil.copyfileobj(packed, plain)
        elif name.endswith(".py"):
            shutil.copy(path, folder)


def answer_rdma_link(folder, device, port):
    """Puts an `rdma` into the path whose only answer is that of `rdma link show -j`."""
    os.makedirs(folder)
    path = os.path.join(folder, "rdma")
    links = [{"ifname": device, "port": port, "netdev": NETDEV}]
    with open(path, "w") as script:
        script.write(f"#!/bin/sh\necho '{json.dumps(links)}'\n")
    os.chmod(path, 0o755)
    os.environ["PATH"] = folder + os.pathsep + os.environ["PATH"]


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
    answer_rdma_link(os.path.join(folder, "bin"), parser.args["dev"], parser.args["port"])
    suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
    with open(results, "w", buffering=1) as Results.lines:
        ended = unittest.TextTestRunner(resultclass=Results, verbosity=2).run(suite)
    sys.exit(not ended.wasSuccessful())


main()
