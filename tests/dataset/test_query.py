from __future__ import annotations

import gc
import io
import json
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from kit import EVERY_TYPE, Model
from worlds import sql

import ondisk
from ondisk import Datum
from ondisk.dataset import read
from ondisk.datum import FieldType
from ondisk.errors import IndexCorrupt, InvalidInput, MatchError, SegmentCorrupt, SegmentMissing, StorageError
from ondisk.filesystem import ReadableFile
from ondisk.matcher import Fields

T = datetime(2026, 11, 20, 6, tzinfo=UTC)


def numbers(answer):
    return [datum.data["n"] for datum in answer]


def random_data(count, seed=1):
    """Data over some days, many with equal or missing values, in no order."""
    chance = random.Random(seed)
    choices = {
        "station": [1, 2, 3],
        "level": [0.5, -1.0, 1e9],
        "product": ["a", "b,c", ""],
        "valid": [True, False],
        "made": [T, T - timedelta(days=400)],
        "key": [b"", b"\xff"],
    }
    for n in range(count):
        metadata = {name: chance.choice(values) for name, values in choices.items() if chance.random() < 0.8}
        reftime = T + timedelta(minutes=chance.randrange(-90_000, 90_000), microseconds=chance.choice([0, 0, 1]))
        yield Datum(reftime.replace(second=0), metadata, {"n": n})


@pytest.fixture
def filled(create):
    """A dataset of all types of fields, and the model of it."""
    dataset = create(fields=EVERY_TYPE, step="weekly", index=["station", "product"])
    model = Model(dataset.config)
    data = list(random_data(1500))
    dataset.append(data)
    model.append(data)
    return dataset, model


# Order


def test_the_order_is_that_of_reftimes_and_of_appending_among_equal_ones(create):
    dataset = create()
    given = [Datum(T + timedelta(hours=hour), {}, {"n": n}) for n, hour in enumerate([5, 3, 5, -40, 3, 30])]
    dataset.append(given[:4])
    dataset.append(given[4:])
    assert numbers(dataset.query()) == [3, 1, 4, 0, 2, 5]


@pytest.mark.parametrize(
    "sort",
    [
        "reftime",
        "-reftime",
        "station",
        "-station,level",
        "product,-valid,made",
        "key,-product",
        "-made,station,-reftime",
        "minute:station",
        "hour:-level",
        "day:product,station",
        "month:-reftime",
        "year:station,-level",
    ],
)
@pytest.mark.parametrize("limit", [None, 0, 1, 137])
def test_sorting_is_that_of_python_over_the_whole_answer(filled, sort, limit):
    dataset, model = filled
    assert list(dataset.query(sort=sort, limit=limit)) == [row.datum() for row in model.query(sort=sort, limit=limit)]


@pytest.mark.check
def test_sorting_a_part_is_sorting_what_matches(filled):
    dataset, model = filled
    for match in ("station:2", "product:a; valid:true", "reftime:>=2026-12", "level:>0 or <=-1"):
        found = list(dataset.query(match, sort="day:-station,product", limit=50))
        assert found == [row.datum() for row in model.query(match, "day:-station,product", 50)]


def test_missing_sorts_first_and_last_when_descending(create):
    dataset = create(fields=EVERY_TYPE)
    given = [{"n": 0}, {"n": 1, "station": -5}, {"n": 2, "station": 5}]
    dataset.append(
        Datum(T, {key: value for key, value in each.items() if key != "n"}, {"n": each["n"]}) for each in given
    )
    assert numbers(dataset.query(sort="station")) == [0, 1, 2]
    assert numbers(dataset.query(sort="-station")) == [2, 1, 0]


