"""`python -m ipusim` is the command `ipusim`."""

import sys

from ipusim.cli import main

if __name__ == "__main__":
    sys.exit(main())
