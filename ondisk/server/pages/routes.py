"""The pages.

`match` and `sort` are parameters of all pages of a dataset. The first two pages are for browsers, which accept HTML:
other clients get what they got without pages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qs, quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ondisk import json_values
from ondisk.dataset.dataset import Dataset
from ondisk.errors import InvalidInput, NotFound, shown
from ondisk.server.pages import views
from ondisk.server.pages.content import picture_type
from ondisk.server.pages.login import COOKIE, LASTS, PER, Sessions, local_path
from ondisk.server.pages.points import Wanted, points, time_of
from ondisk.server.pages.render import HEADERS, Page, static
from ondisk.server.pages.views import Asked
from ondisk.server.parameters import location_in
from ondisk.server.responses import Json, Refused, Requests, error_as_json

_SANDBOX = {"content-security-policy": "default-src 'none'; sandbox; frame-ancestors 'none'"}
_View: TypeAlias = Callable[[Dataset, Asked], dict[str, Any]]
_LONGEST_FORM = 16 * 1024  # bytes that are looked at; a token is shorter


def routes(requests: Requests, sessions: Sessions | None) -> list[Route]:
    """Return the routes of all pages. `sessions`: of a server with a token."""
    pages = Pages(requests, sessions)
    dataset = "/dataset/{name}"
    return [
        Route("/", pages.datasets),  # `name` selects those whose names contain it
        Route(dataset, pages.overview),
        Route(f"{dataset}/browse", pages.shown("browse", views.browse)),
        Route(f"{dataset}/plot", pages.shown("plot", views.plot)),
        Route(f"{dataset}/health", pages.shown("health", views.health)),
        Route(f"{dataset}/picture/{{segment:path}}", pages.picture),
        Route(f"{dataset}/points", pages.points),  # JSON for the plot
        # Parts of pages, for htmx.
        Route(f"{dataset}/hints", pages.shown("hints", views.hints)),
        Route(f"{dataset}/facet", pages.facet),
        Route(f"{dataset}/count", pages.shown("count", views.count)),
        Route("/static/{file:path}", pages.static),
        Route("/login", pages.login, methods=["GET", "POST"]),
        Route("/logout", pages.logout, methods=["POST"]),
    ]


def is_for_people(accept: str) -> bool:
    return "text/html" in accept


def _check_is_for_people(request: Request) -> None:
    if not is_for_people(request.headers.get("accept", "")):
        raise NotFound(f"nothing is at {shown(request.url.path)}", hint="See docs/server.md.")


def answer_of(error: Exception, headers: Mapping[str, str]) -> Response:
    """Return the answer that reports an error: a page to people, a part of one to a page, JSON to programs."""
    refused = Refused.of(error)
    if not is_for_people(headers.get("accept", "")):
        return Json(error_as_json(refused.error), refused.status, refused.headers)
    template = "problem.html" if "hx-request" in headers else "error.html"
    said = {"message": refused.error.message, "hint": refused.error.hint}
    return Page(template, refused.status, refused.headers, **said)


class Pages:
    """Answers requests of browsers; each method is an endpoint."""

    def __init__(self, requests: Requests, sessions: Sessions | None) -> None:
        self._requests = requests
        self._sessions = sessions

    async def datasets(self, request: Request) -> Response:
        _check_is_for_people(request)
        wanted = request.query_params.get("name", "")
        chosen = [each for name, each in self._requests.served.items() if wanted.casefold() in name.casefold()]
        listed = await self._requests.work().call(lambda: [views.listed(each) for each in chosen])
        return self._page("datasets.html", datasets=listed, wanted=wanted)

    async def overview(self, request: Request) -> Response:
        _check_is_for_people(request)
        return await self._of_dataset(request, "overview.html", views.overview)

    async def facet(self, request: Request) -> Response:
        if "hx-request" in request.headers:
            return await self._of_dataset(request, "facet.html", views.facet)
        return await self._of_dataset(request, "values.html", views.values)

    def shown(self, name: str, view: _View) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page that shows what a function reads from a dataset."""

        async def endpoint(request: Request) -> Response:
            return await self._of_dataset(request, f"{name}.html", view)

        endpoint.__name__ = name  # by which requests are counted
        return endpoint

    async def picture(self, request: Request) -> Response:
        location = location_in(request.path_params["segment"], request.query_params)
        if location is None:
            raise InvalidInput("a picture is one datum: offset and size are missing")
        content = await self._requests.read(request, lambda dataset: dataset.payload(location))
        media_type = picture_type(content)
        if media_type is None:
            raise NotFound("the datum is not a picture that a page shows", hint="Download it instead.")
        return Response(content, media_type=media_type, headers={**_SANDBOX, "cache-control": "private, max-age=3600"})

    async def points(self, request: Request) -> Response:
        given = request.query_params
        width = given.get("width", "1000")
        if not (width.isascii() and width.isdigit() and len(width) < 6):
            raise InvalidInput(f"width is a number of pixels, not {shown(width)}")
        wanted = Wanted(given.get("match", ""), given.get("y", ""), given.get("by", ""),
                        time_of(given.get("begin", "")), time_of(given.get("end", "")), int(width))  # fmt: skip
        content = await self._requests.read(request, lambda dataset: json_values.dump(points(dataset, wanted)))
        return Response(content, media_type="application/json", headers={"cache-control": "no-cache"})

    async def static(self, request: Request) -> Response:
        return static(request.path_params["file"])

    async def login(self, request: Request) -> Response:
        if self._sessions is None:
            return RedirectResponse("/", 303, HEADERS)
        if request.method != "POST":
            return Page("login.html", after=local_path(request.query_params.get("next", "/")), problem="")
        form = parse_qs((await request.body())[:_LONGEST_FORM].decode(errors="replace"))
        after = local_path(form.get("next", ["/"])[0])
        address = request.client.host if request.client is not None else ""
        if not self._sessions.may_try(address):
            problem = "There were too many tries from this address. Wait a minute."
            return Page("login.html", 429, {"retry-after": str(int(PER))}, after=after, problem=problem)
        session = self._sessions.begin(form.get("token", [""])[0], address)
        if session is None:
            return Page("login.html", 403, after=after, problem="This is not the token of this server.")
        answer = RedirectResponse(quote(after, safe="/?&=%;:+,~@!$()*"), 303, HEADERS)
        is_secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, session, max_age=LASTS, secure=is_secure, httponly=True, samesite="strict")
        return answer

    async def logout(self, request: Request) -> Response:
        if self._sessions is not None:
            self._sessions.end(request.headers.get("cookie", ""))
        answer = RedirectResponse("/login", 303, HEADERS)
        answer.delete_cookie(COOKIE)
        return answer

    def _page(self, template: str, status: int = 200, **values: Any) -> Page:
        return Page(template, status, has_login=self._sessions is not None, **values)

    async def _of_dataset(self, request: Request, template: str, view: _View) -> Response:
        """Return a page, or a part of one, that shows what a function reads from the dataset of a request."""
        served = self._requests.of(request)
        asked = Asked.of(
            served.name, str(Path(served.path).absolute()), str(request.base_url).rstrip("/"), request.query_params
        )

        def read(dataset: Dataset) -> tuple[str, int, dict[str, Any]]:
            problem = None if view is views.hints else views.problem(dataset, asked)
            if problem is None:
                return template, 200, view(dataset, asked)
            return "browse.html", 400, views.mistaken(dataset, asked, problem)

        name, status, values = await self._requests.read(request, read)
        return self._page(name, status, asked=asked, **values)
