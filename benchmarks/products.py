"""What the machine allows: its matrix-product rate, and the bare products of one update of each setting.

`python products.py` prints GFLOP/s of single-precision and bfloat16 products, and for PPO, SAC and DQN how many
updates a second the matrix products alone would allow, run one after another as an update must.
"""

import argparse
import os
from pathlib import Path
from typing import NamedTuple

import measure


class Pass(NamedTuple):
    """One network evaluated on `rows` rows, and the gradients taken of it."""

    rows: int
    sizes: tuple[int, ...]
    """Units of every layer, input and output included."""
    weights: bool = False
    """Whether the gradient of the weights is taken."""
    inputs: bool = False
    """Whether the gradient of the input is taken (else only of hidden layers, and only with `weights`)."""


def products(network: Pass) -> list[tuple[int, int, int]]:
    """The (rows, inner, columns) of every matrix product of a pass."""
    shapes = []
    for index, (inner, columns) in enumerate(zip(network.sizes[:-1], network.sizes[1:], strict=True)):
        shapes.append((network.rows, inner, columns))
        if network.weights:
            shapes.append((inner, network.rows, columns))
        if network.inputs or (network.weights and index > 0):
            shapes.append((network.rows, columns, inner))
    return shapes


def updates() -> dict[str, list[Pass]]:
    """The passes of one gradient step of each measured setting."""
    actor, critic, values = (3, 256, 256, 2), (4, 256, 256, 1), (4, 128, 128, 2)
    sac = [Pass(256, actor), Pass(256, critic), Pass(256, critic)]  # the target
    sac += [Pass(256, critic, weights=True)] * 2
    sac += [Pass(256, actor, weights=True), *[Pass(256, critic, inputs=True)] * 2]
    sac += [Pass(256, actor)]  # the temperature
    rows = {"ppo-4": 128, "ppo-64": 2048}
    ppo = {name: [Pass(size, (4, 64, 64, outputs), weights=True) for outputs in (2, 1)] for name, size in rows.items()}
    return {**ppo, "sac": sac, "dqn": [Pass(64, values), Pass(64, values, weights=True)]}


def product_rate(precision: str, patience: float, size: int = 2048, times: int = 5) -> float:
    """GFLOP/s of a large square product, both cores working."""
    import jax

    left, right = (jax.random.normal(jax.random.key(i), (size, size)).astype(precision) for i in (0, 1))
    multiply = jax.jit(lambda a, b: a @ b).lower(left, right).compile()
    multiply(left, right).block_until_ready()
    sections, _ = measure.repeated(lambda _: multiply(left, right).block_until_ready(), times, patience)
    return 2 * size**3 / min(section.wall for section in sections) / 1e9


def update_rate(passes: list[Pass], precision: str, patience: float, repeats: int = 300) -> dict[str, float]:
    """Updates a second if an update were its matrix products and nothing else."""
    import jax
    import jax.numpy as jnp

    shapes = [shape for network in passes for shape in products(network)]
    factors = [
        (jnp.ones((rows, inner), precision), jnp.full((inner, columns), 1e-3, precision))
        for rows, inner, columns in shapes
    ]

    def one(carry, _):
        # The barriers chain the products, so that the compiler can drop, join, shrink or hoist none of them.
        for left, right in factors:
            left, carry = jax.lax.optimization_barrier((left, carry))
            carry = jax.lax.optimization_barrier(left @ right)[0, 0] + carry
        return carry, None

    start = jnp.zeros((), precision)
    program = jax.jit(lambda start: jax.lax.scan(one, start, None, repeats)[0]).lower(start).compile()
    program(start).block_until_ready()
    sections, _ = measure.repeated(lambda _: program(start).block_until_ready(), 5, patience)
    seconds = sorted(section.wall for section in sections)[2] / repeats
    flops = sum(2 * rows * inner * columns for rows, inner, columns in shapes)
    return {"updates": 1 / seconds, "gflops": flops / seconds / 1e9}


def main() -> None:
    """Measure and append one line a setting and precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patience", type=float, default=30)
    parser.add_argument("--results", type=Path, default=Path("results.jsonl"))
    arguments = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    for precision in ("float32", "bfloat16"):
        measure.record(
            {"products": "square", "precision": precision, "gflops": product_rate(precision, arguments.patience)},
            arguments.results,
        )
        for name, passes in updates().items():
            measure.record(
                {"products": name, "precision": precision, **update_rate(passes, precision, arguments.patience)},
                arguments.results,
            )


if __name__ == "__main__":
    main()
