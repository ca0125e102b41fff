"""The lines of a CSV file as they are to be read: in UTF-8, without what is no record.

A line that is skipped becomes a blank one, so that the numbers of lines in messages are those of the file.
"""

from __future__ import annotations

import codecs
import re

from ondisk.errors import InvalidInput
from ondisk.formats.base import Readable
from ondisk.table_options import BLANKS, TableOptions

_QUOTED_OR_BLANKS = re.compile(rb'("[^"\n]*")|[ \t]+')
_AROUND = re.compile(rb"^[ \t]+|[ \t]+(?=\r?$)", re.MULTILINE)


class InUtf8:
    """The text of a stream, encoded in UTF-8.

    Args:
        encoding: of the stream.
    """

    def __init__(self, stream: Readable, encoding: str) -> None:
        self._stream, self._encoding = stream, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()

    def read(self, size: int, /) -> bytes:
        """Return some bytes; none only at the end.

        Raises:
            InvalidInput: the text is not in this encoding.
        """
        while True:
            content = self._stream.read(size)
            try:
                text = self._decoder.decode(content, final=not content).encode()
            except UnicodeError as error:
                hint = "Pass the encoding of the file (--encoding); without it, it is UTF-8."
                raise InvalidInput(f"it is not {self._encoding}: {error}", hint=hint) from None
            if text or not content:
                return text


class Lines:
    """Returns whole lines as they are to be read."""

    def __init__(self, options: TableOptions) -> None:
        self._left = options.skip_lines or 0
        self._is_aligned = options.delimiter == BLANKS
        comment = None if options.comment is None else re.escape(options.comment.encode())
        self._comment = None if comment is None else re.compile(rb"^[ \t]*%b[^\r\n]*" % comment, re.MULTILINE)

    def __call__(self, lines: bytes) -> bytes:
        if self._left:
            *skipped, lines = lines.split(b"\n", self._left)
            self._left -= len(skipped)
            lines = b"\n" * len(skipped) + (b"" if self._left else lines)
        if self._comment is not None:
            lines = self._comment.sub(b"", lines)
        if self._is_aligned:
            lines = _QUOTED_OR_BLANKS.sub(lambda found: found[1] or b" ", _AROUND.sub(b"", lines))
        return lines
