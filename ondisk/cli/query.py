"""Print the data that match, in order of reftime.

ondisk query weather
ondisk query weather 'reftime: >=2026-11-20; area: VM2,5' --sort -reftime --limit 10
ondisk query weather 'area: VM2,5' --data > station5.vm2
ondisk query events 'reftime: =2026-11-20; metadata.sensor: 7'
ondisk query photos 'site: north' --to north --name '{reftime:%Y%m%d_%H%M}_{site}.jpg'
ondisk query weather 'area: VM2,5' --also 'archive/*' --also /mnt/old/weather
ondisk query stations --csv --columns reftime,station,data.temperature > stations.csv
ondisk query stations 'reftime: =2026' --parquet stations.parquet
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import ondisk
from ondisk.cli.arguments import (
    add_aliases,
    add_also,
    add_dataset,
    add_keys,
    add_match,
    column_types,
    count,
    names,
    path,
    use_aliases,
)
from ondisk.cli.dataset import open_to_read
from ondisk.cli.mistaken import note_columns, note_mistakes, noting
from ondisk.cli.streams import Output, complain, complain_of_input, printable, values_of, write_stdout
from ondisk.errors import (
    EXIT_DATA_SKIPPED,
    EXIT_DONE,
    EXIT_FINDINGS,
    AuthenticationFailed,
    FrameCorrupt,
    InvalidInput,
    OndiskError,
    SegmentCorrupt,
    SegmentMissing,
    counted,
)

if TYPE_CHECKING:
    from ondisk import Dataset, Merged
    from ondisk.dataset.skipped import Skipped
    from ondisk.files import ExportResult

_HINTS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_keys(parser)
    add_match(parser)
    add_also(parser)
    add_aliases(parser)
    parser.add_argument("--sort", metavar="S", help="[minute|hour|day|month|year:]field,...; -field is descending")
    parser.add_argument("--limit", metavar="N", type=count, help="print at most N data")
    parser.add_argument(
        "--skip-damaged",
        action="store_true",
        help="leave out data that cannot be read, print which ones on standard error, and end with 8",
    )
    parser.add_argument("--complete", action="store_true", help="fail if data in an offline archive match")
    parser.add_argument("--fields", metavar="A,B", type=names, help="print only these metadata fields")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object per line")
    form.add_argument("--table", action="store_true", help="print tables as wide as the terminal, or wider if needed")
    form.add_argument("--data", action="store_true", help="print the stored bytes, which can be appended again")
    form.add_argument("--index", action="store_true", help="print their places: path, offset, length, reftime, items")
    form.add_argument("--csv", action="store_true", help="print CSV, with a header")
    form.add_argument("--parquet", metavar="FILE", type=path, help="write a file of Parquet")
    form.add_argument("--arrow", metavar="FILE", type=path, help="write a file of Arrow, which is Feather, too")
    parser.add_argument(
        "--columns",
        metavar="A,B",
        type=column_types,
        help="the columns of --csv, --parquet and --arrow: fields, reftime, metadata.NAME, data.KEY, data, dataset"
        " with --also, segment, offset, size; default: all but the last three. In a file also with types, such as"
        " data.wind=real",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file of --parquet or --arrow")
    parser.add_argument("--to", metavar="DIR", type=path, help="write each datum to a file in this folder")
    parser.add_argument(
        "--name",
        metavar="TEMPLATE",
        help="with --to: the names of the files, such as {reftime:%%Y%%m%%d_%%H%%M}_{site}.jpg; times are in UTC;"
        " default: {path}, which `ondisk append --format blob` has stored",
    )
    parser.add_argument(
        "--link",
        action="store_true",
        help="with --to: make hard links to the files of the dataset, which take no space, instead of copies. If you"
        " edit such a file in place, you change the dataset",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    _check(arguments)
    use_aliases(arguments)
    doubts: list[str] = []
    refused = 0
    from ondisk.dataset.skipped import skipped_of  # here, as the parser does not need it

    skipped = skipped_of("skip" if arguments.skip_damaged else "raise")
    with open_to_read(arguments, doubts, complete=arguments.complete) as dataset:
        choice = {"sort": arguments.sort, "limit": arguments.limit, "damaged": "raise" if skipped is None else skipped}
        try:
            refused = _answer(dataset, arguments, choice, output)
        except (FrameCorrupt, SegmentCorrupt, SegmentMissing, AuthenticationFailed) as error:
            error.hint = f"{error.hint} `--skip-damaged` returns the data that can be read.".strip()
            raise
        finally:
            if skipped is not None:
                _complain_of(skipped)
    is_partial = refused or (skipped is not None and skipped.count)
    return EXIT_DATA_SKIPPED if is_partial else EXIT_FINDINGS if doubts else EXIT_DONE


def _answer(dataset: Dataset | Merged, arguments: argparse.Namespace, choice: dict[str, Any], output: Output) -> int:
    if arguments.to is not None:
        return _export(dataset, arguments, choice, output)
    if arguments.parquet is not None or arguments.arrow is not None:
        _write(dataset, arguments, choice)
    elif arguments.index:
        from ondisk.dataset.file_index import index_lines  # here, as only few commands need it

        del choice["damaged"]  # nothing is read
        found = dataset.query(arguments.match, with_data=False, **choice)
        write_stdout(index_lines(noting(found, dataset, arguments.match), arguments.dataset))
    elif arguments.data:
        write_stdout(noting(dataset.payloads(arguments.match, **choice), dataset, arguments.match))
    else:
        _print(dataset, arguments, choice, output)
    return 0


def _complain_of(skipped: Skipped) -> None:
    """Print which data were left out, and once what to do about each of the reasons."""
    for each in skipped.listed:
        complain("damaged", printable(str(each)))
    if skipped.count > len(skipped.listed):
        complain("damaged", f"and {skipped.count - len(skipped.listed)} more")
    if skipped.count:
        hints = [*dict.fromkeys(each.hint for each in skipped.listed if each.hint)][:_HINTS]
        complain("warning", "\n".join([f"{counted(skipped.count, 'datum', 'was')} left out", *hints]))


def _print(dataset: Dataset | Merged, arguments: argparse.Namespace, choice: dict[str, Any], output: Output) -> None:
    from ondisk.dataset.json_lines import names_of

    fields = names_of(arguments.fields, dataset.fields)
    found = noting(dataset.query(arguments.match, **choice), dataset, arguments.match)
    if arguments.csv:
        from ondisk.tables.columns import untyped  # here, as only few commands need it
        from ondisk.tables.csv_output import csv_of

        columns = untyped(arguments.columns)
        _note_labels(columns or (), dataset)
        write_stdout(csv_of(dataset, found, columns))
        note_columns(dataset, columns or (), arguments.match, arguments.sort, arguments.limit)
    elif arguments.table:
        from ondisk.cli.output_text import print_table

        known = [name for name in dataset.fields if name != "reftime"]
        print_table(found, known if fields is None else fields, datasets=not isinstance(dataset, ondisk.Dataset))
    else:
        output.data(found, fields)


def _note_labels(names: Iterable[str], dataset: Dataset | Merged) -> None:
    """Print a note for each column that is not the field with its name."""
    from ondisk.tables.columns import config_of, index_columns

    columns = index_columns(config_of(dataset), several=not isinstance(dataset, ondisk.Dataset))
    labels = {field: label for label, (field, _) in columns.items()}
    for name in names:
        if labels.get(name, name) != name:
            complain("note", f"the column {name} is not the field {name}, which is the column {labels[name]}")


def _check(arguments: argparse.Namespace) -> None:
    is_file = arguments.parquet is not None or arguments.arrow is not None
    is_table = arguments.csv or is_file
    if (arguments.data or arguments.index) and arguments.fields is not None:
        raise InvalidInput("--fields cannot be combined with --data or --index, which print all that there is")
    if is_table and arguments.fields is not None:
        hint = "Write --columns: it also selects the reftime and the content."
        raise InvalidInput("--fields is not for --csv, --parquet and --arrow", hint=hint)
    if arguments.columns is not None and not is_table:
        hint = "Write --fields to print only some metadata of each datum."
        raise InvalidInput("--columns is for --csv, --parquet and --arrow only", hint=hint)
    if arguments.to is None and arguments.name is not None:
        raise InvalidInput("--name is for files", hint="Write --to DIR, too.")
    if arguments.to is None and arguments.link:
        raise InvalidInput("--link is for files", hint="Write --to DIR, too.")
    if arguments.to is not None and (
        arguments.table or arguments.data or arguments.index or is_table or arguments.fields is not None
    ):
        others = "--table, --data, --index, --csv, --parquet, --arrow or --fields"
        raise InvalidInput(f"--to writes files, and cannot be combined with {others}")
    if arguments.overwrite and not is_file:
        raise InvalidInput("--overwrite is for --parquet and --arrow only")


def _write(dataset: Dataset | Merged, arguments: argparse.Namespace, choice: dict[str, Any]) -> None:
    from ondisk.dataset.output_file import check_free
    from ondisk.tables import installed

    with installed():
        from ondisk.tables.arrow_output import write

    form: Literal["parquet", "arrow"] = "arrow" if arguments.parquet is None else "parquet"
    file = getattr(arguments, form)
    check_free(file, overwrite=arguments.overwrite)
    _note_labels(arguments.columns or (), dataset)
    table = dataset.to_arrow(arguments.match, columns=arguments.columns, **choice)
    rows = write(table, file, form, overwrite=arguments.overwrite)
    if rows:
        note_columns(dataset, arguments.columns or (), arguments.match, arguments.sort, arguments.limit)
    else:
        note_mistakes(dataset, arguments.match)
    write_stdout([f"{rows} row{'s' * (rows != 1)} written to {printable(file)}\n".encode(errors="replace")])


def _export(dataset: Dataset | Merged, arguments: argparse.Namespace, choice: dict[str, Any], output: Output) -> int:
    from ondisk import files

    def report(result: ExportResult) -> int:
        counts = f"{counted(result.exported, 'file')} {'linked' if arguments.link else 'written'}"
        counts += f", {result.present} already there, {result.refused} refused"
        values = {"to": arguments.to, **values_of(result, "exported", "present", "refused", "bytes")}
        output.show([values], [f"{arguments.to}: {counts}; {counted(result.bytes, 'byte')}"])
        if not (result.exported or result.present or result.refused):
            note_mistakes(dataset, arguments.match)
        complain_of_input([("", reason) for _, reason in result.refusals], result.refused, [], 0, [], [])
        return result.refused

    if arguments.name is not None:
        choice = {"name": arguments.name, **choice}
    try:
        return report(files.export(dataset, arguments.match, arguments.to, link=arguments.link, **choice))
    except OndiskError as error:
        if "result" in error.context:
            report(error.context["result"])  # the files before the error are written
        raise
