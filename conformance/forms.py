"""Forms of a workload: what requests have in common, and what they do not.

In a ``plain`` workload requests differ in their prompts and seeds alone. The other forms ask the
same question, is every token a draw from the law at its prefix, of requests that differ in more:
in the length of their prompts and outputs, in what they share a call with, in whether they
speculate and are seeded, and in how many answers they want. ``twin`` and ``long`` ask it where
draft and target are the same model, and at places far from the beginning; ``sliding`` of a model
that forgets what is further away than a window.
"""

from __future__ import annotations

from dataclasses import dataclass

from conformance.contract import Capabilities

PLAIN, LENGTHS, RAGGED, MIXED, TWIN, LONG = "plain", "lengths", "ragged", "mixed", "twin", "long"
SEVERAL, SLIDING = "several", "sliding"
FAR = (LONG, SLIDING)  # judged by regions of the context
WINDOW = 24  # tokens that attention sees, itself included, where a probe has a sliding window
LARGEST_CALL = 64
# Sizes of the calls of a ragged workload, in turn: 1, 38, 11, 48 ... until all of 1 to 64 were.
CALLS = tuple(37 * i % LARGEST_CALL + 1 for i in range(LARGEST_CALL))
# Lengths of the prompts that are asked again and again: 64 fills pages of a cache, of 16, 32 or 64
# tokens, and the last goes to the end of the context.
TO_THE_END = 0
PROMPT_LENGTHS = (1, 2, 64, TO_THE_END)
# How many answers requests ask for, in turn, where they ask for several. Engines may count up from
# a request's seed for them, so that seeds keep a distance.
ANSWERS = (2, 5, 1, 8, 3)
SEED_DISTANCE = 16
TOGETHER = "mixed"  # the arm in which both arms are asked in the same calls


@dataclass(frozen=True, slots=True)
class Form:
    """One form.

    Parameters
    ----------
    name : str
        As it stands in a case's id.
    claim : str
        What an engine must claim, a field of `Capabilities`; empty where nothing.
    words : str
        The same in words.
    tokens : int
        Tokens that a sampled request asks for, at most.
    prompts : tuple of int
        Lengths of the prompts that are asked again and again; empty for the usual two.
    calls : tuple of int
        Sizes of calls, in turn; empty for calls as large as the engine takes.
    answers : tuple of int
        How many answers requests ask for, in turn; empty where all ask for one.
    probe : str
        The probe it needs; empty for the method's own.
    about : str
        What is not asked where it is not.
    """

    name: str
    claim: str = ""
    words: str = ""
    tokens: int = 8
    prompts: tuple[int, ...] = ()
    calls: tuple[int, ...] = ()
    answers: tuple[int, ...] = ()
    probe: str = ""
    about: str = ""

    @property
    def uneven(self) -> bool:
        """Whether requests differ in the lengths of prompt and output."""
        return bool(self.prompts)

    def refused(self, claims: Capabilities) -> str | None:
        """What is not claimed, or None."""
        if self.name == TWIN and claims.draft != "model":
            return "a draft model, which could be a twin of the target"
        return None if not self.claim or getattr(claims, self.claim) else self.words


FORMS: dict[str, Form] = {
    f.name: f
    for f in (
        Form(PLAIN),
        Form(
            LENGTHS,
            "lengths",
            "prompts and outputs of any length",
            tokens=12,
            prompts=PROMPT_LENGTHS,
            calls=(1,),
            about="prompts of one token and to the end of the context, outputs that end anywhere",
        ),
        Form(
            RAGGED,
            "ragged",
            "calls whose requests differ in length",
            tokens=12,
            prompts=PROMPT_LENGTHS,
            calls=CALLS,
            about="calls of many sizes whose requests differ in length",
        ),
        Form(
            MIXED,
            "mixed",
            "calls in which some requests speculate and others do not",
            tokens=12,
            prompts=PROMPT_LENGTHS,
            calls=CALLS,
            about="requests with and without speculation in one call",
        ),
        Form(
            SEVERAL,
            "several",
            "several answers to one request",
            calls=(LARGEST_CALL,),
            answers=ANSWERS,
            about="several answers to one request",
        ),
        Form(TWIN, tokens=12, probe="twin", about="a draft that is the target itself"),
        Form(
            LONG,
            "long",
            "contexts of more than a thousand tokens",
            tokens=64,
            probe="long",
            about="contexts of hundreds of tokens, over the borders at 256, 512 and 1,024",
        ),
        Form(
            SLIDING,
            "sliding",
            "models with a sliding window",
            tokens=64,
            probe="window",
            about="a model with a sliding window, and contexts of several windows",
        ),
    )
}
