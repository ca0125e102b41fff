"""The token of a server comes from a private file, and no message shows it."""

from __future__ import annotations

import pytest

from ondisk.errors import ConfigError
from ondisk.keys import read_token

SECRET = "0123456789abcdef"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "token"
    path.touch(mode=0o600)
    return path


@pytest.mark.parametrize("text", [SECRET, f"{SECRET}\n", f"  {SECRET}==\r\n", "-._~+/" + SECRET])
def test_a_token_is_the_line_of_its_file(path, text):
    path.write_text(text)
    assert read_token(path) == text.strip().encode()


@pytest.mark.parametrize(
    "text",
    ["", "\n", SECRET[1:], f"{SECRET} {SECRET}", f"{SECRET}\n{SECRET}", f"{SECRET}ä", f"{SECRET}\0", SECRET * 100],
)
def test_what_is_no_token_is_refused_and_not_shown(path, text):
    path.write_text(text)
    with pytest.raises(ConfigError, match="must contain one line") as caught:
        read_token(path)
    assert SECRET[2:] not in str(caught.value)


def test_a_file_that_others_may_read_is_refused(path):
    path.write_text(SECRET)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="others may use it"):
        read_token(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(path.parent / "none")
