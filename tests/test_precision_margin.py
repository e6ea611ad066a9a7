"""How far rounding moves a logit of the probes, and the margin at near ties that follows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import in_process
import numpy as np
import pytest

from conformance.adapters.reference import ReferenceEngine
from conformance.contract import ModelPair
from conformance.decide import decide
from conformance.decoding import Decoding
from conformance.evidence import Evidence
from conformance.gather import Gathered
from conformance.plan import PROFILES, Case, RunPlan, make_plan
from conformance.precision import CEILING, FLOOR, RMS, STRAYS, most_noise, with_measured_noise
from conformance.probes import load_probe
from conformance.recipes import random_tokens
from conformance.result import CaseResult
from conformance.tinylm import Floats, TinyLlama, Tokens, round_to
from conformance.verdict import Verdict

PLAIN = Decoding(greedy=True)


class Rounded(TinyLlama):
    """Every intermediate result is rounded; sums are made in single precision, as engines do."""

    precision = "bfloat16"

    def kept(self, x: np.ndarray) -> np.ndarray:
        return round_to(np.asarray(x, np.float32), self.precision)  # type: ignore[arg-type]

    def teacher_forced(self, tokens: Tokens) -> Floats:
        s, w, kept = self.shape, self._w, self.kept
        batch, m = tokens.shape
        at = np.tile(np.arange(m), (batch, 1))
        hidden = np.arange(m)[None, None] > at[:, :, None]
        x = w["model.embed_tokens.weight"][tokens]
        for i in range(s.layers):
            p = f"model.layers.{i}."
            h = kept(self._norm(x, w[p + "input_layernorm.weight"]))
            q, k, v = (
                kept(h @ w[f"{p}self_attn.{name}_proj.weight"].T).reshape(batch, m, -1, s.head_dim)
                for name in "qkv"
            )
            a = self._attend(kept(self._rotate(q, at)), kept(self._rotate(k, at)), v, hidden)
            x = kept(x + kept(kept(a) @ w[p + "self_attn.o_proj.weight"].T))
            h = kept(self._norm(x, w[p + "post_attention_layernorm.weight"]))
            gate, up = (kept(h @ w[f"{p}mlp.{name}_proj.weight"].T) for name in ("gate", "up"))
            gated = kept(kept(gate / (1 + np.exp(-gate))) * up)
            x = kept(x + kept(gated @ w[p + "mlp.down_proj.weight"].T))
        return np.asarray(kept(kept(self._norm(x, w["model.norm.weight"])) @ w["lm_head.weight"].T))


def pair(probe: str, precision: str, tokens: Tokens) -> tuple[Floats, Floats]:
    """Logits with rounding, and without, of the same rounded weights."""
    folder = load_probe(probe).folder / "target"
    low = Rounded.load(folder, np.float32, precision)  # type: ignore[arg-type]
    low.precision = precision
    exact = TinyLlama.load(folder, np.float64, precision)  # type: ignore[arg-type]
    return low.teacher_forced(tokens).astype(np.float64), exact.logits(tokens)


@pytest.mark.parametrize("probe", ["mid", "tied", "near"])
@pytest.mark.parametrize("precision", sorted(RMS))
def test_the_rounding_is_what_it_is_said_to_be(probe: str, precision: str) -> None:
    low, exact = pair(probe, precision, random_tokens(load_probe(probe).recipe, 64, 48))
    rms = float(np.sqrt(((low - exact) ** 2).mean()))
    assert 0.8 * RMS[precision] < rms < 1.1 * RMS[precision]


@pytest.mark.parametrize("precision", sorted(RMS))
def test_the_margin_holds_where_it_is_drawn_and_half_of_it_would_not(precision: str) -> None:
    """Over 20,000 prefixes: the argmax with rounding is no further below the one without."""
    tokens = np.random.default_rng(1).integers(0, 32, (360, 56))
    low, exact = pair("mid", precision, tokens)
    taken = np.take_along_axis(exact, low.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    gap = exact.max(axis=-1) - taken
    assert gap.max() < 2 * FLOOR * RMS[precision]
    assert gap.max() > FLOOR / 4 * RMS[precision]
    assert CEILING > FLOOR


# --- judging --------------------------------------------------------------------------------------


@cache
def plan() -> RunPlan:
    (case,) = in_process.cases("mid", [PLAIN])
    claims = replace(case.capabilities, precision="float16", reproducible=False)
    return make_plan([replace(case, capabilities=claims)], PROFILES["standard"])


@cache
def exact_arm() -> Evidence:
    engine = ReferenceEngine()
    load = engine.load

    def load_rounded(probe: ModelPair) -> None:
        load(probe)
        engine._target = TinyLlama.load(probe.target, np.float64, "float16")

    engine.load = load_rounded  # type: ignore[method-assign]
    return in_process.gather_runs(engine, plan().cases[0], "speculative", [plan()])[0]


def with_gap(case: Case, count: int, low: float, high: float) -> Evidence:
    """So many tokens, each the last of its request, that are some nats below the argmax."""
    made = exact_arm()
    tokens, changed = made.tokens.copy(), 0
    tree = case.oracle.tree(made.prompt, tokens)
    assert case.workload is not None
    for chunk in case.oracle.chunks(case.workload.prompt_array, tree):
        for i in range(len(tokens)):
            z = chunk.logits[tree.prefix[i, -1] - chunk.begin]
            below = z.max() - z
            (found,) = np.nonzero((below > low) & (below < high))
            if len(found) and changed < count:
                tokens[i, -1] = found[0]
                changed += 1
    assert changed == count
    return replace(made, tokens=tokens)


def judged(spec: Evidence) -> CaseResult:
    case = plan().cases[0]
    control = replace(exact_arm(), rounds=None)
    return decide(plan(), Gathered(case, {"speculative": spec, "control": control}))


def test_a_few_tokens_beyond_the_margin_show_nothing() -> None:
    case = plan().cases[0]
    margin = 2 * FLOOR * RMS["float16"]
    noise = with_measured_noise(case, exact_arm()).noise
    assert noise == margin / 2
    assert judged(exact_arm()).verdict.verdict is Verdict.EXACT
    within = judged(with_gap(case, 1, 0.02, margin))
    assert within.verdict.verdict is Verdict.EXACT, within.verdict
    most = 2 * most_noise(case)
    few = judged(with_gap(case, STRAYS - 1, margin, most))
    assert few.verdict.verdict is Verdict.INCONCLUSIVE
    assert "fewer than 3 of them show nothing" in few.verdict.why
    for wrong in (with_gap(case, STRAYS, margin, most), with_gap(case, 1, most, 9.0)):
        assert judged(wrong).verdict.verdict is Verdict.NOT_EXACT


def test_an_engine_cannot_widen_its_margin_without_end() -> None:
    case = plan().cases[0]
    wide = with_gap(case, 1, 2 * most_noise(case), 9.0)
    result = decide(plan(), Gathered(case, {"speculative": exact_arm(), "control": wide}))
    assert result.verdict.verdict is Verdict.ERROR
    assert "is no rounding: the declared law is wrong" in result.verdict.why
