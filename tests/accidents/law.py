"""The oracle: the law that must hold after every accident, whatever it was and whatever was done about it.

Each datum that was acknowledged is afterwards

- answered by a query with exactly its time, metadata and bytes, or
- still on disk, in a segment or in quarantine, and reported: a command ended with 8, 9, or an error of 30 or more, or
- in a folder of the archive that is away or offline, and each query that lacks it says so, or
- destroyed by the accident itself, and counted: a command ended with 8, or the last one still reports it; or the
  metric says so, since the command that counted it was killed.

No query ever returns a datum that nobody stored, or one datum twice, or less than all without an error or a warning.

What is not ours to touch stays as it is: files of others, visible copies, and folders of the archive that are away.
"""

from __future__ import annotations

from collections import Counter

from sums import wrong_sums

from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_FINDINGS, AlreadyExists, OndiskError, SegmentMissing

from .victim import Answer, Victim, tree

_ERRORS = 30
"""The first exit code that names what is wrong with a dataset, and not with what was asked."""


def reports(code: int) -> bool:
    """Return whether a command with this exit code has said that data are missing or damaged."""
    return code in (EXIT_DATA_SKIPPED, EXIT_FINDINGS) or code >= _ERRORS


def check_query(victim: Victim, *, complete: bool = False) -> Answer:
    """Query, and check what holds at every moment.

    Args:
        complete: an answer that is short must say so.
    """
    answer = victim.query()
    assert not answer.wrong, f"a query returned data that nobody stored: {answer.wrong}"
    twice = [number for number, count in Counter(answer.found).items() if count > 1]
    assert not twice, f"a query returned data twice: {twice}"
    assert answer.error is None or is_named(answer.error), f"a query ended with {answer.error!r}"
    if complete and answer.error is None and not answer.warned:
        short = victim.given - victim.deleted - victim.untraceable - {*answer.found}
        assert not short, f"a query came to its end, without a warning, and without {sorted(short)}"
    check_deleted(victim, answer)
    return answer


def check_deleted(victim: Victim, answer: Answer) -> None:
    returned = victim.deleted & {*answer.found}
    assert victim.revives or not returned, f"a query returned deleted data: {sorted(returned)}"


def is_named(error: BaseException) -> bool:
    """Return whether an error says what is wrong with the dataset."""
    return isinstance(error, SegmentMissing) or (isinstance(error, OndiskError) and error.exit_code >= _ERRORS)


def check_codes(victim: Victim) -> None:
    """Check that no command ended with a bug, or complained of its arguments.

    A segment is not moved to a name at which somebody has put a file.
    """
    allowed = {0, EXIT_DATA_SKIPPED, EXIT_FINDINGS, SegmentMissing.exit_code, AlreadyExists.exit_code}
    strange = [(verb, code) for verb, code in victim.codes if code not in allowed and code < _ERRORS]
    assert not strange, f"these commands ended neither well nor with a report: {strange}"


def check_law(victim: Victim) -> set[int]:
    """Check the law after the last command. Return what is answered."""
    check_codes(victim)
    codes = [code for _, code in victim.codes]
    if victim.is_rot:  # only reading finds it
        victim.run("check", "--accurate")
        codes.append(victim.codes.pop()[1])
    answer = check_query(victim)
    answered = {*answer.found} | _one_by_one(victim, answer)
    missing = victim.given - victim.deleted - answered - victim.away
    on_disk = victim.on_disk(missing)
    lost = missing - on_disk
    said = f"after {victim.codes}"
    assert lost <= victim.destroyed, f"lost {sorted(lost - victim.destroyed)}, {said}"
    counted = EXIT_DATA_SKIPPED in codes or reports(codes[-1])
    assert counted or lost <= victim.untraceable, f"nothing has counted {sorted(lost)}, {said}"
    is_said = answer.error is not None or answer.warned
    assert is_said or victim.away <= answered | victim.deleted, f"no query says that {sorted(victim.away)} are away"
    silent = on_disk - victim.untraceable
    assert not silent or any(map(reports, codes)), f"nothing has reported {sorted(silent)}, {said}"
    assert answer.error is None or reports(codes[-1]), f"a query ends with {answer.error!r}, {said}"
    for act in victim.acts:
        assert act <= answered or not act & answered, f"half of one act is there: {sorted(act & answered)}, {said}"
    contents = [each.read_bytes() for each in victim.segments_on_disk() if victim.kept]
    assert all(each in contents for each in victim.kept), f"a file of others is gone, {said}"
    touched = [str(path) for path, content in victim.stays.items() if tree(path) != content]
    assert not touched, f"these were touched: {touched}, {said}"
    assert answer.error is not None or wrong_sums(victim.path) == [], said
    return answered


def _one_by_one(victim: Victim, answer: Answer) -> set[int]:
    """Look up data by their key; return those that are answered so."""
    found: set[int] = set()
    numbers = victim.given - victim.deleted
    if answer.error is not None:
        numbers = victim.given | victim.maybe
    for number, one in zip(sorted(numbers), victim.look_up(sorted(numbers)), strict=True):
        assert not one.wrong, f"a look-up of {number} returned {one.wrong}"
        assert one.found in ([], [number]), f"a look-up of {number} returned {one.found}"
        assert one.error is None or is_named(one.error), f"a look-up of {number} ended with {one.error!r}"
        assert answer.error is not None or one.found or number not in answer.found, f"no look-up finds {number}"
        check_deleted(victim, one)
        found |= {*one.found}
    return found


def must(code: int, found: int) -> None:
    """Check the exit code of a command that is part of an accident."""
    assert found == code, f"a command ended with {found}, not {code}"


def must_fail(victim: Victim) -> BaseException:
    """Check that a query ends with an error while data are away, and return the error."""
    answer = check_query(victim)
    assert answer.error is not None, f"a query came to its end with {len(answer.found)} data, while others are away"
    return answer.error
