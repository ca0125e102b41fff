"""The pages, in a real browser and to clients that are none: people find what they look for, and no script runs.

The pictures in docs/ are made here: `ONDISK_PICTURES=docs pytest tests/server/pages -k pictures`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from urllib.parse import quote, unquote_plus

import httpx
import pytest

import ondisk
from ondisk.cli import main
from ondisk.server.pages import views
from ondisk.server.pages.render import STATIC, ago, size_text
from server.conftest import Serving, started

ROOT = Path(__file__).parents[3]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
           "--disable-component-update", "--disable-sync", "--no-first-run", "--disable-quic"]  # fmt: skip
PATIENCE = 60_000  # milliseconds
TOKEN = b"0123456789abcdef0123456789abcdef"
HTML = {"accept": "text/html"}
FORM = "application/x-www-form-urlencoded"

HOSTILE = [
    "<script>window.hit=1</script>",
    '"><img src=x onerror="window.hit=1">',
    "'\"--></style></title></textarea></script><svg/onload=window.hit=1>",
    "javascript:window.hit=1",
    "{{7*7}}${window.hit=1}<%=1%>",
    '" autofocus onfocus="window.hit=1" x="',
    "]]><iframe srcdoc='<script>parent.hit=1</script>'>",
    "hx-on:load=window.hit=1 hx-get=/ data-hx-trigger=load",
    "\u202egnp.exe \u2028\u0000\u001b[31m\r\nSet-Cookie: x=1",
    "&lt;script&gt;window.hit=1&lt;/script&gt;",
    "x" * 20_000,
]

pytestmark = pytest.mark.xdist_group("browser")
in_a_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Make the datasets that are served: observations, pictures, and one whose every text is an attack."""
    folder = tmp_path_factory.mktemp("pages")
    samples = ROOT / "sample_datasets"
    main(["init", str(folder / "stations"), "--config", str(samples / "stations.toml"), "--quiet"])
    main(["append", str(folder / "stations"), str(samples / "observations.jsonl"), "--quiet"])
    main(["delete", str(folder / "stations"), "reftime: =2026-11-19", "--yes"])
    main(["repack", str(folder / "stations"), "--yes"])
    main(["check", str(folder / "stations")])
    photos = {"format": "blob", "step": "monthly", "fields": {"site": "text"}, "extension": "png"}
    with ondisk.create(folder / "photos", photos) as dataset:
        png = (ROOT / "tests/server/pages/dot.png").read_bytes()
        svg = b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.hit=1'/>"
        dataset.append(
            ondisk.Datum(datetime(2026, 11, day, tzinfo=UTC), {"site": "north"}, content)
            for day, content in enumerate((png, svg, b"<script>window.hit=1</script>"), 1)
        )
    fields = {"area": "text", "made": "timestamp", "key": "bytes", "level": "real"}
    config = {"format": "jsonl", "step": "yearly", "fields": fields, "index": ["area"]}
    with ondisk.create(folder / "<b onclick=hit=1>'\"&", config) as dataset:
        dataset.append(
            ondisk.Datum(
                datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number),
                {"area": text, "key": text.encode()[:50], "level": float("nan"), text[:100]: text},
                {text[:100]: text, "n": number, "in": {text[:100]: [text]}},
            )
            for number, text in enumerate(HOSTILE)
        )
        report = {"segment": HOSTILE[1], "states": [HOSTILE[0]], "reasons": HOSTILE, "action": None}
        content = {"command": HOSTILE[0], "time": "2026-11-20T00:00:00Z", "error": HOSTILE[2], "findings": [report]}
        (dataset.path / ".report.json").write_text(json.dumps({**content, "done": [report], "left_out": 0}))
    return folder


