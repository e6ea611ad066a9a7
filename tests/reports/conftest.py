"""A realistic report, built by hand: all five verdicts, findings, bars and PIT histograms."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance.reports.details import (
    AcceptanceModel,
    AcceptedModel,
    DiagnosisModel,
    TrajectoryModel,
    UnaskedModel,
)
from conformance.reports.measured import CalibrationRow, FalseAlarms, KillRow, Measured
from conformance.reports.model import (
    ArmModel,
    BarsModel,
    CaseModel,
    EngineModel,
    FindingModel,
    IntervalModel,
    PitModel,
    ProbeModel,
    Report,
    SettingsModel,
    SpeculationModel,
)
from conformance.verdict import EXIT_CODES, Verdict, run_verdict

ANSWERS, TOKENS, VOCAB = 2304, 36_864, 32

TRACEBACK = """Traceback (most recent call last):
  File "engine/scheduler.py", line 212, in step
    accepted = self.verify(block)
  File "engine/verify.py", line 88, in verify
    raise IndexError("index 5 is out of bounds for dimension 1 with size 5")
IndexError: index 5 is out of bounds for dimension 1 with size 5
"""

MEASURED = Measured(
    tool_version="0.1.0",
    calibration=[CalibrationRow(test="chi-square", threshold=0.01, n=20_000, at_or_below=196)],
    false_alarms=[FalseAlarms(alpha=0.01, runs=2000, alarms=2)],
    kills=[
        KillRow(
            tier="engine", profile="standard", fault="lenient", share=0.25, runs=24, killed=24,
            passed=0, low=0.857, high=1.0, whole=0.99907, explained=5, named=5,
            by=["draft leak", "e-process"],
        ),
        KillRow(
            tier="engine", profile="standard", fault="disabled", runs=20, killed=0, passed=0,
            low=0.0, high=0.168, explained=0, named=0, by=[],
        ),
    ],
)  # fmt: skip

WHY = {
    Verdict.EXACT: "No test rejected, and speculation was seen: 9,410 drafts accepted, 4,108 "
    "blocks rejected.",
    Verdict.NOT_EXACT: "Chi-square at output index 1 rejects (p = 3e-12): 6% of tokens follow the "
    "draft instead of the target.",
    Verdict.INCONCLUSIVE: "No draft was ever rejected, so the acceptance rule was never put to "
    "the test.",
    Verdict.ERROR: "The engine raised IndexError on 3 of 2,304 requests.",
    Verdict.NOT_SUPPORTED: "The engine refuses top_k with speculation: 'top_k is not implemented "
    "for assisted generation'.",
}


def finding(test: str, scope: str, p: float | None, **changes: Any) -> FindingModel:
    values: dict[str, Any] = {
        "test": test,
        "scope": scope,
        "arm": "speculative",
        "n": ANSWERS,
        "p_value": p,
        "adjusted_p": None if p is None else min(1.0, 40 * p),
        "level": 2.5e-8,
        "rejected": p is not None and p <= 2.5e-8,
        "statistic": 31.4,
        "df": 29.0,
        "effect": {},
        "detectable": 0.048,
        "detectable_unit": "TV",
        "message": "Nothing unusual.",
    }
    return FindingModel.model_validate(values | changes)


def findings(departs: bool) -> list[FindingModel]:
    leak = {"leak": IntervalModel(estimate=0.061, low=0.052, high=0.07, confidence=0.95)}
    none = {"leak": IntervalModel(estimate=0.001, low=-0.008, high=0.01, confidence=0.95)}
    kl = {"kl_nats_per_token": IntervalModel(estimate=2e-3, low=4e-4, high=4e-3, confidence=0.95)}
    return [
        finding("support", "all tokens", None, level=0.0, statistic=0.0, df=None, detectable=1e-4,
                detectable_unit="rate", n=TOKENS, message="No impossible token in 36,864."),
        finding("chi-square", "output index 0", 0.41, effect=kl),
        finding("chi-square", "output index 1", 3.2e-12 if departs else 0.77, effect=kl,
                message="Observed and expected counts differ." if departs else "No difference."),
        finding("chi-square", "first 2 tokens", 0.08),
        finding("draft leak", "all tokens", 1.4e-38 if departs else 0.63, n=TOKENS, df=None,
                effect=leak if departs else none, detectable=0.012, detectable_unit="leak",
                message="Tokens lean to the draft." if departs else "No leaning to the draft."),
        finding("PIT", "all tokens, by q/p", 2e-21 if departs else 0.33, n=TOKENS, df=None,
                message="Not evenly spread." if departs else "Evenly spread."),
        finding("surprisal", "all tokens", 0.52, n=TOKENS, df=None),
        finding("chi-square", "output index 1", 0.58, arm="control"),
        finding("two-sample", "output index 1", 0.19, arm="both"),
    ]  # fmt: skip


def bars(seed: int, leak: float = 0.0) -> BarsModel:
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(VOCAB, 0.6), 2)
    p[5] = 0.0
    p /= p.sum()
    observed = rng.multinomial(ANSWERS, (1 - leak) * p + leak * q)
    return BarsModel(
        title="Token at output index 1, all prefixes",
        labels=[str(i) for i in range(VOCAB)],
        observed=observed.tolist(),
        expected=(ANSWERS * p).tolist(),
        draft=(ANSWERS * q).tolist(),
    )


def pit(seed: int, slope: float = 0.0) -> PitModel:
    rng = np.random.default_rng(seed)
    weights = 1 + slope * np.linspace(-1, 1, 20)
    observed = rng.multinomial(TOKENS, weights / weights.sum())
    return PitModel(order="q/p", observed=observed.tolist(), expected=TOKENS / 20,
                    band=(1700.0, 1988.0))  # fmt: skip


def trajectories(slope: float) -> list[TrajectoryModel]:
    tokens = [256 * i for i in range(1, 20)]
    return [
        TrajectoryModel(arm="speculative", tokens=tokens, needed=7.6,
                        log10_e=[slope * i - 0.1 for i in range(19)]),
        TrajectoryModel(arm="control", tokens=tokens, needed=7.6, log10_e=[-0.3] * 19),
    ]  # fmt: skip


ACCEPTANCE = AcceptanceModel(
    verified=True,
    places=[
        AcceptedModel(place=place, proposals=9000, accepted=6000, rate=0.667, low=0.657, high=0.676,
                      rejection=0.75, matching=0.26, likeliest=0.37)
        for place in ("all proposals", "proposal 1 of a block")
    ],
)  # fmt: skip
DIAGNOSIS = DiagnosisModel(
    standing="fits", fault="raw-q", summary="a raw softmax is declared", shows="accepted tokens",
    seen="transformers #47932; several engines", note="no thread is known", size=0.9,
    alike=["stale-q"], runner_up="lenient", odds_runner_up=11.2, odds_exact=281.0, fit_p=0.4,
    place="It departs most at recovered tokens (z = 40).",
)  # fmt: skip
NOT_ASKED = [
    UnaskedModel(status="not claimed", question="decoding temperature=1,min_p=0.05",
                 why="the engine does not claim min_p", cases=["lookup/mid/min_p"]),
    UnaskedModel(status="not reached", question="chi-square: output indices 6 and 7",
                 why="no prefix was reached often enough", cases=["a", "b", "c", "d"]),
    UnaskedModel(status="not asked by this suite", question="stop strings",
                 why="no probe has a token that ends", cases=[]),
]  # fmt: skip


def make_case(verdict: Verdict, decoding: str = "temperature=1", **changes: Any) -> CaseModel:
    departs = verdict is Verdict.NOT_EXACT
    judged = verdict in (Verdict.EXACT, Verdict.NOT_EXACT, Verdict.INCONCLUSIVE)
    asked = verdict is not Verdict.NOT_SUPPORTED
    seed = sum(map(ord, decoding))
    arms = [
        ArmModel(arm="speculative", requests=ANSWERS if judged else 2301, planned=ANSWERS,
                 tokens=TOKENS, set_aside=17, seconds=41.5, sha256="ab" * 32),
        ArmModel(arm="control", requests=ANSWERS, planned=ANSWERS, tokens=TOKENS, set_aside=12,
                 seconds=66.25, sha256="cd" * 32),
    ]  # fmt: skip
    values: dict[str, Any] = {
        "id": f"transformers/mid/{decoding}",
        "engine": "transformers",
        "probe": "mid",
        "decoding": decoding,
        "workload": "16 new tokens after 36 prompts",
        "verdict": verdict,
        "why": WHY[verdict],
        "needed": 4000 if verdict is Verdict.INCONCLUSIVE else None,
        "ruled_out": [
            "Any departure of 0.048 TV or more at output index 1, with a probability of 95%.",
            "Any draft leak of 1.2% or more, with a probability of 95%.",
        ]
        if verdict is Verdict.EXACT
        else [],
        "speculation": SpeculationModel(
            reported=judged,
            blocks=8204 if judged else 0,
            drafted=19_870 if judged else 0,
            accepted=9410 if judged else 0,
            rejected=4108 if verdict in (Verdict.EXACT, Verdict.NOT_EXACT) else 0,
            longest=4 if judged else 0,
        ),
        "arms": arms if asked else [],
        "findings": findings(departs) if judged else [],
        "bars": [bars(seed, 0.12 * departs), bars(seed + 1)] if judged else [],
        "pit": [pit(seed, 0.12 * departs)] if judged else [],
        "trajectories": trajectories(2.0 * departs) if judged else [],
        "acceptance": ACCEPTANCE if judged else None,
        "diagnosis": DIAGNOSIS if departs else None,
        "error": TRACEBACK if verdict is Verdict.ERROR else None,
    }
    return CaseModel.model_validate(values | changes)


def make_report(cases: list[CaseModel], **changes: Any) -> Report:
    verdict = run_verdict(case.verdict for case in cases)
    values: dict[str, Any] = {
        "tool_version": "0.1.0",
        "created": dt.datetime(2025, 6, 1, 12, 30, tzinfo=dt.UTC),
        "seconds": 612.4,
        "command": ["conformance", "run", "transformers", "--decoding", "temperature=0.7"],
        "verdict": verdict,
        "exit_code": EXIT_CODES[verdict],
        "why": f"The verdict of {len(cases)} cases taken together.",
        "settings": SettingsModel(profile="standard", alpha=1e-6, power=0.95, delta=0.05, tests=40,
                                  stage=1, seed=20250601, jobs=4),
        "environment": {"python": "3.12.4", "platform": "Linux x86_64", "torch": "2.8.0"},
        "engines": [
            EngineModel(name="transformers", card_name="Hugging Face transformers", version="5.0.1",
                        method="draft model", homepage="https://github.com/huggingface/transformers",
                        rule="rejection sampling", dialect="temperature, top_k, top_p, min_p"),
            EngineModel(name="lookup", card_name="Hugging Face transformers", version="5.0.1",
                        method="prompt lookup", homepage="https://github.com/huggingface/transformers",
                        rule="rejection sampling", dialect="temperature, top_k, top_p, min_p"),
        ],
        "probes": [
            ProbeModel(name="mid", vocab_size=VOCAB, entropy_nats=2.04, draft_tv=0.251,
                       float_noise=1.9e-6, sha256={"target": "12" * 32, "draft": "34" * 32}),
        ],
        "cases": cases,
        "measured": MEASURED,
        "not_asked": NOT_ASKED,
    }  # fmt: skip
    return Report.model_validate(values | changes)


@pytest.fixture(scope="session")
def case_of() -> Callable[..., CaseModel]:
    return make_case


@pytest.fixture(scope="session")
def report_of() -> Callable[..., Report]:
    return make_report


@pytest.fixture
def report() -> Report:
    """Eight cases of two engines with every verdict among them."""
    return make_report(
        [
            make_case(Verdict.EXACT, "greedy"),
            make_case(Verdict.NOT_EXACT, "temperature=1"),
            make_case(Verdict.EXACT, "temperature=0.7,top_p=0.8"),
            make_case(Verdict.NOT_SUPPORTED, "temperature=1,top_k=8"),
            make_case(Verdict.EXACT, "greedy", engine="lookup", id="lookup/mid/greedy"),
            make_case(Verdict.INCONCLUSIVE, "temperature=1.3", engine="lookup"),
            make_case(Verdict.ERROR, "temperature=1,min_p=0.05", engine="lookup"),
            make_case(Verdict.NOT_EXACT, "temperature=0.7", engine="lookup"),
        ]
    )
