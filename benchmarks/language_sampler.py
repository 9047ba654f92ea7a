"""Tokens a CPU second of perdure's sampler and of `generate` of transformers, on a tiny model, one thread.

    OMP_NUM_THREADS=1 python benchmarks/language_sampler.py

A single turn is 64 tokens after a prompt of 32. Several turns are 8 of 16 sampled and 8 appended tokens each:
the library's generation computes the whole conversation anew at each. A group is 8 answers to one prompt of 256
tokens. No answer ends early. Each number is the best of two runs; process time, so other programs matter
little. Prints a Markdown table.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from perdure.lm.sampler import sampler
from perdure.lm.sampling import Sampling
from perdure.lm.tiny import tiny_model
from perdure.lm.tokens import byte_tokenizer

BATCHES = (1, 8, 32, 128)
TURNS, SPOKEN, APPENDED = 8, 16, 8
GROUPS, GROUP = 4, 8
REPEATS = 2


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    tokenizer = byte_tokenizer()
    model = tiny_model(tokenizer)
    # No end of turn, so that every answer has its full length.
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    ours = sampler(model, tokenizer, backend="fast")
    ours.end = -1  # type: ignore[attr-defined]
    random = np.random.default_rng(0)
    print("| workload | rows | perdure, tokens/CPU-s | transformers | ratio |\n|---|---|---|---|---|")
    for rows in BATCHES:
        prompts = random.integers(0, 256, (rows, 32)).tolist()
        row(
            "one turn", rows, 64 * rows, lambda p=prompts: _ours(ours, p, 1, 64), lambda p=prompts: _hf(model, p, 1, 64)
        )
    for rows in BATCHES:
        prompts = random.integers(0, 256, (rows, 32)).tolist()
        work = (lambda p=prompts: _ours(ours, p, TURNS, SPOKEN), lambda p=prompts: _hf(model, p, TURNS, SPOKEN))
        row(f"{TURNS} turns", rows, TURNS * SPOKEN * rows, *work)
    prompts = random.integers(0, 256, (GROUPS, 256)).tolist()
    every = [prompt for prompt in prompts for _ in range(GROUP)]
    work = (lambda: _ours(ours, prompts, 1, 32, copies=GROUP), lambda: _hf(model, every, 1, 32))
    row(f"groups of {GROUP}", len(every), 32 * len(every), *work)
    row("the same, prefill not shared", len(every), 32 * len(every), lambda: _ours(ours, every, 1, 32), work[1])


def row(name: str, rows: int, tokens: int, ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
    """Print one line of the table."""
    mine, other = tokens / _best(ours), tokens / _best(theirs)
    print(f"| {name} | {rows} | {mine:,.0f} | {other:,.0f} | {mine / other:.1f} |", flush=True)


def _best(work: Callable[[], Any]) -> float:
    """The least process time of several runs, after one to warm up."""
    costs = []
    for _ in range(REPEATS + 1):
        start = time.process_time()
        work()
        costs.append(time.process_time() - start)
    return min(costs[1:])


def _ours(chosen: Any, prompts: Sequence[Sequence[int]], turns: int, spoken: int, copies: int = 1) -> None:
    session = chosen.open(prompts, copies)
    rows = range(len(prompts) * copies)
    random = np.random.default_rng(0)
    for turn in range(turns):
        answers = session.generate(rows, Sampling(max_new_tokens=spoken), random.random((len(rows), spoken)))
        assert all(len(each.ids) == spoken for each in answers)
        if turn < turns - 1:
            for row in rows:
                session.append(row, [65] * APPENDED)


def _hf(model: Any, prompts: Sequence[Sequence[int]], turns: int, spoken: int) -> None:
    ids = torch.tensor(prompts)
    for turn in range(turns):
        before = ids.shape[1]
        ids = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=spoken, do_sample=True, top_k=0, pad_token_id=256
        )
        assert ids.shape[1] == before + spoken
        if turn < turns - 1:
            ids = torch.cat([ids, torch.full((len(ids), APPENDED), 65)], 1)


if __name__ == "__main__":
    main()
