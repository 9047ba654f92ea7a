"""CPU seconds of a pass whose rows share prompts, and of the products of a wide model with few rows, one thread.

    OMP_NUM_THREADS=1 python language_shared.py

The first table is forward and backward of the tiny model over 8 groups of 8 rows, each row computing its own prompt
and all of a group computing it once. The second is every matrix of SmolLM2-135M times some rows, once each, by the
layouts that the decoder could keep. Medians of 5 of process time. Prints two Markdown tables.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from perdure.lm import forward, packing, products
from perdure.lm.tiny import tiny_model
from perdure.lm.tokens import byte_tokenizer

REPEATS = 5
GROUPS, GROUP = 8, 8
LENGTHS = ((32, 32), (64, 32), (32, 64), (192, 32))
"""Tokens of prompt and of answer."""
ROWS = (1, 4, 8, 16, 32, 64)
LAYERS, HEAD = 30, (49152, 576)
LAYER = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""[out, in] of SmolLM2's matrices."""


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    model = tiny_model(byte_tokenizer())
    print("| prompt + answer tokens | rows by themselves, CPU-s | prompt shared | ratio |\n|---|---|---|---|")
    own = packing.WORTH_SHARING
    for prompt, answer in LENGTHS:
        costs = []
        for worth in (0.0, own):  # Nothing is less than no share of the tokens.
            packing.WORTH_SHARING = worth
            costs.append(median(lambda p=prompt, a=answer: passed(model, p, a)))
        print(f"| {prompt} + {answer} | {costs[0]:.3f} | {costs[1]:.3f} | {costs[1] / costs[0]:.2f} |", flush=True)
    print("\n| rows | `torch.mm`, [in, out], CPU-ms | `linear`, [out, in] | oneDNN, blocked |\n|---|---|---|---|")
    with torch.inference_mode():
        multiply()


def passed(model: Any, prompt: int, answer: int) -> None:
    """Log-probabilities of every answer token, and the gradient of their sum."""
    random = np.random.default_rng(0)
    prompts = np.repeat(random.integers(0, 256, (GROUPS, prompt)), GROUP, 0)
    ids_BT = torch.tensor(np.concatenate([prompts, random.integers(0, 256, (len(prompts), answer))], 1))
    lengths_B = torch.full((len(ids_BT),), prompt + answer)
    trained_BT = (torch.arange(prompt + answer) >= prompt).expand(len(ids_BT), -1)
    forward.score(model, ids_BT, lengths_B, where_BT=trained_BT).logprobs_BT.sum().backward()


def multiply() -> None:
    """Print what all matrices cost by each layout."""
    matrices = [torch.randn(shape) for shape in (*LAYER * LAYERS, HEAD)]
    kept = {
        "mm": [products.Plain(each.t().contiguous(), None) for each in matrices],
        "linear": [lambda x, each=each: torch.nn.functional.linear(x, each) for each in matrices],
        "blocked": [products.product(each, None, torch.float32) for each in matrices],
    }
    for rows in ROWS:
        inputs = {width: torch.randn(rows, width) for width in {each.shape[1] for each in matrices}}
        costs = [
            median(lambda m=many, i=inputs: [run(i[each.shape[1]]) for run, each in zip(m, matrices, strict=True)])
            for many in kept.values()
        ]
        print(f"| {rows} | " + " | ".join(f"{1e3 * cost:.0f}" for cost in costs) + " |", flush=True)


def median(work: Callable[[], Any]) -> float:
    """Process seconds, after one run to warm up."""
    costs = []
    for _ in range(REPEATS + 1):
        start = time.process_time()
        work()
        costs.append(time.process_time() - start)
    return statistics.median(costs[1:])


if __name__ == "__main__":
    main()
