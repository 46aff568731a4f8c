"""Mutants of sampling: borders of sets, biased inversion, order of steps, random bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ops import OPSET

from ..call import Call
from .mutant import faulty, given, having, operand


def _probabilities(x: Any) -> Any:
    p = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return p / np.sum(p, axis=-1, keepdims=True)


def _kept(p: Any, top_p: Any, min_p: Any, allowed: Any, fault: str) -> Any:
    """Which sorted probabilities stay."""
    before = np.cumsum(p, axis=-1) - p
    limit = top_p[:, None]
    inside = {
        "top-p exclusive": np.cumsum(p, axis=-1) < limit,
        "top-p one more": before - np.concatenate([p[:, :1] * 0, p[:, :-1]], axis=-1) < limit,
        "top-p as share": p >= p[:, :1] * (1 - limit),
    }.get(fault, before < limit)
    floor = {"min-p absolute": min_p[:, None], "min-p ignored": p[:, :1] * 0}.get(fault, min_p[:, None] * p[:, :1])
    return (inside if fault != "top-p ignored" else np.ones_like(inside)) & (p >= floor) & allowed


def _sample(logits: Any, uniform: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any, *, fault: str) -> Any:
    greedy = temperature <= 0
    heat = np.where(greedy | (fault == "temperature ignored"), np.float32(1), temperature)[:, None]
    scaled = logits * heat if fault == "temperature multiplied" else logits / heat
    order = np.argsort(-scaled, axis=-1, kind="stable")
    if fault == "ties backwards":
        order = scaled.shape[-1] - 1 - np.argsort(-np.flip(scaled, axis=-1), axis=-1, kind="stable")
    best = np.take_along_axis(scaled, np.asarray(order), axis=-1)
    limit = top_k[:, None] + {"top-k + 1": 1, "top-k - 1": -1}.get(fault, 0)
    rank = np.arange(logits.shape[-1])
    allowed = (top_k[:, None] <= 0) | (rank < limit) | (fault == "top-k ignored")
    whole = _probabilities(best)
    p = _probabilities(np.where(allowed, best, np.float32(-np.inf)))
    inside = _kept(whole if fault == "top-p before top-k" else p, top_p, min_p, allowed, fault)
    kept = np.where(inside | (rank == 0), p, np.float32(0))
    running = np.cumsum(kept, axis=-1)
    total = running[:, -1:] * 0 + 1 if fault == "not renormalised" else running[:, -1:]
    at = {"biased": uniform * uniform, "complement": 1 - uniform, "scaled": uniform * np.float32(0.98)}
    passed = np.sum(np.asarray(running <= at.get(fault, uniform)[:, None] * total), axis=-1)
    passed = {"one too far": passed + 1, "one too near": passed - 1}.get(fault, passed)
    last = np.sum(np.asarray(kept > 0), axis=-1) - 1
    chosen = np.where(greedy, last if fault == "greedy last" else 0, np.maximum(np.minimum(passed, last), 0))
    made = np.take_along_axis(np.asarray(order), np.asarray(chosen)[:, None], axis=-1)[:, 0]
    return (np.asarray(chosen) if fault == "rank for token" else made).astype(np.int32)


faulty(
    "top_k_top_p_sample",
    _sample,
    {
        "top-p exclusive": "drops the token that reaches top-p",
        "top-p one more": "keeps one token beyond top-p",
        "top-p as share": "takes top-p for a share of the largest probability",
        "top-p ignored": "never cuts at top-p",
        "top-p before top-k": "cuts at top-p before it renormalises what top-k left",
        "min-p absolute": "compares with min-p itself",
        "min-p ignored": "never cuts at min-p",
        "top-k + 1": "keeps one token too many",
        "top-k - 1": "keeps one token too few",
        "top-k ignored": "keeps all",
        "temperature ignored": "never divides by the temperature",
        "temperature multiplied": "multiplies by the temperature",
        "ties backwards": "takes the higher index of equal logits",
        "not renormalised": "does not renormalise what was kept",
        "biased": "inverts at the square of the uniform number",
        "complement": "inverts at one less the uniform number",
        "scaled": "inverts at 98 % of the uniform number",
        "one too far": "takes the token after",
        "one too near": "takes the token before",
        "greedy last": "takes the smallest logit at temperature 0",
        "rank for token": "returns the rank of the token",
    },
)


# --------------------------------------------------------------------------------------------------------- random bits
def _philox(rounds: int) -> Any:
    module = OPSET["random_uniform"].reference.__globals__
    mask = np.uint64(0xFFFFFFFF)

    def words(seed: Any, counter: Any) -> Any:
        c0, c1, c2, c3 = counter.astype(np.uint64), *(np.zeros(counter.shape, np.uint64) for _ in range(3))
        k0, k1 = (seed[..., i].astype(np.uint64) for i in (0, 1))
        m0, m1 = (np.uint64(m) for m in module["MULTIPLIERS"])
        w0, w1 = (np.uint64(w) for w in module["WEYL"])
        for _ in range(rounds):
            p0, p1 = c0 * m0, c2 * m1
            c0, c1 = (p1 >> np.uint64(32)) ^ c1 ^ k0, p1 & mask
            c2, c3 = (p0 >> np.uint64(32)) ^ c3 ^ k1, p0 & mask
            k0, k1 = (k0 + w0) & mask, (k1 + w1) & mask
        return c0

    return words


def _uniform(seed: Any, counter: Any, *, fault: str) -> Any:
    seed, counter = np.asarray(seed), np.asarray(counter)
    if fault == "key words exchanged":
        seed = seed[..., ::-1]
    word = _philox(7 if fault == "seven rounds" else 10)(seed, counter + np.uint32(fault == "counter + 1"))
    if fault == "lower bits":
        return (word & np.uint64(0xFFFFFF)).astype(np.float64) * 2.0**-24
    if fault == "all bits":
        return word.astype(np.float64) * 2.0**-32
    return (word >> np.uint64(8)).astype(np.float64) * 2.0**-24


faulty(
    "random_uniform",
    _uniform,
    {
        "seven rounds": "stops after seven rounds",
        "lower bits": "takes the lower 24 bits",
        "all bits": "rounds 32 bits to a float, so that 1 is drawn",
        "key words exchanged": "exchanges the words of the key",
        "counter + 1": "counts before it draws",
    },
)


# ----------------------------------------------------------------------------------------------------------- rejection
def _reject(draft_ids: Any, draft_probs: Any, target_probs: Any, uniform: Any, *, fault: str) -> Any:
    rows, drafts, size = draft_probs.shape
    ids = np.asarray(draft_ids)
    real, index = ids >= 0, np.maximum(ids, 0)[..., None]
    drafted = np.take_along_axis(draft_probs, index, axis=-1)[..., 0]
    wanted = np.take_along_axis(target_probs[:, :drafts], index, axis=-1)[..., 0]
    stays = np.asarray(uniform[:, :drafts] * drafted < wanted)
    stays = np.asarray(uniform[:, :drafts] * wanted < drafted) if fault == "ratio inverted" else stays
    stays = np.asarray(drafted <= wanted) if fault == "without chance" else stays
    stays = stays if fault == "no draft accepted" else stays & real
    accepted = np.sum(stays, axis=1) if fault == "counted" else np.sum(np.cumsum(~stays, axis=1) == 0, axis=1)
    place = np.broadcast_to(accepted[:, None, None], (rows, 1, size))
    target = np.take_along_axis(target_probs, place, axis=1)[:, 0]
    taken = np.concatenate([np.where(real[..., None], draft_probs, np.float32(0)), np.zeros((rows, 1, size))], axis=1)
    rest = np.maximum(target - np.take_along_axis(taken, place, axis=1)[:, 0], np.float32(0))
    rest = target if fault == "from the target" else rest
    rest = np.where(np.sum(rest, axis=-1, keepdims=True) > 0, rest, target)
    running = np.cumsum(rest, axis=-1)
    at = uniform[:, :1] if fault == "first number again" else uniform[:, drafts:]
    total = running[:, -1:] * 0 + 1 if fault == "not renormalised" else running[:, -1:]
    passed = np.sum(np.asarray(running <= at * total), axis=-1)
    last = np.max(np.where(np.asarray(rest > 0), np.arange(size), 0), axis=-1)
    token = np.minimum(passed, size - 1 if fault == "not renormalised" else last)
    whole = np.concatenate([ids, np.full((rows, 1), -1)], axis=1)
    rank, behind = np.arange(drafts + 1), whole if fault == "drafts kept" else -1
    made = np.where(rank < accepted[:, None], whole, np.where(rank == accepted[:, None], token[:, None], behind))
    count = accepted + 1 if fault == "bonus counted" else accepted
    return made.astype(np.int32), count.astype(np.int32)


faulty(
    "rejection_sample",
    _reject,
    {
        "ratio inverted": "accepts where the draft is likelier",
        "without chance": "accepts only what is at least as likely",
        "no draft accepted": "takes -1 for a draft",
        "counted": "counts accepted drafts beyond the first refusal",
        "from the target": "draws the next token from the target itself",
        "first number again": "draws the next token by the number of the first draft",
        "not renormalised": "does not renormalise the rest",
        "drafts kept": "leaves refused drafts behind the tokens",
        "bonus counted": "counts the next token as accepted",
    },
)


def _seed_swapped(call: Call) -> Call:
    return having(call, seed=np.flip(np.asarray(operand(call, "seed")), axis=0))


given("random_uniform", "rows reversed", "takes the seeds of other rows", _seed_swapped)
