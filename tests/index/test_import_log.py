"""Parts of a source are stored once."""

from __future__ import annotations

import pytest
from staging.stages import CONFIG, FORMATS, check_sound, counts, stage
from worlds import access_to, datum, lose_index

import ondisk
from ondisk.errors import DuplicateDatum, InvalidInput, StateError
from ondisk.index import import_log
from ondisk.index.import_log import Mark


def commit_marked(dataset, parts, **options):
    """Stage parts, each of which has a mark, and commit them."""
    staged = [stage(dataset, part, str(at), mark=mark) for at, (mark, part) in enumerate(parts)]
    return dataset.append_staged("job", staged, **options)


def stations(dataset):
    return [each.metadata["station"] for each in dataset.query()]


@pytest.mark.parametrize("format", FORMATS)
def test_parts_of_a_source_are_stored_but_once(create, format):
    """Also of a dataset in which nothing is a duplicate."""
    dataset = create(**CONFIG | {"unique": []}, format=format)
    a, b, c, elsewhere = Mark("folder", "a"), Mark("folder", "b"), Mark("folder", "c"), Mark("other", "a")
    parts = {
        mark: [datum(at, station, format=format)]
        for at, (mark, station) in enumerate([(a, "a"), (b, "b"), (c, "c"), (elsewhere, "d")])
    }
    result = commit_marked(dataset, [(mark, parts[mark]) for mark in (a, b)])
    assert (counts(result), result.skipped) == ((2, 0, 0), [])
    result = commit_marked(dataset, [(mark, parts[mark]) for mark in (c, b, elsewhere, a)])
    assert (counts(result), result.skipped) == ((2, 0, 0), [b, a])
    result = commit_marked(dataset, [*parts.items()])
    assert (counts(result), result.skipped, result.bytes) == ((0, 0, 0), [*parts], 0)
    assert stations(dataset) == ["a", "b", "c", "d"]
    assert (dataset.parts_of("folder"), dataset.parts_of("other")) == ({"a", "b", "c"}, {"a"})
    assert dataset.parts_of("nothing") == set()
    check_sound(dataset)


def test_a_part_may_have_several_stages(create):
    dataset = create(**CONFIG, format="jsonl")
    for wanted in ((2, 0, 0), (0, 0, 0)):
        result = commit_marked(dataset, [(Mark("it", "a"), [datum(0)]), (Mark("it", "a"), [datum(1)])])
        assert counts(result) == wanted
    assert result.skipped == [Mark("it", "a")]


def test_of_numbers_only_those_above_the_last_are_new(create):
    dataset = create(**CONFIG | {"unique": []}, format="jsonl")
    steps = [(0, True), (0, False), (9, True), (9, False), (3, False), (10, True), (2**63 - 1, True)]
    for number, is_new in steps:
        result = commit_marked(dataset, [(Mark("query", number), [datum(0)])])
        assert (counts(result)[0], result.skipped) == ((1, []) if is_new else (0, [Mark("query", number)]))
    assert dataset.parts_of("query") == {2**63 - 1}
    commit_marked(dataset, [(Mark("other", number), [datum(0)]) for number in (7, 5)])
    assert dataset.parts_of("other") == {7}
    commit_marked(dataset, [(Mark("other", "7"), [datum(0)]), (Mark("other", ""), [])])
    assert commit_marked(dataset, [(Mark("other", 8), [datum(0)])]).imported == 1
    assert dataset.parts_of("other") == {8, "7", ""}


@pytest.mark.parametrize("format", FORMATS)
def test_a_part_of_which_nothing_is_stored_was_seen_all_the_same(create, format):
    dataset = create(**CONFIG, format=format)
    dataset.append([datum(0, format=format)])
    result = commit_marked(dataset, [(Mark("it", "a"), [datum(0, format=format)]), (Mark("it", "b"), [])])
    assert (counts(result), result.skipped) == ((0, 1, 0), [])
    dataset.close()
    with ondisk.open(dataset.path) as dataset:
        assert dataset.parts_of("it") == {"a", "b"}
        assert dataset.append([datum(hour, format=format) for hour in range(2)]).imported == 1
        check_sound(dataset)


def test_a_commit_that_fails_leaves_no_mark(create):
    dataset = create(**CONFIG, format="jsonl")
    dataset.append([datum(0)])
    with pytest.raises(DuplicateDatum):
        commit_marked(dataset, [(Mark("it", "a"), [datum(1)]), (Mark("it", "b"), [datum(0)])], on_duplicate="fail")
    with pytest.raises(InvalidInput, match="stages that have marks cannot overwrite"):
        commit_marked(dataset, [(Mark("it", "a"), [datum(1)])], overwrite="")
    assert dataset.parts_of("it") == set()
    assert commit_marked(dataset, [(Mark("it", "a"), [datum(1)])], on_duplicate="fail").imported == 1
    check_sound(dataset)


def test_of_many_stages_those_are_left_out_that_another_stored_meanwhile(create):
    dataset = create(**CONFIG | {"unique": []}, format="jsonl")
    parts = [(Mark("it", f"{at}"), [datum(at, f"s{at}")]) for at in range(12)]
    commit_marked(dataset, parts[2:6])
    assert counts(commit_marked(dataset, parts)) == (8, 0, 0)
    assert stations(dataset) == [f"s{at}" for at in range(12)]
    check_sound(dataset)


def test_marks_stay_when_segments_are_repacked_archived_or_deleted(create):
    dataset = create(**CONFIG, format="jsonl")
    commit_marked(dataset, [(Mark("it", "a"), [datum(0), datum(30)])])
    dataset.archive("2026/11-20.jsonl")
    dataset.delete("")
    dataset.repack()
    dataset.fix()
    assert dataset.parts_of("it") == {"a"}
    assert counts(commit_marked(dataset, [(Mark("it", "a"), [datum(0)])])) == (0, 0, 0)


def test_an_index_that_was_lost_knows_no_marks(create):
    dataset = create(**CONFIG, format="jsonl")
    commit_marked(dataset, [(Mark("it", "a"), [datum(0)])])
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path, read_only=True) as dataset:
        assert dataset.parts_of("it") == set()
    with ondisk.open(dataset.path) as dataset:
        dataset.fix()
        assert dataset.parts_of("it") == set()
        assert counts(commit_marked(dataset, [(Mark("it", "a"), [datum(0), datum(1)])])) == (1, 1, 0)
        assert dataset.parts_of("it") == {"a"}


def test_a_name_has_one_text_which_only_who_knows_it_replaces(create):
    dataset = create(**CONFIG, format="jsonl")

    def exchange(name, old, new):
        with access_to(dataset.path) as access, access.transaction("append") as transaction:
            import_log.exchange(transaction, "queue", name, old, new)
            transaction.commit()

    for name in ("1", "11", "1!"):
        exchange(name, None, f"{name} at 5")
        exchange(name, f"{name} at 5", "6")
    for old in (None, "5", "1 at 5", ""):
        with pytest.raises(StateError, match="imported from the queue at the same time"):
            exchange("1", old, "7")
    exchange("11", "6", None)
    with dataset._access.current().index.snapshot() as snapshot:
        assert import_log.texts(snapshot, "queue") == {"1": "6", "1!": "6"}
        assert import_log.texts(snapshot, "other") == {}
