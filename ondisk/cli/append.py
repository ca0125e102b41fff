"""Store the data of files: lines and frames byte for byte, rows of CSV, Parquet and Arrow in the dataset's format.

ondisk append weather observations.vm2 late.vm2
ondisk append stations year.csv.gz --time when --tz Europe/Rome
ondisk append stations year.parquet --time when
ondisk append events beats-queue/*.seg
ondisk append events --format diskqueue /var/lib/filebeat/diskqueue
curl https://example.org/observations.jsonl | ondisk append weather - --format jsonl
ondisk append photos camera/ --format blob --time name:%Y%m%d_%H%M --field site=path:1
ondisk append weather --spark spark://host:7077 incoming/*.vm2
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ondisk.cli.arguments import (
    OF_TABLES,
    add_encrypted,
    add_spark,
    add_table,
    check_options,
    path,
    positive,
    table_options,
)
from ondisk.cli.dataset import executors, files_progress, open_dataset
from ondisk.cli.streams import Input, Output, complain_of_input, damage_and_notes, values_of
from ondisk.errors import (
    EXIT_DATA_SKIPPED,
    EXIT_DONE,
    EXIT_FINDINGS,
    AuthenticationFailed,
    InvalidInput,
    KeyMissing,
    OndiskError,
    counted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ondisk import AppendResult, Dataset
    from ondisk.segment import Damage

_QUEUE = "diskqueue"
_FILES = "blob"
_NEEDS = {"--field": "--format=blob", "--all": "--format=diskqueue"}
_EXCLUDES = {
    "--spark": f"--format=diskqueue --format=blob --batch-size --time --tz {OF_TABLES}",
    "--format=diskqueue": f"--time --tz {OF_TABLES}",
    "--format=blob": OF_TABLES,
}
_NAMED = 100  # refusals of all files
_FIRST = 3  # refusals of a file that has no valid datum


def add(parser: argparse.ArgumentParser) -> None:
    add_encrypted(parser)
    parser.add_argument("files", metavar="FILE", nargs="+", type=path, help="a file with data, or - for standard input")
    parser.add_argument(
        "--format",
        metavar="F",
        help="format of the files; default: by extension, then by content; diskqueue and blob take folders",
    )
    add_table(
        parser,
        "reftime. Of blob: where the time of a file is: name:FORM, such as name:%%Y%%m%%d_%%H%%M, path:FORM or mtime",
    )
    parser.add_argument(
        "--field",
        dest="fields",
        metavar="NAME=PART",
        type=_field,
        action="append",
        help="of blob: a field, and where its value is: path:1, path:-1, name:1, path or name; repeat it for each",
    )
    parser.add_argument(
        "--all", action="store_true", help="begin a queue at its oldest event, also if Beats has sent it"
    )
    parser.add_argument("--batch-size", metavar="N", type=positive, help="data in a batch; default: 100000, or 64 MiB")
    add_spark(parser, "read the files")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk import AppendResult  # here, so that --help does not wait for it

    total = AppendResult()
    complaints = _Complaints(arguments.files)

    def add(name: str, result: AppendResult) -> None:
        total.extend(result)
        complaints.add(name, result)

    def append(name: str) -> AppendResult:
        with Input(name, advance) as file:
            try:
                return dataset.append_file(file, arguments.format, **table, **batch)
            except (AuthenticationFailed, InvalidInput, KeyMissing) as error:
                raise type(error)(f"{name}: {error.message}", hint=error.hint, **error.context) from error

    batch = {} if arguments.batch_size is None else {"batch_size": arguments.batch_size}
    table = table_options(arguments)
    is_queue, is_files = arguments.format == _QUEUE, arguments.format == _FILES
    check_options(arguments, _NEEDS, _EXCLUDES)
    if arguments.spark is not None and "-" in arguments.files:
        hint = "Append without --spark, or write the input to a file."
        raise InvalidInput("Spark's executors cannot read standard input", hint=hint)
    if is_files and arguments.time is None:
        hint = "Write --time name:%Y%m%d_%H%M, with the form of your names, or --time mtime."
        raise InvalidInput("a file of the format blob does not contain its time", hint=hint)
    if is_files and "-" in arguments.files:
        raise InvalidInput("standard input is no file of the format blob", hint="Name files or folders.")
    name = "" if is_files else arguments.files[0]
    with _long_cells(), open_dataset(arguments.dataset) as dataset, executors(arguments.spark) as spark:
        try:
            with files_progress(arguments.files) as advance:
                if spark is not None:
                    for name, result in dataset.append_files(arguments.files, spark, arguments.format):
                        add(name, result)
                elif is_queue:
                    for queue in arguments.files:
                        for name, result in dataset.append_queue(queue, arguments.all, **batch):
                            add(name, result)
                            complaints.print_notes()  # the import may forget now what they are about
                elif is_files:
                    add(name, _append_files(dataset, arguments, advance, batch))
                else:
                    for name in arguments.files:
                        add(name, append(name))
        except OndiskError as error:
            if "result" in error.context:
                add(error.context.get("source", name), error.context["result"])
            _report(total, complaints, output)  # the batches before the error are stored
            raise
        except KeyboardInterrupt as interrupt:
            if total.count:
                done = f"{counted(total.imported, 'datum', 'was')} stored, {total.replaced} replaced"
                interrupt.add_note(f"of the files before {name}, {done}; they are durable")
            if dataset.config.unique:
                again = "skipped" if dataset.config.replace == "no" else "skipped or replaced by itself"
                interrupt.add_note(f"append the file again: a datum that is already stored is {again}")
            raise
        total.kept = dataset.quarantine.kept
    _report(total, complaints, output)
    if total.refused or total.damage:
        return EXIT_DATA_SKIPPED
    return EXIT_FINDINGS if total.kept else EXIT_DONE


@contextlib.contextmanager
def _long_cells() -> Iterator[None]:
    """Let the cells of CSV be as long as a record, for the length of the block: Python's limit is of the process."""
    import csv

    from ondisk.table_options import MAX_RECORD

    limit = csv.field_size_limit(MAX_RECORD)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _append_files(
    dataset: Dataset, arguments: argparse.Namespace, advance: Callable[[int], None], batch: dict[str, int]
) -> AppendResult:
    from ondisk import files

    fields = dict(arguments.fields or ())
    if len(fields) < len(arguments.fields or ()):
        raise InvalidInput("a field is given twice", hint="Write one --field for each field.")
    choice: dict[str, Any] = {"time": arguments.time, "fields": fields, "tz": arguments.tz, **batch}
    return files.append(dataset, arguments.files, **choice, progress=advance)


