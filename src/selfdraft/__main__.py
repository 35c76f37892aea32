"""`python -m selfdraft`: the command line, also where no script was installed."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
