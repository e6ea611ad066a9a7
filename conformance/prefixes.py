"""Prefixes of what was emitted: numbered, and as n-gram lookup reads them."""

from __future__ import annotations

import numpy as np

from conformance.tinylm import Tokens

LOOKUP_NGRAM = 2


def number_prefixes(prompt: Tokens, tokens: Tokens) -> tuple[Tokens, Tokens, Tokens]:
    """Number the distinct prefixes of N sequences, by the request that has each first.

    Returns
    -------
    prefix : (N, T) int64
        The number of the prefix each token followed.
    request, index : (U,) int64
        The first request with each prefix, and the output index it is at.
    """
    size, length = tokens.shape
    node = np.unique(prompt, return_inverse=True)[1].astype(np.int64)
    ids: list[Tokens] = []
    firsts: list[Tokens] = []
    at: list[Tokens] = []
    used = 0
    for t in range(length):
        distinct, first, back = np.unique(node, return_index=True, return_inverse=True)
        ids.append(back + used)
        firsts.append(first)
        at.append(np.full(len(distinct), t))
        used += len(distinct)
        node = back * (int(tokens.max(initial=0)) + 1) + tokens[:, t]
    request, index = np.concatenate(firsts), np.concatenate(at)
    order = np.lexsort((index, request))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank[np.stack(ids, axis=1)].reshape(size, length), request[order], index[order]


def lookup_guess(sequences: Tokens, begin: int, ngram: int = LOOKUP_NGRAM) -> Tokens:
    """What n-gram lookup proposes next, at every position from `begin` on.

    The longest n-gram (n <= `ngram`) that ends the prefix is searched from the left, and the
    token after its first earlier occurrence is the guess; -1 where it never occurred. [B, m + 1]
    """
    batch, length = sequences.shape
    guess = np.full((batch, length - begin + 1), -1, dtype=np.int64)
    for end in range(begin, length + 1):
        found = np.full(batch, -1, dtype=np.int64)
        for n in range(min(ngram, end - 1), 0, -1):
            starts = np.arange(end - n)
            windows = np.stack([sequences[:, starts + j] for j in range(n)], axis=-1)
            match = (windows == sequences[:, None, end - n : end]).all(axis=-1)
            hit = match.any(axis=1) & (found < 0)
            found[hit] = sequences[hit, match[hit].argmax(axis=1) + n]
        guess[:, end - begin] = found
    return guess
