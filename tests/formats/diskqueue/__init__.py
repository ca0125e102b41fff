"""Tests of the disk queue format; a package, so that they can share a reader."""
