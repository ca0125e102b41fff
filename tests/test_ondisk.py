"""What `import ondisk` exports and imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ondisk


def test_exports_are_sorted_and_can_be_imported():
    assert ondisk.__all__ == sorted(ondisk.__all__)
    for name in ondisk.__all__:
        assert getattr(ondisk, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(ondisk, "create_dataset")


def test_importing_ondisk_imports_nothing_heavy():
    code = "import sys, ondisk; print(*sys.modules, *{name.partition('.')[0] for name in sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"sqlalchemy", "alembic", "rich", "pyspark", "pyarrow", "asyncio", "ondisk.backends"}
    heavy |= {"starlette", "uvicorn", "urllib3", "ondisk.server"}
    assert not heavy & set(run.stdout.split())


@pytest.mark.check
def test_using_a_dataset_and_importing_ondisk_spark_do_not_import_spark(tmp_path):
    """Only a session, or index_frame, imports Spark."""
    code = f"""if True:
        import sys, ondisk, ondisk.spark
        with ondisk.create({str(tmp_path / "it")!r}, {{"format": "jsonl", "step": "daily"}}) as dataset:
            dataset.index_frame
            assert list(dataset.query()) == []
        print(*{{name.partition(".")[0] for name in sys.modules}})
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pyspark", "pyarrow", "adbc_driver_manager", "pyspark_ondisk"} & set(run.stdout.split())
