"""What a run of a pipeline did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ondisk.dataset.append import AppendResult
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, EXIT_FINDINGS
from ondisk.maintenance.maintain import Maintained, worst
from ondisk.pipeline.divide_file import CHANGED, NAMED
from ondisk.segment import Damage


@dataclass(slots=True)
class PipelineReport:
    """What a run of a pipeline did; after a dry run, what it would do."""

    name: str  # the pipeline's name
    dry_run: bool = False  # nothing was written; `imported` then counts duplicates, too
    found: int = 0  # number of files in the folder
    known: int = 0  # number of these that an earlier run imported
    imported: int = 0  # number of files that this run imported
    # files that changed while they were read; the next run imports them
    changed: list[str] = field(default_factory=list)
    # files that could not be read, and why; the next run tries again
    failed: list[tuple[str, str]] = field(default_factory=list)
    # name of a dataset that was restored or created again → number of known files imported into it again
    again: dict[str, int] = field(default_factory=dict)
    # name of such a dataset → number of files that it lacks and that are no longer in the folder
    lacking: dict[str, int] = field(default_factory=dict)
    # result for each dataset; refused data that match no dataset count for the one for errors
    datasets: dict[str, AppendResult] = field(default_factory=dict)
    refusals: list[tuple[str, str]] = field(default_factory=list)  # file and reason for refused data; the first 100
    damage: list[tuple[str, Damage]] = field(default_factory=list)  # file and damaged place; the first 100
    damaged: int = 0  # number of damaged places
    notes: list[tuple[str, str]] = field(default_factory=list)  # file and note
    maintained: list[Maintained] = field(default_factory=list)  # what maintenance did
    _codes: set[int] = field(default_factory=set, repr=False)

    @property
    def refused(self) -> int:
        return sum(each.refused for each in self.datasets.values())

    @property
    def kept(self) -> list[str]:
        """What was in the way of the data, and is kept in quarantine: dataset and item."""
        return [f"{name}: {item}" for name, result in self.datasets.items() for item in result.kept]

    @property
    def exit_code(self) -> int:
        own = EXIT_FINDINGS if self.dry_run and (self.imported or self.again) else EXIT_DONE
        if self.refused or self.damaged or self.lacking:
            own = EXIT_DATA_SKIPPED
        elif self.kept:
            own = EXIT_FINDINGS
        return worst([own, *self._codes, *(each.exit_code for each in self.maintained)])

    def add(self, name: str, answer: dict[str, Any], again: str | None = None) -> None:
        """Add the answer of the task that read a file. `again`: the dataset that it was imported into again."""
        if "left" in answer:
            if answer["left"] == CHANGED:
                self.changed.append(name)
            else:
                self.failed.append((name, answer["left"]))
                self._codes.add(answer["code"])
            return
        if again is None:
            self.imported += 1
        elif answer["counts"] or answer["refused"]:
            self.again[again] = self.again.get(again, 0) + 1
        results = [*self.datasets.values()]
        for at, count in answer["refused"]:
            results[at].refused += count
        if self.dry_run:
            for at, count in answer["counts"]:
                results[at].imported += count
        self.refusals += [(name, reason) for _, reason in answer["refusals"][: NAMED - len(self.refusals)]]
        self.damage += [(name, Damage(*each)) for each in answer["damage"][: NAMED - len(self.damage)]]
        self.damaged += answer["damaged"]
        self.notes += [(name, note) for note in answer["notes"]]
