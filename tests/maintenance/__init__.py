"""Hostile input and hostile datasets: the documented error, and nothing else."""
