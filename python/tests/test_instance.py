"""The package, as it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import urdma
from urdma.__main__ import main

pytest_plugins = ["pytester"]


def _is_up(device: urdma.Instance) -> bool:
    try:
        device.status()
    except urdma.Error:
        return False
    return True


def test_program_finds_the_device() -> None:
    with urdma.instance() as device:
        shown = device.run(["ibv_devinfo"], stdout=subprocess.PIPE, text=True).stdout
        assert "urdma0" in shown
        assert device.status()["slots"] == []
        assert device.run_dir.exists()
    assert not _is_up(device)
    assert not device.run_dir.exists()


def test_two_programs_pass_octets(urdma_device: urdma.Instance) -> None:
    program = ["ib_write_bw", "-n", "100", "-p", str(20000 + os.getpid() % 10000)]
    server = urdma_device.popen(program, stdout=subprocess.DEVNULL)
    shown = ""
    # The server may not listen yet.
    while " 65536 " not in shown:
        assert server.poll() is None
        time.sleep(0.1)
        client = [*program, "127.0.0.1"]
        shown = urdma_device.run(
            client, check=False, stdout=subprocess.PIPE, text=True, timeout=60
        ).stdout
    assert server.wait(timeout=60) == 0


def test_program_that_fails_is_an_error(urdma_device: urdma.Instance) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        urdma_device.run(["false"])
    assert urdma_device.run(["false"], check=False).returncode == 1


def _fail_in_an_instance(devices: list[urdma.Instance]) -> None:
    with urdma.instance() as device:
        devices.append(device)
        raise KeyError


def test_instance_ends_with_an_exception() -> None:
    devices: list[urdma.Instance] = []
    with pytest.raises(KeyError):
        _fail_in_an_instance(devices)
    assert not _is_up(devices[0])


def test_configuration_that_is_wrong_is_told(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("no_such_key = 1\n")
    with pytest.raises(urdma.Error, match="no_such_key"), urdma.instance(config=config):
        pass


def test_package_without_its_program_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urdma, "__file__", "/nowhere/__init__.py")
    with pytest.raises(urdma.Error, match="is missing"):
        urdma.program()


# A script without its interpreter ends as a program without its dynamic loader does.
@pytest.mark.parametrize(
    ("octets", "words"),
    [(b"#!/no/loader\n", "glibc 2.28"), (b"\x7fELF" + bytes(60), "another processor")],
)
def test_program_that_the_machine_does_not_execute_is_told(
    octets: bytes,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "bin/urdma"
    path.parent.mkdir()
    path.write_bytes(octets)
    path.chmod(0o755)
    monkeypatch.setattr(urdma, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(urdma.Error, match=words), urdma.instance():
        pass
    assert main() == 1
    assert words in capsys.readouterr().err


def test_older_python_is_refused_by_pip(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*command, "--python-version=3.8", "--dest", tmp_path, "urdma"],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode != 0
    assert ">=3.9" in done.stdout


@pytest.mark.parametrize("command", [[sys.executable, "-m", "urdma"], ["urdma"]])
def test_command_is_the_program(command: list[str]) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [*command, "--version"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": path},
    )
    assert done.stdout.startswith("urdma ")


def test_pytest_runs_with_a_device(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import ctypes

        def test_device(urdma_device):
            verbs = ctypes.CDLL("libibverbs.so.1")
            verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
            verbs.ibv_get_device_name.restype = ctypes.c_char_p
            count = ctypes.c_int()
            devices = verbs.ibv_get_device_list(ctypes.byref(count))
            names = [
                verbs.ibv_get_device_name(ctypes.c_void_p(devices[i])) for i in range(count.value)
            ]
            assert b"urdma0" in names
            urdma_device.run(["true"])
        """
    )
    pytester.runpytest_subprocess("--urdma").assert_outcomes(passed=1)
    pytester.runpytest_subprocess().assert_outcomes(failed=1)
