"""A wrong configuration is an error that names the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ondisk.errors import ConfigError
from pipeline.world import CONFIG, begin


@pytest.mark.parametrize(
    ("line_", "problem"),
    [
        ("colour = 1", "line 7: colour: unknown key"),
        ("input = 5", "line 7: input: must be text"),
        ("datasets = []", "line 7: datasets: must be a list of datasets"),
        ('error = "low"', "line 7: error: 'low' is named twice"),
        ('duplicates = "./error"', "line 7: duplicates: './error' is named twice"),
        ("maintenance = true", "line 7: maintenance: must be false or a table"),
        (r'input = "a\u0000b"', "line 7: input: must be text"),
        (r'datasets = ["a\u0000b"]', "line 7: datasets: must be a list of datasets"),
        ("[maintenance]\nevery = 5", "line 8: maintenance.every: unknown key"),
        ('[maintenance]\nmax_duration = "5m"', "line 8: maintenance.max_duration: must be a number of seconds"),
        ('input = "low"', "line 7: input: is a dataset"),
        ("=", "is not valid TOML"),
    ],
)
def test_a_wrong_configuration_is_named_with_its_line(place: Path, line_: str, problem: str) -> None:
    key = line_.strip("[").replace("]", " ").partition(" ")[0]
    kept = [each for each in CONFIG.splitlines() if not each.startswith(f"{key} =")]
    kept += ["# here"] * (6 - len(kept))
    (place / "pipeline.toml").write_text("\n".join([*kept, line_]) + "\n")
    with pytest.raises(ConfigError, match=problem):
        begin(place / "pipeline.toml")


@pytest.mark.parametrize("key", ["input", "datasets", "error"])
def test_a_key_that_is_missing_is_named(place: Path, key: str) -> None:
    (place / "pipeline.toml").write_text("".join(f"{each}\n" for each in CONFIG.splitlines() if key not in each[:8]))
    with pytest.raises(ConfigError, match=f"{key}: is required"):
        begin(place / "pipeline.toml")
