"""A script, not an app: it ends whoever imports it."""

import sys

sys.exit(0)
