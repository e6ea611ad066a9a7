"""The HTML report in a real browser."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.reports import Report
from conformance.reports.html import render_html
from conformance.reports.model import CaseModel
from conformance.verdict import Verdict

pytestmark = pytest.mark.browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture
def dom_of(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that renders a page and gives its DOM after scripts have run."""
    browser = next((path for name in NAMES if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no Chromium found; looked for {', '.join(NAMES)}")

    def dump(html: str) -> str:
        page = tmp_path / "report.html"
        page.write_text(html, encoding="utf-8")
        command = [browser, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
        done = subprocess.run(
            [*command, page.as_uri()], capture_output=True, timeout=120, check=True
        )
        return done.stdout.decode()

    return dump


def test_the_verdict_is_on_the_page(report: Report, dom_of: Callable[[str], str]) -> None:
    dom = dom_of(render_html(report))
    assert "NOT EXACT" in dom
    assert "A departure was found in 2 of 7 configurations tested." in dom
    # the script shows the buttons: so the policy admits it, and it ran
    assert '<p id="tools">' in dom


def test_no_foreign_script_runs(
    case_of: Callable[..., CaseModel],
    report_of: Callable[..., Report],
    dom_of: Callable[[str], str],
) -> None:
    attack = "</script><script>document.body.id='taken'</script><img src=x onerror=alert(1)>"
    case = case_of(Verdict.ERROR, why=attack, error=attack, decoding=attack)
    html = render_html(report_of([case], why=attack))
    assert 'id="taken"' not in dom_of(html)
    # and where escaping failed, the policy would still forbid it
    assert 'id="taken"' not in dom_of(html.replace("</main>", f"{attack}</main>"))
