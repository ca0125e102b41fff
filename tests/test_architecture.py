"""The house's two rules about code: imports go down only, and only `filesystem/` touches the disk."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "ondisk"

# From the ground up. A module imports from its own row and from rows above it in this table.
FLOORS = [
    "errors",
    "filesystem",
    "datum",
    "step",
    "json_shapes",
    "config",
    "segment",
    "frame",
    "formats",
    "matcher",
    "segments",
    "index",
    "staging",
    "dataset",
    "maintenance",
    "pipeline",
    "spark",
    "__init__",  # the door: what `import ondisk` gives
    "cli",
    "__main__",
    "testing",
]

DOORS = {"dataset/dataset.py": {"maintenance", "spark"}, "pipeline/run.py": {"spark"}}
"""Functions here import from rows above: `Dataset` is the one door to everything, and `pipeline` starts Spark."""

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
_OURS = {"Dataset", "Directory", "Index", "Pipeline", "directory", "_directory", "folder", "ondisk"}

OUTSIDE = {
    ("cli/streams.py", "open"),  # the files that a command is given
    ("dataset/input_file.py", "open"),  # the file that append_file is given
    ("index/connection.py", "sqlite3.connect"),
    ("index/index.py", "sqlite3.connect"),
    ("index/rebuild.py", "sqlite3.connect"),
    ("staging/rows.py", "sqlite3.connect"),
}
"""What may touch the disk besides filesystem."""


TREES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}


def row(path: str) -> str:
    return path.partition("/")[0].removesuffix(".py")


def imported(tree: ast.Module) -> Iterator[str]:
    """Give the rows that a module of ours imports from."""
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
    """Give the ways in which a module touches the disk."""
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


def test_every_module_has_its_row():
    assert {row(path) for path in TREES} <= set(FLOORS)


@pytest.mark.parametrize("path", TREES)
def test_imports_go_down_only(path):
    above = {name for name in imported(TREES[path]) if FLOORS.index(name) > FLOORS.index(row(path))}
    assert above <= DOORS.get(path, set())


def test_segments_know_no_formats():
    found = {path for path, tree in TREES.items() if row(path) == "segments" and "formats" in {*imported(tree)}}
    assert not found


def test_doors_import_in_the_method():
    for path, above in DOORS.items():
        types_only = [node for node in TREES[path].body if isinstance(node, ast.If)]
        at_once = ast.Module([node for node in TREES[path].body if node not in types_only], [])
        at_once.body = [node for node in at_once.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not above & {*imported(at_once)}


def test_only_the_filesystem_touches_the_disk():
    may = {"filesystem", "testing"}  # what tests with a dataset makes folders for it, and breaks files on purpose
    found = {(path, way) for path, tree in TREES.items() if row(path) not in may for way in touches(tree)}
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
def test_what_stands_on_the_filesystem_is_no_touch(line):
    assert not list(touches(ast.parse(line)))
