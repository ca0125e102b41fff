"""Rules about code: imports go down only, only `filesystem/` touches the disk, and each module has a test file."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "ondisk"

pytestmark = pytest.mark.xdist_group("architecture")  # one process parses all modules, not each

# From the ground up. A module imports from its own row and from rows above it in this table.
FLOORS = [
    "errors",
    "named_tuple",
    "batched",
    "items",
    "malloc",
    "filesystem",
    "datum",
    "local_time",
    "step",
    "json_values",
    "table_options",
    "config",
    "keys",
    "segment",
    "frame",
    "formats",
    "matcher",
    "segments",
    "index",
    "staging",
    "dataset",
    "tables",
    "files",
    "maintenance",
    "backup",
    "queue",
    "arkimet",
    "pipeline",
    "workers",
    "backends",
    "replication",
    "spark",
    "server",
    "__init__",  # the door: what `import ondisk` gives
    "cli",
    "__main__",
]

DOORS = {
    "dataset/dataset.py": {"backup", "maintenance", "queue", "replication", "spark", "tables"},
    "dataset/info.py": {"replication"},
    "dataset/input_file.py": {"tables"},
    "dataset/merged.py": {"tables"},
    "dataset/queryable.py": {"tables"},
    "pipeline/run.py": {"spark", "workers"},
}
"""Functions here import from rows above: `Dataset` is the one door to everything, an append reads tables, queries
return them, and `pipeline` starts processes."""

GUESTS = re.compile("replica|queue|consumer|spark|elliptics|backup", re.IGNORECASE)
MOST_LINES = 60
"""How many lines of the core name a guest. Lower it when there are fewer."""
MOST_MODULES = 30
"""How many modules may contain the word archive. Lower it when there are fewer."""

_OS = {
    *("open", "close", "read", "write", "pread", "pwrite", "readv", "writev", "fsync", "fdatasync", "truncate"),
    *("ftruncate", "rename", "replace", "link", "symlink", "unlink", "remove", "mkdir", "makedirs", "rmdir"),
    *("chmod", "utime", "lockf", "sendfile", "copy_file_range", "posix_fallocate"),
}
_PATH = {
    *("open", "read_bytes", "read_text", "write_bytes", "write_text", "touch", "rename", "unlink", "mkdir", "rmdir"),
    *("symlink_to", "hardlink_to"),
}
_MODULES = {"fcntl", "filelock", "mmap", "shutil", "tempfile"}
# What has methods of these names, and stands on filesystem itself.
_OURS = {
    "Dataset",
    "Directory",
    "Index",
    "Merged",
    "Pipeline",
    "Replica",
    "Target",
    "directory",
    "_directory",
    "folder",
    "ondisk",
}

OUTSIDE = {
    ("cli/streams.py", "os.open"),  # /dev/null, in the place of a closed stream
    ("cli/streams.py", "open"),  # the input that a command is given
    ("dataset/input_file.py", "open"),  # the file that append_file is given
    ("files/export.py", "sqlite3.connect"),  # a temporary file without a name
    ("index/connection.py", "sqlite3.connect"),
    ("index/index.py", "sqlite3.connect"),
    ("index/convert.py", "sqlite3.connect"),
    ("index/convert.py", "tempfile"),  # the copies of a dry run, which SQLite attaches
    ("keys.py", "os.open"),  # the key file, which is in no dataset
    ("replication/compare.py", "sqlite3.connect"),  # a temporary file without a name
    ("staging/rows.py", "sqlite3.connect"),
}
"""What may touch the disk besides filesystem."""


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Parse all modules: path below ondisk/ → what it says."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def row(path: str) -> str:
    return path.partition("/")[0].removesuffix(".py")


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the rows that a module of ours imports from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "ondisk":
                first = rest.partition(".")[0]
                yield first if first in FLOORS else "__init__"


def touches(tree: ast.Module) -> Iterator[str]:
    """Yield the ways in which a module touches the disk."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name("open")):
                yield "open"
            case ast.Call(ast.Attribute(ast.Name("os" | "sqlite3" as module), name)):
                if name in (_OS if module == "os" else {"connect"}):
                    yield f"{module}.{name}"
            case ast.Call(ast.Attribute(ast.Name(receiver) | ast.Attribute(_, receiver), name)):
                if name in _PATH and receiver not in _OURS:
                    yield name
            case ast.Call(ast.Attribute(_, name)):
                if name in _PATH:
                    yield name
            case ast.Import(names):
                yield from (alias.name for alias in names if alias.name in _MODULES)
            case ast.ImportFrom(module):
                if module in _MODULES:
                    yield module


