"""What updates and rollouts of the tiny model cost a token, and how far that is from their bare matrix products.

    OMP_NUM_THREADS=1 python language_limits.py

The limit is the time of the same matrix products alone, one after another and already laid out, at the shapes of
the pass: forward once, and for an update twice more for the gradients of inputs and weights. Medians of process
time over repeats, one thread. Prints two Markdown tables.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from perdure.core.records import RolloutWindow, Transition
from perdure.lm.backend import Backend
from perdure.lm.conversation import Recorded
from perdure.lm.factory import language_policy
from perdure.lm.groups import GroupBackend, GroupTraining
from perdure.lm.trajectory import Sampled, Stop

REPEATS = 5
PROMPT, GROUP = 32, 8
UPDATES = ((16, 32), (64, 32), (64, 128))
"""Rows and tokens of an answer."""
ROLLOUTS = ((1, 64, 1), (8, 64, 1), (64, 32, 1), (128, 64, 1), (32, 16, 8))
"""Rows, tokens of an answer, turns."""
APPENDED = 8

Product = tuple[int, int, int, int]
"""How many products of [m, k] by [k, n]."""


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    print("| update | rows | tokens | CPU-s | tokens/CPU-s | us a token | the products alone | share |")
    print("|---|---|---|---|---|---|---|---|")
    for rows, answer in UPDATES:
        tokens = rows * (PROMPT + answer)
        limit = median(lambda r=rows, a=answer: multiply(update_products(r, a, r // GROUP)))
        _row("GRPO", rows, tokens, median(_grpo(rows, answer)), limit)
        # A pass of the old policy before, and as many passes with gradients as there are epochs.
        forward = median(lambda r=rows, a=answer: multiply(forward_products(r, a, r)))
        limit = median(lambda r=rows, a=answer: multiply(update_products(r, a, r)))
        for epochs in (1, 4):
            _row(f"PPO, epochs {epochs}", rows, tokens, median(_ppo(rows, answer, epochs)), epochs * limit + forward)
    print("\n| rollout | rows | tokens/CPU-s | the products alone | share |\n|---|---|---|---|---|")
    policy = _policy(64)
    policy.sampler.end = -1  # type: ignore[attr-defined]
    for rows, answer, turns in ROLLOUTS:
        sampled = rows * answer * turns
        cost = median(lambda r=rows, a=answer, t=turns: _rollout(policy, r, a, t))
        limit = median(lambda r=rows, a=answer, t=turns: multiply(rollout_products(r, a, t)))
        name = f"{turns} x {answer}"
        print(f"| {name} | {rows} | {sampled / cost:,.0f} | {sampled / limit:,.0f} | {limit / cost:.2f} |", flush=True)


def _row(name: str, rows: int, tokens: int, cost: float, limit: float) -> None:
    rate, each = tokens / cost, 1e6 * cost / tokens
    print(
        f"| {name} | {rows} | {tokens} | {cost:.3f} | {rate:,.0f} | {each:.0f} | {limit:.3f} | {limit / cost:.2f} |",
        flush=True,
    )


def median(work: Callable[[], Any]) -> float:
    """Process seconds, after one run to warm up; what `work` returns, where it measured itself."""
    costs: list[float] = []
    for _ in range(REPEATS + 1):
        start = time.process_time()
        own = work()
        costs.append(own if isinstance(own, float) else time.process_time() - start)
    return statistics.median(costs[1:])


def layer_products(tokens: int) -> list[Product]:
    """Those of one layer of the tiny model on so many tokens, its projections side by side; without attention."""
    width, keys, inner = 128, 64, 384
    return [
        (1, tokens, width, width + 2 * keys),
        (1, tokens, width, width),
        (1, tokens, width, 2 * inner),
        (1, tokens, inner, width),
    ]


def forward_products(rows: int, answer: int, prompts: int) -> list[Product]:
    """A pass over prompts and the answers to them, which alone meet the vocabulary; attention at half its square."""
    first = [(prompts * 2, PROMPT, 32, PROMPT), (prompts * 2, PROMPT, PROMPT, 32)]
    seen = PROMPT + answer // 2
    then = [(rows * 4, answer, 32, seen), (rows * 4, answer, seen, 32)]
    return 4 * [*layer_products(prompts * PROMPT + rows * answer), *first, *then] + [(1, rows * answer, 128, 259)]


def update_products(rows: int, answer: int, prompts: int) -> list[Product]:
    """A pass and its gradients."""
    found: list[Product] = []
    for count, m, k, n in forward_products(rows, answer, prompts):
        found += [(count, m, k, n), (count, m, n, k), (count, k, m, n)]
    return found


def rollout_products(rows: int, answer: int, turns: int) -> Iterator[Product]:
    """What is new at each turn (an answer's last token with it), then a step for each further token."""
    seen = 0
    for turn in range(turns):
        new = PROMPT if turn == 0 else APPENDED + 1
        yield from [*4 * layer_products(rows * new), (1, rows, 128, 259)]
        seen += new
        for _ in range(answer - 1):
            seen += 1
            attention = [(rows * 2, 2, 32, seen), (rows * 2, 2, seen, 32)]
            yield from 4 * [*layer_products(rows), *attention] + [(1, rows, 128, 259)]


def multiply(products: Any) -> float:
    """Process seconds of the products alone."""
    cost = 0.0
    ready: dict[Product, tuple[torch.Tensor, ...]] = {}
    for product in products:
        if product not in ready:
            count, m, k, n = product
            shapes = ((m, k), (k, n), (m, n)) if count == 1 else ((count, m, k), (count, k, n), (count, m, n))
            ready[product] = tuple(torch.ones(shape) for shape in shapes)
        left, right, out = ready[product]
        start = time.process_time()
        torch.matmul(left, right, out=out)
        cost += time.process_time() - start
    return cost


def _policy(answer: int) -> Any:
    return language_policy("perdure/tiny", seed=0, max_new_tokens=answer, parse_actions=False)


def _grpo(rows: int, answer: int) -> Callable[[], Any]:
    """An update on episodes of one answer, of the policy as it then is; those of a group answer one prompt."""
    policy = _policy(answer)
    backend = GroupBackend(GroupTraining(turns=1), policy, (), 0)
    random = np.random.default_rng(0)

    prompts = random.integers(0, 256, (rows // GROUP, PROMPT)).tolist()

    def episode(row: int) -> Recorded:
        found = Recorded(terminated=True, group=row // GROUP, lane=row)
        found.observe(prompts[row // GROUP])
        turn = found.answer(Sampled(random.integers(0, 256, answer).tolist(), [-5.5] * answer, Stop.LENGTH))
        turn.reward = float(random.random())
        return found

    episodes = [episode(row) for row in range(rows)]
    return lambda: backend.update(episodes)


def _ppo(rows: int, answer: int, epochs: int) -> Callable[[], float]:
    """`Backend.update` alone, on a window of one answer of each lane."""
    policy = _policy(answer)
    policy.sampler.end = -1  # type: ignore[attr-defined]
    backend = Backend(policy, epochs=epochs, minibatch=rows)
    # Texts of prompts of PROMPT tokens, each another one.
    room = PROMPT - len(policy.chat.prompt([{"role": "user", "content": ""}]))
    observations = [str(row).rjust(room, "x") for row in range(rows)]
    steps = iter(range(10**6))

    def update() -> float:
        step = next(steps)
        actions = policy.act_batch(observations)
        transitions = [
            Transition(step * rows + lane, observations[lane], action, float(lane % 2), True, False, "only", lane=lane)
            for lane, action in enumerate(actions)
        ]
        for transition in transitions:
            policy.record(transition)
        start = time.process_time()
        backend.update(RolloutWindow(transitions=transitions))
        return time.process_time() - start

    return update


def _rollout(policy: Any, rows: int, answer: int, turns: int) -> None:
    random = np.random.default_rng(0)
    session = policy.sampler.open(random.integers(0, 256, (rows, PROMPT)).tolist())
    sampling = type(policy.sampling)(max_new_tokens=answer)
    for turn in range(turns):
        session.generate(range(rows), sampling, random.random((rows, answer)))
        if turn < turns - 1:
            for row in range(rows):
                session.append(row, [65] * APPENDED)


if __name__ == "__main__":
    main()
