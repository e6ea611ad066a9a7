"""The prompts that are timed: a workload the user brings, or random token ids.

A workload is JSON lines, one prompt each: ``{"prompt": [17, 4, 9]}`` or ``{"text": "Once upon"}``.
The file is anybody's: every line is checked, and a message names the line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conformance.errors import PlanError

Prompt = tuple[int, ...]
Tokenizer = Callable[[str], list[int]]
LARGEST_FILE = 64 * 2**20  # bytes
LONGEST_LINE = 4 * 2**20  # characters
MOST_PROMPTS = 100_000
PHRASE = 8  # random prompts say a phrase again and again, so that n-gram lookup finds guesses


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts to draw on, in turn.

    Parameters
    ----------
    listed : tuple of tuple of int
        The user's prompts; empty for random ones.
    length : int or None
        Length of random prompts.
    vocab : int
        Random ids are 0 .. vocab - 1.
    seed : int
        Of random prompts.
    """

    listed: tuple[Prompt, ...]
    length: int | None
    vocab: int
    seed: int

    def batch(self, number: int, size: int) -> tuple[Prompt, ...]:
        """The prompts of the batch with this number.

        Random ones are distinct in every batch, since an engine may keep what it has read.
        """
        if self.listed:
            begin = number * size
            return tuple(self.listed[(begin + i) % len(self.listed)] for i in range(size))
        assert self.length is not None
        rng = np.random.default_rng([self.seed, 3, self.length, number])
        phrases = rng.integers(0, self.vocab, size=(size, PHRASE))
        repeats = -(-self.length // PHRASE)
        return tuple(map(tuple, np.tile(phrases, (1, repeats))[:, : self.length].tolist()))

    def alike(self, prompts: Sequence[Prompt], number: int) -> tuple[Prompt, ...]:
        """Random prompts of the same lengths, which no engine has seen before."""
        rng = np.random.default_rng([self.seed, 4, number])
        return tuple(tuple(rng.integers(0, self.vocab, len(p)).tolist()) for p in prompts)


def read_prompts(
    path: Path, vocab: int, longest: int, tokenizer: Callable[[], Tokenizer]
) -> tuple[Prompt, ...]:
    """Read a workload.

    Parameters
    ----------
    path : Path
        JSON lines.
    vocab : int
        The target's vocabulary size; ids are below it.
    longest : int
        Most tokens a prompt may have: the context, less what is generated.
    tokenizer : callable
        Gives the tokenizer of the models, and is called only if a line has text.

    Raises
    ------
    PlanError
        Naming the line, if one is not a prompt.
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise PlanError(f"{path} has more than {LARGEST_FILE // 2**20} MiB: give fewer prompts")
        # not splitlines: a JSON string may hold characters that it takes for the end of a line
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as exc:
        raise PlanError(f"cannot read the prompts in {path}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise PlanError(f"{path} is not UTF-8: {exc}") from exc
    made: Tokenizer | None = None
    prompts: list[Prompt] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        if len(prompts) == MOST_PROMPTS:
            raise PlanError(f"{where}: more than {MOST_PROMPTS:,} prompts")
        said = _line(line, where)
        if "text" in said:
            made = made or tokenizer()
            ids = made(said["text"])
        else:
            ids = said["prompt"]
        prompts.append(_ids(ids, vocab, longest, where))
    if not prompts:
        raise PlanError(
            f"{path} has no prompts; each line is {{'prompt': [ids]}} or {{'text': ..}}"
        )
    return tuple(prompts)


def tokenizer_of(folder: Path) -> Tokenizer:
    """The tokenizer in ``tokenizer.json`` of a model's folder.

    Raises
    ------
    PlanError
        If the package ``tokenizers`` or the file is missing, or the file cannot be read.
    """
    try:
        from tokenizers import Tokenizer as Library  # noqa: PLC0415 - need not be installed
    except ImportError as exc:
        raise PlanError(
            "prompts of text need the package tokenizers (pip install tokenizers); or give token "
            "ids, as in {'prompt': [17, 4]}"
        ) from exc
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise PlanError(f"prompts of text need {path}; or give token ids, as in {{'prompt': [17]}}")
    try:
        library: Any = Library.from_file(str(path))
    except Exception as exc:  # the library raises nothing more telling
        raise PlanError(f"cannot read {path}: {exc}") from exc
    return lambda text: list(library.encode(text).ids)


def _line(line: str, where: str) -> dict[str, Any]:
    if len(line) > LONGEST_LINE:
        raise PlanError(f"{where} has more than {LONGEST_LINE:,} characters")
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise PlanError(f"{where} is not JSON: {exc}") from exc
    if not isinstance(said, dict) or set(said) not in ({"prompt"}, {"text"}):
        raise PlanError(
            f"{where} must be an object with 'prompt', a list of token ids, or 'text', a string, "
            f"and nothing else; it is {line.strip():.100}"
        )
    if "text" in said and not isinstance(said["text"], str):
        raise PlanError(f"{where}: text must be a string, not {said['text']!r:.100}")
    return said


def _ids(ids: object, vocab: int, longest: int, where: str) -> Prompt:
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise PlanError(f"{where}: prompt must be a list of whole numbers, not {ids!r:.100}")
    if not ids:
        raise PlanError(f"{where}: the prompt has no token")
    outside = next((i for i in ids if not 0 <= i < vocab), None)
    if outside is not None:
        raise PlanError(f"{where}: token {outside} is outside the vocabulary, 0 .. {vocab - 1}")
    if len(ids) > longest:
        raise PlanError(
            f"{where}: {len(ids)} tokens and those to be generated are more than the models' "
            f"context holds; at most {longest} fit"
        )
    return tuple(ids)