TESTED_ELSEWHERE = {
    "backends/elliptics/objects.py": "backends/elliptics/test_backend.py",
    "backends/elliptics/settings.py": "backends/elliptics/test_backend.py",
    "backup/point.py": "backup/test_target.py",
    "cli/about.py": "cli/test_info.py",  # and scan, completion, spark-jar
    "cli/arguments.py": "cli/test_cli.py",
    "cli/backups.py": "cli/test_backup.py",  # and restore, quarantine
    "cli/configuration.py": "cli/test_init.py",  # and migrate
    "cli/dataset.py": "cli/test_cli.py",
    "cli/maintenance.py": "cli/test_fix.py",  # and check, repack, archive, maintain, adopt, ack
    "cli/matching.py": "cli/test_query.py",  # and summary, delete
    "cli/pipeline.py": "pipeline/test_run.py",  # with and without Spark
    "cli/output.py": "cli/test_docs.py",  # every shape in docs/cli.md
    "cli/replication.py": "cli/test_replicate.py",  # and token
    "cli/reports.py": "cli/test_check.py",  # and fix, repack, maintain
    "cli/streams.py": "cli/test_append.py",
    "dataset/access.py": "dataset/test_append.py",  # lost indices, the sentinel, failed syncs
    "dataset/place_checks.py": "maintenance/test_archive.py",
    "dataset/batch_writer.py": "dataset/test_append.py",
    "dataset/input_file.py": "dataset/test_append.py",
    "dataset/datum_as_json.py": "properties/test_datum_as_json.py",
    "dataset/output_file.py": "tables/test_arrow_write.py",
    "dataset/queryable.py": "dataset/test_query.py",
    "dataset/segment_bytes.py": "server/test_byte_ranges.py",
    "dataset/summaries.py": "maintenance/test_archive.py",  # archives that are offline
    "formats/diskqueue/cbor.py": "formats/diskqueue/test_payload.py",
    "formats/diskqueue/cbor_payload.py": "formats/diskqueue/test_payload.py",
    "formats/diskqueue/begin_and_end.py": "formats/diskqueue/test_seg.py",
    "formats/diskqueue/event.py": "formats/diskqueue/test_payload.py",
    "formats/diskqueue/json_payload.py": "formats/diskqueue/test_kinds.py",
    "formats/diskqueue/protobuf.py": "formats/diskqueue/test_kinds.py",
    "formats/metadata.py": "formats/diskqueue/test_seg.py",
    "index/atomic_change.py": "index/test_transaction.py",
    "index/changes.py": "replication/test_feed.py",
    "index/field_values.py": "dataset/test_read.py",  # summaries
    "index/groups.py": "dataset/test_groups.py",
    "index/convert.py": "maintenance/test_migrate.py",
    "replication/source_rows.py": "replication/test_replica.py",
    "index/segment_rows.py": "index/test_snapshot.py",
    "index/swap.py": "maintenance/test_migrate.py",
    "maintenance/duplicates.py": "maintenance/test_contents.py",
    "maintenance/compare.py": "maintenance/test_fix.py",
    "maintenance/rescan.py": "maintenance/test_fix.py",
    "index/connections.py": "index/test_index.py",
    "index/merge_indices.py": "maintenance/test_old_archives.py",
    "maintenance/new_file.py": "maintenance/test_repack.py",
    "maintenance/durable_steps.py": "maintenance/test_repack.py",
    "maintenance/second_copy.py": "maintenance/test_moved_by_hand.py",
    "maintenance/states.py": "maintenance/test_diagnosis.py",
    "replication/__init__.py": "replication/test_replica.py",
    "replication/compare.py": "replication/test_reconcile.py",
    "matcher/__init__.py": "matcher/test_docs.py",  # docs/match.md imports the names from it
    "matcher/fragments.py": "matcher/test_parser.py",
    "replication/wire.py": "replication/test_http_source.py",
    "segment.py": "segments/test_concat.py",
    "table_options.py": "tables/test_csv_input.py",
    "server/responses.py": "server/test_app.py",
    "server/parameters.py": "server/test_openapi.py",
    "server/pages/arrow_points.py": "server/pages/test_points.py",
    "server/pages/render.py": "server/pages/test_routes.py",
    "server/pages/views.py": "server/pages/test_routes.py",
    "segments/concat_reader.py": "segments/test_concat.py",
    "segments/dir_writer.py": "segments/test_dir.py",
    "dataset/segment_layout.py": "queue/test_roll.py",
    "queue/__init__.py": "queue/test_consumer.py",
    "queue/layout.py": "queue/test_consumer_position.py",
    **dict.fromkeys(
        (f"formats/grib/{name}.py" for name in ("edition1", "edition2", "octets")),
        "formats/grib/test_grib.py",
    ),
    "formats/bufr/program.py": "formats/bufr/test_bufr.py",
    "formats/self_describing.py": "formats/test_messages.py",
    "dataset/scan.py": "cli/test_scan.py",
    "formats/hdf5.py": "formats/test_odimh5.py",
    "tables/__init__.py": "tables/test_arrow_output.py",
    "tables/columns.py": "tables/test_arrow_output.py",
    "tables/index_to_arrow.py": "tables/test_arrow_output.py",
}
"""The modules without a test file of their name, and the file that tests them: they are parts of what it tests."""