@pytest.fixture(scope="module")
def serving(folder) -> Iterator[Serving]:
    with started(*sorted(folder.iterdir())) as found:
        found.client.headers.update(HTML)
        yield found


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser, serving):
    """Return a function that opens a page in a context of its own; at the end, no page had an error."""
    contexts, errors = [], []

    def opened(path: str, **options):
        context = browser.new_context(base_url=f"http://127.0.0.1:{serving.port}", **options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        # What a browser says of an answer with an error status is no error of the page.
        page.on(
            "console", lambda said: said.type == "error" and "status of 4" not in said.text and errors.append(said.text)
        )
        page.goto(path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert errors == []


def until(page, condition: str) -> None:
    """Wait until a condition holds in a page, whose policy lets no waiting script of Playwright's run in it."""
    end = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(50)


@pytest.mark.check
@in_a_browser
def test_a_person_finds_a_day_refines_mends_pages_plots_and_downloads(open_page, serving, folder, capfdbinary):
    page = open_page("/")
    page.fill("#name", "stat")
    until(page, "document.querySelectorAll('#datasets tbody tr').length == 1")
    assert "OK" in page.inner_text("#datasets")
    page.click("text=stations")
    assert "1 day without data between the first and the last datum: 2026-11-19." in page.inner_text("main")
    page.click("a[title^='2026-11-18']")
    assert page.input_value("#match") == "reftime: =2026-11-18"
    page.click("aside >> text=104")
    assert page.input_value("#match") == "reftime: =2026-11-18; station: 104"
    page.wait_for_selector("text=Data 1 to 24 of 24")

    page.fill("#match", "reftime: =2026-11-18; station: 5.0")
    page.wait_for_selector("#problem mark:text('5.0')")
    page.wait_for_selector("#match[aria-invalid=true]")
    page.press("#match", "Enter")
    assert "not an integer, at character 32" in page.inner_text("#problem")
    page.fill("#match", "reftime: >=2026-11-18; na")
    until(page, "document.querySelector('#completions option')?.value == 'reftime: >=2026-11-18; name: '")
    page.fill("#match", "reftime: >=2026-11-18")
    until(page, "!document.getElementById('problem')")
    page.press("#match", "Enter")
    page.click("text=Next")
    assert "Data 51 to 100" in page.inner_text("main")
    page.click("thead >> text=station")
    assert page.locator("tbody tr").first.inner_text().split("\t")[1] == "101"

    with page.expect_download() as download:
        page.click("text=CSV")
    capfdbinary.readouterr()
    main(["query", str(folder / "stations"), "reftime: >=2026-11-18", "--sort=station", "--csv"])
    assert Path(download.value.path()).read_bytes() == capfdbinary.readouterr().out

    page.click("nav >> text=Plot")
    page.wait_for_selector("#plot[data-drawn='288']")
    page.select_option("select[name=y]", "data.wind")
    page.click("form.choices button")
    page.wait_for_selector("#plot[data-drawn='288'] canvas")
    box = page.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 60)
    page.mouse.up()
    until(page, "Number(document.getElementById('plot').dataset.drawn) < 100")
    assert "begin=" in page.url
    page.click("[data-zoom='all']")
    page.wait_for_selector("#plot[data-drawn='288']")
    row = page.locator("#numbers tbody tr", has_text="104").inner_text().split("\t")
    with ondisk.open(folder / "stations", read_only=True) as dataset:
        winds = {datum.data["wind"]: datum for datum in dataset.query("reftime: >=2026-11-18; station: 104")}
    assert float(row[5]) == max(winds)


@in_a_browser
@pytest.mark.check
def test_no_script_of_a_hostile_value_runs(open_page, serving, folder):
    name = quote("<b onclick=hit=1>'\"&")
    pages = ["/", f"/dataset/{name}", f"/dataset/{name}/browse", f"/dataset/{name}/plot?y=n", f"/dataset/{name}/health",
             f"/dataset/{name}/browse?sort=-area", "/dataset/photos/browse"]  # fmt: skip
    paths = [*pages]
    for number, text in enumerate(HOSTILE[:-1]):
        given = quote(text)
        paths += [f"/dataset/{name}/browse?match={given}&sort={given}", f"/dataset/{name}/plot?y={given}&by={given}"]
        if number < 3:
            condition = quote(f"area: {json.dumps(text)}")
            paths += [f"/?name={given}", f"/dataset/{given}", f"/dataset/{name}/browse?match={condition}",
                      f"/login?next={given}"]  # fmt: skip
    page = open_page("/")
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    for path in paths:
        page.goto(path, wait_until="networkidle" if path in pages else "load")
        assert page.evaluate("window.hit === undefined"), path
        strange = (
            "[onclick], [onerror], [onload], [onfocus], iframe, script:not([src]), main svg, a[href^='javascript:']"
        )
        assert page.locator(strange).count() == 0, path
        assert page.locator("main").count() == 1, path
    page.goto(f"/dataset/{name}")
    page.locator("#match").fill(HOSTILE[1])
    page.wait_for_selector("#problem")
    assert page.evaluate("window.hit === undefined")
    assert dialogs == []


def test_the_first_days_of_all_calendars_are_shown(tmp_path):
    with ondisk.create(tmp_path / "old", {"format": "jsonl", "step": "daily"}) as dataset:
        dataset.append([ondisk.Datum(datetime(1, 1, 5, tzinfo=UTC), {}, {"v": 1})])
    with started(tmp_path / "old") as served:
        for path in ("", "/browse", "/plot", "/health"):
            assert served.client.get(f"/dataset/old{path}", headers={"accept": "text/html"}).status_code == 200


@pytest.mark.check
def test_links_lead_to_the_last_days_of_the_data_and_to_their_plots(serving):
    def shown(path: str) -> str:
        return str(serving.client.get(path).text)

    page = shown("/dataset/stations?match=station:%201")
    links = re.findall(r'<a href="([^"]*)">(?:day|7 days)</a>', page)
    plots = re.findall(r'<a href="([^"]*)">temperature</a>', page)
    assert (len(links), len(plots)) == (2, 1), page
    summary = serving.client.get("/dataset/stations/summary", headers={"accept": "application/json"}).json()
    end = summary["end"][:10]
    day, week = (unquote_plus(link.replace("&amp;", "&")) for link in links)
    assert f"station: 1; reftime: >={end}" in day
    assert f"reftime: >={datetime.fromisoformat(end).date() - timedelta(6)}" in week
    assert "selected>temperature</option>" in shown(plots[0].replace("&amp;", "&"))


def test_each_value_of_a_hostile_dataset_is_escaped(serving):
    name = quote("<b onclick=hit=1>'\"&")
    for path in ("", "/browse", "/health"):
        text = serving.client.get(f"/dataset/{name}{path}").text
        assert "<script>window" not in text
        assert "<img src=x" not in text
        assert "<b onclick" not in text
    assert escape(HOSTILE[0]) in text.replace("&#34;", "&quot;")


@in_a_browser
@pytest.mark.check
def test_it_works_without_javascript_and_on_a_narrow_screen(open_page):
    page = open_page("/", java_script_enabled=False, viewport={"width": 375, "height": 800})
    page.click("text=stations")
    page.click("a[title^='2026-11-18']")
    assert page.locator("table.data tbody tr").count() == 50
    page.click("text=Next")
    assert page.locator("table.data tbody tr").count() == 50
    page.fill("#match", "station: x")
    page.click("button:text('Query')")
    assert "'x' is not an integer" in page.inner_text("#problem")
    page.goto("/dataset/stations/browse?match=station:%20104")
    with page.expect_download() as download:
        page.click("text=JSON lines")
    assert Path(download.value.path()).read_bytes().count(b"\n") == 72


@in_a_browser
@pytest.mark.check
def test_pages_fit_narrow_screens_and_have_names_for_everything(open_page):
    for theme in ("light", "dark"):
        page = open_page("/", viewport={"width": 375, "height": 800}, color_scheme=theme)
        for path in ("/", *(f"/dataset/stations{page}" for page in PAGES)):
            page.goto(path, wait_until="networkidle")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            assert page.evaluate(UNNAMED) == [], path
            assert page.evaluate(FAINT) == [], (theme, path)
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.textContent") == "Skip to the content"


PAGES = ("", "/browse", "/plot", "/health", "/facet?field=name")

UNNAMED = """() => [...document.querySelectorAll("a, button, input:not([type=hidden]), select, img")].filter(each =>
  !(each.textContent.trim() || each.getAttribute("aria-label") || each.alt || each.labels?.length)
).map(each => each.outerHTML)"""

FAINT = """() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const linear = (part) => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4;
  const light = (color) => numbers(color).slice(0, 3).map(each => linear(each / 255))
    .reduce((sum, each, at) => sum + each * [.2126, .7152, .0722][at], 0);
  const back = (each) => {
    for (let at = each; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if ((numbers(color)[3] ?? 1) > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll("main *, header *")].filter(each =>
    each.offsetParent && !each.closest(".vh")
    && [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim())
  ).filter(each => {
    const [a, b] = [light(getComputedStyle(each).color), light(back(each))];
    return (Math.max(a, b) + .05) / (Math.min(a, b) + .05) < 4.5;
  }).map(each => each.outerHTML.slice(0, 200));
}"""


@in_a_browser
@pytest.mark.check
def test_the_pictures_of_the_documentation_are_of_these_pages(open_page, tmp_path):
    made = Path(os.environ.get("ONDISK_PICTURES", tmp_path))
    page = open_page("/", viewport={"width": 900, "height": 640})
    for name, path in {
        "page-dataset": "/dataset/stations",
        "page-data": "/dataset/stations/browse?match=reftime:%20%3D2026-11-18;%20station:%20104",
        "page-plot": "/dataset/stations/plot",
    }.items():
        page.goto(path, wait_until="networkidle")
        page.screenshot(path=made / f"{name}.png")
        kept = (ROOT / "docs" / f"{name}.png").read_bytes()
        assert struct.unpack(">II", kept[16:24]) == (900, 640)
        assert f"{name}.png" in (ROOT / "docs/server.md").read_text()


def test_programs_get_what_they_got_without_pages(serving):
    for accept in ("*/*", "application/json", ""):
        for path in ("/", "/dataset/stations"):
            answer = serving.client.get(path, headers={"accept": accept})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, 10)
    assert serving.client.get("/dataset/stations/config").json()["format"] == "jsonl"


