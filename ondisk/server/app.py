"""What the server answers: its endpoints, which docs/server.md lists.

A name is looked up among those of the datasets, and a segment in the index: no path of a request reaches the disk.
"""

from __future__ import annotations

import tomllib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ondisk import json_values
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.datum_as_json import json_summary, lines_of_data, lines_of_groups, names_of
from ondisk.dataset.unreadable_data import Skipped, skipped_of
from ondisk.errors import IntegrityError, InvalidInput, NotFound, OndiskError, StateError, shown
from ondisk.replication.records import encode
from ondisk.replication.source import DatasetSource
from ondisk.replication.wire import RECORDS, digest, to_json
from ondisk.server.admission import Admission, Limits
from ondisk.server.byte_ranges import Bytes, Stored, attachment, is_known, tag_of
from ondisk.server.datasets import Served, is_readable
from ondisk.server.metrics import Counts, metrics
from ondisk.server.pages import routes as pages
from ondisk.server.pages.login import Sessions
from ondisk.server.parameters import (
    IN_RECORDS,
    JSON,
    JSON_LINES,
    MEDIA_TYPES,
    OF_REPLICAS,
    PROMETHEUS,
    QUERY,
    SUMMARY,
    Asked,
    Keys,
    description,
    in_body,
    in_url,
    location_in,
)
from ondisk.server.responses import Body, Json, Last, Make, Refused, Requests, Stream, doubts_of, error_as_json
from ondisk.tables import installed
from ondisk.tables.columns import untyped
from ondisk.tables.csv_output import csv_of

# A range would need a second query. Without a length, DuckDB asks for none.
_ALONE = {"accept-ranges": "none"}


def application(
    served: Mapping[str, Served], token: bytes | None, limits: Limits, counts: Counts, threads: ThreadPoolExecutor
) -> ASGIApp:
    """Return the application that answers requests for datasets, by name. `token`: as in `Admission`."""
    requests = Requests(served, threads)
    endpoints = Endpoints(requests, counts)
    dataset = "/dataset/{name}"
    routes = [
        Route("/health", endpoints.health),  # needs no token
        Route("/metrics", endpoints.metrics),
        Route("/openapi.json", endpoints.openapi),
        Route(f"{dataset}/config", endpoints.config),
        Route(f"{dataset}/summary", endpoints.summary, methods=["GET", "POST"]),
        Route(f"{dataset}/query", endpoints.query, methods=["GET", "POST"]),
        Route(f"{dataset}/data/{{segment:path}}", endpoints.data),
    ]
    for name, keys in OF_REPLICAS.items():  # the methods of `ondisk.replication.source.Source`
        method = "POST" if keys else "GET"
        routes.append(Route(f"{dataset}/{name}", endpoints.of_replicas(name, keys), methods=[method]))
    sessions = None if token is None else Sessions(token)
    routes += pages.routes(requests, sessions)
    handlers: Any = {OndiskError: _report, Refused: _report, HTTPException: _report_of_http, Exception: _report}
    inside = Starlette(routes=routes, exception_handlers=handlers)
    inside.router.redirect_slashes = False
    return Admission(inside, token, limits, counts, sessions)


