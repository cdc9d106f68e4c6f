#!/usr/bin/env python3
"""Checks that what states the version of urdma states that of Cargo.toml.

The version is `version` of [workspace.package]. Packages, the wheel, the bill of materials, the
manual pages and the programs are made from it. The crates inherit it; the module's dkms.conf, the
newest heading of CHANGELOG.md and the names of files in doc/ repeat it.
"""

import re
import sys
import tomllib

from workspace import ROOT, packages

#: Names of files and images with a version: urdma-0.3.0.oci.tar, urdma:0.3.0, urdma_0.3.0~deb12.
NAMED = re.compile(r"\burdma[-_:](\d+\.\d+\.\d+)")


def stated():
    """Where a version is stated, and which."""
    for package in packages():
        yield f"package {package['name']}", package["version"]
    settings = (ROOT / "kernel-stub/module/dkms.conf").read_text()
    yield "dkms.conf", re.search(r'^PACKAGE_VERSION="(.*)"$', settings, re.MULTILINE)[1]
    changes = (ROOT / "CHANGELOG.md").read_text()
    yield "CHANGELOG.md", re.search(r"^## (\S+)", changes, re.MULTILINE)[1]
    for page in [ROOT / "README.md", *sorted((ROOT / "doc").rglob("*.md"))]:
        for version in NAMED.findall(page.read_text()):
            yield str(page.relative_to(ROOT)), version


def main():
    """Prints what differs; returns the status."""
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())
    version = manifest["workspace"]["package"]["version"]
    others = sorted({(place, other) for place, other in stated() if other != version})
    for place, other in others:
        print(f"{place} has version {other}, and Cargo.toml {version}", file=sys.stderr)
    return 1 if others else 0


sys.exit(main())
