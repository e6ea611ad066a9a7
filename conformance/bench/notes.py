"""What a reader has to keep in mind with the numbers of a run."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.bench.machine import BUSY
from conformance.bench.plan import Settings
from conformance.reports.bench_model import BenchEngine, CellModel


def notes(
    settings: Settings, engines: Sequence[BenchEngine], cells: Sequence[CellModel]
) -> list[str]:
    """Sentences, the weightiest first."""
    measured = [c for c in cells if c.status == "measured"]
    found: list[str] = []
    if any(e.probe for e in engines):
        found.append(
            "The models are a probe of this suite: so small that a step is nearly all overhead. "
            "What is gained on it says nothing of real models; bring them with --models."
        )
    if settings.prompts is None and measured:
        found.append(
            "The prompts are random token ids. How much of a draft is accepted on them says little "
            "of your text; bring it with --prompts."
        )
    noisy = [c for c in measured if c.others is not None and c.others > BUSY]
    if noisy:
        most = max(c.others or 0.0 for c in noisy)
        found.append(
            f"The machine was not quiet: in {len(noisy)} of {len(measured)} settings other "
            f"processes used up to {most:.1f} processors meanwhile."
        )
    drifting = [c for c in measured if c.drift is not None]
    if drifting:
        most = max(drifting, key=lambda c: abs(c.drift or 0.0)).drift or 0.0
        found.append(
            f"The machine drifted: in {len(drifting)} of {len(measured)} settings the second half "
            f"of the control arm's calls took another time than the first ({most:+.0%} at most). "
            "The arms alternate, so their ratio suffers less than the times."
        )
    if any(not c.streamed for c in measured):
        found.append(
            "Where an engine does not tell when each token was there, the time to the first token "
            "is that of a request for one token (the prompt and one step), in which nothing can be "
            "proposed; a token's time is the rest by the number of tokens."
        )
    if any(c.batch > 1 for c in measured):
        found.append(
            "A batch is what one call hands over; whether the engine runs it together or one by "
            "one is its own affair."
        )
    if len(measured) > 1:
        found.append("Each interval holds with 95 % by itself, not all of them together.")
    found.append(
        "A few pairs of calls on one machine: another load, model, prompt or version may turn the "
        "answer round."
    )
    return found
