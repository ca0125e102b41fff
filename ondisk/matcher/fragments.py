"""Shared by the parsers of match expressions: fragments of text that know their position, and joining of conditions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from ondisk.datum import METADATA
from ondisk.errors import MatchError
from ondisk.matcher import And, Compare, Everything, Expression, OneOf, Or, Scalar

_QUOTED_IN_ERRORS = 60
_NEGATION = "For numbers and times write `<5 or >5`; in Python, `~` negates a condition."
_OTHER_LANGUAGES = [  # what is not in quotes
    (re.compile(r'^[^"]*!='), f"The language has no `!=`. {_NEGATION}"),
    (re.compile(r"^not\s", re.IGNORECASE), f"The language has no `not`. {_NEGATION}"),
    (
        re.compile(r'^[^"]*\sand\s', re.IGNORECASE),
        "The language has no `and`. Write `;` between groups, and `,` between two comparisons of one field.",
    ),
]
NOT_DECLARED = f" Metadata that are not declared are written `{METADATA}NAME`. The content of data cannot be matched."
"""What the hint for an unknown field ends with."""


class Fragment(NamedTuple):
    text: str  # its characters
    start: int  # index of its first character in the whole expression

    def __str__(self) -> str:
        """Return the text in quotes for an error message, shortened if it is long."""
        text = self.text
        return repr(text if len(text) <= _QUOTED_IN_ERRORS else text[: _QUOTED_IN_ERRORS - 1] + "…")

    def part(self, begin: int, end: int | None = None) -> Fragment:
        """Return the characters from `begin` to before `end`, without the blanks around them."""
        text = self.text[begin:end]
        blanks = len(text) - len(text.lstrip())
        return Fragment(text.strip(), self.start + begin + blanks)

    def split(self, separator: str) -> Iterator[Fragment]:
        begin = 0
        for text in self.text.split(separator):
            yield self.part(begin, begin + len(text))
            begin += len(text) + len(separator)

    def error(self, problem: str, hint: str) -> MatchError:
        """Return the error with the problem of this fragment, its position, and how it is written here."""
        message = f"{problem}, at character {self.start + 1} of the match expression"
        hint = next((other for pattern, other in _OTHER_LANGUAGES if pattern.search(self.text)), hint)
        return MatchError(message, hint=hint, piece=self.text, position=self.start)


def known_fields(name: str, known: Collection[str]) -> str:
    """Return the hint for an unknown field: the most similar name, and all names."""
    from difflib import get_close_matches  # imported here, because only errors need it

    likely = get_close_matches(name.lower(), known, 1)
    fields = f"The fields are {', '.join(known)}."
    return f"Did you mean `{likely[0]}`? {fields}" if likely else fields


def all_of(conditions: Iterable[Expression]) -> Expression:
    """Return a condition that requires all of these. It is flat, so that the tree is not deeper than the language."""
    flat: list[Expression] = []
    for condition in conditions:
        flat.extend(condition.children if isinstance(condition, And) else (condition,))
    if not flat:
        return Everything()
    return flat[0] if len(flat) == 1 else And(tuple(flat))


def any_of(field: str, alternatives: Iterable[Expression]) -> Expression:
    """Return a condition that requires one of these conditions on one field; equalities become one `OneOf`.

    Programs write expressions with thousands of alternatives, and SQL limits how deep `or` may nest.
    """
    equal: dict[Scalar, None] = {}
    other: dict[Expression, None] = {}
    for alternative in alternatives:
        if isinstance(alternative, Compare) and alternative.operator == "=":
            equal[alternative.value] = None
        else:
            other[alternative] = None
    if len(equal) == 1:
        other[Compare(field, "=", next(iter(equal)))] = None
    elif equal:
        other[OneOf(field, tuple(equal))] = None
    return next(iter(other)) if len(other) == 1 else Or(tuple(other))
