"""What `/openapi.json` describes is what the server answers, whatever is asked."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from ondisk.server.app import Endpoints
from ondisk.server.parameters import OF_REPLICAS, QUERY, SUMMARY, description, location_in

TOKEN = "0123456789abcdef"
SENT = {"Authorization": f"Bearer {TOKEN}"}
ASKED = {"summary": SUMMARY, "query": QUERY, **OF_REPLICAS}


def test_every_endpoint_is_described_with_all_that_can_be_asked():
    paths = description(["weather"])["paths"]
    names = {path.removeprefix("/dataset/{name}").split("/")[1].removesuffix(".json") for path in paths}
    assert names == {name for name in vars(Endpoints) if not name.startswith(("_", "of_"))} | {*OF_REPLICAS}
    for path, methods in paths.items():
        name = path.rpartition("/")[2]
        known = {*ASKED.get(name, ())}
        if "post" in methods:
            described = methods["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
            assert {*described} == known
        if name in ("summary", "query"):
            assert {each["name"] for each in methods["get"]["parameters"]} == known
    assert location_in("a", {"offset": "1", "size": "2"}) is not None


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