@pytest.mark.check
def test_every_answer_has_its_headers(serving):
    for path in (
        "/",
        "/dataset/stations",
        "/dataset/stations/browse",
        "/dataset/other",
        "/nothing",
        "/dataset/stations/facet",
    ):
        answer = serving.client.get(path)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"<script(?![^>]* src=)|<style|<[^>]*\s(on\w+|style)=", answer.text)
    for name in STATIC:
        answer = serving.client.get(f"/static/{name}")
        assert (answer.status_code, answer.headers["x-content-type-options"]) == (200, "nosniff")
    assert serving.client.get("/static/../render.py").status_code == 404
    assert serving.client.get("/static/vendor/htmx.LICENSE").status_code == 404


def test_an_error_is_a_page_to_people_and_json_to_programs(serving):
    url, strange = "/dataset/stations/query?match=x:5", {"host": "example.org"}
    for path, more, status in ((url, {}, 400), ("/", strange, 421), ("/nothing", {}, 404)):
        page = serving.client.get(path, headers={**HTML, **more})
        assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")
        assert '<div class="problem"' in page.text
        program = serving.client.get(path, headers={"accept": "*/*", **more})
        assert (program.status_code, program.json()["error"].keys() >= {"code", "hint"}) == (status, True)


def test_only_a_picture_is_shown_and_all_else_is_downloaded(serving, folder):
    with ondisk.open(folder / "photos", read_only=True) as dataset:
        png, *others = (datum.location for datum in dataset.query())

    def got(page: str, place: ondisk.Location) -> httpx.Response:
        return serving.client.get(f"/dataset/photos/{page}/{place.segment}?offset={place.offset}&size={place.size}")

    answer = got("picture", png)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert "sandbox" in answer.headers["content-security-policy"]
    for place in others:
        assert got("picture", place).status_code == 404
    for place in (png, *others):
        answer = got("data", place)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"] == "attachment"
        assert answer.headers["x-content-type-options"] == "nosniff"
    page = serving.client.get("/dataset/photos/browse").text
    assert page.count("<img ") == 1


