"""Probes: tiny target and draft pairs whose laws we know exactly.

A probe is made from its recipe on first use, in a cache folder, and checked to depend on its whole
prefix, unless its recipe says that it does not. It carries what judging needs: both models in
float64, and the rounding noise of float32.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import platformdirs
from filelock import FileLock

from conformance.contract import ModelPair, Precision
from conformance.errors import ProbeError
from conformance.recipes import (
    FAR_TOKENS,
    RECIPES,
    Recipe,
    make,
    mean_entropy,
    mean_tv,
    random_tokens,
)
from conformance.tinylm import TinyLlama

RECIPE_VERSION = 2  # part of the cache key: raise it whenever the recipe makes other weights
CACHE_VARIABLE = "CONFORMANCE_CACHE"
ROUNDING = "rounding.json"  # beside a probe that is kept with a run
LARGEST_ROUNDING = 4096  # bytes

# Engines order their float32 sums in their own way; the band is this many times the largest
# difference between one float32 order and float64.
NOISE_SAFETY = 16.0
MIN_PREFIX_TV = 0.05
DEPENDENCE_LAG = 16


@dataclass(frozen=True)
class Probe:
    """A probe on disk, with its models in memory on demand.

    Parameters
    ----------
    recipe : Recipe
        What it was made from.
    folder : Path
        Where it is.
    precision : str
        An engine that computes in bfloat16 or float16 rounds the weights when it loads them: its
        law is that of the rounded weights, whatever its arithmetic adds.
    rounding : tuple of (str, float)
        By precision: `float_noise` where it was measured on another machine, whose processor adds
        in another order. Judging again needs the one that was judged with.
    """

    recipe: Recipe
    folder: Path
    precision: Precision = "float32"
    rounding: tuple[tuple[str, float], ...] = ()

    @property
    def pair(self) -> ModelPair:
        """What an engine is given."""
        r = self.recipe
        return ModelPair(
            r.name, self.folder / "target", self.folder / "draft", r.vocab_size, r.context
        )

    @cached_property
    def target(self) -> TinyLlama:
        """The target, computed in float64."""
        return TinyLlama.load(self.folder / "target", precision=self.precision)

    @cached_property
    def draft(self) -> TinyLlama:
        """The draft, computed in float64."""
        return TinyLlama.load(self.folder / "draft", precision=self.precision)

    @cached_property
    def float_noise(self) -> float:
        """Largest difference between float32 and float64 logits over random sequences, in nats."""
        known = dict(self.rounding).get(self.precision)
        if known is not None:
            return known
        # rounding grows along a sequence, so that it is measured as far as outputs go
        rows, length = (8, 24 + FAR_TOKENS) if self.recipe.far else (64, 48)
        tokens = random_tokens(self.recipe, rows, length)
        low = TinyLlama.load(self.folder / "target", np.float32, self.precision).logits(tokens)
        return float(np.abs(low.astype(np.float64) - self.target.logits(tokens)).max())

    @property
    def tolerance(self) -> float:
        """Rounding allowed to an engine on a raw logit, in nats."""
        return NOISE_SAFETY * self.float_noise

    @cached_property
    def mean_entropy(self) -> float:
        """Mean entropy of the target's law at temperature 1, in nats."""
        return mean_entropy(self.target.logits(random_tokens(self.recipe)))

    @cached_property
    def mean_draft_tv(self) -> float | None:
        """Mean TV between target and draft at temperature 1; None if vocabularies differ."""
        if self.recipe.draft_vocab == "other":
            return None
        tokens = random_tokens(self.recipe)
        return mean_tv(self.target.logits(tokens), self.draft.logits(tokens))

    def checksums(self) -> dict[str, str]:
        """SHA-256 of every file of the probe, by relative path."""
        return {
            path.relative_to(self.folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.folder.glob("*/*"))
            if path.is_file()
        }

    def prefix_dependence(self, lag: int = DEPENDENCE_LAG) -> float:
        """Mean TV by which the law moves when one token, `lag` positions back, is changed."""
        tokens = random_tokens(self.recipe, rows=128, length=lag + 8)
        changed = tokens.copy()
        changed[:, -1 - lag] = (changed[:, -1 - lag] + 1) % self.recipe.vocab_size
        return mean_tv(self.target.logits(tokens)[:, -1], self.target.logits(changed)[:, -1])


