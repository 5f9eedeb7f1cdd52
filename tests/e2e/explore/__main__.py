"""The command line of the exploration."""

import sys

from tests.e2e.explore.driver import main

sys.exit(main())
