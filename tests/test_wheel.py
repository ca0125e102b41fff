"""What people get: the source archive, and the wheel built from it, installed outside of the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

import ondisk
from ondisk.index.tables import REVISION

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
STRAYS = ["observed", "sample_datasets/observed", "docs/observed"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source archive of a copy of this folder that has datasets in it, and from the archive the wheel."""
    folder = tmp_path_factory.mktemp("built")
    hidden = [path.name for path in ROOT.iterdir() if path.name.startswith(".") and path.name != ".gitignore"]
    unpacked = shutil.copytree(ROOT, folder / "copy", ignore=shutil.ignore_patterns(*hidden, "__pycache__"))
    for stray in STRAYS:
        with ondisk.create(unpacked / stray, {"step": "daily"}) as dataset:
            dataset.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC))])
    run(sys.executable, "-m", "build", "--outdir", folder, unpacked, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a fresh venv with the wheel in it."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=folder)
    return folder


def run(*command: str | Path, cwd: Path) -> str:
    # Without the environment's PYTHONPATH, which may lead back to the checkout.
    done = subprocess.run(["env", "--unset=PYTHONPATH", *command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(home: Path, code: str) -> str:
    return run(home / "bin/python", "-c", code, cwd=home)


def test_the_source_archive_has_every_file_that_git_knows_and_no_dataset(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert not [name for name in names if "observed/" in f"{name}/"]
    if not (ROOT / ".git").exists():
        pytest.skip("this folder is no checkout")
    known = set(run("git", "-C", ROOT, "ls-files", cwd=ROOT).splitlines())
    assert known - names == {".ci/run", ".editorconfig", ".gitattributes"}


def test_the_wheel_holds_the_packages_the_migrations_and_the_manual_page_only(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    wanted = {"ondisk/py.typed", "ondisk/migrations/env.py", "ondisk/migrations/versions/0001_first.py"}
    assert wanted | {"ondisk/spark/ondisk-spark.jar"} <= set(names)
    own = f"ondisk-{ondisk.__version__}"
    assert {name.partition("/")[0] for name in names} == {"ondisk", "pyspark_ondisk", f"{own}.dist-info", f"{own}.data"}
    assert [name for name in names if name.startswith(f"{own}.data/")] == [f"{own}.data/data/share/man/man1/ondisk.1"]
    assert not [name for name in names if "__pycache__" in name]


def test_the_installed_library_stores_and_finds(home):
    code = """if True:
        import io, ondisk
        config = {"format": "vm2", "step": "daily", "unique": ["reftime", "area"], "fields": {"area": "text"}}
        with ondisk.create("dataset", config) as dataset:
            result = dataset.append_file(io.BytesIO(b"202611200600,1,2,3.5,,,000000000\\n" * 2))
            print(result.imported, result.duplicates, [datum.data for datum in dataset.query("area: VM2,1")])
    """
    assert python(home, code) == "1 1 [b'202611200600,1,2,3.5,,,000000000']\n"


def test_the_installed_migrations_are_found_and_run(home):
    code = """if True:
        import sqlite3
        from ondisk.index import convert
        connection = sqlite3.connect(":memory:", isolation_level=None)
        convert.upgrade(connection)
        print(convert.location())
        print(*connection.execute("SELECT version_num FROM alembic_version").fetchone())
    """
    location, revision = python(home, code).split()
    assert Path(location).is_relative_to(home)
    assert Path(location).parts[-2:] == ("ondisk", "migrations")
    assert revision == REVISION


def test_the_manual_page_is_installed(home):
    assert (home / "share/man/man1/ondisk.1").read_bytes() == (ROOT / "docs/ondisk.1").read_bytes()


def test_the_installed_command_prints_its_version(home):
    assert ondisk.__version__ in run(home / "bin/ondisk", "--version", cwd=home)


def test_importing_the_installed_package_waits_for_nothing_heavy(home):
    found = python(home, "import sys, ondisk; print(*sys.modules)").split()
    assert not {"alembic", "flask", "pyarrow", "pyspark", "rich", "sqlalchemy", "starlette"} & set(found)
