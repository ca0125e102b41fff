"""How many examples a costly property test draws."""

from __future__ import annotations

from hypothesis import settings


def up_to(count: int) -> int:
    """Return how many examples are drawn: as many as the profile says, but at most so many, also in `make soak`."""
    return min(count, settings.default.max_examples)
