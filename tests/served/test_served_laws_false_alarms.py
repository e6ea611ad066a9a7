"""Whole small runs of an exact engine that tells its law too, exactly or rounded."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from hidden import Hidden, only, planned, texts
from in_process import write_table
from scipy import stats

from conformance.adapters.reference import reference
from conformance.decoding import Decoding
from conformance.probes import load_probe
from conformance.served.decide import decide
from conformance.served.gather import gather, requests
from conformance.served.plan import BY, LAW_GATE, LAW_GATE_TESTS
from conformance.verdict import Verdict

ALPHA, TOKENS, REQUESTS = 0.1, 3, 240  # half of alpha is for a first run: an alarm once in 20
RUNS, TOLD = 1000, 4  # of 6 tokens: what the others add up to at this temperature is not known
LEVELS = (0.5, 0.2, 0.05, 0.01)
ROUNDING = {"exact": (0.0, 0.0), "noisy": (0.03, 0.03)}


@pytest.fixture(scope="module")
def runs(probe_cache, tmp_path_factory):
    """Verdicts and p-values of many runs, by how the law is told."""
    probe, prompts = load_probe("small", probe_cache), texts(2, 6)
    decoding = Decoding(temperature=0.8)
    base = planned(prompts, decoding, alpha=ALPHA, tokens=TOKENS, requests=REQUESTS, logprobs=TOLD)
    source = Hidden(reference(), probe.pair, prompts, ends=5, most=TOLD)
    plans = [replace(base, seed=i) for i in range(RUNS)]
    source.prepare(decoding, [a for plan in plans for a in requests(plan, only(plan))])
    folder = tmp_path_factory.mktemp("served")
    out = {}
    for how, (source.jitter, source.offset) in ROUNDING.items():
        verdicts, p_values = [], {}
        for plan in plans:
            gathered = gather(plan, only(plan), folder / str(plan.seed), source=source)
            assert gathered.error is None, gathered.error
            assert gathered.laws.reasons == ("",)
            result = decide(plan, gathered)
            shutil.rmtree(folder / str(plan.seed))
            verdicts.append(result.verdict.verdict)
            for f in result.findings:
                if f.p_value is not None and (not gathered.stopped or f.test == "e-process"):
                    p_values.setdefault((f.test, f.scope, f.arm), []).append(f.p_value)
        out[how] = verdicts, p_values
    write_table(
        "served-laws",
        {
            how: {
                "runs": RUNS,
                "alpha": ALPHA / 2,
                "alarms": verdicts.count(Verdict.NOT_EXACT),
                "levels": LEVELS,
                "at_or_below": {
                    ", ".join(what): [float(np.mean(np.array(p) <= x)) for x in LEVELS]
                    for what, p in p_values.items()
                },
            }
            for how, (verdicts, p_values) in out.items()
        },
    )
    return out


@pytest.mark.long
@pytest.mark.parametrize("how", ROUNDING)
def test_an_exact_engine_is_rarely_called_not_exact(runs, how):
    verdicts, _ = runs[how]
    assert Verdict.ERROR not in verdicts
    alarms = verdicts.count(Verdict.NOT_EXACT)
    # at most ALPHA / 2 in truth; more than this would be seen once in ten thousand sessions
    assert alarms <= stats.binom.isf(1e-4, RUNS, ALPHA / 2), alarms


@pytest.mark.long
@pytest.mark.parametrize("how", ROUNDING)
def test_every_p_value_is_uniform_or_larger(runs, how):
    _, p_values = runs[how]
    mine = {what: p for what, p in p_values.items() if BY in what[1]}
    assert len(mine) == 10
    for what, found in mine.items():
        p = np.array(found)
        assert len(p) > 0.9 * RUNS
        for level in LEVELS:
            most = stats.binom.isf(1e-5, len(p), level)
            assert (p <= level).sum() <= most, (what, level, (p <= level).mean())


@pytest.mark.long
@pytest.mark.parametrize("how", ROUNDING)
def test_the_law_is_seldom_dropped(runs, how):
    """The control arm has the law that it tells."""
    _, p_values = runs[how]
    gate = [p for (_, scope, arm), p in p_values.items() if BY in scope and arm == "control"]
    assert len(gate) == LAW_GATE_TESTS
    dropped = sum((np.array(p) <= LAW_GATE / LAW_GATE_TESTS).sum() for p in gate)
    assert dropped <= stats.binom.isf(1e-5, RUNS, LAW_GATE), dropped
