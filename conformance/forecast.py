"""What a pass of a case is expected to rule out, said before anything is sampled."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from conformance.forms import FAR
from conformance.oracle import Oracle
from conformance.plan import Case, RunPlan, first_table
from conformance.reference import draw
from conformance.statistics import certificate
from conformance.statistics.leak import detectable
from conformance.workload import Workload, share_before_end


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a pass of one case is expected to rule out."""

    first_token_tv: float | None
    rank_shift: float | None
    leak: float | None
    greedy_rate: float | None


def forecast(case: Case, plan: RunPlan) -> Forecast:
    """Say before sampling what a pass will rule out, from the laws along the target's own text."""
    assert case.workload is not None
    work, power = case.workload, plan.profile.power
    if case.decoding.greedy:
        share = share_before_end(case.oracle, work.requests, plan.seed)
        if case.oracle.probe.recipe.tied:
            share *= _untied(case.oracle, work)
        tokens = int(share * work.requests * work.new_tokens)
        return Forecast(None, None, None, certificate.zero_events_rate(power, tokens))
    tokens = int(work.lengths.sum())
    if case.form in FAR:
        return Forecast(None, certificate.ks_distance(plan.level, power, tokens), None, None)
    prompts = work.repeated_prompts
    laws = case.oracle.target_laws(prompts, np.zeros((len(prompts), 0), np.int64))
    each = int(np.bincount(work.prompt_of)[: len(prompts)].min())
    df, judged = first_table(laws.probs, each)
    law, draft, share = _typical_laws(case.oracle, work)
    tokens = int(share * tokens)
    times = np.full(len(law), tokens / len(law))
    return Forecast(
        first_token_tv=certificate.chi_square_tv(plan.level, power, df, judged),
        rank_shift=certificate.ks_distance(plan.level, power, tokens),
        leak=None if draft is None else detectable(times, law, draft, plan.level, power),
        greedy_rate=None,
    )


def _untied(oracle: Oracle, work: Workload) -> float:
    """Share of greedy tokens at prefixes where one alone can be the argmax."""
    tokens = np.zeros((work.requests, 0), dtype=np.int64)
    tied = []
    for _ in range(work.new_tokens):
        laws = oracle.target_laws(work.prompt_array[work.prompt_of], tokens)
        tied.append(laws.ambiguous.mean())
        tokens = np.concatenate([tokens, laws.probs.argmax(axis=1)[:, None]], axis=1)
    return 1 - float(np.mean(tied))


def _typical_laws(oracle: Oracle, work: Workload) -> tuple[np.ndarray, np.ndarray | None, float]:
    """Laws along some continuations drawn from the target itself, where they leave a choice, and
    the share of positions that do.
    """
    rng = np.random.default_rng(0)
    size = 128
    prompt = replace(work, requests=size).prompt_of
    tokens = np.zeros((size, 0), dtype=np.int64)
    for _ in range(work.new_tokens):
        law = oracle.target_laws(work.prompt_array[prompt], tokens).probs
        tokens = np.concatenate([tokens, draw(law, rng.random(size))[:, None]], axis=1)
    sample = oracle.sample(work.prompt_array, prompt, tokens)
    use = sample.prefix[sample.open]
    draft = None if sample.draft is None else sample.draft[use]
    return sample.law[use], draft, len(use) / sample.prefix.size
