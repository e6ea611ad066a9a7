"""What an arm of a case is asked, request by request, and where its answers are kept."""

from __future__ import annotations

import hashlib
import json
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np

from conformance.contract import Request
from conformance.plan import AGAIN, Case, RunPlan
from conformance.tinylm import Tokens
from conformance.workload import Workload

SPECULATIVE = "speculative"


def evidence_path(folder: Path, case: Case, arm: str) -> Path:
    """Where an arm's evidence is kept."""
    return folder / "evidence" / f"{case.slug}.{arm}.parquet"


def arm_seeds(plan: RunPlan, case: Case, arm: str) -> Tokens:
    """Distinct seeds in [0, 2**31) for every request of an arm; -1 under greedy decoding. [N]

    Half of them differ in one bit from the seed two requests before, which mostly has the same
    prompt: whoever loses a bit of the seed on the way answers those two alike.
    """
    assert case.workload is not None
    n = case.workload.requests
    if case.decoding.greedy:
        return np.full(n, -1)
    arm = SPECULATIVE if arm == AGAIN else arm
    key = [plan.seed, zlib.crc32(case.id.encode()), zlib.crc32(arm.encode())]
    fresh, bits = np.random.default_rng(key), np.random.default_rng([*key, 1])
    used: dict[int, None] = {}  # in the order drawn, the same first ones whatever n
    drawn: list[int] = []
    while len(drawn) < n:
        i = len(drawn)
        seed = drawn[i - 2] ^ 1 << int(bits.integers(0, 31)) if i % 4 >= 2 else None
        while seed is None or seed in used:
            seed = int(fresh.integers(0, 2**31))
        used[seed] = None
        drawn.append(seed)
    return np.array(drawn, dtype=np.int64)


def questions(case: Case) -> Tokens:
    """A digest of what every request of an arm asks: prompt, tokens wanted, decoding. [N]

    Prompts are known by their number alone, and another seed makes others.
    """
    assert case.workload is not None
    return _questions(case.workload, str(case.decoding))


@lru_cache(maxsize=8)
def _questions(work: Workload, decoding: str) -> Tokens:
    def digest(prompt: tuple[int, ...]) -> int:
        text = json.dumps([list(map(int, prompt)), work.new_tokens, decoding])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)

    each = [digest(prompt) for prompt in work.prompts]
    return np.array(each, dtype=np.int64)[work.prompt_of]


def arm_requests(plan: RunPlan, case: Case, arm: str) -> list[Request]:
    """Every request of an arm."""
    return seeded_requests(case, arm, arm_seeds(plan, case, arm))


def seeded_requests(case: Case, arm: str, seeds: Tokens) -> list[Request]:
    """Every request of an arm, with its seed. [N]"""
    work = case.workload
    assert work is not None
    return [
        Request(
            prompt=work.prompts[p],
            max_new_tokens=work.new_tokens,
            decoding=case.decoding,
            seed=None if seed < 0 else int(seed),
            speculate=arm in (SPECULATIVE, AGAIN),
        )
        for p, seed in zip(work.prompt_of, seeds, strict=True)
    ]
