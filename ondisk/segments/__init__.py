"""The files of segments, `concat` and `dir`: append to them, read them, sync them. Knows files, not formats.

Both kinds of writer have the same methods.
"""
