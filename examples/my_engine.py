"""A complete engine in one file: speculative sampling over two Hugging Face models."""

import torch
from transformers import AutoModelForCausalLM

from conformance import Capabilities, Completion, EngineCard


class MyEngine:
    card = EngineCard(name="my-engine", version="1.0", method="draft model")
    capabilities = Capabilities(draft="model", top_k=False, top_p=False, min_p=False)

    def load(self, probe):
        self.target = AutoModelForCausalLM.from_pretrained(probe.target)
        self.draft = AutoModelForCausalLM.from_pretrained(probe.draft)

    def close(self):
        self.target = self.draft = None

    @torch.inference_mode()
    def generate(self, requests):
        return [self._one(r) for r in requests]

    def _law(self, model, tokens, decoding):  # [len(tokens), V]
        logits = model(torch.tensor([tokens])).logits[0].double()
        if decoding.greedy:
            return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
        return (logits / decoding.temperature).softmax(-1)

    def _one(self, r):
        rng = torch.Generator().manual_seed(r.seed or 0)
        k = 4 if r.speculate else 0  # the control arm is the same engine, not speculating
        out, rounds = list(r.prompt), []
        end = len(out) + r.max_new_tokens
        while len(out) < end:
            block, q, start = list(out), [], len(out)
            for _ in range(k):  # propose
                q.append(self._law(self.draft, block, r.decoding)[-1])
                block.append(int(torch.multinomial(q[-1], 1, generator=rng)))
            p = self._law(self.target, block, r.decoding)[start - 1 :]  # verify
            n, x = 0, block[start:]
            while n < k and torch.rand((), generator=rng) < p[n][x[n]] / q[n][x[n]]:
                n += 1
            last = p[n] if n == k else (p[n] - q[n]).clamp(min=0)  # bonus, or recovered
            out = block[: start + n] + [int(torch.multinomial(last, 1, generator=rng))]
            rounds.append((k, n))
        return Completion(tokens=out[len(r.prompt) : end], rounds=rounds if k else None)
