"""The list of faults fits the code, so that `make mutants` tries all of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from mutants.faults import ROOT, Fault, all_faults

FAULTS = all_faults()


def problems(fault: Fault) -> Iterator[str]:
    """Yield why a fault cannot be tried."""
    try:
        compile(fault.text(), fault.file, "exec")
    except (OSError, SyntaxError, ValueError) as error:
        yield f"{fault.promise}: {error}"
    for each in fault.tests:
        file, _, name = each.partition("::")
        if not (ROOT / file).is_file() or (name and f"def {name.partition('[')[0]}(" not in (ROOT / file).read_text()):
            yield f"{fault.promise}: there is no {each}"


@pytest.mark.parametrize("file", sorted({each.file for each in FAULTS}))
def test_faults_can_be_put_into_the_code_and_name_their_tests(file: str) -> None:
    """If you have changed this code: change the faults, too, so that they break the same promises; or remove them."""
    assert [each for fault in FAULTS if fault.file == file for each in problems(fault)] == []


def test_each_promise_is_there_once_and_has_tests() -> None:
    promises = [each.promise for each in FAULTS]
    assert sorted({each for each in promises if promises.count(each) > 1}) == []
    assert [each.promise for each in FAULTS if not each.tests] == []


def test_words_that_no_fault_has_are_an_error() -> None:
    command = [sys.executable, "tests/mutants/run.py", "no-such-word"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "no fault has no-such-word in its file or promise\n")
