"""Secrets: the keys of encrypted segments, and the token of a server. No dataset contains them.

Keys come from the environment or from the caller:

    ONDISK_KEY_FILE       a file that only its owner can read
    ONDISK_KEYS           the same lines, separated by newlines or semicolons
    ONDISK_KEY_COMMAND    a command that prints the lines; it is run without a shell, and not again within 10 s after it
                          has failed

Each line is `ID HEX`: a number from 1 to 4294967295, and 16 bytes (for AES-128) or 32 bytes (for AES-256) in
hexadecimal digits. A line that begins with `#` is a comment. The last key of a length writes; all of them read.

No message, log or `repr` contains a secret, nor text that may be one.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from time import monotonic

from ondisk.errors import ConfigError, KeyMissing

AES_128, AES_256 = 16, 32
"""Bytes of a key."""

MAX_ID = 2**32 - 1
FILE, _KEYS, _COMMAND = VARIABLES = ("ONDISK_KEY_FILE", "ONDISK_KEYS", "ONDISK_KEY_COMMAND")
_LINE = re.compile(r"(\d{1,10})\s+((?:[0-9a-fA-F]{2})+)", re.ASCII)
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]{16,1024}=*")  # RFC 6750, section 2.1
_LONGEST = 1024 * 1024  # bytes of a source of keys
_PATIENCE = 60  # seconds for a command
_PAUSE = 10  # seconds: maintenance needs the keys for each segment, and a command that fails may take long
_FORM = "Each line must be `ID HEX`: a number, a space, and 32 or 64 hexadecimal digits."
_MAKE_TOKEN = "Make one with `(umask 077; openssl rand -hex 32 > FILE)`."
_GIVE = "Pass --key-file FILE, or set ONDISK_KEY_FILE; docs/encryption.md says how to make keys."


@dataclass(frozen=True, slots=True)
class Key:
    """A key. Its `repr` shows only the number."""

    id: int  # its number
    secret: bytes = field(repr=False)  # 16 or 32 bytes


class KeyRing:
    """Keys by their numbers, in the order in which they were made.

    `source`: where they come from, for messages; `checked`: file ids of segments whose last frame was sealed with the
    newest key of 32 bytes. Raises ConfigError if two have one number, or a key has an invalid number or length.
    """

    def __init__(self, keys: Iterable[Key] = (), source: str = "no source") -> None:
        self.source = source
        self.checked: set[bytes] = set()
        found: dict[int, Key] = {}
        for key in keys:
            if not 1 <= key.id <= MAX_ID:
                raise ConfigError(f"{source}: the number of a key must be from 1 to {MAX_ID}", hint=_FORM)
            if len(key.secret) not in (AES_128, AES_256):
                problem = f"{source}: key {key.id} has {len(key.secret)} bytes, not {AES_128} or {AES_256}"
                raise ConfigError(problem, hint=_FORM)
            if key.id in found:
                hint = "Give each key a number of its own. A number must never be used again for another key."
                raise ConfigError(f"{source}: two keys have the number {key.id}", hint=hint)
            found[key.id] = key
        self._keys = found

    def __repr__(self) -> str:
        return f"KeyRing({[*self._keys]}, source={self.source!r})"

    @classmethod
    def parse(cls, text: str, source: str) -> KeyRing:
        """Return the keys in lines of `ID HEX`; raise ConfigError with a wrong line's number, not its text."""
        return cls(_parsed(text, source), source)

    def secret(self, id_: int, size: int) -> bytes:
        """Return the secret of a key that encrypted data name; raise KeyMissing if there is none."""
        key = self._keys.get(id_)
        if key is None or len(key.secret) != size:
            what = f"is not in {self.source}" if key is None else f"of {self.source} has another length"
            hint = f"{_GIVE} Without its key, nobody can read the data; a backup of the keys has it, too."
            raise KeyMissing(f"key {id_}, of {size} bytes, {what}", hint=hint, key=id_)
        return key.secret

    def newest(self, size: int) -> Key:
        """Return the key that encrypts new data: the last of this length; raise KeyMissing if there is none."""
        return self.of_size(size)[0]

    def of_size(self, size: int) -> list[Key]:
        """Return the keys of a length, the newest first, for data that name none; raise KeyMissing if there is none."""
        found = [key for key in reversed(self._keys.values()) if len(key.secret) == size]
        if not found:
            raise KeyMissing(f"there is no key of {size} bytes in {self.source}", hint=_GIVE)
        return found


_chosen: KeyRing | None = None
_known: tuple[tuple[str | None, ...], KeyRing] | None = None
_failed: tuple[str, float, ConfigError] | None = None  # a command, and when and how it failed


