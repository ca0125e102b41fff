"""Run the command `ondisk` as `python -m ondisk`."""

import sys

from ondisk.cli import main

sys.exit(main())
