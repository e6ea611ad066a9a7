"""What was typed after ``served``: addresses, prompts and limits."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.adapters.openai_http import Limits, address
from conformance.adapters.openai_logprobs import MOST
from conformance.adapters.openai_styles import limits_of, number_of, same_server, switch_of
from conformance.errors import PlanError, UnknownEngineError
from conformance.resolve import split_options

OFF_SWITCH = "off-switch"
STYLES = ("auto", "vllm", "llama", "sglang", "text")
MOST_PROMPTS = 256
LONGEST_PROMPT = 20_000  # characters
# With little to choose from at the first tokens, so that many answers share a node of the tree.
PROMPTS = (
    "Question: Is it a good idea to learn a second language? Answer (yes or no):",
    "The weather tomorrow will be",
    "Pick a colour at random, red, green or blue. I pick",
    "Heads or tails? The coin shows",
    "def add(a, b):",
    "My favourite day of the week is",
    "A number between one and five:",
    "The meeting was moved from Monday to",
)


@dataclass(frozen=True, slots=True)
class Target:
    """A server, its control arm, and what both are asked.

    Parameters
    ----------
    url, control : str
        Addresses; the same one where a switch in the request turns speculation off.
    switch : tuple or None
        Where in a request's body, and what, turns speculation off in the control arm.
    model, style : str
        As typed; empty and ``auto`` where the server is to say.
    prompts : tuple of str
        Distinct.
    tokens : int
        Longest answer.
    ties : float
        Share of greedy tokens that rounding may change.
    limits : Limits
        How the server is asked.
    logprobs : int or None
        Likeliest tokens asked of the control server at each place: none with 0, as many as such a
        server usually gives with None.
    processed : bool
        Whether it returns them after temperature and filters.
    """

    url: str
    control: str
    switch: tuple[list[str], object] | None
    model: str
    style: str
    prompts: tuple[str, ...]
    tokens: int
    ties: float
    limits: Limits
    logprobs: int | None = None
    processed: bool = False

    def address(self, arm: str) -> str:
        """Where an arm is asked."""
        return self.url if arm == "speculative" else self.control


def target(name: str, prompts: tuple[str, ...] | None = None) -> Target:
    """Read a name as typed. `prompts`, if given, are not read from their file.

    Raises
    ------
    UnknownEngineError
        If an option is unknown, missing or means nothing.
    PlanError
        If the prompts cannot be read, or are too few.
    """
    base, options = split_options(name)
    if base != "served":
        raise UnknownEngineError("served has no methods; what follows it are options, key=value")
    known = list(inspect.signature(_made).parameters)
    if unknown := [key for key in options if key not in known]:
        raise UnknownEngineError(
            f"engine served has no option {', '.join(unknown)}; it has {', '.join(known)}"
        )
    if prompts is not None:
        return replace(_made(**(options | {"prompts": ""})), prompts=prompts)
    return _made(**options)


def _made(
    url: str = "",
    control: str = "",
    switch: str = "",
    model: str = "",
    style: str = "auto",
    prompts: str = "",
    tokens: str = "8",
    ties: str = "0.05",
    logprobs: str = "auto",
    processed: str = "no",
    concurrency: str = "16",
    timeout: str = "60",
    retries: str = "5",
    rate: str = "0",
) -> Target:
    if not url or not control:
        raise UnknownEngineError(
            "served needs a server that speculates and one that does not: "
            "served,url=http://host:8000/v1,control=http://host:8001/v1"
        )
    if style not in STYLES:
        raise UnknownEngineError(f"option style must be {', '.join(STYLES)}")
    if (control == OFF_SWITCH) != bool(switch):
        raise UnknownEngineError(
            "control=off-switch goes with switch=PATH=VALUE, such as switch=speculative.n_max=0"
        )
    if processed not in ("yes", "no") or (processed == "yes" and logprobs == "no"):
        raise UnknownEngineError("option processed must be yes or no, and yes needs logprobs")
    place = address(url, "url")
    other = place if control == OFF_SWITCH else address(control, "control")
    if same_server(place, other) and not switch:
        raise UnknownEngineError("url and control are the same server: nothing would be compared")
    return Target(
        place,
        other,
        switch_of(switch) if switch else None,
        model,
        style,
        _prompts(Path(prompts)) if prompts else PROMPTS,
        int(number_of("tokens", tokens, 1, 64, whole=True)),
        number_of("ties", ties, 0, 0.5),
        limits_of(concurrency, timeout, retries, rate),
        _logprobs(logprobs),
        processed == "yes",
    )


def _logprobs(text: str) -> int | None:
    if text in ("auto", "no"):
        return None if text == "auto" else 0
    return int(number_of("logprobs", text, 1, MOST, whole=True))


def _prompts(path: Path) -> tuple[str, ...]:
    """One prompt a line; blank lines and repetitions are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as exc:
        raise PlanError(f"cannot read the prompts in {path}: {exc}") from exc
    found = tuple(dict.fromkeys(line for line in lines if line.strip()))
    if not 2 <= len(found) <= MOST_PROMPTS:
        raise PlanError(f"{path} has {len(found)} prompts; 2 to {MOST_PROMPTS} are wanted")
    if max(map(len, found)) > LONGEST_PROMPT:
        raise PlanError(f"a prompt in {path} is longer than {LONGEST_PROMPT:,} characters")
    return found
