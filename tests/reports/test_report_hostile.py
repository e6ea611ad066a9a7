"""Text from models, engines and files must stay text in all four formats."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from datetime import date
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest
from markdown_it import MarkdownIt

from conformance.reports import Report
from conformance.reports.expectations import apply_expectations
from conformance.reports.html import render_html
from conformance.reports.junit import render_junit
from conformance.reports.markdown import render_markdown
from conformance.reports.model import CaseModel, Expectation, dump_json
from conformance.reports.text import web_address
from conformance.text import clean, excerpt, one_line
from conformance.verdict import Verdict

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "attribute": '"><img src=x onerror=alert(1)>',
    "apostrophe": "' onmouseover='alert(1)",
    "closing": "</title></style></svg></pre></script><script>alert(1)</script>",
    "scheme": "javascript:alert(1)",
    "table": "a|b\n|c|d|\n\n# heading\n- item",
    "fence": "```\n````\n`````text\n<b>x</b>\n~~~",
    "cdata": "]]><x/><!-- --><![CDATA[",
    "mathematics": "$x$ $$\\frac{1$$ \\(x\\)",
    "links": "[a](javascript:alert(1)) ![i](http://e.example/x.png) <http://e.example> @someone",
    "addresses": "http://e.example/ www.e.example",
    "template": "{{ 7 * 7 }}{% raw %}{# #}",
    "ansi": "\x1b[31mred\x1b[0m\x1b]8;;http://e.example\x07link\x1b]8;;\x07\x1b(B",
    "controls": "a\x00\x01\x08\x0b\x0c\x1f\x7f\x85\x9bb\ufffe\uffff\ufeff",
    "direction": "\u202egnp.exe\u2066\u200b\u2028",
    "entities": "&lt;b&gt; &#60;script&#62; &amp;amp;",
    "returns": "a\rb\r\nc\td",
    "backslash": "\\| \\` \\\\| trailing \\",
    "foreign": "漢字 🎲 עברית",
}
EMPTY = {"empty": "", "spaces": "   ", "newline": "\n"}
KEPT = {
    "verdict", "arm", "schema_version", "created", "outcome", "expires", "standing", "status",
    "claim",
}  # fmt: skip


def poison(value: Any, text: str) -> Any:
    """Replace every free text in a report, the keys of its free dictionaries included."""
    if isinstance(value, str):
        return text
    if isinstance(value, list):
        return [poison(item, text) for item in value]
    if isinstance(value, dict):
        changed = {}
        for key, item in value.items():
            if key in ("environment", "effect", "sha256") and isinstance(item, dict):
                changed[key] = {f"{text}{j}": poison(v, text) for j, v in enumerate(item.values())}
            else:
                changed[key] = item if key in KEPT else poison(item, text)
        return changed
    return value


@pytest.fixture
def poisoned(
    case_of: Callable[..., CaseModel], report_of: Callable[..., Report]
) -> Callable[[str], Report]:
    departed = case_of(Verdict.NOT_EXACT)
    departed = departed.model_copy(update={"bars": departed.bars[:1], "ruled_out": ["x", "y"]})
    cases = [departed, case_of(Verdict.ERROR), case_of(Verdict.NOT_SUPPORTED)]
    entry = Expectation(case="*", reason="r", link="l", expires=date(2030, 1, 1))
    marked, found = apply_expectations(cases, [entry], date(2029, 1, 1))
    report = report_of(marked, expectations=found)
    data = json.loads(dump_json(report))
    return lambda text: Report.model_validate(poison(data, text))


class Skeleton(HTMLParser):
    """Tags and attribute names without any text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.shape: list[tuple[str, ...]] = []
        self.scripts: list[str] = []
        self.links: list[str] = []
        self._in_script = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.shape.append((tag, *sorted(name for name, _ in attrs)))
        self._in_script = tag == "script"
        self.links += [value or "" for name, value in attrs if name == "href" and tag == "a"]

    def handle_endtag(self, tag: str) -> None:
        self.shape.append((f"/{tag}",))
        self._in_script = False

    def handle_comment(self, data: str) -> None:
        self.shape.append(("comment",))

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts.append(data)


def seen_controls(text: str) -> list[str]:
    return re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]", text)


