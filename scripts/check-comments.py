#!/usr/bin/env python3
"""Finds lines of more than 100 columns in the files and folders that the arguments name.

rustfmt keeps the code of Rust sources within 100 columns, but neither comments nor string
literals. A tab counts as far as the next multiple of eight columns. Tables in Markdown and in doc
comments, and Markdown's code blocks, may be wider. Prints one line per finding and exits with
status 1 if there is any.
"""

import sys
from pathlib import Path

COLUMNS = 100
SUFFIXES = {".rs", ".c", ".h", ".lua", ".md", ".py", ".sh", ".toml"}
NAMES = {"Makefile", "Kbuild"}


def files(path):
    """The text files at or below a path."""
    if not path.is_dir():
        return [path]
    return sorted(
        file
        for file in path.rglob("*")
        if (file.suffix in SUFFIXES or file.name in NAMES)
        and "target" not in file.parts
        and file.is_file()
    )


def is_table_row(line, is_markdown):
    """Whether the line is a row of a table in Markdown or in a Rust doc comment."""
    text = line.lstrip()
    return text.startswith(("|",) if is_markdown else ("//! |", "/// |"))


def lines_that_count(file):
    """Numbers and texts of the lines that must not be long."""
    is_markdown = file.suffix == ".md"
    in_block = False
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if is_markdown and line.lstrip().startswith("```"):
            in_block = not in_block
        elif not in_block and not is_table_row(line, is_markdown):
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
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
