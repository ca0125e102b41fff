"""Queues that Beats itself wrote, of all versions, are imported whole and piece by piece."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ondisk import keys
from ondisk.errors import OndiskError

GOLDEN = Path(__file__).parents[1] / "golden" / "diskqueue"
VARIANTS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
ENCRYPTED = [each for each in VARIANTS if "enc" in each or "draft" in each]
FEW = 8  # pieces


@pytest.fixture(autouse=True)
def key(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"1 {b'keykeykeykeykeyk'.hex()}\n")
    path.chmod(0o600)
    keys.use(path)
    yield
    keys.use(None)


@pytest.fixture
def dataset(create):
    return create(format="seg", step="yearly")


def content(dataset):
    return [(each.reftime, each.metadata, repr(each.data)) for each in dataset.query()]


def test_all_variants_are_here():
    assert len(VARIANTS) == 13


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_queue_of_beats_is_imported_once(dataset, tmp_path, variant):
    queue = shutil.copytree(GOLDEN / variant, tmp_path / "queue")
    files = json.loads((GOLDEN / variant / "expected.json").read_text(encoding="utf-8"))["files"]
    found = {Path(name).name: result for name, result in dataset.append_queue(queue)}
    for name, file in files.items():
        if (queue / name).exists():
            result = found.get(name)
            count = 0 if result is None else result.imported
            assert count >= file["frames_mode"]["n"], name
            if name in ("1.seg", "2.seg", "4.seg"):
                assert count == len(file.get("events", [None] * 20)), name
                assert result.damage == []
            if name in ("10.seg", "11.seg"):
                assert result.damage, name
    assert [*dataset.append_queue(queue)] == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_segment_of_beats_that_grows_is_imported_in_pieces(dataset, create, tmp_path, variant):
    whole = (GOLDEN / variant / "2.seg").read_bytes()
    queue = tmp_path / "queue"
    queue.mkdir()
    (queue / "0.seg").write_bytes(whole)
    at_once = create("at once", format="seg", step="yearly")
    assert sum(result.imported for _, result in at_once.append_queue(queue)) == 20
    count = 0
    for cut in [*range(0, len(whole), len(whole) // FEW), len(whole) - 1, len(whole)]:
        (queue / "0.seg").write_bytes(whole[:cut])
        for _, result in dataset.append_queue(queue):
            assert (result.damage, result.notes, result.refused) == ([], [], 0)
            count += result.imported
    assert count == 20
    assert content(dataset) == content(at_once)


@pytest.mark.parametrize("variant", ENCRYPTED)
def test_an_encrypted_queue_without_its_key_stores_nothing_and_says_which_segment(dataset, tmp_path, variant):
    queue = tmp_path / "queue"
    queue.mkdir()
    shutil.copy(GOLDEN / variant / "2.seg", queue / "7.seg")
    (tmp_path / "keys").write_text(f"1 {b'anotherkeyanothe'.hex()}\n")
    for wrong in (tmp_path / "keys", keys.KeyRing([])):
        keys.use(wrong)
        with pytest.raises(OndiskError, match=r"7\.seg: .*key"):
            list(dataset.append_queue(queue))
    assert dataset.summary().count == 0
