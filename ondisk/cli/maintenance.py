"""The commands `check`, `fix`, `repack`, `archive`, `unarchive`, `maintain`, `adopt` and `ack`: about segments."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import ondisk
from ondisk.cli.arguments import (
    add_encrypted,
    add_fields,
    add_keys,
    add_spark,
    check_options,
    declared,
    duration,
    path,
    positive,
)
from ondisk.cli.dataset import examined, executors, open_dataset, segments_progress
from ondisk.cli.reports import show_checked, show_maintained, show_mended, show_would_mend, show_would_rebuild
from ondisk.cli.streams import Output, complain, values_of
from ondisk.errors import (
    EXIT_DATA_SKIPPED,
    EXIT_DONE,
    EXIT_FINDINGS,
    DatasetNotFound,
    InvalidInput,
    OndiskError,
    counted,
)

if TYPE_CHECKING:
    from ondisk import Dataset, Location
    from ondisk.dataset.dataset import Progress
    from ondisk.maintenance.maintain import Maintained
    from ondisk.maintenance.states import Diagnosis, Done, Report, State


def add_check(parser: argparse.ArgumentParser) -> None:
    """Report what is wrong with a dataset: the states of its segments, the reasons, and what fix or repack would do.

    ondisk check weather
    ondisk check weather --accurate --json
    ondisk check weather --max-duration 10m
    ondisk check weather --accurate --spark spark://host:7077
    """
    add_encrypted(parser)
    parser.add_argument("--accurate", action="store_true", help="also read all data and compare them with the index")
    parser.add_argument(
        "--max-duration",
        metavar="D",
        type=duration,
        help="read data for this long (90s, 1h30m, 1d), least recently read first; writes findings to the index",
    )
    add_spark(parser, "read the data")
    parser.add_argument("--all", action="store_true", help="also list the segments that are OK")


def run_check(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.maintenance import last_report

    writes = arguments.max_duration is not None
    check_options(arguments, {"--spark": "--accurate"}, {"--spark": "--max-duration"})
    with (
        ondisk.open(arguments.dataset, read_only=not writes) as dataset,
        executors(arguments.spark) as spark,
        segments_progress("check") as progress,
    ):
        options = {"max_duration": arguments.max_duration, "progress": progress, "spark": spark}
        report, error = examined(lambda: dataset.check(arguments.accurate, **options))
    if arguments.accurate:
        _record(arguments.dataset, report)
    last_report.save(arguments.dataset, "check", report, error=error)
    show_checked(report, report.segments if arguments.all else report.findings, output)
    if error is not None:
        raise error
    return EXIT_DONE if report.is_clean else EXIT_FINDINGS


def _record(path: str, report: Report) -> None:
    """Record damage in the index. A check without damage needs no right to write."""
    from ondisk.maintenance.check import record
    from ondisk.maintenance.states import Diagnosis

    if not any(isinstance(each, Diagnosis) and each.noted for each in report):
        return
    try:
        with ondisk.open(path) as dataset:
            record(dataset._access, report)
    except OndiskError as error:
        complain("note", f"the damage was not recorded, so a fix does not report it: {error.message}")


def add_fix(parser: argparse.ArgumentParser) -> None:
    """Make the index agree with the disk. A dry run without --yes.

    ondisk fix weather
    ondisk fix weather --yes
    ondisk fix weather --yes --forget
    ondisk fix weather --rebuild --yes
    ondisk fix weather --yes --spark spark://host:7077
    """
    add_encrypted(parser)
    parser.add_argument(
        "--forget",
        nargs="?",
        const=True,
        default=False,
        metavar="NAME",
        help="also remove missing segments from the index if many are missing at once; or forget all of .archive/NAME",
    )
    parser.add_argument("--rebuild", action="store_true", help="first rebuild a damaged index from the segments")
    parser.add_argument(
        "--salvage", action="append", default=[], metavar="SEGMENT", help="keep what is whole of a damaged segment"
    )
    parser.add_argument("--acknowledge", action="store_true", help="first, set the number of lost data to 0")
    add_spark(parser, "read the segments")


def run_fix(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.maintenance.states import FIXED, Action

    options = {name: getattr(arguments, name) for name in ("salvage", "acknowledge")}
    options |= {"forget": True} if arguments.forget is True else {"forget_place": arguments.forget or None}
    rebuilt: list[Diagnosis | Done] = []
    if arguments.rebuild:
        found = ondisk.rebuild(arguments.dataset, dry_run=not arguments.yes)
        if not arguments.yes:
            show_would_rebuild(found, output)
            complain("note", "deleted data that no repack has removed yet would come back")
            return EXIT_FINDINGS
        rebuilt = found.segments
    with ondisk.open(arguments.dataset, read_only=not arguments.yes) as dataset:
        was_lost = dataset.needs_check

        def noted(report: Report) -> Report:
            if was_lost and any(each.action == Action.RESCAN for each in report):
                back = "come back" if arguments.yes else "would come back"
                complain("note", f"the index was lost: deleted data that no repack has removed yet {back}")
            return report

        if not arguments.yes:
            report, error = examined(lambda: dataset.fix(**options, dry_run=True))
            lost = dataset.info()["lost"] if arguments.acknowledge else 0
            if lost:
                are = counted(lost, "datum", "is")
                complain("note", f"{are} lost, and would not be counted any more; --yes does it")
            code = _would_mend(noted(report), error, "fix", FIXED, output)
            return EXIT_FINDINGS if lost else code
        with executors(arguments.spark) as spark:
            options |= {"spark": spark}
            return _mend(dataset, "fix", lambda shown: noted(dataset.fix(**options, progress=shown)), output, rebuilt)


def _would_mend(report: Report, error: OndiskError | None, verb: str, states: State, output: Output) -> int:
    """Print what fix or repack would do to segments; return the exit code, or raise the error of the check."""
    from ondisk.maintenance.states import Done, State

    asked = [each for each in report if each.action and isinstance(each, Done)]
    work = [*asked, *(each for each in report.mended_by(states) if each not in asked)]
    left = [each for each in report.held if each.state & states]
    left += [each for each in report if State.CORRUPTED in each.state and each not in asked]
    show_would_mend(report, verb, work, left, output)
    if error is not None:
        raise error
    return EXIT_DONE if report.is_clean and not work else EXIT_FINDINGS


def _mend(
    dataset: Dataset,
    name: str,
    mend: Callable[[Progress], Report],
    output: Output,
    before: Sequence[Diagnosis | Done] = (),
) -> int:
    """Run fix or repack, and print what it did, also `before` it, and the state after it. Return the exit code."""
    from ondisk.maintenance import last_report

    report, failed = _mended(name, mend)
    report.segments[:0] = before
    left, denied = examined(dataset.check)
    left = left.after(report)
    last_report.save(dataset.path, name, left, report.segments, failed or denied)
    code = _finish(report, left, failed or denied, output)
    return EXIT_FINDINGS if code == EXIT_DONE and dataset.quarantine.kept else code


def _mended(name: str, mend: Callable[[Progress], Report]) -> tuple[Report, OndiskError | None]:
    """Return the report of what mends segments; with the error that left some, or the rest, as they were."""
    try:
        with segments_progress(name) as progress:
            return mend(progress), None
    except OndiskError as error:
        if "report" not in error.context:
            raise
        return error.context["report"], error


def _finish(report: Report, left: Report, failed: OndiskError | None, output: Output) -> int:
    show_mended(report, left, output)
    if failed is not None:
        raise failed
    if report.lost:
        return EXIT_DATA_SKIPPED
    return EXIT_DONE if left.is_clean else EXIT_FINDINGS


def add_repack(parser: argparse.ArgumentParser) -> None:
    """Free space: remove holes and deleted segments, archive and delete by age. A dry run without --yes.

    ondisk repack weather
    ondisk repack weather --yes
    ondisk repack weather --yes --by-age
    ondisk repack weather --yes --rewrite
    ondisk repack weather --yes --spark spark://host:7077
    """
    add_encrypted(parser)
    parser.add_argument("--by-age", action="store_true", help="delete by age even if the clock or amount looks wrong")
    parser.add_argument("--rewrite", action="store_true", help="also rewrite segments not stored as dataset.toml says")
    parser.add_argument("--second-copies", action="store_true", help="also remove copies of segments that people made")
    add_spark(parser, "write the segments")


def run_repack(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.maintenance.states import REPACKED

    options = {name: getattr(arguments, name) for name in ("by_age", "rewrite", "second_copies")}
    with ondisk.open(arguments.dataset, read_only=not arguments.yes) as dataset:
        if arguments.yes:
            with executors(arguments.spark) as spark:
                options |= {"spark": spark}
                return _mend(dataset, "repack", lambda shown: dataset.repack(**options, progress=shown), output)
        report, error = examined(lambda: dataset.repack(**options, dry_run=True))
    return _would_mend(report, error, "repack", REPACKED, output)


def add_archive(parser: argparse.ArgumentParser) -> None:
    """Move segments to the archive, whatever their age; repack archives by age. A dry run without --yes.

    ondisk archive weather 2026/11-17.vm2
    ondisk archive weather 2026/11-17.vm2 2026/11-18.vm2 --yes
    ondisk archive weather --rename last 2026 --yes
    ondisk archive weather --offline 2026 --yes
    """
    add_encrypted(parser)
    parser.add_argument("segments", metavar="SEGMENT", nargs="*", help="a segment, as `ondisk check --all` names it")
    others = parser.add_mutually_exclusive_group()
    others.add_argument("--rename", nargs=2, metavar=("NAME", "NEW"), help="rename .archive/NAME")
    others.add_argument("--offline", metavar="NAME", help="say that .archive/NAME is away for long")
    others.add_argument("--online", metavar="NAME", help="say that .archive/NAME, which was offline, is back")


def run_archive(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.maintenance import archive

    names: list[str] = arguments.rename or [name for name in (arguments.offline, arguments.online) if name]
    if bool(names) == bool(arguments.segments):
        hint = "Name segments, or one of --rename, --offline and --online."
        raise InvalidInput("archive takes either segments or an option", hint=hint)
    if not names:
        return _move(arguments, output, "archive", lambda dataset: dataset.archive(*arguments.segments))
    decide = archive.renaming if arguments.rename else archive.going_offline
    if arguments.online:
        decide = archive.coming_online
    with open_dataset(arguments.dataset, read_only=not arguments.yes) as dataset:
        access = dataset._access
        done = archive.carried_out(access, decide, *names) if arguments.yes else decide(access, *names).done
        _show_moved(dataset, output, [done], done.action or "archive", done=arguments.yes)
    return EXIT_DONE if arguments.yes else EXIT_FINDINGS


def _move(arguments: argparse.Namespace, output: Output, verb: str, moved: Callable[[Dataset], list[Done]]) -> int:
    """Move segments to or from the archive, or print what would be moved. Return the exit code."""
    from ondisk.maintenance.archive import planned

    with open_dataset(arguments.dataset, read_only=not arguments.yes) as dataset:
        try:
            done = moved(dataset) if arguments.yes else planned(dataset._access, arguments.segments, verb)
        except OndiskError as error:
            if (before := error.context.get("report")) is not None and before.segments:
                _show_moved(dataset, output, before.segments, verb, done=arguments.yes)  # those before the error
            raise
        _show_moved(dataset, output, done, verb, done=arguments.yes)
        return EXIT_FINDINGS if dataset.quarantine.kept or not arguments.yes else EXIT_DONE


def _show_moved(dataset: Dataset, output: Output, found: Sequence[Diagnosis | Done], verb: str, *, done: bool) -> None:
    from ondisk.maintenance.states import Report

    left = examined(dataset.check)[0]
    if done:
        show_mended(Report(str(dataset.path), segments=[*found]), left, output)
    else:
        show_would_mend(left, verb, found, (), output)


def add_unarchive(parser: argparse.ArgumentParser) -> None:
    """Move segments back from the archive. A dry run without --yes.

    ondisk unarchive weather .archive/last/2026/11-17.vm2
    ondisk unarchive weather .archive/last/2026/11-17.vm2 --yes
    """
    add_encrypted(parser)
    parser.add_argument("segments", metavar="SEGMENT", nargs="+", help="a segment, as `ondisk check --all` names it")


def run_unarchive(arguments: argparse.Namespace, output: Output) -> int:
    return _move(arguments, output, "unarchive", lambda dataset: dataset.unarchive(*arguments.segments))


def add_maintain(parser: argparse.ArgumentParser) -> None:
    """Fix and repack datasets, and archive and delete by age. Made for cron: it acts without --yes.

    ondisk maintain /data/weather /data/events
    ondisk maintain weather --dry-run
    ondisk maintain weather --max-duration 30m --metrics /var/lib/node_exporter/ondisk.prom
    """
    parser.add_argument("datasets", metavar="DATASET", nargs="+", type=path, help="a dataset's directory")
    add_keys(parser)
    parser.add_argument("--dry-run", action="store_true", help="change nothing, only print what would be done")
    parser.add_argument(
        "--max-duration", metavar="D", type=duration, help="read data of each dataset for this long (90s, 1h30m, 1d)"
    )
    parser.add_argument("--metrics", metavar="FILE", type=path, help="write metrics for Prometheus; not in a dry run")


def run_maintain(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.maintenance import last_report
    from ondisk.maintenance.maintain import maintain, worst
    from ondisk.maintenance.metrics import write

    results = []
    options = {"dry_run": arguments.dry_run, "max_duration": arguments.max_duration}
    for dataset in dict.fromkeys(str(Path(each).absolute()) for each in arguments.datasets):
        with segments_progress(f"maintain {dataset}") as progress:
            result = maintain(dataset, **options, progress=progress)
        show(result, output, dry_run=arguments.dry_run)
        if not arguments.dry_run:
            last_report.save(dataset, "maintain", result.left, result.done, result.error)
        results.append(result)
    if arguments.metrics is not None and not arguments.dry_run:
        write(arguments.metrics, results)
    return worst(result.exit_code for result in results)


def show(result: Maintained, output: Output, *, dry_run: bool) -> None:
    show_maintained(result, output, dry_run=dry_run)
    if (error := result.error) is not None:
        import traceback  # here, as only an error needs it

        text = str(error) if isinstance(error, OndiskError) else "".join(traceback.format_exception(error))
        complain("error", text if result.dataset in text else f"{result.dataset}: {text}")


def add_adopt(parser: argparse.ArgumentParser) -> None:
    """Make a disk queue of Beats, or a dataset of arkimet, a dataset, where it is. A dry run without --yes.

    Stop Beats or arkimet first. Beats can continue to write and read there while no command of ondisk runs;
    `ondisk fix` then reads what is new. No segment is changed.

    ondisk adopt /var/lib/filebeat/diskqueue --field host=text --index host
    ondisk adopt /srv/arkimet/cosmo --field step=integer --yes
    """
    parser.add_argument("folder", metavar="FOLDER", type=path, help="the folder with state.dat or arkimet's config")
    add_keys(parser)
    add_fields(parser)


def run_adopt(arguments: argparse.Namespace, output: Output) -> int:
    config = declared(arguments)
    if not arguments.yes:
        report, error = examined(lambda: ondisk.adopt(arguments.folder, config, dry_run=True))
        _show_plan(report, output)
        if error is not None:
            raise error
        return EXIT_FINDINGS
    report, failed = _mended("adopt", lambda shown: ondisk.adopt(arguments.folder, config, progress=shown))
    try:
        with ondisk.open(arguments.folder, read_only=True) as dataset:
            left, denied = examined(dataset.check)
    except DatasetNotFound:
        if failed is None:
            raise
        _show_plan(report, output)  # nothing was adopted
        raise failed from None
    return _finish(report, left.after(report), failed or denied, output)


def _show_plan(report: Report, output: Output) -> None:
    from ondisk.maintenance.states import FIXED

    work = report.mended_by(FIXED)
    told = [each for each in report if each not in work and (each.state or each.action is not None)]
    show_would_mend(report, "read", work, told, output)


def add_ack(parser: argparse.ArgumentParser) -> None:
    """Acknowledge data of a queue: what the consumer has read is removed. A dry run without --yes.

    ondisk ack queue --count 1000
    ondisk ack queue --count 1000 --yes
    ondisk ack queue --through 3.seg:1260 --yes
    """
    add_encrypted(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--through", metavar="LOCATION", type=_location, help="up to this datum, such as 3.seg:1260")
    which.add_argument("--count", metavar="N", type=positive, help="how many data to acknowledge")


def run_ack(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.queue import acknowledge

    dry_run = not arguments.yes
    with open_dataset(arguments.dataset, read_only=not arguments.yes) as dataset:
        done = acknowledge(dataset, through=arguments.through, count=arguments.count, dry_run=dry_run)
        remains = bool(done.count or done.removed) if dry_run else bool(dataset.quarantine.kept)
    at, removed = done.position, done.removed
    values = {"would_acknowledge" if dry_run else "acknowledged": done.count, **values_of(at, "segment", "byte_index")}
    data = f"{counted(done.count, 'datum')} {'would be ' * dry_run}acknowledged"
    segments = f"{counted(len(removed), 'segment')} {'to remove' if dry_run else 'removed'}"
    how = "; --yes does it" * (dry_run and remains)
    line = f"{data}: the consumer continues at byte {at.byte_index} of {at.segment}.seg; {segments}{how}"
    output.show([values | {"frame_index": at.frame_index, "removed": removed}], [line])
    return EXIT_FINDINGS if remains else EXIT_DONE


def _location(text: str) -> Location:
    from ondisk import Location

    segment, colon, offset = text.rpartition(":")
    if not (segment and colon and offset.isascii() and offset.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a segment and an offset such as 3.seg:1260")
    return Location(segment, int(offset), 0)
