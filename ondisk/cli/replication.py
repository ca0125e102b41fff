"""The commands `replicate`, `promote` and `token`: datasets that follow others."""

from __future__ import annotations

import argparse
import re
import threading
import time
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from ondisk.cli.arguments import add_keys, check_options, duration, path
from ondisk.cli.streams import Output, complain, printable, values_of
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, EXIT_FINDINGS, OndiskError, command, counted

if TYPE_CHECKING:
    from ondisk.replication.compare import Verified
    from ondisk.replication.heal import Healed
    from ondisk.replication.reconcile import Reconciled
    from ondisk.replication.replica import Pulled, Replica

_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_INTERVAL = 10.0  # seconds
_NEEDS = {"--delete-extra": "--reconcile", "--interval": "--follow", "--yes": "--reconcile --heal"}
_MAY_PASS = (30, 31, 40, 50, 53, 60, 70)
"""The exit codes of errors that may be over when a follower asks again: of a lock, of storage that is not full, of a
damaged answer, of a fix that runs, and of a disk that is away; not those of a token that is of no use any more."""


def add_replicate(parser: argparse.ArgumentParser) -> None:
    """Follow another dataset: fetch its changes, and apply them to a replica. The first time, create it with --create.

    ondisk replicate /data/weather /backup/weather --create
    ondisk replicate /data/weather /backup/weather
    ondisk replicate /data/weather /backup/weather --follow --interval 10s
    ondisk replicate https://data.example.org:8787/dataset/weather /backup/weather --server-token token
    ondisk replicate /data/weather /backup/weather --verify
    ondisk replicate /mnt/weather /backup/weather --bandwidth 5M --token-file weather.tokens
    """
    parser.add_argument("source", metavar="SOURCE", type=path, help="the dataset to follow: its directory, or a URL")
    parser.add_argument("replica", metavar="REPLICA", type=path, help="the replica's directory")
    add_keys(parser)
    parser.add_argument("--create", action="store_true", help="create the replica first, configured as its source")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="end when the replica has what the source has now (default)")
    how.add_argument("--follow", action="store_true", help="continue until SIGINT or SIGTERM arrives")
    how.add_argument("--verify", action="store_true", help="compare both, report what differs, and change nothing")
    how.add_argument("--reconcile", action="store_true", help="fetch and delete what differs. A dry run without --yes")
    how.add_argument("--heal", action="store_true", help="return to the source what it lacks. A dry run without --yes")
    parser.add_argument(
        "--delete-extra", action="store_true", help="with --reconcile: delete what only the replica has"
    )
    parser.add_argument(
        "--interval", metavar="D", type=duration, help="with --follow: time between pulls; default: 10s"
    )
    parser.add_argument(
        "--bandwidth", metavar="B", type=_bandwidth, help="bytes of data in a second, such as 500K or 5M"
    )
    parser.add_argument("--token-file", metavar="FILE", type=path, help="write the token here after each pull")
    parser.add_argument("--server-token", metavar="FILE", type=path, help="a file with the token that the server needs")


