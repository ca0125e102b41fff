"""Faults in ondisk that tests must notice: `make mutants`."""
