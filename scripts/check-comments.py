#!/usr/bin/env python3
"""Finds lines of more than 100 columns, and comments that refer to another one for their reason, in
the files and folders that the arguments name.

rustfmt keeps the code of Rust sources within 100 columns, but neither comments nor string
literals. A tab counts as far as the next multiple of eight columns. Tables and code blocks in
Markdown may be wider. A comment of Rust code gives its reason itself: one that says "as above"
stays as it is when the one that it means changes. Prints one line per finding and exits with
status 1 if there is any.
"""

import os
import re
import sys
from pathlib import Path

COLUMNS = 100
SUFFIXES = {
    ".rs", ".c", ".h", ".lua", ".md", ".py", ".sh", ".toml", ".conf", ".rules", ".service"
}
NAMES = {"Makefile", "Kbuild"}
REFERS = re.compile(r"//+ (SAFETY: )?(otherwise )?as above", re.IGNORECASE)
SKIPPED_FOLDERS = {".git", "target"}


def files(path):
    """The text files at or below a path."""
    if not path.is_dir():
        return [path]
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        found += [Path(folder, name) for name in names]
    return sorted(file for file in found if file.suffix in SUFFIXES or file.name in NAMES)


def lines_that_count(file):
    """Numbers and texts of the lines that must not be long."""
    is_markdown = file.suffix == ".md"
    in_block = False
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if is_markdown and line.lstrip().startswith("```"):
            in_block = not in_block
        elif not (in_block or (is_markdown and line.lstrip().startswith("|"))):
            yield number, line


def main():
    found = False
    for path in sys.argv[1:]:
        for file in files(Path(path)):
            for number, line in lines_that_count(file):
                columns = len(line.expandtabs(8))
                if columns > COLUMNS:
                    found = True
                    print(f"{file}:{number}: {columns} columns, {COLUMNS} at most")
                if file.suffix == ".rs" and REFERS.search(line):
                    found = True
                    print(f"{file}:{number}: says 'as above'; give the reason here")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
