"""``python -m urdma`` and the console command: executes the program ``urdma``."""

from __future__ import annotations

import os
import sys

from urdma import Error, not_executed, program


def main() -> int:
    """Replaces this process by ``urdma``; returns the status if that cannot be."""
    try:
        path = os.fspath(program())
        try:
            os.execv(path, ["urdma", *sys.argv[1:]])
        except OSError as error:
            raise not_executed(error) from error
    except Error as error:
        print(f"urdma: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
