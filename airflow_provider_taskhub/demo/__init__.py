"""What ``make demo`` runs. Only a checkout has this package: it is not in the wheel."""