def named_test_of(path: str) -> str:
    """Return the name that the test file of a module has; a package's `__init__.py` is tested by the package's name."""
    module = PurePath("ondisk", path)
    return str(module.parent.relative_to("ondisk") / f"test_{module.stem.replace('__init__', module.parent.name)}.py")


def test_every_module_has_a_test_file_of_its_name(trees):
    """Those of Spark are parts of one data source, and tested through it."""
    definitions = ast.FunctionDef | ast.ClassDef
    with_code = {path for path, tree in trees.items() if any(isinstance(each, definitions) for each in tree.body)}
    missing = {path for path in with_code if row(path) != "spark" and not (TESTS / named_test_of(path)).exists()}
    assert missing == set(TESTED_ELSEWHERE)
    assert [name for name in TESTED_ELSEWHERE.values() if not (TESTS / name).exists()] == []


def test_every_module_has_its_row(trees):
    assert {row(path) for path in trees} <= set(FLOORS)


def test_imports_go_down_only(trees):
    for path, tree in trees.items():
        above = {name for name in imported(tree) if FLOORS.index(name) > FLOORS.index(row(path))}
        assert above <= DOORS.get(path, set()), path


def test_the_core_hardly_names_its_guests():
    """Whoever reads the core need not know them: a guest is asked through what it gives the core, such as a `Layout`.

    The lines that are left are mostly doors of `Dataset`, and hints that tell people to restore a backup.
    """
    core = ("filesystem", "segments", "index", "dataset", "maintenance")
    lines = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for folder in core
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if GUESTS.search(line)
    ]
    assert len(lines) <= MOST_LINES, lines


def test_few_modules_know_of_the_archive():
    """The others know places, one of which is the dataset's own folders."""
    modules = [path for path in PACKAGE.rglob("*.py") if "archive" in path.read_text(encoding="utf-8").lower()]
    assert len(modules) <= MOST_MODULES, modules


def test_no_modules_import_each_other(trees):
    names = {path: PurePath("ondisk", path).with_suffix("").as_posix().removesuffix("/__init__") for path in trees}
    modules = {each.replace("/", "."): path for path, each in names.items()}
    graph = {
        path: [
            modules.get(f"{node.module}.{alias.name}") or modules[node.module]
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ondisk")
            for alias in node.names
        ]
        for path, tree in trees.items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names them


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the names that are assigned as `self.X` in a class."""
    found = (each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store))
    return {each.attr for each in found if isinstance(each.value, ast.Name) and each.value.id == "self"}


def test_no_class_of_the_core_has_more_than_a_dozen_attributes(trees):
    """Who has more is several things, each of which can be understood alone."""
    core = {"dataset", "maintenance", "index", "segments", "staging"}
    classes = [each for path in trees if row(path) in core for each in ast.walk(trees[path])]
    too_many = {each.name for each in classes if isinstance(each, ast.ClassDef) and len(attributes(each)) > 12}
    assert not too_many


def test_segments_know_no_formats(trees):
    found = {path for path, tree in trees.items() if row(path) == "segments" and "formats" in {*imported(tree)}}
    assert not found


def test_doors_import_in_the_method(trees):
    for path, above in DOORS.items():
        types_only = [node for node in trees[path].body if isinstance(node, ast.If)]
        at_once = ast.Module([node for node in trees[path].body if node not in types_only], [])
        at_once.body = [node for node in at_once.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not above & {*imported(at_once)}


@pytest.mark.check
def test_only_the_filesystem_touches_the_disk(trees):
    found = {(path, way) for path, tree in trees.items() if row(path) != "filesystem" for way in touches(tree)}
    assert found == OUTSIDE


@pytest.mark.parametrize(
    "line",
    [
        "open('x')",
        "os.fsync(1)",
        "Path('x').open()",
        "path.write_text('x')",
        "self.path.unlink()",
        "import fcntl",
        "from filelock import FileLock",
        "sqlite3.connect('x')",
    ],
)
def test_a_touch_of_the_disk_is_seen(line):
    assert list(touches(ast.parse(line)))


@pytest.mark.parametrize(
    "line", ["Dataset.open('x')", "self._directory.unlink('x')", "os.path.join('x')", "t.replace()"]
)
def test_what_is_on_the_filesystem_is_no_touch(line):
    assert not list(touches(ast.parse(line)))
