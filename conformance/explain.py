"""The calculation of one step of speculative sampling, for any p and q a person types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conformance.errors import InvalidDistributionError
from conformance.law import Floats
from conformance.reference import acceptance, check_distribution, emitted_law, residual


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every number of one proposal, verified. All arrays are [V].

    Parameters
    ----------
    tokens : tuple of str
        Names of the tokens.
    p, q : ndarray
        Target and draft laws.
    accept : ndarray
        min(1, p/q).
    kept : ndarray
        q times accept: probability of emitting the token as an accepted proposal.
    recovered : ndarray
        Law of the token drawn after a rejection.
    emitted : ndarray
        Law of the token emitted, which is p.
    """

    tokens: tuple[str, ...]
    p: Floats
    q: Floats
    accept: Floats
    kept: Floats
    recovered: Floats
    emitted: Floats

    @property
    def accepted(self) -> float:
        """Probability that the proposal is accepted: the sum of min(p, q)."""
        return float(self.kept.sum())

    @property
    def rejected(self) -> float:
        """Probability that it is rejected; also the total variation between p and q."""
        return 1.0 - self.accepted


def explain(
    target: Sequence[float], draft: Sequence[float], tokens: Sequence[str] | None = None
) -> Explanation:
    """Work out one step.

    Raises
    ------
    InvalidDistributionError
        If a law is not one, or the lengths differ.

    Examples
    --------
    >>> e = explain([0.3, 0.7], [0.6, 0.4])
    >>> e.kept.round(12).tolist(), round(e.rejected, 12), e.emitted.round(12).tolist()
    ([0.3, 0.4], 0.3, [0.3, 0.7])

    The same with other numbers: three tokens, of which the draft never proposes the last.

    >>> e = explain([0.5, 0.3, 0.2], [0.2, 0.8, 0.0])
    >>> e.kept.round(12).tolist(), round(e.rejected, 12), e.recovered.round(12).tolist()
    ([0.2, 0.3, 0.0], 0.5, [0.6, 0.0, 0.4])
    >>> e.emitted.round(12).tolist()
    [0.5, 0.3, 0.2]
    """
    p, q = check_distribution(target, "the target"), check_distribution(draft, "the draft")
    if len(p) != len(q):
        raise InvalidDistributionError(
            f"the target has {len(p)} tokens and the draft {len(q)}; they need the same vocabulary"
        )
    names = tuple(tokens) if tokens else _names(len(p))
    if len(names) != len(p):
        raise InvalidDistributionError(f"{len(names)} names were given for {len(p)} tokens")
    accept = acceptance(p, q)
    return Explanation(
        tokens=names,
        p=p,
        q=q,
        accept=accept,
        kept=q * accept,
        recovered=residual(p, q),
        emitted=emitted_law(p, q),
    )


def parse_law(text: str) -> list[float]:
    """Read ``0.3,0.7``.

    Raises
    ------
    InvalidDistributionError
        If something is not a number.
    """
    try:
        return [float(word) for word in text.split(",")]
    except ValueError as exc:
        raise InvalidDistributionError(
            f"cannot read {text!r}: write probabilities with commas, for example 0.3,0.7"
        ) from exc


def sentences(e: Explanation) -> list[str]:
    """The calculation in words."""
    most = int(np.argmax(e.q - e.p))
    lines = [
        f"The draft proposes {e.tokens[most]} with probability {e.q[most]:.4g}; the target wants "
        f"it with {e.p[most]:.4g}, so it is accepted with probability {e.accept[most]:.4g}.",
        f"A proposal is accepted with probability {e.accepted:.4g} (the sum of min(p, q)) and "
        f"rejected with {e.rejected:.4g}.",
    ]
    if e.rejected > 1e-12:
        back = ", ".join(
            f"{name} {share:.4g}"
            for name, share in zip(e.tokens, e.recovered, strict=True)
            if share > 0
        )
        lines.append(
            f"After a rejection the token is drawn from max(p - q, 0), normalised: {back}."
        )
    else:
        lines.append("Draft and target agree, so nothing is ever rejected.")
    error = float(np.abs(e.emitted - e.p).max())
    lines.append(f"Accepted plus recovered is the target's law (largest difference {error:.1g}).")
    return lines


def _names(count: int) -> tuple[str, ...]:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return tuple(letters[:count]) if count <= len(letters) else tuple(map(str, range(count)))
