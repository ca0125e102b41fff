"""`ondisk spark-jar`."""

from __future__ import annotations

import zipfile


def test_it_prints_the_path_of_a_jar_with_the_classes(run):
    done = run("spark-jar")
    assert (done.code, done.err) == (0, "")
    names = zipfile.ZipFile(done.text.removesuffix("\n")).namelist()
    assert {"ondisk/spark/OndiskSource.class", "ondisk/spark/OndiskCatalog.class"} <= set(names)
