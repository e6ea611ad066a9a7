"""The run's verdict as a badge: an SVG that needs nothing else, and JSON for shields.io.

The words say what the colour says. A badge shows the true verdict; that failures were expected is
added, and changes neither the verdict nor its colour.
"""

from __future__ import annotations

import json
from xml.sax.saxutils import escape, quoteattr

from conformance.reports.expectations import excused
from conformance.reports.model import Report
from conformance.verdict import Verdict

LABEL = "speculative decoding"
LABEL_COLOUR = "#404040"
# each has a contrast of 4.5 or more to white text
COLOURS = {
    Verdict.EXACT: "#1a7337",
    Verdict.NOT_EXACT: "#b3261e",
    Verdict.INCONCLUSIVE: "#8a5a00",
    Verdict.ERROR: "#8e2590",
    Verdict.NOT_SUPPORTED: "#5f5f5f",
}
HEIGHT, PADDING = 20, 7
FONT = "Verdana,DejaVu Sans,Geneva,sans-serif"
FONT_SIZE = 11
# widths of Verdana at 11 pixels; what is drawn is fitted to them, whatever font there is
WIDE, NARROW = "mwMWNOQ%@", "iIjl.,:;'|!()[] frt1"
WIDTHS = (9.2, 7.0, 4.8)


def message(report: Report) -> str:
    """What stands on the badge beside its label.

    Examples are ``EXACT, 5 of 5``, ``NOT EXACT, 2 of 7`` and ``NOT EXACT, 1 of 5 (1 expected)``.
    """
    judged = [case for case in report.cases if case.verdict is not Verdict.NOT_SUPPORTED]
    if not judged:
        return "nothing was judged"
    hits = sum(case.verdict is report.verdict for case in judged)
    foreseen = sum(excused(case) for case in judged)
    expected = f" ({foreseen:,} expected)" if foreseen else ""
    return f"{report.verdict.value}, {hits:,} of {len(judged):,}{expected}"


def render_badge_svg(report: Report) -> str:
    """Render the badge as one self-contained SVG, with a title for screen readers."""
    words = message(report)
    left, right = _width(LABEL), _width(words)
    whole = left + right
    title = f"{LABEL}: {words}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="{HEIGHT}" '
        f'viewBox="0 0 {whole} {HEIGHT}" role="img" aria-label={quoteattr(title)}>\n'
        f"<title>{escape(title)}</title>\n"
        # no clip path, which would need an id: several badges may stand inline in one page
        f'<rect width="{whole}" height="{HEIGHT}" rx="3" fill="{COLOURS[report.verdict]}"/>\n'
        f'<path d="M3 0H{left}v{HEIGHT}H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" '
        f'fill="{LABEL_COLOUR}"/>\n'
        f'<g fill="#fff" font-family="{FONT}" font-size="{FONT_SIZE}" aria-hidden="true">'
        f"{_text(LABEL, 0, left)}{_text(words, left, right)}</g>\n"
        "</svg>\n"
    )


def render_badge_json(report: Report) -> str:
    """Render the badge for https://shields.io/badges/endpoint-badge."""
    content = {
        "schemaVersion": 1,
        "label": LABEL,
        "message": message(report),
        "color": COLOURS[report.verdict].lstrip("#"),
        "labelColor": LABEL_COLOUR.lstrip("#"),
        # whoever embeds the badge cannot give another colour to anything but a pass
        "isError": report.verdict is not Verdict.EXACT,
    }
    return json.dumps(content, indent=2) + "\n"


def _width(words: str) -> int:
    return round(_length(words)) + 2 * PADDING


def _length(words: str) -> float:
    wide, usual, narrow = WIDTHS
    return sum(wide if c in WIDE else narrow if c in NARROW else usual for c in words)


def _text(words: str, x: int, width: int) -> str:
    return (
        f'<text x="{x + PADDING}" y="14" textLength="{width - 2 * PADDING}" '
        f'lengthAdjust="spacingAndGlyphs">{escape(words)}</text>'
    )