class Endpoints:
    """Answers requests to some datasets; each method is an endpoint."""

    def __init__(self, requests: Requests, counts: Counts) -> None:
        self._requests = requests
        self._counts = counts

    async def health(self, request: Request) -> Response:
        unreadable = 0
        for each in self._requests.served.values():
            unreadable += not await self._requests.work().call(is_readable, each)
        return Json({"status": "failing" if unreadable else "ok", "unreadable": unreadable}, 503 if unreadable else 200)

    async def metrics(self, request: Request) -> Response:
        text = await self._requests.work().call(metrics, self._requests.served.values(), self._counts)
        return PlainTextResponse(text, media_type=PROMETHEUS)

    async def openapi(self, request: Request) -> Response:
        return Json(description(self._requests.served))

    async def config(self, request: Request) -> Response:
        return Json(await self._requests.read(request, lambda dataset: tomllib.loads(dataset.config.to_toml())))

    async def summary(self, request: Request) -> Response:
        asked = await _asked(request, SUMMARY)

        match, by = asked["match"], asked["by"]

        def whole(dataset: Dataset) -> Body:
            found = dataset.summary(match, fields=asked["fields"], values=asked["values"])
            text = json_values.dump(json_summary(found)) + b"\n"
            return Body(iter([text]), len(text), {"content-digest": digest(text)})

        def groups(dataset: Dataset) -> Body:
            found = dataset.summary_by(by, match, min_max=asked["min_max"], tz=asked["tz"])
            return Body(lines_of_groups(found))

        if by is None:
            return self._answer(request, match, whole, JSON, None, offline=match is not None)
        return self._answer(request, match, groups, JSON_LINES, _last_line)

    async def query(self, request: Request) -> Response:
        asked = await _asked(request, QUERY)
        last = _last_line if asked["format"] == "jsonl" else None
        return self._answer(request, asked["match"], partial(_found, asked), MEDIA_TYPES[asked["format"]], last)

    async def data(self, request: Request) -> Response:
        segment = request.path_params["segment"]
        location = location_in(segment, request.query_params)

        def stored(dataset: Dataset) -> Bytes:
            return dataset.segment_bytes(segment) if location is None else dataset.payload(location)

        found = await self._requests.read(request, stored)
        return Stored(self._requests.work(), found, request, self._counts)

    def of_replicas(self, name: str, keys: Keys) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint that answers as the method of `Source` with this name."""

        async def endpoint(request: Request) -> Response:
            asked = in_body(await _body(request), keys)

            def read(dataset: Dataset) -> Any:
                return getattr(DatasetSource(dataset._access), name)(**asked)

            def encoded(dataset: Dataset) -> Body:
                size, pieces = encode(read(dataset))
                return Body(pieces, size)

            if name in IN_RECORDS:
                return Stream(self._requests.work(), self._requests.of(request), encoded, RECORDS)
            return await self._requests.read(request, lambda dataset: Json(to_json(read(dataset))))

        endpoint.__name__ = name  # by which requests are counted
        return endpoint

    def _answer(
        self,
        request: Request,
        match: str | None,
        make: Make,
        media_type: str,
        last: Last = None,
        *,
        offline: bool = True,
    ) -> Response:
        """Answer with what is read of the data that match, see `Stream`; 304 if the client has it already."""

        def made(dataset: Dataset) -> Body:
            headers = doubts_of(dataset, offline=offline)
            if _is_get(request) and not headers:  # what is missing may be there again without a change
                headers = {"etag": tag_of(dataset, match), "cache-control": "private, no-cache"}
                if is_known(request.headers, headers["etag"]):
                    return Body(iter(()), None, headers, 304)
            body = make(dataset)
            return replace(body, headers={**body.headers, **headers, **_ALONE})

        return Stream(self._requests.work(), self._requests.of(request), made, media_type, last)


def _found(asked: Asked, dataset: Dataset) -> Body:
    """Return the data that match: the bytes that `ondisk query` prints or writes."""
    match, format, columns = asked["match"], asked["format"], asked["columns"]
    choice: Any = {"sort": asked["sort"], "limit": asked["limit"]}
    if format == "jsonl":
        fields, skipped = names_of(asked["fields"], dataset.fields), skipped_of(asked["damaged"])
        found = dataset.query(match, damaged=skipped or asked["damaged"], **choice)
        pieces = _lines(lines_of_data(found, fields), skipped)
    elif format == "csv":
        pieces = csv_of(dataset, dataset.query(match, **choice), untyped(columns))
    elif format == "parquet":
        try:
            with installed():
                from ondisk.tables.arrow_output import parquet
        except StateError as error:
            raise Refused(501, error) from None
        pieces = parquet(dataset.to_arrow(match, columns=columns, **choice))
    else:
        pieces = dataset.payloads(match, **choice)
    extension = dataset.config.format if format == "data" else format
    return Body(pieces, headers={"content-disposition": attachment(f"{dataset.path.name}.{extension}")})


def _lines(data: Iterator[bytes], skipped: Skipped | None) -> Iterator[bytes]:
    """Yield the lines of data, then one with what was left out, if that is something."""
    yield from data
    if skipped is not None and skipped.count:
        listed = [{"location": each.location._asdict(), "reason": each.reason} for each in skipped.listed]
        yield json_values.dump({"skipped": {"count": skipped.count, "listed": listed}}) + b"\n"


def _last_line(error: OndiskError) -> bytes:
    return json_values.dump(error_as_json(error)) + b"\n"


def _is_get(request: Request) -> bool:
    return request.method != "POST"


async def _asked(request: Request, keys: Keys) -> Asked:
    if _is_get(request):
        return in_url(request.query_params.multi_items(), keys)
    return in_body(await _body(request), keys)


async def _body(request: Request) -> bytes:
    """Return the body of a request, which has its digest, if it says one: a replica does."""
    content = await request.body()
    if request.headers.get("content-digest", (known := digest(content))) != known:
        raise Refused(400, IntegrityError("the request is damaged: its digest is wrong", hint="Send it again."))
    return content


async def _report(request: Request, error: Exception) -> Response:
    return pages.answer_of(error, request.headers)


async def _report_of_http(request: Request, error: HTTPException) -> Response:
    if error.status_code == 404:
        known: OndiskError = NotFound(f"nothing is at {shown(request.url.path)}", hint="See docs/server.md.")
    else:
        known = InvalidInput(f"{request.method} of {shown(request.url.path)}: {error.detail}")
    return await _report(request, Refused(error.status_code, known, error.headers))
