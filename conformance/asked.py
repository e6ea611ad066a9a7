"""What an arm of a case is asked, request by request, and where its answers are kept."""

from __future__ import annotations

import hashlib
import json
import zlib
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from conformance.contract import Request
from conformance.forms import FORMS, SEED_DISTANCE, TOGETHER
from conformance.law import Bools
from conformance.plan import AGAIN, Case, RunPlan
from conformance.tinylm import Tokens
from conformance.workload import Workload

SPECULATIVE = "speculative"


def evidence_path(folder: Path, case: Case, arm: str) -> Path:
    """Where an arm's evidence is kept."""
    return folder / "evidence" / f"{case.slug}.{arm}.parquet"


def arm_seeds(plan: RunPlan, case: Case, arm: str) -> Tokens:
    """Distinct seeds in [0, 2**31) for every request of an arm, which its answers share; -1 under
    greedy decoding, and for those that are given none. [N]

    Half of them differ in one bit from the seed two requests before, which mostly has the same
    prompt: whoever loses a bit of the seed on the way answers those two alike.
    """
    assert case.workload is not None
    each, form = case.workload.answers, FORMS[case.form]
    n = len(each)
    if case.decoding.greedy:
        return np.full(case.workload.requests, -1)
    if arm == AGAIN:
        arm = TOGETHER if TOGETHER in case.sampled_arms else SPECULATIVE
    key = [plan.seed, zlib.crc32(case.id.encode()), zlib.crc32(arm.encode())]
    fresh, bits = np.random.default_rng(key), np.random.default_rng([*key, 1])
    used: dict[int, None] = {}  # in the order drawn, the same first ones whatever n
    drawn: list[int] = []
    unseeded = (form.uneven or form.answers) and case.capabilities.unseeded
    low = SEED_DISTANCE.bit_length() - 1 if form.answers else 0  # bits that no seed has
    while len(drawn) < n:
        i = len(drawn)
        seed = drawn[i - 2] ^ 1 << int(bits.integers(low, 31)) if i % 4 >= 2 else None
        while seed is None or seed in used:
            seed = int(fresh.integers(0, 2**31)) >> low << low
        used[seed] = None
        drawn.append(seed)
    seeds = np.array(drawn, dtype=np.int64)
    return np.repeat(np.where(_unseeded(n), -1, seeds) if unseeded else seeds, each)


def _unseeded(n: int) -> Bools:
    """Which requests are given no seed, where that is claimed: a third, in no short period. [N]"""
    i = np.arange(n)
    return np.asarray((5 * i + i // 7 + i // 64) % 3 == 0)


def questions(case: Case) -> Tokens:
    """A digest of what every request of an arm asks: prompt, tokens wanted, decoding, whether it
    speculates where some of an arm do not, and how many answers it wants where some want several;
    these have one digest. [N]

    Prompts are known by their number alone, and another seed makes others.
    """
    assert case.workload is not None
    return _questions(case.workload, str(case.decoding))


@lru_cache(maxsize=8)
def _questions(work: Workload, decoding: str) -> Tokens:
    @cache
    def digest(prompt: int, tokens: int, *more: int) -> int:
        text = json.dumps([list(map(int, work.prompts[prompt])), tokens, decoding, *more])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)

    said = [work.prompt_of.tolist(), work.lengths.tolist()]
    if work.speculates is not None:
        said.append(work.speculates.tolist())
    if FORMS[work.form].answers:
        said.append(np.repeat(work.answers, work.answers).tolist())
    return np.array([digest(*one) for one in zip(*said, strict=True)], dtype=np.int64)


def arm_requests(plan: RunPlan, case: Case, arm: str) -> list[Request]:
    """Every request of an arm."""
    return seeded_requests(case, arm, arm_seeds(plan, case, arm))


def seeded_requests(case: Case, arm: str, seeds: Tokens) -> list[Request]:
    """Every request of an arm, with its seed; the seeds are those of its answers. [N]"""
    work = case.workload
    assert work is not None
    starts = work.asked
    speculates = work.speculates
    if speculates is None:
        speculates = np.full(work.requests, arm in (SPECULATIVE, AGAIN))
    return [
        Request(
            prompt=work.prompts[p],
            max_new_tokens=length,
            decoding=case.decoding,
            seed=None if seed < 0 else int(seed),
            speculate=speculate,
            answers=answers,
        )
        for p, length, seed, speculate, answers in zip(
            work.prompt_of[starts],
            work.lengths[starts].tolist(),
            seeds[starts],
            speculates[starts].tolist(),
            work.answers.tolist(),
            strict=True,
        )
    ]