@pytest.mark.parametrize(
    "path",
    [
        "/dataset/stations/browse?page=0",
        "/dataset/stations/browse?page=2001",
        "/dataset/stations/browse?page=x",
        "/dataset/stations/browse?match=" + "x" * 9000,
        "/dataset/stations/browse?sort=nothing",
        "/dataset/stations/plot?match=nothing:%205",
        "/dataset/stations?match=%22",
        "/dataset/stations/facet?field=nothing",
        "/dataset/stations/points?y=data.wind&width=-1",
        "/dataset/stations/points?y=data.wind&begin=x",
        "/dataset/stations/points?y=nothing",
        "/dataset/stations/picture/2026/11.jsonl",
    ],
)
def test_a_page_that_cannot_be_shown_says_why(serving, path):
    answer = serving.client.get(path)
    assert answer.status_code == 400
    assert 'class="problem"' in answer.text


def test_a_browser_logs_in_with_the_token_and_keeps_a_session_only(folder):
    with started(folder / "stations", token=TOKEN) as served, served.client as client:
        path = "/dataset/stations?match=station%3A%20104"
        first = client.get(path, headers=HTML)
        assert first.status_code == 303
        form = client.get(first.headers["location"], headers=HTML)
        (after,) = re.findall(r'name="next" value="([^"]+)"', form.text)
        assert after == path
        wrong = client.post("/login", data={"token": "wrong", "next": after})
        assert (wrong.status_code, wrong.cookies) == (403, {})
        right = client.post("/login", data={"token": TOKEN.decode(), "next": after})
        assert (right.status_code, right.headers["location"]) == (303, path)
        cookie = right.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN.decode() not in cookie
        assert client.get(path, headers=HTML).status_code == 200
        assert client.post("/dataset/stations/query").status_code == 200
        kept = {"cookie": cookie.partition(";")[0]}
        assert client.post("/logout").status_code == 303
        assert client.get(path, headers={**HTML, **kept}).status_code == 303
        assert client.get("/dataset/stations/summary", headers=kept).status_code == 401
        part = client.get("/dataset/stations/facet?field=name", headers={**HTML, "hx-request": "true"})
        assert (part.status_code, "<html" in part.text) == (401, False)
        many = "&".join(f"x{number}=1" for number in range(5000))
        assert client.post("/login", content=many, headers={"content-type": FORM}).status_code == 403
        for _ in range(10):
            last = client.post("/login", data={"token": "wrong"})
        assert (last.status_code, "retry-after" in last.headers) == (429, True)


