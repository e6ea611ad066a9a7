"""Speculative against plain generation of transformers, with no code of ours: what
``conformance bench transformers`` is confirmed by.

``PYTHON pair_transformers.py FOLDER PROMPTS TOKENS WARMUP`` prints one line of JSON. FOLDER has
``target`` and ``draft``; PROMPTS is a file of JSON lines, ``{"prompt": [ids]}``. Run with
``python -P``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

PROPOSALS = 5


def main(folder: str, prompts: str, tokens: str, warmup: str) -> None:
    """Ask both ways in turn, the first of a pair first or second by turns."""
    torch.set_num_threads(1)
    target, draft = (
        AutoModelForCausalLM.from_pretrained(Path(folder) / part, dtype=torch.float32).eval()
        for part in ("target", "draft")
    )
    draft.generation_config = GenerationConfig(
        num_assistant_tokens=PROPOSALS,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
    config = GenerationConfig(max_new_tokens=int(tokens), do_sample=True, top_k=0)

    def ask(ids: list[int], seed: int, speculate: bool) -> float:
        row = torch.tensor([ids])
        helper = {"assistant_model": draft} if speculate else {}
        torch.manual_seed(seed)
        begun = time.perf_counter()
        out = target.generate(
            row, attention_mask=torch.ones_like(row), generation_config=config, **helper
        )
        seconds = time.perf_counter() - begun
        assert out.shape[1] == len(ids) + int(tokens)
        return seconds

    asked = [json.loads(line)["prompt"] for line in Path(prompts).read_text().splitlines()]
    pairs = []
    with torch.inference_mode():
        for i, ids in enumerate(asked):
            order = (True, False) if i % 2 == 0 else (False, True)
            took = {speculate: ask(ids, i, speculate) for speculate in order}
            if i >= int(warmup):
                pairs.append((took[True], took[False]))
    print(json.dumps({"engine": "transformers", "pairs": pairs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
