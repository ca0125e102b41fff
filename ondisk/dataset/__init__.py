"""Datasets: create, open, append, query, delete. `ondisk` exports their classes."""
