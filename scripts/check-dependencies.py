#!/usr/bin/env python3
"""Finds dependencies that a package of the workspace declares and does not use.

A dependency is used if the name by which Rust code refers to it occurs in a source of its
package: in the manifest's folder, in `build.rs` for a build dependency, in any other source for
a normal or dev dependency. Prints one sentence per unused dependency and exits with status 1 if
there is any.
"""

import re
import sys
from pathlib import Path

from workspace import ROOT, packages

FOLDERS = ("src", "tests", "examples", "benches", "fuzz_targets")


def text_of(files):
    """The code of the files, without lines that are comments."""
    lines = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return "\n".join(line for line in lines if not line.lstrip().startswith("//"))


def sources(package):
    """The package's sources that are not build scripts, its targets' files included."""
    folder = Path(package["manifest_path"]).parent
    files = {file for name in FOLDERS for file in (folder / name).rglob("*.rs")}
    for target in package["targets"]:
        file = Path(target["src_path"])
        if "custom-build" not in target["kind"]:
            # The modules of a target in another folder are beside its root file.
            files |= {file} | (set() if file.parent == folder else set(file.parent.rglob("*.rs")))
    for file in list(files):
        paths = re.findall(r'#\[path = "([^"]+)"\]', file.read_text(encoding="utf-8"))
        files |= {file.parent / path for path in paths}
    return files


def build_scripts(package):
    targets = package["targets"]
    return {Path(target["src_path"]) for target in targets if "custom-build" in target["kind"]}


def unused(package):
    """Names and kinds of the dependencies that no source names."""
    code = text_of(sources(package))
    build_code = text_of(build_scripts(package))
    for dependency in package["dependencies"]:
        crate = (dependency["rename"] or dependency["name"]).replace("-", "_")
        searched = build_code if dependency["kind"] == "build" else code
        if not re.search(rf"\b{re.escape(crate)}\b", searched):
            yield dependency["rename"] or dependency["name"], dependency["kind"] or "normal"


def main():
    found = False
    for package in packages():
        folder = Path(package["manifest_path"]).parent.relative_to(ROOT)
        for name, kind in unused(package):
            found = True
            print(f"{folder / 'Cargo.toml'}: the {kind} dependency `{name}` is not used.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
