"""Build the connector for Spark, or compare the jar in the repository with one that is built again.

python tools/connector.py build [FILE]     by default ondisk/spark/ondisk-spark.jar
python tools/connector.py compare

It needs `javac` 17 or newer, and pyspark. The jar has its files in the order of their names, with one date; its
manifest names the compiler. With the same compiler, `compare` compares the bytes of each class. With another one it
leaves the jar that it has built, to run the tests with, and says that bytes were not compared. It fails if they differ.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "spark-connector/src/main"
JAR = ROOT / "ondisk/spark/ondisk-spark.jar"
_DATE = (2026, 1, 1, 0, 0, 0)
_MANIFEST = "META-INF/MANIFEST.MF"


def compiler() -> str:
    """Return the name and version of the compiler."""
    done = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True)
    return (done.stdout or done.stderr).strip()


def build(jar: Path) -> None:
    """Compile the connector against the jars of pyspark, and write it."""
    import pyspark

    files = {_MANIFEST: f"Manifest-Version: 1.0\r\nCreated-By: {compiler()}\r\n\r\n".encode()}
    with tempfile.TemporaryDirectory() as folder:
        jars = Path(pyspark.__file__).parent / "jars/*"
        sources = sorted(map(str, (SOURCE / "java").rglob("*.java")))
        checks = "-Xlint:all,-classfile,-options,-path"
        subprocess.run(["javac", "--release", "17", checks, "-cp", str(jars), "-d", folder, *sources], check=True)
        for root in (Path(folder), SOURCE / "resources"):
            files |= {str(each.relative_to(root)): each.read_bytes() for each in root.rglob("*") if each.is_file()}
    new = jar.with_name(f".{jar.name}.new")  # a session of Spark may read the other one
    with zipfile.ZipFile(new, "w") as packed:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, files[name])
    new.replace(jar)


def contents(jar: Path) -> dict[str, bytes]:
    """Return the files of a jar."""
    with zipfile.ZipFile(jar) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def compare() -> int:
    """Compare the jar in the repository with one that is built again; see above."""
    kept = contents(JAR)
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder, "new.jar"))
        made = contents(Path(folder, "new.jar"))
        if made[_MANIFEST] != kept[_MANIFEST]:
            JAR.write_bytes(Path(folder, "new.jar").read_bytes())
            print(f"The jar was built by another compiler than {compiler()}: its bytes were not compared.")
            print("The tests run with the jar that was built now.")
            return 0
    differing = sorted(name for name in kept.keys() | made.keys() if kept.get(name) != made.get(name))
    if differing:
        print(f"{JAR.relative_to(ROOT)} is not what its source gives; run `make jar`: {', '.join(differing)}")
    return 1 if differing else 0


def main() -> int:
    match sys.argv[1:]:
        case ["build"]:
            build(JAR)
        case ["build", name]:
            build(Path(name))
        case ["compare"]:
            return compare()
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
