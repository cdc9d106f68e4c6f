"""The packages of the workspace, as `cargo metadata` has them; for the scripts beside it."""

import json
import os
import shlex
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def packages():
    """The packages, without those of dependencies; `$CARGO` names the cargo to ask."""
    cargo = shlex.split(os.environ.get("CARGO", "cargo"))
    command = [*cargo, "metadata", "--offline", "--no-deps", "--format-version", "1"]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    return json.loads(output)["packages"]
