"""What `/openapi.json` describes is what the server answers, whatever is asked."""

from __future__ import annotations

from dataclasses import fields

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from ondisk.server.app import Endpoints
from ondisk.server.asked import ChangesAsked, DataAsked, FetchAsked, QueryAsked, SeqsAsked, SummaryAsked
from ondisk.server.openapi import description

TOKEN = "0123456789abcdef"
SENT = {"Authorization": f"Bearer {TOKEN}"}
ASKED = {
    "summary": SummaryAsked,
    "query": QueryAsked,
    "changes": ChangesAsked,
    "seqs": SeqsAsked,
    "fetch": FetchAsked,
    "contents": SeqsAsked,
    "removed": FetchAsked,
}


def test_every_endpoint_is_described_with_all_that_can_be_asked():
    paths = description(["weather"])["paths"]
    names = {path.removeprefix("/dataset/{name}").split("/")[1].removesuffix(".json") for path in paths}
    assert names == {name for name in vars(Endpoints) if not name.startswith("_")}
    for path, methods in paths.items():
        name = path.rpartition("/")[2]
        known = {each.name for each in fields(ASKED[name])} if name in ASKED else set()
        if "post" in methods:
            described = methods["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
            assert {*described} | {"max_bytes"} == known | {"max_bytes"}
        if name in ("summary", "query"):
            assert {each["name"] for each in methods["get"]["parameters"]} == known
    assert DataAsked.of("a", {"offset": "1", "size": "2"}).location is not None


@pytest.mark.check
def test_answers_are_those_of_the_description(serving, filled):
    schemathesis = pytest.importorskip("schemathesis")
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi.checks import positive_data_acceptance  # a match is more than a text

    url = f"http://127.0.0.1:{serving(filled, token=TOKEN.encode()).port}"
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=SENT)

    def ask(case):
        case.call_and_validate(headers=SENT, excluded_checks=[positive_data_acceptance])

    for found in schema.get_all_operations():
        operation = found.ok()
        is_open = not operation.path_parameters and not operation.query  # nothing can be wrong
        for mode in (GenerationMode.POSITIVE,) if is_open else (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            strategy = operation.as_strategy(generation_mode=mode)
            examples = settings(
                max_examples=4,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=[*HealthCheck],
            )
            examples(given(case=strategy)(ask))()
    assert httpx.get(f"{url}/openapi.json").status_code == 401
