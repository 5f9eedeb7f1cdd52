"""An app that does not import."""

import a_module_that_nobody_has  # noqa: F401  # that is the point
