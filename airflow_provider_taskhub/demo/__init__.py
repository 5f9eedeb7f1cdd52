"""The demo that ``make demo`` runs. Only a checkout of the project has this package; the wheel does not contain it."""
