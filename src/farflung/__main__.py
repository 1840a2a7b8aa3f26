"""`python -m farflung`: the same as the command `farflung`."""

import sys

from farflung.cli import main

if __name__ == "__main__":
    sys.exit(main())
