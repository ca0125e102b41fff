"""Aliases: names for alternatives of match expressions, in the file that arkimet calls `match-alias.conf`.

    [timerange]                           the field
    c006 = Timedef,6h,1,6h                a name, and what it stands for
    c012 = Timedef,12h,1,12h
    rain = c006 or c012 or GRIB1,4,0h     alternatives may be names again

`timerange: rain` then means `timerange: Timedef,6h,1,6h or Timedef,12h,1,12h or GRIB1,4,0h`. Names ignore case, and are
compared as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ondisk import items
from ondisk.errors import ConfigError, shown

SECTIONS = (*items.FIELDS, "reftime")
_OR = re.compile(r"(?<!\S)or(?!\S)", re.IGNORECASE)
_MOST_NESTED, _MOST_ALTERNATIVES = 50, 1000
_TOO_DEEP = f"is nested deeper than {_MOST_NESTED} names"
_ONE_NAME = 'Write each name once, as in "c006 = Timedef,6h,1,6h", below a line such as [timerange].'


class _Meaning(NamedTuple):
    """What an alias stands for: different alternatives, and how many names lead to the furthest of them."""

    alternatives: tuple[str, ...]
    depth: int


class Aliases:
    """The aliases of a file: field → name in lower case → alternatives; raises ConfigError if one leads to itself."""

    def __init__(self, sections: Mapping[str, Mapping[str, Sequence[str]]], source: str) -> None:
        self.source = source
        self._sections = sections
        self._known: dict[tuple[str, str], _Meaning] = {}
        for field, aliases in sections.items():
            if field != "reftime":
                self._check_names(field)
            for name in aliases:
                self.find(field, name)

    @classmethod
    def parse(cls, text: str, source: str) -> Aliases:
        """Return the aliases in the text of a file; raise ConfigError, with the line or section, if it has none."""
        import configparser  # here, as few datasets have aliases

        parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, default_section="\0")
        try:
            parser.read_string(text, source)
        except configparser.Error as error:
            raise ConfigError(f"not a file of aliases: {' '.join(error.message.split())}", hint=_ONE_NAME) from None
        sections = {}
        for field in parser.sections():
            if field not in SECTIONS:
                hint = f"The sections are {', '.join(SECTIONS)}."
                raise ConfigError(f"{source}: [{field}] is not a section of aliases", hint=hint)
            aliases = {name: [part.strip() for part in _OR.split(value)] for name, value in parser[field].items()}
            sections[field] = aliases
        return cls(sections, source)

    def find(self, field: str, text: str) -> tuple[str, ...] | None:
        """Return the alternatives that a text stands for, none of which is an alias; None if it is no alias."""
        name = text.lower()
        if name not in self._sections.get(field, {}):
            return None
        return self._meaning(field, name, ()).alternatives

    def _meaning(self, field: str, name: str, above: tuple[str, ...]) -> _Meaning:
        """Return the different alternatives of an alias, each once: names that name each other twice do not explode."""
        if (known := self._known.get((field, name))) is not None:
            return known
        if name in above or len(above) >= _MOST_NESTED:
            is_circle = name in above
            problem = "leads to itself" if is_circle else _TOO_DEEP
            path = " → ".join((*above[above.index(name) if is_circle else 0 :], name)[:10])
            raise self._error(field, name, f"{problem}: {path}")
        found: dict[str, None] = {}
        depth = 0
        for part in self._sections[field][name]:
            inner = part.lower()
            if inner in self._sections[field]:
                meaning = self._meaning(field, inner, (*above, name))
                depth = max(depth, 1 + meaning.depth)
                found.update(dict.fromkeys(meaning.alternatives))
            else:
                found[part] = None
        if depth >= _MOST_NESTED:
            raise self._error(field, name, _TOO_DEEP)
        if len(found) > _MOST_ALTERNATIVES:
            raise self._error(field, name, f"stands for {len(found)} alternatives, more than {_MOST_ALTERNATIVES}")
        return self._known.setdefault((field, name), _Meaning(tuple(found), depth))

    def _check_names(self, field: str) -> None:
        """Raise if a name is also a value of its field: queries would not find that any more."""
        aliases = self._sections[field]
        parts = (part for alternatives in aliases.values() for part in alternatives if part.lower() not in aliases)
        values = items.values_of(field, parts)
        for name in aliases:
            if items.is_value(field, name, values):
                hint = "Give the alias another name."
                raise ConfigError(f"{self.source}: the alias {shown(name)} of {field} is a value of {field}", hint=hint)

    def _error(self, field: str, name: str, problem: str) -> ConfigError:
        hint = "Write what it stands for, as in `Timedef,6h,1,6h`."
        return ConfigError(f"{self.source}: the alias {shown(name)} of {field} {problem}", hint=hint)


NO_ALIASES = Aliases({}, "")


class WithAliases(str):
    """The text of a match expression that has other aliases than those of the dataset."""

    aliases: Aliases

    def __new__(cls, text: str, aliases: Aliases) -> WithAliases:
        made = super().__new__(cls, text)
        made.aliases = aliases
        return made
