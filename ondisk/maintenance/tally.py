"""Findings of one kind, for the reasons of a diagnosis: how many there are, and the first few."""

from __future__ import annotations

from dataclasses import dataclass, field

_NAMED = 3


@dataclass(slots=True)
class Tally:
    """Counts findings of one kind.

    Attributes:
        named: the first three, in words.
    """

    count: int = 0
    size: int = 0
    named: list[str] = field(default_factory=list)

    def add(self, text: str, size: int = 0) -> None:
        """Count one more."""
        self.count += 1
        self.size += size
        if len(self.named) < _NAMED:
            self.named.append(text)

    def text(self, separator: str = ", ") -> str:
        """Return the first three, and an ellipsis if there are more."""
        return separator.join(self.named) + " …" * (self.count > _NAMED)
