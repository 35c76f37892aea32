"""`selfdraft` and `python -m selfdraft`: the command line."""

import sys

from .cli.interrupt import leave_at_once


def main() -> int:
    leave_at_once()  # before anything else is imported
    from .cli.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
