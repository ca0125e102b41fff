"""The token that clients of a server send. It comes from a file that only its owner can read."""

from __future__ import annotations

import os
import re

from ondisk.errors import ConfigError
from ondisk.keys import read_private

_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]{16,1024}=*")  # RFC 6750, section 2.1
_MAKE = "Make one with `(umask 077; openssl rand -hex 32 > FILE)`."


def read_token(path: str | os.PathLike[str]) -> bytes:
    """Return the token in a file: its only line.

    Raises:
        ConfigError: the file cannot be read, others may read it, or it contains something else. No message shows it.
    """
    source = f"the token file {os.fspath(path)!r}"
    content = read_private(path, source).strip()
    if not _TOKEN.fullmatch(content):
        problem = "must contain one line of 16 to 1024 letters, digits and the characters - . _ ~ + /"
        raise ConfigError(f"{source} {problem}", hint=_MAKE)
    return content
