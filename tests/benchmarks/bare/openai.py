"""A server asked over HTTP with nothing of this suite: what the protocol and the server allow.

    python -P openai.py PROBE http://127.0.0.1:8080/v1 [REQUESTS] [TOKENS] [CONCURRENCY]

Needs httpx2 or httpx. The server must already run on the probe, with speculation on. Prints one
line of JSON.
"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path

try:
    import httpx2 as httpx
except ImportError:
    import httpx

PROMPT = 24


async def ask(client, todo, url, llama, model):
    tokens = 0
    for prompt, new, seed in todo:
        body = {"model": model, "temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "seed": seed}
        if llama:
            body |= {"prompt": prompt, "n_predict": new, "top_k": 0, "return_tokens": True}
        else:
            body |= {"prompt": prompt, "max_tokens": new, "top_k": -1, "ignore_eos": True}
            body |= {"return_token_ids": True}
        answer = await client.post(url, json=body)
        answer.raise_for_status()
        answer = answer.json()
        tokens += len(answer["tokens"] if llama else answer["choices"][0]["token_ids"])
    return tokens


async def main(probe, base, requests=1000, new=8, concurrency=16):
    vocabulary = json.loads((Path(probe) / "target" / "config.json").read_text())["vocab_size"]
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        served = (await client.get(base + "/models")).json()["data"][0]
        llama = served["owned_by"] == "llamacpp"
        url = base.removesuffix("/v1") + "/completion" if llama else base + "/completions"

        async def run(count, first):
            rng = random.Random(first)
            todo = iter(
                ([rng.randrange(vocabulary) for _ in range(PROMPT)], new, first + i)
                for i in range(count)
            )
            workers = [ask(client, todo, url, llama, served["id"]) for _ in range(concurrency)]
            return sum(await asyncio.gather(*workers))

        await run(128, 10**6)
        begin = time.perf_counter()
        tokens = await run(requests, 0)
        seconds = time.perf_counter() - begin
    print(
        json.dumps({"engine": "openai", "requests": requests, "tokens": tokens, "seconds": seconds})
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3], *map(int, sys.argv[3:])))
