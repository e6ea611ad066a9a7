"""flashspec driven with no code of ours: what the adapter's speed is measured against.

``PYTHON flashspec.py PROBE [METHOD] [REQUESTS] [TOKENS] [PROMPT]`` prints one line of JSON.
METHOD is ``draft-model`` (one request a call, the default) or ``batch`` (64 rows a call). Run with
``python -P``: this file is called like the package it imports.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from pathlib import Path

import torch
from flashspec import BanditConfig, FlashSpecConfig, SamplingConfig, SpeculativeEngine
from flashspec.engine import HuggingFaceDrafter, TargetModel
from transformers import AutoModelForCausalLM

ROWS = {"draft-model": 1, "batch": 64}


def main(
    probe: str,
    method: str = "draft-model",
    requests: str = "128",
    tokens: str = "8",
    prompt: str = "24",
) -> None:
    """Load, warm up with one call, and time the rest."""
    warnings.simplefilter("ignore")
    logging.getLogger("flashspec").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    target, draft = (
        AutoModelForCausalLM.from_pretrained(Path(probe) / part, dtype=torch.float32)
        for part in ("target", "draft")
    )
    device = torch.device("cpu")
    engine = SpeculativeEngine(
        FlashSpecConfig(
            device="cpu",
            dtype="float32",
            compile=False,
            drafter_strategy="bandit",
            bandit=BanditConfig(n_arms=1),
            sampling=SamplingConfig(gamma=5),
        ),
        [HuggingFaceDrafter("draft", device, torch.float32, model=draft)],
        TargetModel("target", device, torch.float32, model=target),
    )
    rows, new = ROWS[method], int(tokens)
    prompts = torch.randint(target.config.vocab_size, (int(requests), int(prompt)))
    engine.generate(prompts[:rows], max_new_tokens=new)
    begun = time.perf_counter()
    done = 0
    for batch in prompts.split(rows):
        done += int((engine.generate(batch, max_new_tokens=new).output_ids >= 0).sum())
    seconds = time.perf_counter() - begun
    name = "flashspec" if method == "draft-model" else f"flashspec:{method}"
    print(
        json.dumps({"engine": name, "requests": int(requests), "tokens": done, "seconds": seconds})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
