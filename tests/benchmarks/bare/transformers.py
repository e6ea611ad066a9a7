"""Assisted generation driven with no code of ours: what the adapter's speed is measured against.

``PYTHON transformers.py PROBE [REQUESTS] [TOKENS] [PROMPT]`` prints one line of JSON. Run with
``python -P``: this file is called like the package it imports.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

WARM_UP, PROPOSALS = 8, 5


def main(probe: str, requests: str = "256", tokens: str = "8", prompt: str = "24") -> None:
    """Load, warm up, and time the rest."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    target, draft = (
        AutoModelForCausalLM.from_pretrained(Path(probe) / part, dtype=torch.float32).eval()
        for part in ("target", "draft")
    )
    draft.generation_config = GenerationConfig(
        num_assistant_tokens=PROPOSALS,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
    config = GenerationConfig(max_new_tokens=int(tokens), do_sample=True, top_k=0)
    ids = torch.randint(target.config.vocab_size, (WARM_UP + int(requests), 1, int(prompt)))
    begun, done = 0.0, 0
    with torch.inference_mode():
        for i, row in enumerate(ids):
            if i == WARM_UP:
                begun, done = time.perf_counter(), 0
            torch.manual_seed(i)
            out = target.generate(
                row,
                attention_mask=torch.ones_like(row),
                generation_config=config,
                assistant_model=draft,
            )
            done += out.shape[1] - int(prompt)
    seconds = time.perf_counter() - begun
    print(
        json.dumps(
            {
                "engine": "transformers",
                "requests": int(requests),
                "tokens": done,
                "seconds": seconds,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
