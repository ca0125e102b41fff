"""Processes of other users, as the tests of concurrency start them."""

from __future__ import annotations

from concurrency.conftest import public_path, start

__all__ = ["public_path", "start"]
