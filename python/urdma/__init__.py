"""Software RDMA for programs that use libibverbs or librdmacm.

An instance is a private RDMA device; programs that it runs find the device ``urdma0``::

    import urdma

    with urdma.instance() as device:
        server = device.popen(["ib_write_bw"])
        device.run(["ib_write_bw", "127.0.0.1"])
        server.wait()

The command line ``urdma`` and ``python -m urdma`` are the program of the same name.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Union

__all__ = ["Error", "Instance", "instance", "program"]

#: An argument of a program, or a path.
Argument = Union[str, "os.PathLike[str]"]

#: The longest time that ``urdma up``, ``down`` and ``status`` may take, in seconds.
COMMAND_LIMIT_S = 60.0


class Error(Exception):
    """A command of urdma has failed; the message is what it has printed."""


def program() -> Path:
    """The program ``urdma`` of this package."""
    path = Path(__file__).parent / "bin" / "urdma"
    if not os.access(path, os.X_OK):
        reason = "is on a file system without executable files" if path.exists() else "is missing"
        raise Error(f"{path} {reason}: install the wheel of this machine's processor again")
    return path


def not_executed(error: OSError) -> Error:
    """Why this machine does not execute the program ``urdma``, which is there."""
    reasons = {
        errno.ENOENT: "its C library is not glibc 2.28 or later: musl (Alpine) is not supported",
        errno.ENOEXEC: "it is for another processor: install the wheel of this machine's",
    }
    reason = reasons.get(error.errno or 0, os.strerror(error.errno or 0))
    return Error(f"cannot execute {program()}: {reason}")


def _strings(arguments: Iterable[Argument]) -> list[str]:
    return [os.fspath(argument) for argument in arguments]


def _command(*arguments: Argument) -> str:
    """The output of ``urdma ARGUMENTS``.

    Raises:
        Error: it has failed, or not ended in time.
    """
    command = _strings([program(), *arguments])
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
            text=True,
        )
    except subprocess.TimeoutExpired as error:
        raise Error(f"urdma {arguments[0]} has not ended within {error.timeout} s") from error
    except OSError as error:
        raise not_executed(error) from error
    if done.returncode != 0:
        raise Error(done.stderr.strip() or f"urdma {arguments[0]}: status {done.returncode}")
    return done.stdout


class Instance:
    """A private RDMA device, until it is closed."""

    def __init__(self, run_dir: Path) -> None:
        """The instance that runs in a directory; :func:`instance` starts one."""
        #: The directory of the instance, ``--run-dir`` of the command line.
        self.run_dir = run_dir

    def command(self, arguments: Sequence[Argument]) -> list[str]:
        """The command that runs a program with this device.

        Args:
            arguments: the program and its arguments.
        """
        return _strings([program(), "run", "--run-dir", self.run_dir, "--", *arguments])

    def run(
        self, arguments: Sequence[Argument], *, check: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Runs a program with this device, and waits for its end.

        Args:
            arguments: the program and its arguments.
            check: whether a program that fails is an error.
            options: the others of :func:`subprocess.run`.

        Raises:
            subprocess.CalledProcessError: the program has failed.
        """
        return subprocess.run(self.command(arguments), check=check, **options)

    def popen(self, arguments: Sequence[Argument], **options: Any) -> subprocess.Popen[Any]:
        """Starts a program with this device.

        Args:
            arguments: the program and its arguments.
            options: those of :class:`subprocess.Popen`.
        """
        return subprocess.Popen(self.command(arguments), **options)

    def status(self) -> dict[str, Any]:
        """What ``urdma status --json`` prints: processes, queue pairs, ports and counters.

        Raises:
            Error: the instance does not answer.
        """
        status = json.loads(_command("status", "--json", "--run-dir", self.run_dir))
        assert isinstance(status, dict)
        return status


@contextmanager
def instance(config: Argument | None = None) -> Iterator[Instance]:
    """Starts an instance in a directory of its own, and ends it with the block.

    Programs that still run with the device when the block ends lose it.

    Args:
        config: a configuration file (TOML). Without one the device has no port to other hosts, and
            the addresses of this one.

    Raises:
        Error: the instance cannot be started; the message says what to do.
    """
    directory = Path(tempfile.mkdtemp(prefix="urdma-"))
    try:
        run_dir = directory / "run"
        options = [] if config is None else ["--config", os.fspath(config)]
        _command("up", "--run-dir", run_dir, *options)
        try:
            yield Instance(run_dir)
        finally:
            _command("down", "--run-dir", run_dir)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
