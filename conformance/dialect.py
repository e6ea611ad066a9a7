"""The dialect in which an engine applies a decoding: where engines legitimately differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from conformance.errors import InvalidDecodingError

Warp = Literal[
    "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"
]
WARPS: tuple[Warp, ...] = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff",
)  # fmt: skip
FILTERS = WARPS[1:]
FIRST_WARPS = 4  # that every dialect orders; the others came later
LATER_FILTERS = WARPS[FIRST_WARPS:]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an engine applies a decoding where engines legitimately differ.

    Parameters
    ----------
    order : tuple of str
        The order in which the warps are applied; of the filters after min_p, those that are left
        out come last, in the order of `WARPS`.
    top_p_crossing : {'keep', 'drop'}
        Whether the token whose mass crosses ``top_p`` is kept. The most likely token always is.
    top_k_ties : {'keep', 'lowest-id'}
        Whether every logit equal to the k-th largest is kept, or exactly k tokens, ties going to
        the lower token id.
    repetition_over, presence_over : {'all', 'output'}
        Whether the repetition penalty, and the presence and frequency penalties, count the tokens
        of the prompt too.
    penalty_window : int or None
        How many of the last of those tokens are counted; None for all.
    grammar : {'mask', 'resample'}
        Whether a grammar masks the logits before they are warped; or whether a token is drawn from
        the law without it and, if the grammar has no place for it, once more from the masked one
        (llama.cpp). The two differ where a filter looks at what the mask leaves.

    Examples
    --------
    >>> Dialect(order=("top_k", "top_p", "min_p", "temperature")).order[-1]
    'temperature'
    """

    order: tuple[Warp, ...] = WARPS[:FIRST_WARPS]
    top_p_crossing: Literal["keep", "drop"] = "keep"
    top_k_ties: Literal["keep", "lowest-id"] = "keep"
    repetition_over: Literal["all", "output"] = "all"
    presence_over: Literal["all", "output"] = "output"
    penalty_window: int | None = None
    grammar: Literal["mask", "resample"] = "mask"

    def __post_init__(self) -> None:
        if sorted(self.warps) != sorted(WARPS):
            raise InvalidDecodingError(
                f"a dialect orders each of {', '.join(WARPS)} exactly once, not {self.order!r}"
            )
        if self.grammar not in ("mask", "resample"):
            raise InvalidDecodingError("grammar must be 'mask' or 'resample' in a dialect")
        if self.top_p_crossing not in ("keep", "drop"):
            raise InvalidDecodingError("top_p_crossing must be 'keep' or 'drop'")
        if self.top_k_ties not in ("keep", "lowest-id"):
            raise InvalidDecodingError("top_k_ties must be 'keep' or 'lowest-id'")
        if not {self.repetition_over, self.presence_over} <= {"all", "output"}:
            raise InvalidDecodingError(
                "repetition_over and presence_over must be 'all' or 'output'"
            )
        window = self.penalty_window
        if window is not None and (type(window) is not int or window < 1):
            raise InvalidDecodingError(f"penalty_window must be >= 1 or None, not {window!r}")

    @property
    def warps(self) -> tuple[Warp, ...]:
        """Every warp in order, those that `order` leaves out too."""
        return (*self.order, *(w for w in LATER_FILTERS if w not in self.order))