def test_before_1970_months_and_minutes_are_cut_downwards(create):
    dataset = create(step="monthly", fields=EVERY_TYPE)
    times = [
        "1969-12-31T23:59:59.999999",
        "1969-12-31T23:59:00",
        "1970-01-01T00:00:00",
        "1969-11-30T23:59:59.5",
        "1969-12-01T00:00:00",
    ]
    for n, time in enumerate(times):
        dataset.append([Datum(datetime.fromisoformat(time).replace(tzinfo=UTC), {"station": -n}, {"n": n})])
    assert numbers(dataset.query(sort="minute:station")) == [3, 4, 1, 0, 2]
    assert numbers(dataset.query(sort="month:station")) == [3, 4, 1, 0, 2]
    assert numbers(dataset.query(sort="year:station")) == [4, 3, 1, 0, 2]
    assert numbers(dataset.query()) == [3, 4, 1, 0, 2]


# What is asked for


@pytest.mark.check
def test_text_and_python_conditions_and_equality_select_the_same(filled):
    dataset, model = filled
    f = dataset.fields
    same = [
        (
            model.query("station:2; product:a"),
            ["station:2; product:a", (f.station == 2) & (f.product == "a")],
            {"station": 2, "product": "a"},
        ),
        (model.query("valid:true"), ["valid:true", f.valid == True], {"valid": True}),  # noqa: E712
        (model.query("level:0.5"), ["level:0.5", f.level == 0.5, f.level.isin([0.5])], {"level": 0.5}),
        (model.query("key:ff"), ["key:0xFF", f.key == b"\xff"], {"key": b"\xff"}),
        (model.query('product:""'), ['product:""', f.product == ""], {"product": ""}),
    ]
    for rows, matches, equal in same:
        expected = [row.datum() for row in rows]
        assert expected
        for match in matches:
            assert list(dataset.query(match)) == expected
        assert list(dataset.query(**equal)) == expected
        first, *others = equal.items()
        assert list(dataset.query(f[first[0]] == first[1], **dict(others))) == expected


def test_equality_asks_for_a_whole_key_in_any_order_of_its_fields(create):
    dataset = create(fields=EVERY_TYPE, unique=["reftime", "station", "product"])
    given = [
        Datum(T + timedelta(hours=hour), {"station": station, "product": product}, {"n": n})
        for n, (hour, station, product) in enumerate([(h, s, p) for h in range(3) for s in (1, 2) for p in ("a", "b")])
    ]
    dataset.append([*given, Datum(T, {"product": "a"}, {"n": -1})])
    for _ in range(2):  # the second time by what is remembered of the first
        for datum in given:
            assert list(dataset.query(**datum.metadata, reftime=datum.reftime)) == [datum]
            assert list(dataset.query(reftime=datum.reftime, **datum.metadata, with_data=False)) == [
                Datum(datum.reftime, datum.metadata)
            ]
            (found,) = dataset.query(reftime=datum.reftime, **datum.metadata)
            assert dataset.read(found.location) == datum
    assert list(dataset.query(reftime=T, station=1, product="c")) == []
    assert list(dataset.query(reftime=T, station=1, product="a", level=1.0)) == []
    assert list(dataset.query("station:2", reftime=T, station=1, product="a")) == []
    assert list(dataset.query(reftime=T, station=1, product="a", limit=0)) == []
    dataset.delete("station:1; product:a; reftime:=06:00")
    assert list(dataset.query(reftime=T, station=1, product="a")) == []


def test_data_that_lack_a_field_are_asked_for_by_is_null(filled):
    dataset, model = filled
    f = dataset.fields
    lacking = numbers(dataset.query(f.station.is_null()))
    assert lacking == [row.data["n"] for row in model.query() if "station" not in row.metadata]
    assert sorted(lacking + numbers(dataset.query(~f.station.is_null()))) == list(range(1500))
    assert set(lacking) <= set(numbers(dataset.query(~(f.station == 2))))
    assert set(lacking) <= set(numbers(dataset.query(f.station != 2)))
    assert not set(lacking) & set(numbers(dataset.query(f.station < 10**9)))


