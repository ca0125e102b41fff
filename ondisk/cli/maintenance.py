"""The commands `check`, `fix`, `repack`, `archive`, `unarchive` and `maintain`: they look after the segments."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import ondisk
from ondisk.cli.arguments import add_encrypted, add_keys, add_spark, check_options, duration, path
from ondisk.cli.dataset import examined, executors, open_dataset, segments_progress
from ondisk.cli.reports import show_checked, show_maintained, show_mended, show_would_mend, show_would_rebuild
from ondisk.cli.streams import Output, complain
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, EXIT_FINDINGS, InvalidInput, OndiskError, counted

if TYPE_CHECKING:
    from ondisk import Dataset
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
        help="read data for this long (90s, 1h30m, 1d), least recently read segments first; writes the findings"
        " to the index",
    )
    add_spark(parser, "read the data")
    parser.add_argument("--all", action="store_true", help="also list the segments that are OK")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


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
    parser.add_argument("--yes", action="store_true", help="fix; without it, only print what would be fixed")
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
        "--salvage",
        action="append",
        default=[],
        metavar="SEGMENT",
        help="keep what is whole of a damaged segment, and move its file to quarantine",
    )
    parser.add_argument("--acknowledge", action="store_true", help="first, set the number of lost data to 0")
    add_spark(parser, "read the segments")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run_fix(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.maintenance.states import FIXED

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
            if was_lost and any(each.action == "rescan" for each in report):
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

            def fix(progress: Progress) -> Report:
                try:
                    report = noted(dataset.fix(**options, progress=progress, spark=spark))
                except OndiskError as error:  # the index was moved aside all the same
                    if "report" in error.context:
                        error.context["report"].segments[:0] = rebuilt
                    raise
                report.segments[:0] = rebuilt
                return report

            return _mend(dataset, "fix", fix, output)


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


def _mend(dataset: Dataset, name: str, verb: Callable[[Progress], Report], output: Output) -> int:
    """Run fix or repack, and print what it did and the state after it. Return the exit code."""
    from ondisk.maintenance import last_report

    try:
        with segments_progress(name) as progress:
            report = verb(progress)
    except OndiskError as error:
        if "report" in error.context:
            left, _ = examined(dataset.check)
            report = error.context["report"]  # the segments before the error, or all others, were mended
            show_mended(report, left.after(report), output)
            last_report.save(dataset.path, name, left.after(report), report.segments, error)
        raise
    left, denied = examined(dataset.check)
    show_mended(report, left, output)
    last_report.save(dataset.path, name, left, report.segments, denied)
    if denied is not None:
        raise denied
    if report.lost:
        return EXIT_DATA_SKIPPED
    return EXIT_DONE if left.is_clean and not dataset.quarantine.kept else EXIT_FINDINGS


def add_repack(parser: argparse.ArgumentParser) -> None:
    """Free space: remove holes and deleted segments, archive and delete by age. A dry run without --yes.

    ondisk repack weather
    ondisk repack weather --yes
    ondisk repack weather --yes --by-age
    ondisk repack weather --yes --rewrite
    ondisk repack weather --yes --spark spark://host:7077
    """
    add_encrypted(parser)
    parser.add_argument("--yes", action="store_true", help="repack; without it, only print what would be done")
    parser.add_argument("--by-age", action="store_true", help="delete by age even if the clock or amount looks wrong")
    parser.add_argument("--rewrite", action="store_true", help="also rewrite segments not stored as dataset.toml says")
    parser.add_argument("--second-copies", action="store_true", help="also remove copies of segments that people made")
    add_spark(parser, "write the segments")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run_repack(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.maintenance.states import REPACKED

    options = {name: getattr(arguments, name) for name in ("by_age", "rewrite", "second_copies")}
    with ondisk.open(arguments.dataset, read_only=not arguments.yes) as dataset:
        if arguments.yes:
            with executors(arguments.spark) as spark:

                def repack(progress: Progress) -> Report:
                    return dataset.repack(**options, progress=progress, spark=spark)

                return _mend(dataset, "repack", repack, output)
        report, error = examined(lambda: dataset.repack(**options, dry_run=True))
    return _would_mend(report, error, "repack", REPACKED, output)


def add_archive(parser: argparse.ArgumentParser) -> None:
    """Move segments to the archive, whatever their age; repack archives by age. A dry run without --yes.

    ondisk archive weather 2026/11-17.vm2
    ondisk archive weather 2026/11-17.vm2 2026/11-18.vm2 --yes
    ondisk archive weather --rename last 2026 --yes
    ondisk archive weather --offline 2026 --yes
    """
    _add_move(parser, "archive", "*")
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


def _add_move(parser: argparse.ArgumentParser, verb: str, count: str) -> None:
    add_encrypted(parser)
    parser.add_argument("segments", metavar="SEGMENT", nargs=count, help="a segment, as `ondisk check --all` names it")
    parser.add_argument("--yes", action="store_true", help=f"{verb}; without it, only print what would be moved")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


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
    _add_move(parser, "unarchive", "+")


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
        "--max-duration",
        metavar="D",
        type=duration,
        help="read the data of each dataset for this long (90s, 1h30m, 1d), least recently read segments first",
    )
    parser.add_argument("--metrics", metavar="FILE", type=path, help="write metrics for Prometheus; not in a dry run")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each dataset")


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
    if result.error is not None:
        complain("error", _error_text(result))


def _error_text(result: Maintained) -> str:
    import traceback  # here, as only a defect needs it

    error = result.error
    text = str(error) if isinstance(error, OndiskError) else "".join(traceback.format_exception(error))
    return text if result.dataset in text else f"{result.dataset}: {text}"
