"""Run the command line with ``python -m ntkit``."""

import sys

from ntkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
