"""``python -m ntkit``: the command line."""

import sys

from ntkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
