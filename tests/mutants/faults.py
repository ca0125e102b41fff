"""Read the faults in `faults/*.toml`: small mistakes in ondisk, each of which breaks a promise.

[[fault]]
promise = "what no longer holds"
file = "ondisk/…"
old = '''exact text, which the file contains once'''
new = '''the text with the mistake'''
tests = ["tests/…"]     files in which a test must fail; the one that most likely does first
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fault:
    """A mistake in one file; see the module's docstring."""

    promise: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def text(self, root: Path = ROOT) -> str:
        """Return the file's text with the mistake.

        Raises:
            ValueError: the file does not contain the old text exactly once, so the entry must be changed.
        """
        before = (root / self.file).read_text()
        if (count := before.count(self.old)) != 1:
            raise ValueError(f"{self.file} has this text {count} times instead of once: {self.old!r}")
        return before.replace(self.old, self.new)


def all_faults() -> list[Fault]:
    """Return all faults, in the order of the files and of the entries in each."""
    entries = (each for path in sorted(ROOT.glob("tests/mutants/faults/*.toml")) for each in _entries(path))
    return [Fault(**{**each, "tests": tuple(each["tests"])}) for each in entries]


def _entries(path: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = tomllib.loads(path.read_text())["fault"]
    return found
