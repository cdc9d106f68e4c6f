#!/usr/bin/env python3
"""Compares the table of crates in doc/design/crates.md with `cargo metadata`.

Prints one sentence per difference and exits with status 1 if there is any.
"""

import re
import sys
from pathlib import Path

from workspace import ROOT, packages

PAGE = Path("doc/design/crates.md")
COLUMNS = ("package", "folder", "what it is", "workspace dependencies")
NO_DEPENDENCIES = "none"


def workspace():
    """Folder and normal workspace dependencies of each package, by name."""
    members = packages()
    names = {package["name"] for package in members}
    found = {}
    for package in members:
        folder = Path(package["manifest_path"]).resolve().parent.relative_to(ROOT)
        # `kind` is "dev" or "build" for other dependencies. Those of the workspace have no source.
        dependencies = {
            dependency["name"]
            for dependency in package["dependencies"]
            if dependency["kind"] is None
            and dependency["source"] is None
            and dependency["name"] in names
        }
        found[package["name"]] = (str(folder), dependencies)
    return found


def cells(line):
    """The cells of one line of a Markdown table."""
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))


def in_backticks(cell):
    """The text of a cell that is one word in backticks, else None."""
    match = re.fullmatch(r"`([^`]+)`", cell)
    return match.group(1) if match else None


def dependencies_of(cell):
    """The names in a cell of dependencies; None if the cell is malformed."""
    if cell == NO_DEPENDENCIES:
        return set()
    names = [in_backticks(name) for name in re.split(r",\s*", cell)]
    return None if None in names else set(names)


def page_rows(lines):
    """The rows of the table: line number and cells."""
    rows = None
    for number, line in enumerate(lines, 1):
        if rows is None:
            if line.startswith("|") and cells(line) == COLUMNS:
                rows = []
        elif not line.startswith("|"):
            break
        elif not set(line) <= set("|-: "):
            rows.append((number, cells(line)))
    return rows


def quoted(names):
    return ", ".join(f"`{name}`" for name in sorted(names))


def row_differences(where, row, found, seen):
    """The differences of one row; adds its package to `seen`."""
    if len(row) != len(COLUMNS):
        yield f"{where}: the row has {len(row)} columns instead of {len(COLUMNS)}."
        return
    name = in_backticks(row[0])
    if name is None:
        yield f"{where}: the first column must be a package name in backticks, not {row[0]!r}."
        return
    if name in seen:
        yield f"{where}: `{name}` has another row already."
        return
    seen.add(name)
    if name not in found:
        yield f"{where}: `{name}` is not a package of the workspace."
        return
    folder, dependencies = found[name]
    if in_backticks(row[1]) != folder:
        yield f"{where}: the folder of `{name}` is `{folder}`, not {row[1]}."
    listed = dependencies_of(row[3])
    if listed is None:
        yield (
            f"{where}: the dependencies of `{name}` must be names in backticks, separated by"
            f" commas, or {NO_DEPENDENCIES!r}."
        )
        return
    if dependencies - listed:
        yield f"{where}: `{name}` also depends on {quoted(dependencies - listed)}."
    if listed - dependencies:
        yield f"{where}: `{name}` does not depend on {quoted(listed - dependencies)}."


def differences():
    rows = page_rows((ROOT / PAGE).read_text(encoding="utf-8").splitlines())
    if rows is None:
        yield f"{PAGE}: there is no table with the columns {', '.join(COLUMNS)}."
        return
    found = workspace()
    seen = set()
    for number, row in rows:
        yield from row_differences(f"{PAGE}:{number}", row, found, seen)
    for name in sorted(found.keys() - seen):
        yield f"{PAGE}: the package `{name}` ({found[name][0]}) has no row."


def main():
    found = list(differences())
    for sentence in found:
        print(sentence, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
