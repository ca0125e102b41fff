"""A pipeline: files of a folder are divided among datasets, each datum by the filter that it matches.

A file is imported once. Every commit stores the marks of the files whose data it stores (`ondisk.index.import_log`).
The dataset for errors is committed last and stores the marks of all files. After a kill, the next run imports again the
files that the dataset for errors does not know, and each dataset skips the files that it has stored. Each commit also
stores the filters that divided its files: a file is never divided half by old and half by new filters, also if the
dataset for errors was restored. And this notes what each other dataset has: one that was restored gets what it lacks,
see `ondisk.pipeline.lost_imports`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import uuid4

from ondisk.dataset.append import AppendResult, refuse_old
from ondisk.dataset.auxiliary_files import CONFIG, check_takes_data, open_directory
from ondisk.dataset.dataset import Dataset
from ondisk.errors import ConfigError, NotFound, OndiskError, StateError, StorageError
from ondisk.files.append import UNFINISHED
from ondisk.filesystem import PipelineLock
from ondisk.formats import Format, find
from ondisk.index import import_log
from ondisk.index.import_log import Mark
from ondisk.index.index import dump
from ondisk.index.transaction import Transaction
from ondisk.maintenance.maintain import maintain
from ondisk.maintenance.metrics import write
from ondisk.pipeline.config import PipelineConfig, holds_dataset, plain
from ondisk.pipeline.divide_file import NAMED, ImportOptions, InputFile, read_again
from ondisk.pipeline.lost_imports import Lacking, Note, lacking_of
from ondisk.pipeline.report import PipelineReport
from ondisk.staging.jobs import STAGED, remove_all
from ondisk.staging.stage import FinishedStage, Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ondisk.workers.work import Answer

_FILE = 64 * 1024  # the fixed cost of a file, as bytes that are added to its size


class _Filters(NamedTuple):
    """The filters by the names of the datasets in the configuration, numbered: a change of filters counts up."""

    number: int
    of: dict[str, str | None]


def pipeline(
    config: str | os.PathLike[str], spark: SparkSession | None = None, *, dry_run: bool = False
) -> PipelineReport:
    """Import the new files of a folder into the datasets that they belong to, then maintain the datasets.

    See docs/pipeline.md.

    Args:
        config: path of the configuration.
        spark: a session whose executors read the files; with None, processes of this machine read them, unless the
            configuration has a `master`: then a run with new files takes the running session or starts one.
        dry_run: only report what would be done.

    Raises:
        ConfigError: the configuration of the pipeline or of a dataset is wrong.
        LockError: another run of the pipeline is at work.
        OndiskError: a commit failed; its context has the `report` of what was done before. The next run continues.

    Durability: data of some files are committed at a time: duplicates before the commit that skips them, the dataset
        for errors last. A kill at any moment loses no datum and stores none twice.
    Locks: the lock of the pipeline for the whole run, without waiting; the writers' locks during commits.
    """
    with Pipeline.open(config, dry_run=dry_run) as run:
        if run.to_read:
            if spark is None and run.config.master is not None:
                from ondisk.spark.session import session

                spark = session(run.config.master)
            run.import_files(spark)
        run.maintain()
        return run.report


class Pipeline:
    def __init__(self, config: PipelineConfig, datasets: list[Dataset], *, dry_run: bool) -> None:
        self.config = config
        self.report = PipelineReport(config.name, dry_run)
        self._datasets = datasets
        self._errors = datasets[len(config.datasets)]
        # Pipelines with the same name and different datasets for errors can run at the same time.
        own = f"{config.name}\0{plain(os.path.realpath(config.resolve(config.error)))}"
        self._own = f"pipeline-{hashlib.sha256(own.encode()).hexdigest()[:16]}-"
        self.waiting: list[InputFile] = []  # the new files, in their order
        self.lacking: list[Lacking] = []  # datasets that lack known files
        self._known: list[InputFile] = []
        self._begun: list[tuple[_Filters, list[InputFile]]] = []
        self._notes: dict[str, Note] = {}
        self._filters_of = f"{config.name}: filters"
        self._filters = _Filters(0, {})
        self._saved: list[_Filters] = []
        self._unsaved: list[str] = []  # those that the dataset for errors does not have, as JSON

    @classmethod
    @contextlib.contextmanager
    def open(cls, config: str | os.PathLike[str], *, dry_run: bool = False) -> Iterator[Self]:
        """Lock the pipeline for the length of a block, and find its new files; errors are those of `pipeline`."""
        read = PipelineConfig.read(config)
        with contextlib.ExitStack() as stack:
            if not dry_run:
                errors = stack.enter_context(open_directory(read.resolve(read.error)))
                stack.enter_context(PipelineLock(errors).hold("pipeline"))
            opened = (Dataset.open(read.resolve(each), read_only=dry_run) for each in read.all)
            run = cls(read, [stack.enter_context(each) for each in opened], dry_run=dry_run)
            run._check()
            run._find()
            run._find_begun()
            run._find_lacking()
            run._sweep()
            try:
                yield run
            except OndiskError as error:
                error.context["report"] = run.report
                raise

    def import_files(
        self, spark: SparkSession | None = None, progress: Callable[[int], None] = lambda size: None
    ) -> None:
        """Import the files: executors read them, or else processes of this machine; `progress` gets their sizes."""
        self._spark, self._progress = spark, progress
        for each in self.lacking:
            self._import_again(each)
        for filters, files in self._begun:
            before = len(self.report.failed)
            self._import(files, filters)
            if self.report.failed[before:]:
                name, reason = self.report.failed[before]
                raise StateError(
                    f"{name}: {reason}; it was partly imported, and must be finished with the filters of that time",
                    hint="Correct or remove the file, or restore the earlier filters.",
                )
        if not self.report.dry_run:
            self._save_filters()
        begun = {file for _, files in self._begun for file in files}
        self._import([file for file in self.waiting if file not in begun], self._filters)

    def _import_again(self, lacking: Lacking) -> None:
        name, failed = lacking.name, len(self.report.failed)
        if not self.report.dry_run:
            self._note(name, lacking.note)  # so that the next run continues if this one is killed
        for filters, files in self._by_filters(lacking.files, [self._errors]).items():
            self._import(files, self._saved[filters], lacking.at)
        if len(self.report.failed) == failed:
            self._end_again(lacking)

    def _end_again(self, lacking: Lacking) -> None:
        """Note that nothing is left to be imported again into a dataset."""
        name = lacking.name
        if rest := lacking.rest(self.report.again.get(name, 0)):
            self.report.lacking[name] = rest
        if not self.report.dry_run:
            note = Note.of(self._datasets[lacking.at], self.config.name)
            # The disk of an empty folder may not be mounted: then it is still to get the files.
            self._note(name, lacking.note if rest and not self.report.found else note)

    def _import(self, found: Sequence[InputFile], filters: _Filters, only: int | None = None) -> None:
        """Import files. `only`: the number of the dataset that the files are imported into again."""
        config = self.config
        names = (*config.datasets, config.error)
        paths = [str(config.resolve(name)) for name in names]
        options = ImportOptions(
            str(config.input), paths, [filters.of.get(name) for name in names], self.report.dry_run, only
        )
        files = {json.dumps(file): file for file in found}
        weights = {name: file.size + _FILE for name, file in files.items()}
        job = f"{STAGED}/{self._own}{uuid4().hex}"
        answers = self._answers(paths[-1], weights, job, json.dumps(asdict(options)))
        try:
            with contextlib.closing(answers):
                for own, group in groupby(answers, key=itemgetter("job")):
                    done = [(files[answer["segment"]], answer) for answer in group]
                    if not self.report.dry_run:
                        self._commit(own, [each for each in done if "staged" in each[1]], filters, only)
                    for file, answer in done:
                        self.report.add(file.name, answer, None if only is None else config.datasets[only])
                        self._progress(file.size)
        finally:
            self._sweep()

    def _answers(self, path: str, weights: dict[str, int], job: str, option: str) -> Generator[Answer, None, None]:
        """Carry out `ondisk.pipeline.divide_file.import_file` for each file, and yield the answers in their order."""
        if self._spark is None:
            from ondisk.workers import work

            return work.imports(path, weights, job, option)
        from ondisk.spark.executors import answers

        return answers(self._spark, path, "pipeline", weights, job, option=option, in_order=True)

    def maintain(self, progress: Callable[[str], None] = lambda name: None) -> None:
        """Maintain all datasets unless the configuration excludes it; `progress` gets the name of each segment."""
        settings = self.config.maintenance
        if settings is None or self.report.dry_run:
            return
        for dataset in self._datasets:
            self.report.maintained.append(maintain(dataset.path, max_duration=settings.max_duration, progress=progress))
        if settings.metrics is not None:
            write(settings.metrics, self.report.maintained)

    def _check(self) -> None:
        names, config = self.config.all, self.config
        by_name = dict(zip(names, self._datasets, strict=True))
        for each in self._datasets:
            check_takes_data(each.path, each.config)
        filtered = [by_name[name] for name in config.datasets]
        for each in filtered:
            if each.config.filter is None:
                hint = 'Add a line such as filter = "reftime: >=2020" to its dataset.toml; "" matches everything.'
                raise ConfigError(f"{each.path / CONFIG}: filter is required for a dataset of a pipeline", hint=hint)
        for name in names[len(filtered) :]:
            for each in filtered:
                _check_holds(by_name[name], each)
        self.report.datasets = {name: AppendResult() for name in names}

    def _find(self) -> None:
        found = [*input_files(self.config.input, self._unreadable)]
        known = self._errors.stored(map(self._mark, found))
        self.waiting = [file for file in found if self._mark(file) not in known]
        self._known = [file for file in found if self._mark(file) in known]
        self.report.found, self.report.known = len(found), len(found) - len(self.waiting)

    def _find_begun(self) -> None:
        """Find the files that a dataset has, the one for errors does not know, and other filters than now divided.

        A run was killed, or the dataset for errors was restored.
        """
        filtered = dict(zip(self.config.datasets, self._datasets, strict=False))
        now = {name: dataset.config.filter for name, dataset in filtered.items()}
        own, *others = (each.parts_of(self._filters_of) for each in (self._errors, *filtered.values()))
        found = (_Filters(*json.loads(str(part))) for part in dict.fromkeys(chain(own, *others)))
        self._saved = saved = sorted(found, key=itemgetter(0))
        last = saved[-1] if saved else _Filters(0, {})
        same = (each for each in reversed(saved) if each.of == now)
        self._filters = next(same, _Filters(last.number + 1, now))
        self._unsaved = [each for each in dict.fromkeys(map(json.dumps, (*saved, self._filters))) if each not in own]
        if all(each == self._filters for each in saved):
            return
        with contextlib.ExitStack() as stack:
            datasets = [*filtered.values()]
            for name in sorted(last.of.keys() - now):
                with contextlib.suppress(NotFound):
                    opened = Dataset.open(self.config.resolve(name), read_only=True)
                    datasets.append(stack.enter_context(opened))
            stored = set().union(*(each.stored(map(self._mark, self.waiting)) for each in datasets))
            divided = self._by_filters([file for file in self.waiting if self._mark(file) in stored], datasets)
        self._begun = [(saved[at], files) for at, files in divided.items() if saved[at] != self._filters]
        for filters, files in self._begun:
            for missing in sorted(filters.of.keys() - now):
                begun = f"an interrupted run has begun to divide {files[0].name} among {', '.join(filters.of)}"
                raise self._missing(missing, begun)

    def _find_lacking(self) -> None:
        """Find datasets that lack known files; see `ondisk.pipeline.lost_imports.lacking_of`."""
        for at, name in enumerate(self.config.datasets):
            dataset = self._datasets[at]
            now, before = Note.of(dataset, self.config.name), Note.noted(self._errors, self._noted_as(name))
            self._notes[name] = now
            if before is None:
                continue
            if found := lacking_of(at, name, dataset, before, now, self._lacked(name, dataset)):
                self._notes[name] = found.note  # until it has the files: notes on other datasets are saved before
                if found.files:
                    self.lacking.append(found)
                else:
                    self._end_again(found)

    def _lacked(self, name: str, dataset: Dataset) -> Iterator[InputFile]:
        """Yield the known files that a dataset has no mark of, and that were divided while it was in the pipeline."""
        stored = dataset.stored(map(self._mark, self._known))
        unmarked = [file for file in self._known if self._mark(file) not in stored]
        for filters, files in self._by_filters(unmarked, [self._errors]).items():
            of = self._saved[filters].of
            if name not in of:
                continue
            for missing in sorted(of.keys() - {*self.config.datasets}):
                raise self._missing(missing, f"{files[0].name} must be divided again among {', '.join(of)}")
            yield from files

    def _by_filters(self, files: Iterable[InputFile], datasets: Sequence[Dataset]) -> dict[int, list[InputFile]]:
        """Return files that datasets have by the filters that divided them: a place in the list of all → files."""
        rest, found = [*files], dict[int, list[InputFile]]()
        for at in reversed(range(1, len(self._saved))):
            marks = {file: Mark(self._divided_by(self._saved[at]), file.mark) for file in rest}
            stored = set().union(*(each.stored(marks.values()) for each in datasets))
            found[at] = [file for file in rest if marks[file] in stored]
            rest = [file for file in rest if marks[file] not in stored]
        found[0] = rest  # by the first filters; no mark says so
        return {at: found[at] for at in sorted(found) if found[at]}

    def _save_filters(self) -> None:
        if self._unsaved:
            marks = [Mark(self._filters_of, each) for each in self._unsaved]
            staged = [FinishedStage("", 0, dump(self._errors.config), mark) for mark in marks]
            self._errors.append_staged(f"{self._own}{uuid4().hex}", staged)
            self._unsaved.clear()
        if self._filters not in self._saved:
            self._saved.append(self._filters)

    @property
    def to_read(self) -> list[InputFile]:
        """The files that tasks read, those that are imported again first."""
        return [*(file for each in self.lacking for file in each.files), *self.waiting]

    def _divided_by(self, filters: _Filters) -> str:
        """Return the source of the marks of files that some filters divided, except the first ones."""
        return f"{self.config.name}: filters {filters.number}"

    def _noted_as(self, name: str) -> str:
        return f"{self.config.name}: state of {name}"

    def _note(self, name: str, note: Note) -> None:
        self._notes[name] = note
        self._errors.append_staged(f"{self._own}{uuid4().hex}", [], record=lambda to, _: self._save_notes(to))

    def _save_notes(self, transaction: Transaction) -> None:
        for name, note in self._notes.items():
            import_log.note(transaction, self._noted_as(name), json.dumps(note))

    def _missing(self, name: str, reason: str) -> ConfigError:
        problem = f"{self.config.path}: datasets: {name!r} is missing; {reason}"
        return ConfigError(problem, hint=f"Add {name!r} until a run has succeeded.")

    def _mark(self, file: InputFile) -> Mark:
        return Mark(self.config.name, file.mark)

    def _unreadable(self, error: OSError) -> None:
        folder = plain(os.path.relpath(error.filename, self.config.input))
        self.report.add(folder, {"left": error.strerror, "code": StorageError.exit_code})

    def _sweep(self) -> None:
        """Remove the files that this run, or a killed one before it, has staged and not committed."""
        if self.report.dry_run:
            return
        for dataset in self._datasets:
            with open_directory(dataset.path) as directory:
                remove_all(directory, self._own)

    def _commit(
        self, job: str, done: Sequence[tuple[InputFile, dict[str, Any]]], filters: _Filters, only: int | None
    ) -> None:
        """Commit the staged data of some files; in the dataset for errors last, which marks files as imported."""
        config = self.config
        last = len(config.datasets)

        def record(at: int, marked: Sequence[InputFile], transaction: Transaction, _: AppendResult) -> None:
            marks = {Mark(self._filters_of, json.dumps(filters))}
            if filters.number > self._saved[0].number:
                marks |= {Mark(self._divided_by(filters), file.mark) for file in marked}
            import_log.save(transaction, marks - import_log.known(transaction, marks))
            if at == last:
                self._save_notes(transaction)

        for at, dataset in enumerate(self._datasets[: last + 1]):
            if only not in (None, at):
                continue
            staged, marked, files = [], [], {}
            for file, answer in done:
                mark = self._mark(file)
                mine = next((each[1:] for each in answer["staged"] if each[0] == at), None)
                if mine is not None:
                    staged.append(FinishedStage(mine[0], mine[1], mine[2], mark))
                    files[mine[0]] = file
                elif at == last:
                    staged.append(FinishedStage("", 0, dump(dataset.config), mark))
                if mine is not None or at == last:
                    marked.append(file)
            if staged:
                # What was imported again was a duplicate before, too, or is one because it is there.
                duplicates = self._duplicates(at, job, files) if only is None else None
                result = dataset.append_staged(job, staged, duplicates=duplicates, record=partial(record, at, marked))
                self.report.datasets[config.all[at]].extend(result)
                if only is None and at != last:
                    note, stored = self._notes[config.all[at]], len(staged) - len(result.skipped)
                    self._notes[config.all[at]] = note._replace(files=note.files + stored)

    def _duplicates(
        self, at: int, job: str, files: dict[str, InputFile]
    ) -> Callable[[Iterator[tuple[str, Format, list[bytes]]]], None] | None:
        """Return a function that stores the duplicates of a dataset, before the commit that skips them.

        Their mark has a checksum of them: after a kill between the two commits, other data may be duplicates.
        """
        name = self.config.duplicates
        if name is None:
            return None
        duplicates, result = self._datasets[-1], self.report.datasets[name]
        source = f"{self.config.name}: {self.config.all[at]}"

        def store(found: Iterator[tuple[str, Format, list[bytes]]]) -> None:
            own, staged = f"{job}-{at}", []
            with open_directory(duplicates.path) as directory:
                for stage_name, parts in groupby(found, key=itemgetter(0)):
                    file, checksum = files[stage_name], hashlib.sha256()
                    with Stage(directory, duplicates.config, own, stage_name) as stage:
                        for _, format, payloads in parts:
                            for each in payloads:
                                checksum.update(each)
                            mine = find(format.name)(duplicates.config)
                            batch = read_again(payloads, mine)
                            refuse_old(batch, duplicates.config)
                            result.refused += len(batch.refused)
                            refused = [(file.name, reason) for _, reason in batch.refused]
                            self.report.refusals += refused[: NAMED - len(self.report.refusals)]
                            stage.add(batch, mine)
                        staged.append(stage.finish(Mark(source, f"{checksum.hexdigest()} {file.mark}")))
            result.extend(duplicates.append_staged(own, staged))

        return store


def _check_holds(keeper: Dataset, filtered: Dataset) -> None:
    """Raise unless a dataset for errors or duplicates can hold the data of another dataset."""
    place, mine, other = keeper.path / CONFIG, keeper.config, filtered.config
    if mine.unique:
        hint = "Remove the line: this dataset keeps every datum."
        raise ConfigError(f"{place}: unique: must be empty in a dataset for errors or duplicates", hint=hint)
    for key in ("max_datum_size", "max_depth"):
        if getattr(mine, key) < getattr(other, key):
            raise ConfigError(
                f"{place}: {key}: {getattr(mine, key)} is less than the {getattr(other, key)} of {filtered.path}",
                hint=f"Write {key} = {getattr(other, key)}.",
            )
    for name, kind in mine.fields.items():
        if other.fields.get(name, kind) is not kind:
            raise ConfigError(
                f"{place}: fields.{name}: is {kind}, and {other.fields[name]} in {filtered.path}",
                hint="Remove the line: the data keep fields that are not declared.",
            )


def input_files(folder: Path, unreadable: Callable[[OSError], None]) -> Iterator[InputFile]:
    """Yield the files in a folder and its subfolders, in a fixed order; `unreadable` gets errors of subfolders.

    Skips hidden files and folders, unfinished files (`.tmp`, `.part`), links to folders, and datasets.
    """

    def failed(error: OSError) -> None:
        if error.filename == str(folder):
            if isinstance(error, FileNotFoundError):
                raise NotFound(f"{folder}: no such folder", hint="Create it, or correct `input`.") from None
            raise StorageError(f"{folder}: {error.strerror}", errno=error.errno) from error
        if not isinstance(error, FileNotFoundError):  # it was removed meanwhile
            unreadable(error)

    for parent, folders, names in os.walk(str(folder), onerror=failed):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and not holds_dataset(Path(parent, name))
        )
        for name in sorted(names):
            if name.startswith(".") or name.endswith(UNFINISHED):
                continue
            path = Path(parent, name)
            try:
                found = path.stat()
            except OSError:  # it was removed, or is a broken link
                continue
            if stat.S_ISREG(found.st_mode):
                yield InputFile(str(path.relative_to(folder)), found.st_size, found.st_mtime_ns)