def use(keys: KeyRing | str | os.PathLike[str] | None) -> None:
    """Set the keys of this process, or read them from a file; None: those of the environment; raise ConfigError."""
    global _chosen, _known, _failed
    _chosen = keys if keys is None or isinstance(keys, KeyRing) else of_file(keys)
    _known = _failed = None


def current() -> KeyRing:
    """Return the keys of this process, read from the environment when they are first needed; raise ConfigError."""
    global _known
    if _chosen is not None:
        return _chosen
    settings = os.environ.get(FILE), os.environ.get(_KEYS), os.environ.get(_COMMAND)
    if _known is None or _known[0] != settings:
        _known = settings, _of_environment(*settings)
    return _known[1]


def of_file(path: str | os.PathLike[str]) -> KeyRing:
    """Return the keys in a file that only its owner, this user or root, can read or write; raise ConfigError."""
    source = f"the key file {os.fspath(path)!r}"
    return KeyRing.parse(_text(read_private(path, source), source), source)


def read_private(path: str | os.PathLike[str], source: str) -> bytes:
    """Return the content of a file, `source` in messages, that only its owner, this user or root, can read or write."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            _check_private(os.fstat(descriptor), source, os.fspath(path))
            return file.read(_LONGEST + 1)
    except OSError as error:
        hint = "Check the path and its permissions."
        raise ConfigError(f"{source} cannot be read: {error.strerror}", hint=hint) from None


def _of_environment(file: str | None, keys: str | None, command: str | None) -> KeyRing:
    given = [name for name, value in zip(VARIABLES, (file, keys, command), strict=True) if value]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} are set, but only one may be", hint=f"Unset {given[-1]}.")
    if file:
        return of_file(file)
    if command:
        return _unless_it_failed(command)
    if keys:
        return KeyRing.parse(keys.replace(";", "\n"), _KEYS)
    return KeyRing(source=f"the environment (none of {', '.join(VARIABLES)} is set)")


def _unless_it_failed(command: str) -> KeyRing:
    """Return the keys that a command prints; raise the last error again if the command has failed a moment ago."""
    global _failed
    if _failed is not None and _failed[0] == command and monotonic() - _failed[1] < _PAUSE:
        raise ConfigError(_failed[2].message, hint=_failed[2].hint, **_failed[2].context)
    try:
        return _of_command(command)
    except ConfigError as error:
        _failed = command, monotonic(), error
        raise


def _of_command(command: str) -> KeyRing:
    """Return the keys that a command prints. What it prints is never part of a message."""
    hint = f"Run the command of {_COMMAND} by hand: it must print the keys and end with 0 within {_PATIENCE} s."
    try:
        words = shlex.split(command)
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=_PATIENCE, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise ConfigError(f"the command of {_COMMAND} failed: {reason}", hint=hint) from None
    if done.returncode:
        raise ConfigError(f"the command of {_COMMAND} ended with {done.returncode}", hint=hint)
    source = f"the output of {_COMMAND}"
    return KeyRing.parse(_text(done.stdout, source), source)


def _check_private(found: os.stat_result, source: str, path: str) -> None:
    if stat.S_IMODE(found.st_mode) & 0o077:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        hint = f"Run `chmod 600 {shlex.quote(path)}`. If others have read it, make a new secret."
        raise ConfigError(f"{source} has the mode {mode}: others may use it", hint=hint)
    if found.st_uid not in (os.geteuid(), 0):
        hint = f"Run `chown $(id -u) {shlex.quote(path)}` as root, if the keys are yours."
        raise ConfigError(f"{source} belongs to the user {found.st_uid}, neither to this user nor to root", hint=hint)


def _text(content: bytes, source: str) -> str:
    if len(content) > _LONGEST:
        raise ConfigError(f"{source} has more than {_LONGEST} bytes", hint=_FORM)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{source} is not text", hint=_FORM) from None


def _parsed(text: str, source: str) -> Iterator[Key]:
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise ConfigError(f"{source}, line {number}, is not a key", hint=_FORM, line=number)
        yield Key(int(found[1]), bytes.fromhex(found[2]))


def read_token(path: str | os.PathLike[str]) -> bytes:
    """Return the token that clients of a server send: the only line of a private file; raise ConfigError without it."""
    source = f"the token file {os.fspath(path)!r}"
    content = read_private(path, source).strip()
    if not _TOKEN.fullmatch(content):
        problem = "must contain one line of 16 to 1024 letters, digits and the characters - . _ ~ + /"
        raise ConfigError(f"{source} {problem}", hint=_MAKE_TOKEN)
    return content
