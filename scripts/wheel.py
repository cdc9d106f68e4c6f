#!/usr/bin/env python3
"""Writes the wheel of the Python package, and prints its path.

    wheel.py PROGRAMS FOLDER PLATFORM

PROGRAMS has the programs, FOLDER gets the wheel, PLATFORM is that of its tag: manylinux_2_28_x86_64
for the programs of tarball.sh. The same programs and time of the last commit give the same octets.
"""

import base64
import hashlib
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("urdma", "urdmad", "liburdma_provider.so", "liburdma_standin.so",
            "liburdma_sockets.so")
LICENSES = ("LICENSE-APACHE", "LICENSE-MIT")

METADATA = """Metadata-Version: 2.1
Name: urdma
Version: {version}
Summary: Software RDMA for every verbs program, without RDMA hardware, kernel module or root
License: MIT OR Apache-2.0
Requires-Python: >=3.9
Classifier: Framework :: Pytest
Classifier: Operating System :: POSIX :: Linux
Description-Content-Type: text/markdown

{description}"""
WHEEL = "Wheel-Version: 1.0\nGenerator: urdma\nRoot-Is-Purelib: false\nTag: {tag}\n"
ENTRY_POINTS = """[console_scripts]
urdma = urdma.__main__:main

[pytest11]
urdma = urdma.pytest_plugin
"""


def contents(programs, version, tag):
    """Name, octets and mode of each file, without RECORD."""
    info = f"urdma-{version}.dist-info"
    for path in sorted((ROOT / "python/urdma").iterdir()):
        if path.suffix in (".py", ".typed"):
            yield f"urdma/{path.name}", path.read_bytes(), 0o644
    for name in PROGRAMS:
        yield f"urdma/bin/{name}", (programs / name).read_bytes(), 0o755
    for name in LICENSES:
        yield f"{info}/licenses/{name}", (ROOT / name).read_bytes(), 0o644
    description = (ROOT / "python/README.md").read_text()
    metadata = METADATA.format(version=version, description=description)
    yield f"{info}/METADATA", metadata.encode(), 0o644
    yield f"{info}/WHEEL", WHEEL.format(tag=tag).encode(), 0o644
    yield f"{info}/entry_points.txt", ENTRY_POINTS.encode(), 0o644


def record_of(name, octets):
    """The line of a file in RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(octets).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(octets)}\n"


def main():
    """Writes the wheel, and prints its path."""
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    programs, folder, platform = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())
    version, tag = manifest["workspace"]["package"]["version"], f"py3-none-{platform}"
    command = ["git", "-C", ROOT, "log", "-1", "--format=%ct"]
    seconds = int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    moment = time.gmtime(seconds)[:6]
    files = list(contents(programs, version, tag))
    record = f"urdma-{version}.dist-info/RECORD"
    lines = [record_of(name, octets) for name, octets, _ in files]
    files.append((record, "".join([*lines, f"{record},,\n"]).encode(), 0o644))
    path = folder / f"urdma-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, octets, mode in files:
            entry = zipfile.ZipInfo(name, moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (0o100000 | mode) << 16
            wheel.writestr(entry, octets)
    print(path)


if __name__ == "__main__":
    main()