def test_a_dataset_that_cannot_be_read_leaves_the_others_on_the_first_page(folder, tmp_path):
    shutil.copytree(folder / "stations", tmp_path / "broken")
    with started(folder / "stations", tmp_path / "broken") as served:
        shutil.rmtree(tmp_path / "broken")
        text = served.client.get("/", headers=HTML).text
        assert "cannot be read" in text
        assert "2026-11-20 23:00" in text
        assert served.client.get("/dataset/broken", headers=HTML).status_code == 404


def test_damage_is_shown_where_it_is(folder, tmp_path):
    shutil.copytree(folder / "stations", tmp_path / "torn")
    (segment,) = (tmp_path / "torn").glob("2026/*.jsonl")
    segment.write_bytes(segment.read_bytes()[:-300])
    main(["check", str(tmp_path / "torn")])
    with started(tmp_path / "torn") as served:
        text = served.client.get("/dataset/torn/browse", headers=HTML).text
        assert "cannot be read" in text
        health = served.client.get("/dataset/torn/health", headers=HTML).text
        assert f"ondisk fix {tmp_path / 'torn'} " in health
        assert "not checked yet" not in health


@pytest.mark.check
def test_a_very_large_datum_is_not_read_for_a_page(serving, monkeypatch):
    monkeypatch.setattr(views, "_LARGEST", 50)
    page = serving.client.get("/dataset/photos/browse").text
    assert page.count(" bytes</code>") == 2
    assert "&lt;script&gt;window.hit=1&lt;/script&gt;" in page


def test_vendored_files_are_those_that_were_published():
    folder = ROOT / "ondisk/server/pages/static/vendor"
    listed = re.findall(r"^([0-9a-f]{64})  (\S+)", (folder / "SOURCES").read_text(), re.MULTILINE)
    assert {name for _, name in listed} | {"SOURCES"} == {path.name for path in folder.iterdir()}
    assert listed == [(hashlib.sha256((folder / name).read_bytes()).hexdigest(), name) for _, name in listed]


def test_sizes_and_times_are_readable():
    assert [size_text(size) for size in (0, 999, 1000, 123_456, 10**9, 10**18)] == [
        "0 bytes",
        "999 bytes",
        "1 KB",
        "123 KB",
        "1 GB",
        "1000 PB",
    ]
    now = datetime(2026, 11, 20, tzinfo=UTC)
    spans = [timedelta(seconds=5), timedelta(minutes=1), timedelta(hours=47), timedelta(days=400)]
    assert [ago(now - span, now) for span in spans] == ["just now", "1 minute ago", "47 hours ago", "400 days ago"]


def test_only_the_server_needs_templates():
    program = "import sys, ondisk, ondisk.cli.serve; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
