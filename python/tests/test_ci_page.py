"""The commands of doc/ci.md, each block in a virtual environment of its own.

They install the wheel under test: ``PIP_FIND_LINKS`` has it, and what pytest needs. Packages of
Debian are not installed, but have to be there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

PAGE = Path(__file__).parents[2] / "doc/ci.md"
LIMIT_S = 120

#: In the place of Debian's commands, which change the machine.
STAND_INS = {
    "sudo": 'exec "$@"',
    "apt-get": """
case $1 in
    update) ;;
    install)
        for package; do
            case $package in install | -*) continue ;; esac
            dpkg-query -W -f '${db:Status-Status}\\n' "$package" | grep -qx installed
        done ;;
    *) exit 1 ;;
esac""",
}


def _blocks(language: str) -> list[str]:
    """The blocks of code of the page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


class Job:
    """A machine of CI: a virtual environment, a directory and an instance."""

    def __init__(self, folder: Path) -> None:
        """A machine in a folder."""
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        for name, text in STAND_INS.items():
            command = folder / "commands" / name
            command.parent.mkdir(exist_ok=True)
            command.write_text(f"#!/bin/sh\nset -e\n{text}\n")
            command.chmod(0o755)
        (folder / "checkout").mkdir()
        first = [folder / "venv/bin", folder / "commands"]
        self.folder = folder / "checkout"
        self.environment = {
            **os.environ,
            "PATH": ":".join([*map(str, first), os.environ["PATH"]]),
            "URDMA_RUN_DIR": str(folder / "run"),
        }

    def run(self, script: str) -> str:
        """Runs a script to its end, and returns what it prints; it has to succeed."""
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{script}: {done.stdout}"
        return done.stdout


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.run("urdma down || true")


def test_github_runs_a_program_between_processes(job: Job) -> None:
    (workflow,) = (yaml.safe_load(block) for block in _blocks("yaml") if "runs-on" in block)
    steps: list[dict[str, Any]] = workflow["jobs"]["test"]["steps"]
    shown = [job.run(step["run"]) for step in steps if "run" in step]
    assert " 65536 " in shown[-1]


def test_gitlab_runs_a_program_between_processes(job: Job) -> None:
    (pipeline,) = (yaml.safe_load(block) for block in _blocks("yaml") if "script:" in block)
    test = pipeline["test"]
    # Both lists are one script there.
    shown = job.run("\n".join([*test["before_script"], *test["script"]]))
    assert "urdma0" in shown
    assert " 65536 " in shown


def test_dockerfile_shows_the_device(job: Job) -> None:
    (lines,) = (block.splitlines() for block in _blocks("dockerfile"))
    instructions = [line.split(maxsplit=1) for line in lines]
    assert [name for name, _ in instructions] == ["FROM", "RUN", "CMD"]
    shown = [job.run(command) for _, command in instructions[1:]]
    assert "urdma0" in shown[-1]


def test_pytest_has_a_device(job: Job) -> None:
    (job.folder / "test_device.py").write_text(
        "def test_device(urdma_device):\n    urdma_device.run(['ibv_devinfo'])\n"
    )
    (block,) = _blocks("sh")
    assert "1 passed" in job.run(block)
