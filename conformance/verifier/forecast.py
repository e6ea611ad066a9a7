"""What a pass of a verifier's case will rule out, said before sampling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from conformance.plan import RunPlan
from conformance.statistics import certificate
from conformance.statistics.leak import LeakSum
from conformance.statistics.tables import cells_expected
from conformance.verifier.plan import VerifierCase, first_groups


def forecast_lines(case: VerifierCase, plan: RunPlan) -> Iterator[str]:
    """A line for each kind of departure, from the first tokens alone: how many of the later ones
    are emitted depends on what the verifier accepts.
    """
    level, power = plan.level, plan.profile.power
    blocks = sum(n for _, n in case.blocks)
    if case.claims.greedy:
        yield f"{certificate.zero_events_rate(power, blocks):.2%} of blocks with another token"
        return
    df = judged = 0
    leak = LeakSum()
    for name, n in case.blocks:
        law = case.law(name)
        cells = cells_expected(first_groups(law)[1], n)
        df += cells
        judged += n if cells else 0
        leak.expect(np.array([n]), law.target[0, :1], law.draft[0, :1])
    yield f"first token off by TV {certificate.chi_square_tv(level, power, df, judged):.4f}"
    detectable = leak.detectable(level, power)
    if detectable is not None:
        yield f"{detectable:.2%} of the draft leaking in"
    shift = certificate.ks_distance(level, power, blocks)
    yield f"likely tokens off by a share of {shift:.4f}"
