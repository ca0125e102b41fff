"""Maintenance: what keeps index and disk in agreement, for years. One verb a module; all begin with a diagnosis."""
