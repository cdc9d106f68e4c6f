"""The packages of the workspace from `cargo metadata`, and what they depend on, for the scripts in
this folder.
"""

import json
import os
import shlex
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def metadata(*options):
    """What `cargo metadata` says with these options; runs the cargo that `$CARGO` names."""
    cargo = shlex.split(os.environ.get("CARGO", "cargo"))
    command = [*cargo, "metadata", *options, "--format-version", "1"]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    return json.loads(output)


def packages():
    """The packages of the workspace."""
    return metadata("--offline", "--no-deps")["packages"]