def default_cache() -> Path:
    """Where probes are kept: ``$CONFORMANCE_CACHE``, or the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else platformdirs.user_cache_path("specdec-conformance")


def load_probe(name: str | Recipe, cache: Path | None = None) -> Probe:
    """Return a probe, making it first if the cache does not hold it.

    Safe to call from several processes at once.

    Raises
    ------
    ProbeError
        If the name is unknown, the folder cannot be written, or the probe made does not depend on
        its whole prefix.
    """
    if isinstance(name, Recipe):
        recipe = name
    elif name in RECIPES:
        recipe = RECIPES[name]
    else:
        raise ProbeError(f"unknown probe {name!r}; there are {', '.join(RECIPES)}")
    # a switch that is off is left out, so that a new one moves no probe to another folder
    fields = {name: value for name, value in asdict(recipe).items() if value is not False}
    key = json.dumps([RECIPE_VERSION, fields], sort_keys=True)
    root = cache or default_cache()
    folder = root / f"{recipe.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    done = folder / "probe.json"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not done.exists():
                make(recipe, folder)
                dependence = Probe(recipe, folder).prefix_dependence()
                # a law that depends on the last token at most is what these recipes are for
                if recipe.sees_prefix and dependence < MIN_PREFIX_TV:
                    raise ProbeError(
                        f"probe {recipe.name} moves by TV {dependence:.3f} only when a token "
                        f"{DEPENDENCE_LAG} positions back is changed; {MIN_PREFIX_TV} is needed "
                        "for a stale cache to show. Choose another seed"
                    )
                made = {"recipe": json.loads(key), "sha256": Probe(recipe, folder).checksums()}
                done.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
            _check_unchanged(Probe(recipe, folder), done)
    except OSError as exc:
        raise ProbeError(
            f"cannot write probe {recipe.name} under {root}: {exc.strerror or exc}; set "
            f"{CACHE_VARIABLE} to a folder that can be written"
        ) from exc
    return Probe(recipe, folder)


def open_probe(name: str, folder: Path) -> Probe:
    """A probe whose files are in a folder that is not the cache, as they are, with the rounding
    errors that were measured where it was sampled.

    Raises
    ------
    ProbeError
        If no probe has this name, or the folder is not there or is damaged.
    """
    if name not in RECIPES:
        raise ProbeError(f"unknown probe {name!r}; there are {', '.join(RECIPES)}")
    if not folder.is_dir():
        raise ProbeError(f"there is no probe in {folder}")
    return Probe(RECIPES[name], folder, rounding=read_rounding(folder / ROUNDING))


def rounding_text(rounding: Mapping[str, float]) -> str:
    """`Probe.rounding` as it is kept beside a probe."""
    return json.dumps(dict(sorted(rounding.items())), indent=1) + "\n"


def read_rounding(path: Path) -> tuple[tuple[str, float], ...]:
    """The inverse; nothing where there is no such file.

    Raises
    ------
    ProbeError
        If it is not what `rounding_text` writes.
    """
    if not path.exists():
        return ()
    try:
        with path.open("rb") as file:
            read = json.loads(file.read(LARGEST_ROUNDING))
        found = tuple((str(name), float(value)) for name, value in read.items())
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as exc:
        raise ProbeError(f"{path} is damaged ({exc})") from exc
    if not all(0 <= value < 1 for _, value in found):
        raise ProbeError(f"{path} is damaged: a rounding error is from 0 to 1 nat")
    return found


def _check_unchanged(probe: Probe, record: Path) -> None:
    """A probe that an engine, or an accident, has changed is not the probe that was made."""
    try:
        expected = json.loads(record.read_text(encoding="utf-8"))["sha256"]
    except (ValueError, KeyError, TypeError) as exc:
        raise ProbeError(f"{record} is damaged; delete {probe.folder} to make it anew") from exc
    found = probe.checksums()
    if found != expected:
        changed = sorted(n for n in {*found, *expected} if found.get(n) != expected.get(n))
        raise ProbeError(
            f"probe {probe.recipe.name} was changed after it was made ({', '.join(changed)}); "
            f"delete {probe.folder} to make it anew, and ask what changed it"
        )
