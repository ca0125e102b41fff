"""`python -m ondisk`, the same as the command `ondisk`."""

import sys

from ondisk.cli import main

sys.exit(main())