def _field(text: str) -> tuple[str, str]:
    name, equals, part = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PART, such as site=path:1")
    return name, part


class _Complaints:
    def __init__(self, files: Sequence[str]) -> None:
        self._files = files
        self.refusals: list[tuple[str, str]] = []  # file and reason, of the first 100 refused data
        self.refused = 0  # how many lines `refusals` would have with all refused data
        self.damage: list[tuple[str, Damage]] = []  # file and place, the first 100
        self.warnings: list[tuple[str, str]] = []  # file and warning
        self.notes: list[tuple[str, str]] = []  # file and note
        self.printed = 0  # how many of the notes were printed before the end
        self._room = _NAMED

    def add(self, name: str, result: AppendResult) -> None:
        """Add what an append refused, skipped or noted of a file; with the name "", the reasons name the files."""
        self.damage += [(name, each) for each in result.damage[: _NAMED - len(self.damage)]]
        for listed, remarks in ((self.warnings, result.warnings), (self.notes, result.notes)):
            listed += [_of_file(remark, self._files) if name == "" else (name, remark) for remark in remarks]
        nothing_stored = result.refused == result.count and name != ""
        reasons = result.refusals[: min(_FIRST, self._room) if nothing_stored else self._room]
        self.refusals += [(name, reason) for _, reason in reasons]
        self.refused += result.refused
        self._room -= len(reasons)
        others = result.refused - len(reasons)
        if reasons and nothing_stored and others:
            self.refusals.append((name, f"and {others} more: nothing of this file could be stored"))
            self.refused -= others - 1

    def print_notes(self) -> None:
        """Print the notes that were not printed yet, without waiting for the end."""
        complain_of_input([], 0, [], 0, [], self.notes[self.printed :])
        self.printed = len(self.notes)


def _of_file(remark: str, files: Sequence[str]) -> tuple[str, str]:
    name = next((each for each in files if remark.startswith(f"{each}: ")), "")
    return name, remark.removeprefix(f"{name}: ")


def _report(total: AppendResult, complaints: _Complaints, output: Output) -> None:
    damage, warnings = complaints.damage, complaints.warnings
    values = values_of(total, "imported", "duplicates", "replaced", "refused", "segments", "bytes")
    values["warnings"] = [{"file": name, "warning": warning} for name, warning in warnings]
    values |= damage_and_notes(damage, complaints.notes)
    line = f"{total.imported} imported, {counted(total.duplicates, 'duplicate')}, "
    line += f"{total.replaced} replaced, " * bool(total.replaced) + f"{total.refused} refused"
    line += f"; {counted(total.bytes, 'byte')} in {counted(total.segments, 'segment')}"
    output.show([values | {"kept": total.kept}], [line])
    notes = complaints.notes[complaints.printed :]
    complain_of_input(complaints.refusals, complaints.refused, damage, len(damage), warnings, notes)
