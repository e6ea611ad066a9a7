"""The HTML report in a real browser: seen, operated, printed, and judged by axe-core."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance.reports import Report
from conformance.reports.html import render_html
from conformance.reports.model import CaseModel
from conformance.verdict import Verdict

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
Cases = Callable[..., CaseModel]
Reports = Callable[..., Report]
PHONE = {"width": 390, "height": 844}
NARROWEST = {"width": 320, "height": 640}  # what WCAG 2.1 asks for (1.4.10)
RING = """(() => {
    const e = document.activeElement, s = getComputedStyle(e);
    return [e.outerHTML.slice(0, 60), s.outlineStyle, parseFloat(s.outlineWidth)];
})()"""
# 400 characters and no place to break
LONG = "<b>'\"&|`$x$" + "W" * 209 + "漢" * 100 + "\u202e" * 80


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no Chromium found; looked for {', '.join(NAMES)}")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def shown(browser: Browser, tmp_path: Path) -> Callable[..., Any]:
    """Return a context manager that shows a page, and watches what it asks the network for."""

    @contextmanager
    def show(html: str, **options: Any) -> Iterator[Page]:
        file = tmp_path / "report.html"
        file.write_text(html, encoding="utf-8")
        context = browser.new_context(**options)
        asked: list[str] = []
        try:
            page = context.new_page()
            page.on("request", lambda request: asked.append(request.url))
            page.goto(file.as_uri())
            yield page
        finally:
            context.close()
        assert {url.partition("#")[0] for url in asked} == {file.as_uri()}

    return show


def open_all(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


def violations(page: Page) -> list[str]:
    """What axe-core objects to, with the first element of each."""
    data = pytest.importorskip("axe_playwright_python", reason="axe-core is not installed")
    page.evaluate((files(data) / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate(
        "axe.run(document, {resultTypes: ['violations', 'incomplete']}).then((r) => r.violations)"
    )
    return [f"{v['id']}: {v['help']}: {v['nodes'][0]['html'][:200]}" for v in found]


def everything(case_of: Cases, report_of: Reports) -> dict[str, Report]:
    """Reports of every kind, by name."""
    some = [case_of(verdict, f"temperature=0.{i}") for i, verdict in enumerate(Verdict, start=1)]
    hostile = case_of(Verdict.NOT_EXACT, id=LONG, decoding=LONG, engine=LONG, why=LONG, probe=LONG)
    return {
        "mixed": report_of(some),
        "none": report_of([]),
        "one": report_of([case_of(Verdict.EXACT)]),
        "refused": report_of([case_of(Verdict.NOT_SUPPORTED, f"top_k={i}") for i in range(1, 4)]),
        "failed": report_of([case_of(Verdict.ERROR, f"top_k={i}") for i in range(1, 4)]),
        "hostile": report_of([hostile, case_of(Verdict.ERROR, error=LONG * 3)]),
    }


KINDS = ("mixed", "none", "one", "refused", "failed", "hostile")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_axe_finds_nothing(
    kind: str, scheme: str, case_of: Cases, report_of: Reports, shown: Callable[..., Any]
) -> None:
    html = render_html(everything(case_of, report_of)[kind])
    with shown(html, color_scheme=scheme) as page:
        assert violations(page) == []
        open_all(page)
        assert violations(page) == []


def test_axe_would_find_something(report: Report, shown: Callable[..., Any]) -> None:
    html = render_html(report).replace("--soft: #57606a", "--soft: #b0b6bd", 1)
    with shown(html.replace('<html lang="en">', "<html>")) as page:
        found = {one.partition(":")[0] for one in violations(page)}
    assert {"html-has-lang", "color-contrast"} <= found


@pytest.mark.parametrize("size", [PHONE, NARROWEST], ids=["phone", "narrowest"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_runs_off_a_phone(
    kind: str, size: Any, case_of: Cases, report_of: Reports, shown: Callable[..., Any]
) -> None:
    with shown(render_html(everything(case_of, report_of)[kind]), viewport=size) as page:
        open_all(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        # every table scrolls in its own box, which the keyboard can reach
        wide = page.evaluate(
            """[...document.querySelectorAll('main *')].filter((e) => e.scrollWidth > e.clientWidth
            && getComputedStyle(e).overflowX === 'auto' && e.tabIndex !== 0).length"""
        )
        assert wide == 0


def test_the_first_screen_says_what_broke(report: Report, shown: Callable[..., Any]) -> None:
    with shown(render_html(report), viewport={"width": 1280, "height": 800}) as page:
        for text in ("NOT EXACT", "A departure was found in 2 of 7", "raw-q", "What was not asked"):
            box = page.get_by_text(text).first.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= 800, text


def test_a_phone_shows_the_verdict_and_the_cause_first(
    report: Report, shown: Callable[..., Any]
) -> None:
    with shown(render_html(report), viewport=PHONE) as page:
        box = page.locator(".answer .big").first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= PHONE["height"]


def test_the_script_runs(report: Report, shown: Callable[..., Any]) -> None:
    with shown(render_html(report)) as page:
        assert page.locator("#tools").is_visible()  # so the policy admits it
        page.get_by_role("button", name="Open all").click()
        assert page.locator("details.case[open]").count() == 8
        page.get_by_role("button", name="Close all").click()
        assert page.locator("details.case[open]").count() == 0
        page.evaluate("location.hash = '#case-3'")
        page.wait_for_selector("#case-3[open]")


def test_the_page_is_whole_without_its_script(report: Report, shown: Callable[..., Any]) -> None:
    with shown(render_html(report), java_script_enabled=False) as page:
        assert not page.locator("#tools").is_visible()
        page.locator("#case-2 > summary").click()
        assert page.locator("#case-2 .body").is_visible()


def test_the_keyboard_reaches_everything(report: Report, shown: Callable[..., Any]) -> None:
    with shown(render_html(report)) as page:
        page.keyboard.press("Tab")
        skip = page.locator(":focus")
        assert skip.inner_text() == "Skip to the cases"
        box = skip.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "cases"
        # a visible ring on whatever has the focus, and no trap: every control has its turn
        seen: list[str] = []
        while len(seen) < 200:
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement === document.body"):
                break  # once round
            what, style, width = page.evaluate(RING)
            assert (style, width >= 2) == ("solid", True), what
            seen.append(what)
        assert len(seen) < 200
        assert any(one.startswith("<summary") for one in seen)
        assert any(one.startswith("<button") for one in seen)
        assert any('class="scroll' in one for one in seen)
        page.locator("#case-4 > summary").focus()
        page.keyboard.press("Enter")
        assert page.locator("#case-4").get_attribute("open") is not None


def test_motion_can_be_reduced(report: Report, shown: Callable[..., Any]) -> None:
    behaviour = "getComputedStyle(document.documentElement).scrollBehavior"
    with shown(render_html(report), reduced_motion="reduce") as page:
        assert page.evaluate(behaviour) == "auto"
    with shown(render_html(report), reduced_motion="no-preference") as page:
        assert page.evaluate(behaviour) == "smooth"


def test_dark_is_dark(report: Report, shown: Callable[..., Any]) -> None:
    channels = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    with shown(render_html(report), color_scheme="dark") as page:
        assert max(page.evaluate(channels)[:3]) < 60
    with shown(render_html(report), color_scheme="light") as page:
        assert min(page.evaluate(channels)[:3]) > 200


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_it_prints(script: bool, report: Report, shown: Callable[..., Any], tmp_path: Path) -> None:
    pdfium = pytest.importorskip("pypdfium2", reason="pypdfium2 is not installed")
    with shown(render_html(report), color_scheme="dark", java_script_enabled=script) as page:
        page.pdf(path=tmp_path / "report.pdf", format="A4", print_background=True)
        if script:  # for browsers in which the style sheet cannot open what is closed
            assert page.locator("details.case[open]").count() == 8
    document = pdfium.PdfDocument(tmp_path / "report.pdf")
    texts = [page.get_textpage().get_text_range() for page in document]
    whole = " ".join(" ".join(texts).split())
    for needed in ("NOT EXACT", "Likely cause", "raw-q", "Questions not asked", "24/24 at 1/4"):
        assert needed in whole
    for dropped in ("Open all", "Skip to the cases", "Numbers of", "Parts of this report"):
        assert dropped not in whole
    assert "IndexError: index 5 is out of bounds" in whole  # from a case that was closed
    assert not [i for i, text in enumerate(texts) if not text.strip()], "an empty page"
    # dark mode is for screens: the paper's corner is white
    assert document[0].render().to_pil().getpixel((2, 2)) == (255, 255, 255)


def test_no_foreign_script_runs(case_of: Cases, report_of: Reports, shown: Any) -> None:
    attack = "</script><script>document.body.id='taken'</script><img src=x onerror=alert(1)>"
    case = case_of(Verdict.ERROR, why=attack, error=attack, decoding=attack)
    html = render_html(report_of([case], why=attack))
    with shown(html) as page:
        assert page.evaluate("document.body.id") == ""
    # and where escaping failed, the policy would still forbid it
    broken = attack.replace("<img src=x onerror=alert(1)>", "")
    with shown(html.replace("</main>", f"{broken}</main>")) as page:
        assert page.evaluate("document.body.id") == ""


def test_a_request_would_be_noticed(report: Report, shown: Callable[..., Any]) -> None:
    html = render_html(report).replace("default-src 'none';", "", 1)
    image = '<img src="https://e.invalid/x.png" alt="">'
    with pytest.raises(AssertionError), shown(html.replace("</main>", f"{image}</main>")) as page:
        page.wait_for_load_state("networkidle")