@pytest.mark.parametrize(
    "ask",
    [
        lambda d: d.query("colour:red"),
        lambda d: d.query(colour="red"),
        lambda d: d.query(d.fields.station == 1, sort="colour"),
        lambda d: d.query("station"),
        lambda d: d.query(station="5"),
        lambda d: d.query(station=None),
        lambda d: d.query(reftime="2026-11-20"),
        lambda d: d.query("reftime:=2026-02-30"),
        lambda d: d.query("product:\ud800"),
        lambda d: d.query(Fields({"x": FieldType.TEXT}).x == ""),
        lambda d: d.summary("colour:red"),
        lambda d: d.delete("colour:red"),
        lambda d: d.count("colour:red"),
        lambda d: d.count(colour="red"),
        lambda d: d.exists("colour:red"),
        lambda d: d.first(sort="colour"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused_before_anything_is_read(create, ask):
    dataset = create(fields=EVERY_TYPE)
    dataset.append([Datum(T)])
    with pytest.raises(MatchError) as caught:
        ask(dataset)
    assert caught.value.hint
    assert dataset.summary().count == 1


@pytest.mark.parametrize("limit", [-1, 1.0, True, "5"])
def test_a_limit_is_a_count(create, limit):
    with pytest.raises(InvalidInput, match="limit"):
        create().query(limit=limit)


@pytest.mark.parametrize("match", [5, b"station:1", ["station:1"], lambda datum: True])
def test_a_match_is_text_or_a_condition(create, match):
    with pytest.raises(InvalidInput, match="match must be"):
        create().query(match)


def test_the_empty_expression_matches_all(create):
    dataset = create()
    dataset.append([Datum(T)])
    assert len(list(dataset.query(""))) == len(list(dataset.query(None))) == len(list(dataset.query(" ;; \n"))) == 1


def test_times_are_matched_to_the_microsecond_before_1970_too(create):
    dataset = create(step="yearly")
    times = [datetime(1969, 12, 31, 23, 59, 59, 999_998, UTC) + timedelta(microseconds=n) for n in range(4)]
    dataset.append(Datum(time, {}, {"n": n}) for n, time in enumerate(times))
    f = dataset.fields
    assert numbers(dataset.query("reftime:<1970")) == [0, 1]
    assert numbers(dataset.query("reftime:=1969-12-31 23:59:59")) == [0, 1]
    assert numbers(dataset.query("reftime:=23:59")) == [0, 1]
    assert numbers(dataset.query("reftime:%1h")) == [2, 3]
    for n, time in enumerate(times):
        assert numbers(dataset.query(reftime=time)) == [n]
        assert numbers(dataset.query(f.reftime >= time)) == list(range(n, 4))
    assert [datum.reftime for datum in dataset.query()] == times


# What comes back


def test_without_data_segments_are_left_alone(create):
    dataset = create(fields=EVERY_TYPE)
    dataset.append([Datum(T, {"station": 5}, {"n": 1})])
    whole = next(dataset.query())
    (dataset.path / "2026/11-20.jsonl").unlink()
    (datum,) = dataset.query(with_data=False)
    assert datum == Datum(T, {"station": 5}, None)
    assert datum.location == whole.location


def test_metadata_that_are_not_declared_come_with_the_data_only(create):
    line = b"202611200600,5,227,1.2,,,000000000"
    for name, fields in {"none": {}, "area": {"area": "text"}, "both": {"area": "text", "product": "text"}}.items():
        dataset = create(name, format="vm2", fields=fields)
        dataset.append_file(io.BytesIO(line + b"\n"))
        whole = {"area": "VM2,5", "product": "VM2,227"}
        (datum,) = dataset.query()
        assert (datum.reftime, datum.metadata, datum.data) == (T, whole, line)
        assert [each.metadata for each in dataset.query(with_data=False)] == [{key: whole[key] for key in fields}]
        assert dataset.read(datum.location).metadata == whole
        assert [each.metadata for each in dataset.query(reftime=T)] == [whole]


def test_locations_name_the_very_bytes(filled):
    dataset, _ = filled
    for datum in dataset.query(limit=200):
        location = datum.location
        content = (dataset.path / location.segment).read_bytes()[location.offset : location.offset + location.size]
        assert json.loads(content)["n"] == datum.data["n"]


def test_metadata_of_one_datum_are_not_those_of_another(create):
    """Data of equal metadata share one mapping: nobody may change it."""
    dataset = create(fields=EVERY_TYPE)
    dataset.append([Datum(T, {"station": 5}), Datum(T, {"station": 5})])
    first, second = dataset.query()
    with pytest.raises(TypeError):
        first.metadata["station"] = 6
    assert second.metadata == {"station": 5}


def test_what_is_written_out_can_be_appended_again(filled, create):
    dataset, _ = filled
    other = create("other", fields=EVERY_TYPE, step="weekly")
    other.append_file(io.BytesIO(b"".join(dataset.payloads("station:2", sort="-reftime"))))
    assert list(other.query(sort="-reftime")) == list(dataset.query("station:2", sort="-reftime"))


# Snapshots


@pytest.mark.check
def test_a_running_query_sees_what_was_there_when_it_began(create):
    dataset = create(fields=EVERY_TYPE, unique=["reftime"], replace="yes")
    dataset.append(Datum(T + timedelta(hours=n), {"station": n % 2}, {"n": n}) for n in range(1000))
    running = dataset.query()
    seen = [next(running)]
    dataset.delete("station:1")
    dataset.append(Datum(T + timedelta(hours=n), {}, {"n": -n}) for n in range(0, 2000, 3))
    seen += running
    assert numbers(seen) == list(range(1000))
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert numbers(reader.query("reftime:<2026-11-21")) == numbers(dataset.query("reftime:<2026-11-21"))


def test_two_running_queries_have_states_of_their_own(create):
    dataset = create()
    answers = []
    for n in range(4):
        dataset.append([Datum(T, {}, {"n": n}), Datum(T + timedelta(days=1), {}, {"n": n})])
        answers.append(dataset.query())
        assert next(answers[-1]).data == {"n": 0}
    dataset.delete("")
    assert [numbers(answer) for answer in answers] == [[*range(1, n + 1), *range(n + 1)] for n in range(4)]
    assert list(dataset.query()) == []


def test_a_query_that_is_not_finished_leaves_no_file_open(create, open_files):
    dataset = create()
    dataset.append(Datum(T, {}, {"n": n}) for n in range(1000))
    for _ in range(50):
        next(dataset.query())
        dataset.query()
    assert open_files() <= 30


def test_the_block_of_a_query_closes_it(create, open_files):
    dataset = create()
    dataset.append(Datum(T, {}, {"n": n}) for n in range(1000))
    before = open_files()
    with dataset.query() as found, dataset.payloads() as payloads:
        assert next(found).data == {"n": 0}
        assert next(payloads)
    assert list(found) == list(payloads) == []
    assert open_files() <= before + 3  # the connection and the segment stay open for the next query


@pytest.mark.parametrize(
    ("match", "equal"),
    [(None, {}), ("station:1", {}), ("station:1", {"product": "a"}), (None, {"station": 2}), ("station:99", {})],
)
def test_counting_the_first_and_whether_there_is_one_are_those_of_the_whole_answer(filled, match, equal):
    dataset, _ = filled
    whole = list(dataset.query(match, **equal))
    assert dataset.count(match, **equal) == len(whole)
    assert dataset.exists(match, **equal) == (len(whole) > 0)
    assert dataset.first(match, **equal) == (whole[0] if whole else None)
    assert dataset.first(match, sort="-reftime", **equal) == next(dataset.query(match, sort="-reftime", **equal), None)


def test_undeclared_metadata_are_counted_too(create):
    dataset = create(format="seg")
    dataset.append(Datum(T, {"sensor": n % 3}, {"n": n}) for n in range(9))
    assert dataset.count("metadata.sensor: 2") == 3
    assert dataset.exists("metadata.sensor: 2")
    assert not dataset.exists("metadata.sensor: 3")


def test_archived_data_are_counted_too(create):
    dataset = create(step="daily", archive_age=1)
    dataset.append(Datum(T - timedelta(days=n), {}, {"n": n}) for n in range(5))
    dataset.repack()
    assert [*dataset.query()] != []
    assert dataset.count() == dataset.count("reftime: >=2000") == 5
    assert dataset.exists("reftime: <2026-11-17")


# Reading


class Reads:
    """Counts reads of files, and their bytes."""

    def __init__(self, monkeypatch):
        self.sizes = []
        real = ReadableFile.read

        def counted(file, offset, size):
            self.sizes.append(size)
            return real(file, offset, size)

        monkeypatch.setattr(ReadableFile, "read", counted)


def test_neighbouring_data_are_read_together_also_across_small_holes(create, monkeypatch):
    dataset = create(fields=EVERY_TYPE)
    dataset.append(Datum(T + timedelta(seconds=n), {"station": n % 3}, {"n": n}) for n in range(1000))
    dataset.delete("station:1")
    reads = Reads(monkeypatch)
    assert numbers(dataset.query()) == [n for n in range(1000) if n % 3 != 1]
    assert len(reads.sizes) <= 1000 / 100


def test_far_neighbours_are_read_apart(create, monkeypatch):
    dataset = create(max_datum_size=10_000_000)
    filling = "x" * 2_000_000
    dataset.append(
        Datum(T + timedelta(hours=n % 2), {}, {"n": n} | ({"filling": filling} if n % 2 else {})) for n in range(8)
    )
    reads = Reads(monkeypatch)
    assert numbers(dataset.query("reftime:=06:00")) == [0, 2, 4, 6]
    assert sum(reads.sizes) < 10_000


@pytest.mark.check
def test_a_sort_order_that_jumps_over_the_segment_reads_no_more_than_a_few_times_what_it_returns(create, monkeypatch):
    dataset = create(fields=EVERY_TYPE)
    dataset.append(
        Datum(T + timedelta(milliseconds=n), {"station": n * 7919 % 5000}, {"n": n, "filling": "x" * 500})
        for n in range(5000)
    )
    size = dataset.summary().size
    reads = Reads(monkeypatch)
    found = numbers(dataset.query(sort="station"))
    assert found == sorted(range(5000), key=lambda n: n * 7919 % 5000)
    assert len(reads.sizes) <= 5000
    assert sum(reads.sizes) <= 50 * size


def test_data_larger_than_a_span_are_read_whole(create, monkeypatch):
    monkeypatch.setattr(read, "_SPAN", 1000)
    dataset = create(fields=EVERY_TYPE)
    dataset.append(Datum(T + timedelta(seconds=n), {}, {"n": n, "filling": "x" * n * 100}) for n in range(30))
    reads = Reads(monkeypatch)
    found = list(dataset.query())
    assert [(datum.data["n"], len(datum.data["filling"])) for datum in found] == [(n, n * 100) for n in range(30)]
    assert max(reads.sizes) <= 3000


def test_segments_of_two_formats_take_turns_in_order_of_time(create):
    dataset = create()
    dataset.append(Datum(T + timedelta(minutes=2 * n), {}, {"n": n}) for n in range(20))
    dataset.append_file(
        io.BytesIO(
            b"".join(b"20261120%02d%02d,1,1,%d,,,\n" % (6 + (2 * n + 1) // 60, (2 * n + 1) % 60, n) for n in range(20))
        ),
        "vm2",
    )
    found = list(dataset.query())
    assert [datum.reftime for datum in found] == [T + timedelta(minutes=n) for n in range(40)]
    assert [datum.data["n"] if isinstance(datum.data, dict) else int(datum.data.split(b",")[3]) for datum in found] == [
        n // 2 for n in range(40)
    ]


def test_a_segment_that_is_missing_or_cut_is_reported_while_reading(create):
    dataset = create()
    dataset.append([Datum(T + timedelta(days=n), {}, {"n": n}) for n in range(3)])
    (dataset.path / "2026/11-22.jsonl").unlink()
    (dataset.path / "2026/11-21.jsonl").write_bytes(b"short")
    answer = dataset.query()
    assert next(answer).data == {"n": 0}
    with pytest.raises(SegmentCorrupt, match=r"11-21\.jsonl ends at byte 5"):
        next(answer)
    with pytest.raises(SegmentMissing, match=r"11-22\.jsonl"):
        list(dataset.query("reftime:=2026-11-22"))
    assert numbers(dataset.query("reftime:=2026-11-20")) == [0]


def test_a_link_in_the_place_of_a_segment_is_not_followed(create, tmp_path):
    dataset = create()
    dataset.append([Datum(T, {}, {"n": 1})])
    (dataset.path / "2026/11-20.jsonl").rename(tmp_path / "elsewhere")
    (dataset.path / "2026/11-20.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="symbolic link"):
        list(dataset.query())
    with pytest.raises(StorageError, match="symbolic link"):
        dataset.append([Datum(T, {}, {"n": 2})])
    assert (tmp_path / "elsewhere").read_bytes().count(b"\n") == 1


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE datum SET offset = -5",
        "UPDATE datum SET size = -5",
        "UPDATE datum SET reftime = 9223372036854775807",
        "UPDATE datum SET segment = 99",
        "UPDATE datum SET f_product = 99",
    ],
)
def test_a_damaged_index_is_reported_and_gives_no_wrong_bytes(create, statement):
    dataset = create(fields=EVERY_TYPE)
    dataset.append([Datum(T, {"product": "a"}, {"n": n}) for n in range(3)])
    sql(dataset.path, statement)
    with pytest.raises((IndexCorrupt, StorageError, SegmentCorrupt)):
        list(dataset.query())


def test_a_query_that_is_given_up_after_the_dataset_was_closed_ends_quietly(create):
    dataset = create()
    dataset.append(Datum(T, {}, {"n": n}) for n in range(1000))
    running, written = dataset.query(), dataset.payloads()
    assert numbers([next(running)]) == [0]
    assert json.loads(next(written))["n"] == 0
    dataset.close()
    running.close()
    written.close()


def ended_together(dataset, end):
    """Begin 30 queries, and end them when all are open."""
    answers = [dataset.query() for _ in range(30)]
    first = [next(answer) for answer in answers]
    end(answers)
    return first


ENDS = {
    "exhausted": lambda answers: [list(answer) for answer in answers],
    "closed": lambda answers: [answer.close() for answer in answers],
    "collected": lambda answers: answers.clear(),
}


@pytest.mark.check
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("how", ENDS)
def test_after_many_queries_at_once_their_descriptors_are_closed(tmp_path, open_files, how, threads):
    with ondisk.create(tmp_path / "dataset", {"format": "seg", "step": "daily"}) as dataset:
        dataset.append([Datum(T, {}, {"n": n}) for n in range(2)])
        dataset.append([Datum(T, {}, {"n": 2})])
        before = open_files()
        with ThreadPoolExecutor(threads) as pool:
            works = [pool.submit(ended_together, dataset, ENDS[how]) for _ in range(threads)]
            assert all(len(work.result()) == 30 for work in works)
        gc.collect()
        assert open_files() <= before
        assert (dataset.path / "index.sqlite-wal").exists()
        dataset.append([Datum(T, {}, {"n": 3})])
        assert numbers(dataset.query()) == [0, 1, 2, 3]
        assert next(dataset.query(reftime=T)).data == {"n": 0}


@pytest.mark.check
def test_queries_that_end_while_others_append_disturb_neither(tmp_path, open_files):
    with ondisk.create(tmp_path / "dataset", {"format": "seg", "step": "daily"}) as dataset:
        dataset.append([Datum(T, {}, {"n": 0})])
        before = open_files()
        with ThreadPoolExecutor(3) as pool:
            queries = [pool.submit(ended_together, dataset, ENDS["exhausted"]) for _ in range(20)]
            for n in range(1, 40):
                dataset.append([Datum(T, {}, {"n": n})])
            assert all(len(work.result()) == 30 for work in queries)
        assert numbers(dataset.query()) == [*range(40)]
        list(dataset.query())
        assert open_files() < before + 2 * 30
    with ondisk.open(tmp_path / "dataset", read_only=True) as dataset:
        assert dataset.check().ok
