"""Metrics of the server."""

from __future__ import annotations

import re
import shutil
import time

from ondisk.server.metrics import HELP

from .conftest import PATIENCE, data


def test_metrics_count_requests_and_describe_datasets(serving, create):
    dataset, gone = create('we"ather', fields={"n": "integer"}), create("gone")
    dataset.append(data(5))
    served = serving(dataset.path, gone.path)
    shutil.rmtree(gone.path)
    served.client.get("/dataset/we%22ather/config")
    served.client.get("/dataset/other/config")
    assert served.client.get("/health").status_code == 503
    answer, end = served.client.get("/metrics"), time.monotonic() + PATIENCE
    while 'endpoint="health"' not in answer.text and time.monotonic() < end:  # counted once its answer has been sent
        answer = served.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = dict(re.findall(r"^(\w+(?:\{.*\})?) (\S+)$", answer.text, re.MULTILINE))
    label = 'dataset="we\\"ather"'
    assert samples[f"ondisk_up{{{label}}}"] == "1"
    assert samples['ondisk_up{dataset="gone"}'] == "0"
    assert samples[f"ondisk_changes{{{label}}}"] == "5"
    assert samples['ondisk_server_requests_total{endpoint="config",status="200"}'] == "1"
    assert samples['ondisk_server_requests_total{endpoint="config",status="404"}'] == "1"
    assert samples['ondisk_server_requests_total{endpoint="health",status="503"}'] == "1"
    assert samples["ondisk_server_connections"] == "1"
    assert float(samples["ondisk_server_sent_bytes_total"]) > 100
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", answer.text, re.MULTILINE))
    assert kinds.keys() == HELP.keys()
    assert {name for name, kind in kinds.items() if kind == "counter"} == {name for name in HELP if "_total" in name}
