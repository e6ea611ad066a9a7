"""Which catalogued fault explains a departure best.

Where the engine reported its rounds, every token is known to be accepted or recovered (a
*verified* position) or bonus. At a verified position a rule emits a law that is computed, not
simulated; so the evidence has a likelihood under the exact rule and under every rule of the
catalogue, and their ratio is the odds of one explanation against another.
"""

from __future__ import annotations

import numpy as np

from conformance.evidence import Evidence
from conformance.faults import FAULTS
from conformance.judge import ArmJudge
from conformance.law import Bools, Floats
from conformance.reference import Rule, emitted_law
from conformance.statistics import pit

# An explanation is offered when it beats the law by this many nats, and is said to fit when the
# evidence does not depart from it in turn.
CONVINCING = 20.0
FITS = 1e-4


def verified_positions(evidence: Evidence) -> Bools | None:
    """True where a token was accepted or recovered; None without rounds. [N, T]"""
    if evidence.rounds is None:
        return None
    n, length = evidence.tokens.shape
    verified = np.zeros((n, length), dtype=bool)
    at = np.zeros(n, dtype=np.int64)
    for i, drafted, accepted in evidence.rounds:
        # the last token of a block is a bonus if every proposal was accepted, else recovered
        end = at[i] + accepted + (accepted < drafted)
        verified[i, at[i] : end] = True
        at[i] += accepted + 1
    return verified


def diagnose(judge: ArmJudge, evidence: Evidence) -> str:
    """One sentence that names the likeliest fault, or says that none fits; empty if unknowable."""
    verified = verified_positions(evidence)
    sample = judge.sample
    if verified is None or sample.draft is None or judge.case.capabilities.draft != "model":
        return ""
    use = verified & sample.judged
    if not use.any():
        return ""
    prefix, token = sample.prefix[use], sample.tokens[use]
    candidates = {
        name: fault.make(fault.parameter if fault.parameter is not None else 1.0)
        for name, fault in FAULTS.items()
    }
    gain: dict[str, float] = {}
    laws: dict[str, Floats] = {}
    exact = np.log(np.maximum(sample.law[prefix, token], 1e-12))
    for name, rule in candidates.items():
        laws[name] = _emitted(sample.law, sample.draft, rule)
        gain[name] = float((np.log(np.maximum(laws[name][prefix, token], 1e-12)) - exact).sum())
    first, second = sorted(gain, key=lambda n: -gain[n])[:2]
    if gain[first] < CONVINCING:
        return "No fault in the catalogue explains it."
    u = pit.transform(
        prefix, token, laws[first], pit.draft_key(sample.law, sample.draft), judge.rng("diagnosis")
    )
    odds = (gain[first] - gain[second]) / np.log(10)
    fits = pit.kolmogorov_smirnov(u).p_value >= FITS
    return (
        f"Likely cause: {first} ({FAULTS[first].summary}), favoured over {second} by odds of "
        f"10^{odds:.0f} to 1"
        + (", and it fits." if fits else ", but it does not fit well: look for something like it.")
    )


def _emitted(law: Floats, draft: Floats, rule: Rule) -> Floats:
    return np.maximum(emitted_law(law, draft, rule), 0.0)
