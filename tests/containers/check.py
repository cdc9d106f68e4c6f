#!/usr/bin/env python3
"""Runs what doc/containers.md shows in the unpacked image, each container by bubblewrap.

    check.py PAGE ROOT

Containers share the network, as those of a pod do, and have process ids of their own. Their user
is 1000, without capabilities.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

USER = "1000"
LIMIT_S = 60
RUN_DIR = "/run/urdma"


class Host:
    """The image, and a volume that its containers share."""

    def __init__(self, root, volume):
        self.root = root
        self.volume = volume
        # What containers in the background print; shown if a check fails.
        self.log = tempfile.TemporaryFile("w+")

    def container(self, command, env=None):
        """The command line that runs `command` in a container."""
        variables = [word for pair in (env or {}).items() for word in ("--setenv", *pair)]
        return [
            *("bwrap", "--die-with-parent", "--as-pid-1"),
            *("--unshare-pid", "--unshare-ipc", "--unshare-uts"),
            *("--bind", self.root, "/", "--proc", "/proc", "--dev", "/dev"),
            *("--perms", "1777", "--tmpfs", "/tmp", "--perms", "1777", "--tmpfs", "/dev/shm"),
            *("--bind", str(self.volume), RUN_DIR, "--chdir", "/", "--clearenv"),
            *("--setenv", "PATH", "/usr/sbin:/usr/bin:/sbin:/bin", *variables),
            *("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"),
            *("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--", *command),
        ]

    def run(self, command, env=None):
        """Runs a container to its end and returns its output; it must succeed."""
        ended = subprocess.run(
            self.container(command, env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert ended.returncode == 0, f"{command}: status {ended.returncode}: {ended.stdout}"
        return ended.stdout

    def start(self, command, env=None):
        """Starts a container."""
        return subprocess.Popen(
            self.container(command, env), stdout=self.log, stderr=subprocess.STDOUT
        )

    def wait_for(self, probe):
        """Repeats the command of a probe until it succeeds."""
        end = time.monotonic() + LIMIT_S
        while subprocess.run(self.container(probe), capture_output=True, check=False).returncode:
            assert time.monotonic() < end, f"{probe} fails"
            time.sleep(0.1)


def stop(host, container):
    """Ends a container as an engine does: SIGTERM to its process 1, which removes its files."""
    outer = container.pid
    (first,) = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
    os.kill(int(first), signal.SIGTERM)
    assert container.wait(LIMIT_S) == 0
    left = list(host.volume.iterdir())
    assert not left, f"left in {RUN_DIR}: {left}"


def blocks(page):
    """The fenced blocks of a page: language, section and text."""
    found = []
    for section in re.split(r"^## ", page, flags=re.M):
        title = section.splitlines()[0]
        for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", section, flags=re.M | re.S):
            found.append((language, title, text))
    return found


def block(page, language, title):
    """The text of the only block in this language whose section has this title."""
    (text,) = [text for lang, of, text in blocks(page) if (lang, of) == (language, title)]
    return text


def check_actions(host, text):
    """The steps of a job run in one container."""
    (job,) = yaml.safe_load(text)["jobs"].values()
    script = "\n".join(step["run"] for step in job["steps"])
    output = host.run(["sh", "-e", "-c", script])
    assert re.search(r"^ *65536 ", output, flags=re.M), output


def check_pod(host, text):
    """The sidecar and the program of a pod run in two containers with a volume."""
    spec = yaml.safe_load(text)["spec"]
    (sidecar,), (program,) = spec["initContainers"], spec["containers"]
    assert str(spec["securityContext"]["runAsUser"]) == USER
    names = {volume["name"] for volume in spec["volumes"]}
    for container in (sidecar, program):
        (mount,) = container["volumeMounts"]
        assert mount["name"] in names and mount["mountPath"] == RUN_DIR, mount
    daemon = host.start(sidecar["command"])
    host.wait_for(sidecar["startupProbe"]["exec"]["command"])
    env = {variable["name"]: variable["value"] for variable in program["env"]}
    output = host.run(program["command"], env)
    assert re.search(r"^ *65536 ", output, flags=re.M), output
    stop(host, daemon)
    host.log.seek(0)
    for line in host.log.read().splitlines():
        assert re.match(r"\S+Z +(INFO|WARN|ERROR) ", line), f"urdmad wrote: {line}"


def check_compose(host, text):
    """Each service runs in a container, with a volume for all."""
    document = yaml.safe_load(text)
    services = document["services"]
    for service in services.values():
        assert service["user"] == USER
        (volume,) = service["volumes"]
        name, path = volume.split(":")
        assert name in document["volumes"] and path == RUN_DIR, volume
    daemon = host.start(services["urdmad"]["command"])
    host.wait_for(services["urdmad"]["healthcheck"]["test"][1:])
    server = services["server"]
    serving = host.start(server["command"], server["environment"])
    client = services["client"]
    output = host.run(client["command"], client["environment"])
    assert re.search(r"^ *65536 ", output, flags=re.M), output
    assert serving.wait(LIMIT_S) == 0
    stop(host, daemon)


def check_shell(host, text):
    """Every line has the syntax of a shell; those of urdma run in one container."""
    subprocess.run(["sh", "-n", "-c", text], check=True)
    lines = [line for line in text.splitlines() if line.startswith("urdma ")]
    if "urdma up" in lines:
        output = host.run(["sh", "-e", "-c", "\n".join(lines)])
        assert "urdma0" in output, output


def check_toml(host, text):
    """urdmad accepts a configuration."""
    file = host.volume / "page.toml"
    file.write_text(text)
    host.run(["urdmad", "--check-config", "--config", f"{RUN_DIR}/page.toml"])
    file.unlink()


def check_unit(host):
    """systemd accepts the unit, with the urdmad of the image."""
    unit = Path(host.root, "usr/lib/systemd/system/urdmad@.service").read_text()
    assert "=/usr/bin/urdmad " in unit
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "urdmad@default.service")
        file.write_text(unit.replace("=/usr/bin/urdmad ", f"={host.root}/usr/bin/urdmad "))
        verify = ["systemd-analyze", "verify", "--man=no", str(file)]
        said = subprocess.run(verify, capture_output=True, text=True, check=False)
    # systemd reports other units of this machine as well.
    ours = [line for line in said.stderr.splitlines() if "urdmad@" in line]
    assert not ours, ours


def main():
    """Runs every block of the page."""
    page, root = Path(sys.argv[1]).read_text(), sys.argv[2]
    volume = Path(tempfile.mkdtemp())
    shutil.chown(volume, int(USER), int(USER))
    host = Host(root, volume)
    try:
        check_actions(host, block(page, "yaml", "Continuous integration"))
        print("  the steps of a job of GitHub Actions")
        check_pod(host, block(page, "yaml", "A sidecar in Kubernetes"))
        print("  a pod with a sidecar")
        check_compose(host, block(page, "yaml", "Docker compose"))
        print("  services of Docker compose")
        for language, _, text in blocks(page):
            if language == "sh":
                check_shell(host, text)
            elif language == "toml":
                check_toml(host, text)
        check_unit(host)
        print("  commands of a shell, configurations, the unit of systemd")
    except BaseException:
        host.log.seek(0)
        sys.stderr.write(host.log.read())
        raise
    finally:
        shutil.rmtree(volume)


main()
