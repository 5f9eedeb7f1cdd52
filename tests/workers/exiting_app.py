"""An app that ends its importer."""

raise SystemExit("I was meant to be a script")
