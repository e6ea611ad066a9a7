"""Whole small runs of an exact engine hidden behind the interface of a server."""

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
from conformance.verdict import Verdict

ALPHA, TOKENS, EACH = 0.1, 3, 60  # half of alpha is for a first run, so a run alarms once in 20
RUNS = 2000
LEVELS = (0.5, 0.2, 0.05, 0.01)


@pytest.fixture(scope="module")
def runs(probe_cache, tmp_path_factory):
    """Verdicts and p-values of many runs."""
    probe, prompts = load_probe("small", probe_cache), texts(2, 6)
    decoding = Decoding(temperature=0.8)
    base = planned(prompts, decoding, alpha=ALPHA, tokens=TOKENS, requests=EACH)
    source = Hidden(reference(), probe.pair, prompts, ends=5)
    plans = [replace(base, seed=i) for i in range(RUNS)]
    source.prepare(decoding, [a for plan in plans for a in requests(plan, only(plan))])
    folder = tmp_path_factory.mktemp("served")
    verdicts, p_values = [], {}
    for plan in plans:
        gathered = gather(plan, only(plan), folder / str(plan.seed), source=source)
        assert gathered.error is None, gathered.error
        result = decide(plan, gathered)
        shutil.rmtree(folder / str(plan.seed))
        verdicts.append(result.verdict.verdict)
        for f in result.findings:
            if f.p_value is not None and (not gathered.stopped or f.test == "e-process"):
                p_values.setdefault((f.test, f.scope, f.arm), []).append(f.p_value)
    write_table(
        "served",
        {
            "runs": RUNS,
            "alpha": ALPHA / 2,
            "alarms": verdicts.count(Verdict.NOT_EXACT),
            "levels": LEVELS,
            "at_or_below": {
                ", ".join(what): [float(np.mean(np.array(p) <= x)) for x in LEVELS]
                for what, p in p_values.items()
            },
        },
    )
    return verdicts, p_values


@pytest.mark.long
def test_an_exact_engine_is_rarely_called_not_exact(runs):
    verdicts, _ = runs
    assert Verdict.ERROR not in verdicts
    alarms = verdicts.count(Verdict.NOT_EXACT)
    # at most ALPHA / 2 in truth; more than this would be seen once in ten thousand sessions
    assert alarms <= stats.binom.isf(1e-4, RUNS, ALPHA / 2), alarms
    assert alarms > 0  # and the alpha is really spent


@pytest.mark.long
def test_every_p_value_is_uniform_or_larger(runs):
    _, p_values = runs
    assert len(p_values) >= 12
    for what, found in p_values.items():
        p = np.array(found)
        for level in LEVELS:
            most = stats.binom.isf(1e-5, len(p), level)
            assert (p <= level).sum() <= most, (what, level, (p <= level).mean())
        if what[0] in ("two-sample", "sharpening") and "weighted" not in what[1]:
            assert stats.kstest(p, "uniform").pvalue > 1e-5, what
