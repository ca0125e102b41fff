"""What maintain reports to a monitoring system."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from worlds import lose_index

import ondisk
from ondisk.cli import COMMANDS
from ondisk.errors import NotFound, StorageError
from ondisk.filesystem import Directory, MaintainLock
from ondisk.maintenance.maintain import Maintained, maintain
from ondisk.maintenance.metrics import HELP, metrics, write
from ondisk.maintenance.states import Done, Report, State

NOW = datetime.now(UTC)
RULES = (Path(ondisk.__file__).parent / "maintenance/prometheus-rules.yml").read_text(encoding="utf-8")
ALERTS = dict(re.findall(r"- alert: (\w+)\n +expr: (.+)", RULES))
SAMPLE = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_CLAUSE = re.compile(r'(time\(\) - )?(\w+)(?:\{state=~"([^"]+)"\})? (>|==) ([0-9 *]+)')


@pytest.fixture
def dataset(create: Callable[..., ondisk.Dataset]) -> ondisk.Dataset:
    """Return a dataset of a segment with two data."""
    dataset = create(fields={"n": "integer"})
    dataset.append([ondisk.Datum(NOW, {"n": n}, {}) for n in (1, 2)])
    return dataset


def test_metrics_have_help_and_type_once_and_a_sample_for_each_dataset(dataset, create):
    create("other").close()
    text = metrics(map(maintain, [dataset.path, dataset.path.parent / "other", "/nowhere"]))
    samples = dict(re.findall(r"^(\w+\{.*\}) (\S+)$", text, re.MULTILINE))
    label = f'dataset="{dataset.path}"'
    assert samples[f'ondisk_segments{{{label},state="ok"}}'] == "1"
    assert samples[f'ondisk_segments{{{label},state="corrupted"}}'] == "0"
    assert samples[f"ondisk_data{{{label}}}"] == "2"
    assert samples[f"ondisk_quarantine_bytes{{{label}}}"] == "0"
    assert samples[f"ondisk_maintain_success{{{label}}}"] == "1"
    assert samples['ondisk_maintain_success{dataset="/nowhere"}'] == "0"
    for name in ("data", "lost", "lost_data", "segments_missing"):
        assert f'ondisk_{name}{{dataset="/nowhere"}}' not in samples
    assert samples['ondisk_maintain_exit_code{dataset="/nowhere"}'] == "11"
    assert float(samples[f"ondisk_maintain_timestamp_seconds{{{label}}}"]) >= NOW.timestamp()
    names = re.findall(r"^# TYPE (\w+) gauge$", text, re.MULTILINE)
    assert names == re.findall(r"^# HELP (\w+) \S", text, re.MULTILINE)
    assert len(names) == len(set(names)) == 12
    assert {name.partition("{")[0] for name in samples} == set(names)
    assert text.endswith("\n")


def test_metrics_of_a_run_that_freed_and_lost():
    result = Maintained(
        "x", missing=0, done=[Done("a", State.DIRTY, (), "repack", 35), Done("b", State.UNALIGNED, (), "rescan", 0, 7)]
    )
    text = metrics([result])
    assert 'ondisk_freed_bytes{dataset="x"} 35\n' in text
    assert 'ondisk_lost{dataset="x"} 7\n' in text


def test_labels_are_escaped():
    assert 'ondisk_freed_bytes{dataset="a\\"b\\\\c\\nd"} 0\n' in metrics([Maintained('a"b\\c\nd')])


def test_a_metrics_file_is_replaced_as_a_whole_and_nothing_else_is_left(tmp_path):
    file = tmp_path / "ondisk.prom"
    write(file, [Maintained("first")])
    with file.open() as before:
        write(file, [Maintained("second\udcff")])
        assert 'dataset="first"' in before.read()
    assert 'dataset="second?"' in file.read_text(encoding="utf-8")
    assert [each.name for each in tmp_path.iterdir()] == ["ondisk.prom"]


def test_metrics_that_cannot_be_written_are_an_error(tmp_path):
    with pytest.raises(NotFound, match="no such directory"):
        write(tmp_path / "nowhere/ondisk.prom", [])
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError):
        write(tmp_path / "folder", [])
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


DAYS = 4


@pytest.fixture
def weather(tmp_path: Path) -> Path:
    """Make a dataset of four segments with two data each, one of them in the archive."""
    path = tmp_path / "weather"
    with ondisk.create(path, {"format": "jsonl", "step": "daily", "fields": {"n": "integer"}}) as dataset:
        for day in range(DAYS):
            dataset.append(
                ondisk.Datum(datetime(2026, 11, 16 + day, hour, tzinfo=UTC), {"n": hour}, {}) for hour in (6, 7)
            )
        dataset.archive(segment(0))
    return path


def segment(day: int) -> str:
    return f"2026/11-{16 + day}.jsonl"


def measured(path: Path) -> tuple[int, dict[str, float], set[str]]:
    """Maintain; return the exit code, the metrics, and the names of the alerts that fire then."""
    result = maintain(path)
    text = metrics([result])
    return result.exit_code, values(text), fired(text)


def values(text: str) -> dict[str, float]:
    found = {}
    for name, labels, value in SAMPLE.findall(text):
        state = re.search('state="([^"]+)"', labels)
        found[name if state is None else f"{name} {state[1]}"] = float(value)
    return found


def fired(text: str, now: float | None = None) -> set[str]:
    """Evaluate the rules of the guide: each compares metrics with a number."""
    now = time.time() if now is None else now
    return {alert for alert, expression in ALERTS.items() if _holds(expression, text, now)}


def _holds(expression: str, text: str, now: float) -> bool:
    expression, _, exception = expression.partition(" unless ")
    return not (exception and _holds(exception, text, now)) and any(
        _is_met(clause, text, now) for clause in expression.split(" or ")
    )


def _is_met(clause: str, text: str, now: float) -> bool:
    matched = _CLAUSE.fullmatch(clause)
    assert matched is not None, f"the test does not understand {clause!r}"
    since, metric, states, comparison, limit = matched.groups()
    bound = math.prod(map(int, limit.split("*")))
    for name, labels, value in SAMPLE.findall(text):
        state = re.search('state="([^"]+)"', labels)
        if name != metric or (states and (state is None or not re.fullmatch(states, state[1]))):
            continue
        number = now - float(value) if since else float(value)
        if number > bound if comparison == ">" else number == bound:
            return True
    return False


def test_the_guide_describes_exactly_the_metrics_that_there_are():
    guide = (Path(__file__).parents[2] / "docs/maintenance.md").read_text(encoding="utf-8")
    section = guide.partition("## Metrics and alerts")[2]
    assert re.findall(r"^\| `(ondisk_\w+)` \|", section, re.MULTILINE) == [*HELP]


def test_every_metric_of_an_alert_exists_and_every_sign_of_trouble_has_an_alert():
    named = set(re.findall(r"ondisk_\w+", " ".join(ALERTS.values())))
    assert named <= HELP.keys()
    quiet = {"ondisk_data", "ondisk_freed_bytes", "ondisk_maintain_duration_seconds"}
    waiting = {name for name in HELP if name.startswith("ondisk_pending_")}  # what is long differs by consumer
    assert HELP.keys() - named == quiet | waiting


def test_the_rules_are_valid_for_prometheus(tmp_path):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    rules = tmp_path / "ondisk.yml"
    rules.write_text(RULES)
    done = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_no_alert_fires_for_a_healthy_dataset(weather):
    code, found, alerts = measured(weather)
    assert (code, alerts) == (0, set())
    assert found["ondisk_data"] == 2 * DAYS
    assert found["ondisk_segments ok"] == DAYS
    with ondisk.open(weather) as dataset:
        dataset.delete("n:7")
    code, found, alerts = measured(weather)
    assert (code, alerts) == (0, set())
    assert found["ondisk_freed_bytes"] > 0


def test_a_missing_segment_and_its_data_are_reported_and_remembered_until_acknowledged(weather):
    (weather / segment(1)).unlink()
    code, found, alerts = measured(weather)
    assert code == 8
    assert (found["ondisk_segments_missing"], found["ondisk_lost"], found["ondisk_lost_data"]) == (1, 2, 2)
    assert alerts == {"OndiskLost", "OndiskSegmentsMissing"}
    code, found, alerts = measured(weather)
    assert (code, found["ondisk_segments_missing"], found["ondisk_lost"], found["ondisk_lost_data"]) == (0, 0, 0, 2)
    assert alerts == {"OndiskLost"}
    with ondisk.open(weather) as dataset:
        dataset.fix(acknowledge=True)
    code, found, alerts = measured(weather)
    assert (code, found["ondisk_lost_data"], alerts) == (0, 0, set())


def test_what_is_lost_in_the_archive_counts_too(weather):
    (weather / ".archive/last" / segment(0)).unlink()
    code, found, alerts = measured(weather)
    assert (code, found["ondisk_segments_missing"], found["ondisk_lost_data"]) == (8, 1, 2)
    assert alerts == {"OndiskLost", "OndiskSegmentsMissing"}


def test_segments_that_are_kept_because_many_are_missing_are_reported_each_night(weather):
    shutil.rmtree(weather / "2026")
    for _ in range(2):
        code, found, alerts = measured(weather)
        assert code == 9
        assert (found["ondisk_segments_missing"], found["ondisk_segments missing"], found["ondisk_lost_data"]) == (
            3,
            3,
            0,
        )
        assert alerts == {"OndiskDamaged", "OndiskSegmentsMissing"}


def test_a_rebuilt_index_is_reported_once(weather):
    lose_index(weather)
    code, found, alerts = measured(weather)
    assert (code, found["ondisk_index_rebuilt"], alerts) == (0, 1, {"OndiskIndexRebuilt"})
    code, found, alerts = measured(weather)
    assert (code, found["ondisk_index_rebuilt"], alerts) == (0, 0, set())


def test_a_damaged_index_lets_the_run_fail_until_it_is_rebuilt(weather):
    lose_index(weather)
    (weather / "index.sqlite").write_bytes(b"garbage" * 1000)
    code, found, alerts = measured(weather)
    assert (code, found["ondisk_maintain_success"], alerts) == (63, 0, {"OndiskMaintainFails"})
    assert not any(name.startswith("ondisk_segments ") for name in found)
    ondisk.rebuild(weather)
    code, found, alerts = measured(weather)
    assert (code, found["ondisk_maintain_success"], found["ondisk_data"]) == (0, 1, 2 * DAYS)
    assert alerts == {"OndiskIndexRebuilt"}


@pytest.mark.parametrize("place", ["", ".archive/last"])
def test_what_is_kept_in_quarantine_is_reported_until_it_is_dropped(place, weather):
    added = b'{"reftime": "2026-11-17T09:00:00Z", "n": 9}\n'
    with (weather / place / segment(0 if place else 1)).open("ab") as file:
        file.write(added)
    code, found, alerts = measured(weather)
    assert (code, found["ondisk_quarantine_bytes"], alerts) == (9, len(added), {"OndiskQuarantine"})
    with ondisk.open(weather) as dataset:
        dataset.quarantine.drop(*(item.name for item in dataset.quarantine))
    code, found, alerts = measured(weather)
    assert (code, found["ondisk_quarantine_bytes"], alerts) == (0, 0, set())


def test_damage_is_reported_as_long_as_it_is_there(weather):
    content = (weather / segment(1)).read_bytes()
    (weather / segment(1)).write_bytes(content[:-10])
    for _ in range(2):
        code, found, alerts = measured(weather)
        assert (code, found["ondisk_segments corrupted"], alerts) == (9, 1, {"OndiskDamaged"})
    (weather / segment(1)).write_bytes(content)
    assert measured(weather)[2] == set()


def test_only_a_lock_may_be_held_for_a_while_before_an_alert(weather):
    with Directory.open(weather) as directory, MaintainLock(directory).hold("maintain"):
        code, _, alerts = measured(weather)
    assert (code, alerts) == (40, {"OndiskMaintainLocked"})
    (weather / "dataset.toml").rename(weather / "elsewhere")
    code, found, alerts = measured(weather)
    assert (code, alerts) == (11, {"OndiskMaintainFails"})
    assert "ondisk_segments_missing" not in found


def test_a_run_that_is_long_ago_is_reported():
    text = metrics([Maintained("x", ended=NOW.timestamp())])
    assert fired(text, (NOW + timedelta(days=1.9)).timestamp()) == set()
    assert fired(text, (NOW + timedelta(days=2.1)).timestamp()) == {"OndiskNotMaintained"}


def test_the_rules_of_the_package_use_metrics_that_exist_and_say_what_to_do():
    expressions = re.findall(r"^ +expr: (.+)$", RULES, re.MULTILINE)
    assert {name for each in expressions for name in re.findall(r"ondisk_\w+", each)} < {*HELP}
    states = [
        state for each in expressions for named in re.findall(r'state=~"(.+?)"', each) for state in named.split("|")
    ]
    assert {*states} < {*Report("").counts}
    for key in ("alert", "severity", "summary", "description"):
        assert len(re.findall(rf"^[ -]+{key}: .+$", RULES, re.MULTILINE)) == len(expressions)
    assert {*re.findall(r"`ondisk (\w+)", RULES)} <= {*COMMANDS}


def test_metrics_of_a_queue_say_what_waits_and_since_when(create):
    queue = create("spool", format="seg", step="sequence", fields={})
    labels = f'{{dataset="{queue.path}"}}'
    assert f"ondisk_pending_data{labels} 0\n" in metrics([maintain(queue.path)])
    queue.append([ondisk.Datum(NOW), ondisk.Datum(NOW - timedelta(hours=1))])
    text = metrics([maintain(queue.path)])
    assert f"ondisk_pending_data{labels} 2\n" in text
    assert f"ondisk_pending_bytes{labels} {queue.info()['size']}\n" in text
    since = float(re.findall(r"^ondisk_pending_oldest_timestamp_seconds\{.*\} (\S+)$", text, re.MULTILINE)[0])
    assert since == (NOW - timedelta(hours=1)).timestamp()
