"""A plugin of pytest: an RDMA device for tests, on any machine.

``urdma_device``
    A fixture of a module: an :class:`urdma.Instance`, with which a test runs programs.

``pytest --urdma``
    Runs pytest itself with a private device, for tests that use verbs in their own process, by
    pyverbs for example. The fixture is that device then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import urdma

#: Has the directory of the instance with which pytest runs.
_VARIABLE = "URDMA_PYTEST_RUN_DIR"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--urdma``."""
    group = parser.getgroup("urdma", "software RDMA")
    group.addoption(
        "--urdma", action="store_true", help="run pytest itself with a private RDMA device"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Runs pytest again, with a device, if that is asked for."""
    if not config.getoption("urdma") or _VARIABLE in os.environ:
        return None
    try:
        with urdma.instance() as device:
            environment = {**os.environ, _VARIABLE: os.fspath(device.run_dir)}
            again = [sys.executable, "-m", "pytest", *config.invocation_params.args]
            return device.run(again, env=environment, check=False).returncode
    except urdma.Error as error:
        raise pytest.UsageError(str(error)) from error


@pytest.fixture(scope="module")
def urdma_device() -> Iterator[urdma.Instance]:
    """A private RDMA device."""
    run_dir = os.environ.get(_VARIABLE)
    if run_dir is not None:
        yield urdma.Instance(Path(run_dir))
        return
    with urdma.instance() as device:
        yield device
