#!/usr/bin/env python3
"""Writes the licences of what is linked statically into the installed programs and libraries.

    licenses.py > FILE

These are the crates of `cargo metadata` and the Rust standard library. Crates that may be used
under the Apache License or another one are used under the other one, whose texts are printed, each
once. The Apache License is a part of every Debian. It fails if a crate has no text of its licence.
"""

import html
import re
import subprocess
import sys
from pathlib import Path

from workspace import metadata

# Programs of the workspace that no package installs.
NOT_INSTALLED = {"urdma-demo", "urdma-pages", "urdma-tests"}
APACHE = "/usr/share/common-licenses/Apache-2.0"
RULE = "-" * 80


def rustc(*arguments):
    """The output of rustc."""
    command = ["rustc", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def kinds(package):
    """The kinds of a package's targets."""
    return {kind for target in package["targets"] for kind in target["kind"]}


def linked():
    """The crates of others that are linked into what is installed."""
    host = re.search("^host: (.*)$", rustc("-vV"), re.MULTILINE).group(1)
    found = metadata("--locked", "--filter-platform", host)
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    left = [
        package["id"]
        for package in packages.values()
        if package["source"] is None
        and kinds(package) & {"bin", "cdylib"}
        and package["name"] not in NOT_INSTALLED
    ]
    seen = set()
    while left:
        number = left.pop()
        if number in seen or "proc-macro" in kinds(packages[number]):
            continue
        seen.add(number)
        for dependency in nodes[number]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                left.append(dependency["pkg"])
    crates = [packages[number] for number in seen if packages[number]["source"]]
    return sorted(crates, key=lambda crate: (crate["name"], crate["version"]))


def texts(crate):
    """The texts of the licences of a crate, without the Apache License."""
    folder = Path(crate["manifest_path"]).parent
    files = [
        file
        for file in sorted(folder.iterdir())
        if re.match("(?i)(licen[cs]e|copying|copyright|notice|unlicense)", file.name)
    ]
    found = [file.read_text().strip() for file in files if file.is_file()]
    found = [text for text in found if not re.match(r"\s*Apache License\n", text)]
    if not found and "Apache-2.0" not in crate["license"]:
        sys.exit(f"licenses.py: {folder} has no text of its licence: {crate['license']}")
    return found or [f"The Apache License, version 2.0, is in {APACHE}."]


def standard_library():
    """The notices of the Rust standard library and of the crates in it."""
    file = Path(rustc("--print", "sysroot").strip()) / "share/doc/rust/COPYRIGHT-library.html"
    if not file.exists():
        sys.exit(f"licenses.py: {file} is missing: install Rust with rustup.")
    page = re.sub("<(style|title).*?</\\1>|<[^>]*>", "", file.read_text(), flags=re.DOTALL)
    lines = [line.rstrip() for line in html.unescape(page).splitlines()]
    return re.sub("\n{3,}", "\n\n", "\n".join(lines)).strip()


def main():
    """Prints the list of crates, the texts, and the notices of the standard library."""
    crates = linked()
    users = {}
    for crate in crates:
        for text in texts(crate):
            users.setdefault(text, []).append(crate["name"])
    print("Crates that are linked statically into the programs and libraries of urdma:\n")
    for crate in crates:
        print(f"{crate['name']} {crate['version']}: {crate['license']}")
    for text, names in users.items():
        print(f"\n{RULE}\n{', '.join(dict.fromkeys(names))}:\n\n{text}")
    print(f"\n{RULE}\n{standard_library()}")


main()