@pytest.mark.parametrize("name", HOSTILE)
def test_html_keeps_its_shape(name: str, poisoned: Callable[[str], Report]) -> None:
    html = render_html(poisoned(HOSTILE[name]))
    page = Skeleton(html)
    # the same elements with the same attributes, whatever the text says
    assert page.shape == Skeleton(render_html(poisoned("plain"))).shape
    assert not [a for _, *attributes in page.shape for a in attributes if a.startswith("on")]
    own = (files("conformance.reports") / "templates" / "report.js").read_text(encoding="utf-8")
    assert page.scripts == [own]
    assert all(link.startswith("#") for link in page.links)
    assert not seen_controls(html)


def kinds_of(markdown: str) -> list[str]:
    kinds: list[str] = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown):
        kinds.append(token.type)
        for child in token.children or []:
            if child.type not in ("text", "text_special"):
                kinds.append(child.type)
    return kinds


@pytest.mark.parametrize("name", HOSTILE)
def test_markdown_keeps_its_shape(name: str, poisoned: Callable[[str], Report]) -> None:
    text = render_markdown(poisoned(HOSTILE[name]))
    assert kinds_of(text) == kinds_of(render_markdown(poisoned("plain")))
    assert not seen_controls(text)
    # in folds the text is HTML, and has no element but the fold's own
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    blocks = [token.content for token in tokens if token.type == "html_block"]
    tags = {tag for block in blocks for (tag, *rest) in Skeleton(block).shape}
    assert tags == {"details", "/details", "summary", "/summary"}
    prose = re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub("</?(details|summary)>", "", prose)
    assert "<" not in prose
    assert not re.search(r"(?<!\\)://", prose)
    assert "www." not in prose
    assert not re.search(r"(?<!\\)\$", prose)
    assert "@s" not in prose


@pytest.mark.parametrize("name", HOSTILE)
def test_junit_keeps_its_shape(name: str, poisoned: Callable[[str], Report]) -> None:
    text = render_junit(poisoned(HOSTILE[name]))
    shape = [(e.tag, *e.keys()) for e in ET.fromstring(text.encode()).iter()]
    plain = ET.fromstring(render_junit(poisoned("plain")).encode())
    assert shape == [(e.tag, *e.keys()) for e in plain.iter()]
    assert not seen_controls(text)


@pytest.mark.parametrize("name", HOSTILE)
def test_json_round_trips(name: str, poisoned: Callable[[str], Report]) -> None:
    report = poisoned(HOSTILE[name])
    text = dump_json(report)
    assert Report.model_validate(json.loads(text)) == report
    assert not re.search("[\x00-\x09\x0b-\x1f]", text)


@pytest.mark.parametrize("name", EMPTY)
def test_missing_text_breaks_nothing(name: str, poisoned: Callable[[str], Report]) -> None:
    report = poisoned(EMPTY[name])
    assert "<h1>" in render_html(report)
    assert kinds_of(render_markdown(report)) == kinds_of(render_markdown(poisoned("plain")))
    assert ET.fromstring(render_junit(report).encode()).get("tests") == "3"


def test_long_text_is_cut(poisoned: Callable[[str], Report]) -> None:
    report = poisoned("long <b>|` " * 20_000)
    html = render_html(report)
    assert len(html.encode()) < 2_000_000
    assert Skeleton(html).shape == Skeleton(render_html(poisoned("plain"))).shape
    assert len(render_markdown(report).encode()) < 200_000
    assert len(render_junit(report).encode()) < 200_000


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        " https://e.example",
        "java\tscript:alert(1)",
        "data:text/html,<script>alert(1)</script>",
        "file:///etc/passwd",
        "//e.example/x",
        "https://",
        "https://[",
        "https://e.example/\u202e",
        "https://e.example/" + "x" * 1000,
        "",
    ],
)
def test_only_plain_addresses_become_links(address: str) -> None:
    assert web_address(address) is None


def test_a_link_cannot_leave_its_attribute(report_of: Callable[..., Report]) -> None:
    report = report_of([])
    engine = report.engines[0].model_copy(update={"homepage": 'https://e/"onclick="alert(1)'})
    html = render_html(report.model_copy(update={"engines": [engine]}))
    page = Skeleton(html)
    assert not [a for _, *attributes in page.shape for a in attributes if a.startswith("on")]
    assert 'https://e/"onclick="alert(1)' in page.links


def test_cleaning_shows_what_cannot_be_seen() -> None:
    assert clean("\x1b[1;31mred\x1b[0m") == "red"
    assert clean("a\x00b\u202ec") == "a\\x00b\\u202ec"
    assert clean("a\tb\r\nc\rd") == "a\tb\nc\nd"
    assert one_line(" a \n\n b ") == "a b"
    assert one_line("abcdef", 3) == "ab…"
    assert len(excerpt("x" * 1_000_000, 1000)) < 1100