def run_replicate(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.keys import read_token
    from ondisk.replication.replica import Replica
    from ondisk.replication.source import source_of

    token = None if arguments.server_token is None else read_token(arguments.server_token).decode()
    check_options(arguments, _NEEDS, {"--create --bandwidth --token-file": "--verify --reconcile --heal"})
    opening = Replica.create if arguments.create else Replica.open
    with source_of(arguments.source, token) as source:
        files = {"--server-token": arguments.server_token, "--key-file": arguments.key_file}
        source.options = [word for option, file in files.items() if file is not None for word in (option, str(file))]
        with opening(arguments.replica, source) as replica:
            return _replicate(replica, arguments, output)


def _replicate(replica: Replica, arguments: argparse.Namespace, output: Output) -> int:
    if arguments.verify or arguments.reconcile or arguments.heal:
        return _compare(replica, arguments, output)
    try:
        pulled = _pull(replica, arguments)
        reported = set[str]()
        interval = _INTERVAL if arguments.interval is None else arguments.interval
        _report(replica, pulled, output, reported)
        while arguments.follow:
            _export(replica, arguments)
            time.sleep(min(interval, threading.TIMEOUT_MAX))
            try:
                pulled = _pull(replica, arguments)
            except OndiskError as error:
                if error.exit_code not in _MAY_PASS:
                    raise
                complain("warning", f"{error}\nThe next try is in {interval:g} seconds.")
                continue
            if pulled.count:
                _report(replica, pulled, output, reported)
    finally:
        _export(replica, arguments)
    return EXIT_DATA_SKIPPED if pulled.missing or pulled.lost or replica.dataset.quarantine.kept else EXIT_DONE


def _compare(replica: Replica, arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.cli.dataset import changes_progress
    from ondisk.replication.compare import verify
    from ondisk.replication.heal import heal
    from ondisk.replication.reconcile import reconcile

    path = str(replica.dataset.path)
    with changes_progress("compare") as progress:
        if arguments.verify:
            found = verify(replica, on_range=progress)
            _show_compared(path, found, output)
            return EXIT_FINDINGS if found.count else EXIT_DONE
        if arguments.heal:
            healed = heal(replica, yes=arguments.yes, on_range=progress)
            _show_healed(path, healed, output, dry_run=not arguments.yes)
            if arguments.yes:
                return EXIT_DATA_SKIPPED if healed.left else EXIT_DONE
            return EXIT_FINDINGS if healed.has_work or healed.left else EXIT_DONE
        done = reconcile(replica, yes=arguments.yes, delete_extra=arguments.delete_extra, on_range=progress)
    _show_reconciled(path, done, output, dry_run=not arguments.yes)
    if not arguments.yes and done.mode == "foreign" and done.fetched and replica.dataset.config.unique:
        note = "data that are fetched replace those with the same unique fields that only the replica has"
        complain("note", f"{note}. The files of these are linked into quarantine first. Is it the right source?")
    if arguments.yes:
        return EXIT_DATA_SKIPPED if done.missing else EXIT_DONE
    return EXIT_FINDINGS if done.has_work or done.missing else EXIT_DONE


def _pull(replica: Replica, arguments: argparse.Namespace) -> Pulled:
    from ondisk.cli.dataset import changes_progress  # here, as `token` has no dataset

    with changes_progress("replicate") as progress:
        return replica.pull(bandwidth=arguments.bandwidth,
                            on_answer=lambda applied, lag: progress(applied.count, lag.changes))  # fmt: skip


def _report(replica: Replica, pulled: Pulled, output: Output, reported: set[str]) -> None:
    """Print what a pull did. `reported`: the items in quarantine that were named before; the new ones are added."""
    from ondisk.replication.source import replicate_command

    _show_pulled(str(replica.dataset.path), pulled, output)
    for item in replica.dataset.quarantine.kept:
        if item not in reported:
            reported.add(item)
            why = command("quarantine", replica.dataset.path)
            complain("warning", f"{printable(item)} was moved or linked to quarantine; {why} says why")
    for each, count in pulled.reasons:
        is_one, reason = count == 1, printable(each.reason)
        data = f"the datum {each.seq} is" if is_one else f"{count} data are"
        first = "" if is_one else f", the first {each.seq}"
        if each.is_lost:
            heal = replicate_command(replica.source, replica.dataset.path, "--heal")
            complain("note", f"{data} kept{first}: {reason}; {heal} returns what it can prove")
        else:
            found = command("check", replica.source)
            how = f"if {found} finds it there, mend it there, and the next pull fetches it"
            complain("warning", f"{data} missing{first}: {reason}; {how}")


def _counts(found: Any, *names: str) -> str:
    """Return the counts that are not 0, with the names that they have in JSON."""
    return ", ".join(f"{count} {name}" for name in names if (count := getattr(found, name)))


def _show_pulled(path: str, pulled: Pulled, output: Output) -> None:
    keys = ("source", "offset", "stored", "deleted", "present", "old", "lost", "unreadable", "bytes", "missing", "kept")
    lag = pulled.lag
    differences = [{"seq": each.seq, "lost": each.is_lost, "reason": each.reason} for each in pulled.differences]
    values = {"replica": path, **values_of(pulled, *keys), "lag": lag._asdict(), "differences": differences}
    done = f"{pulled.stored} stored, {pulled.deleted} deleted"
    if others := _counts(pulled, "present", "old", "missing", "kept"):
        done += f", {others}"
    left = f"{counted(lag.changes, 'change')} left" if lag.changes else "nothing left"
    output.show([values], [f"{path}: {done}; {counted(pulled.bytes, 'byte')}; change {pulled.offset}, {left}"])


def _show_compared(path: str, found: Verified, output: Output) -> None:
    from ondisk.json_values import format_time

    kinds = ("missing", "extra", "differs", "damaged", "unreadable", "lost", "aged")
    findings = [{"seq": each.seq, "kind": each.kind, "reftime": format_time(each.reftime)} for each in found.findings]
    lines = []
    for each in found.segments:
        more = f" and {each.count - 1} more" * (each.count > 1)
        time = format_time(each.first.reftime)
        lines.append(f"{each.kind}: datum {each.first.seq} of {time}{more}, in {each.segment}")
    left = f"; {counted(found.left, 'later change')} not compared" if found.left else ""
    lines.append(f"{path}: {_counts(found, *kinds) or 'nothing differs'}; up to change {found.offset}{left}")
    values = {"replica": path, **values_of(found, "source", "offset", "left", *kinds), "findings": findings}
    output.show([values], lines)


def _show_reconciled(path: str, done: Reconciled, output: Output, *, dry_run: bool) -> None:
    from ondisk.json_values import format_time

    keys = ("source", "mode", "offset", "fetched", "renumbered", "deleted", "replaced", "kept", "extra", "missing",
            "bytes", "unmended")  # fmt: skip
    listed = {name: [seq for seq, _ in getattr(done, name)] for name in ("deletions", "extras")}

    def lines() -> Iterator[str]:
        for what, some, count in (("deleted", done.deletions, done.deleted), ("extra", done.extras, done.extra)):
            yield from (f"{what}: datum {seq} of {format_time(reftime)}" for seq, reftime in some)
            if count > len(some) > 0:
                yield f"{what}: and {count - len(some)} more"
        for name in done.unmended:
            problem = f"data of {name} are damaged, and the source does not have all that it needs to mend it"
            complain("warning", f"{problem}: run {command('fix', path, '--salvage', name, '--yes')}, then this again")
        counts = f"{done.fetched} fetched, {done.deleted} deleted"
        if others := _counts(done, "renumbered", "replaced", "kept", "extra", "missing"):
            counts += f", {others}"
        how = "; --yes does it" * (dry_run and done.has_work)
        yield f"{path}: {'would be ' * dry_run}{counts}; change {done.offset}{how}"

    output.show([{"replica": path, "dry_run": dry_run, **values_of(done, *keys), **listed}], lines())


def _show_healed(path: str, healed: Healed, output: Output, *, dry_run: bool) -> None:
    values = {"replica": path, "dry_run": dry_run, **values_of(healed, "source", "lost", "unreadable", "left", "bytes")}
    remaining = [{"seq": seq, "reason": reason} for seq, reason in healed.reasons]

    def lines() -> Iterator[str]:
        for seq, reason in healed.reasons:
            complain("warning", f"the datum {seq} did not return: {reason}")
        how = "; --yes does it" * (dry_run and healed.has_work)
        counts = _counts(healed, "lost", "unreadable", "left") or "nothing"
        yield f"{path}: {'would return' if dry_run else 'returned'} to the source: {counts}{how}"

    output.show([values | {"remaining": remaining}], lines())


def _export(replica: Replica, arguments: argparse.Namespace) -> None:
    """Write the token file. If that fails, the token is still in the replica's index."""
    if arguments.token_file is None or replica.followed is None:
        return
    try:
        aside = replica.export(arguments.token_file)
    except OndiskError as error:
        complain("warning", f"the token file was not written: {error}")
    else:
        if aside is not None:
            complain("warning", aside)


def _bandwidth(text: str) -> float:
    parts = re.fullmatch(r"([0-9]{1,12})([KMG]?)", text)
    if parts is None or int(parts[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes in a second, such as 500K or 5M")
    return float(int(parts[1]) * _UNITS[parts[2]])


def add_promote(parser: argparse.ArgumentParser) -> None:
    """Make a replica an ordinary dataset, which takes all writes and follows no source. A dry run without --yes.

    ondisk promote /backup/weather
    ondisk promote /backup/weather --yes
    """
    parser.add_argument("replica", metavar="REPLICA", type=path, help="the replica's directory")


def run_promote(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.cli.dataset import open_dataset
    from ondisk.replication.replica import check_replica, promote

    with promote(arguments.replica) if arguments.yes else open_dataset(arguments.replica, read_only=True) as dataset:
        if not arguments.yes:
            check_replica(dataset)
        info = dataset.info()
    done = f"is an ordinary dataset now, with the UUID {info['uuid']}"
    what = done if arguments.yes else "would become an ordinary dataset; --yes does it"
    values = {"dataset": info["path"], "uuid": info["uuid"], "dry_run": not arguments.yes}
    output.show([values], [f"{info['path']} {what}"])
    return EXIT_DONE if arguments.yes else EXIT_FINDINGS


def add_token(parser: argparse.ArgumentParser) -> None:
    """Print the tokens in a token file: how far a replica has followed its sources. Or verify the file.

    ondisk token show replica.tokens
    ondisk token verify replica.tokens --json
    ondisk token show /mnt/u001/replicaTokens --layout ambry
    """
    parser.add_argument("verb", metavar="show|verify", choices=("show", "verify"), help="print each token; check it")
    parser.add_argument("file", metavar="FILE", type=path, help="a token file")
    parser.add_argument(
        "--layout",
        metavar="ondisk|ambry",
        choices=("ondisk", "ambry"),
        default="ondisk",
        help="who wrote it: a replica of ondisk (default), or Ambry's own code",
    )


def run_token(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.cli.output import shown_value
    from ondisk.replication import ambry_token_files as ambry
    from ondisk.replication import token

    content = token.content_of(arguments.file)
    entries: list[token.Entry] | list[ambry.Entry]
    if arguments.layout == "ondisk":
        entries = token.decode(content, arguments.file)
    else:
        entries = ambry.decode(content, arguments.file).entries
    latest = [*{entry.identity: entry for entry in entries}.values()]
    if arguments.verb == "show":
        described = [each.described() for each in latest]
        rows = ("  ".join(f"{key}={shown_value(value)}" for key, value in each.items()) for each in described)
        output.show(described, chain(rows, [counted(len(latest), "token")]))
    else:
        count, superseded, size = len(latest), len(entries) - len(latest), len(content)
        values = {"file": arguments.file, "layout": arguments.layout, "tokens": count, "superseded": superseded}
        more = f"; {superseded} more are superseded" * bool(superseded)
        line = f"{arguments.file}: {counted(count, 'token')} in {counted(size, 'byte')}; nothing is damaged{more}"
        output.show([values | {"size": size}], [line])
    return EXIT_DONE
