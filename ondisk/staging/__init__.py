"""Staging: what several processes write for one commit; see `ondisk.staging.jobs`."""
