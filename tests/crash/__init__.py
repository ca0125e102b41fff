"""Processes that are killed, disks that fail or fill up, power that is cut: nothing acknowledged is lost."""
