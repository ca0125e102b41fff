"""Print the path of the connector, with which `where` and `select` of Spark reach the index.

ondisk spark-jar
spark-submit --jars "$(ondisk spark-jar)" job.py
"""

from __future__ import annotations

import argparse

from ondisk.cli.streams import Output, write_stdout
from ondisk.errors import EXIT_DONE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.spark.session import CONNECTOR

    write_stdout([f"{CONNECTOR}\n".encode()])
    return EXIT_DONE
