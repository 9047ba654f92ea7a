"""The command that records transition datasets."""

from pathlib import Path
from typing import Annotated

import typer

from perdure.core.errors import ConfigError


def record(
    world: Annotated[str, typer.Argument(metavar="WORLD", help="A pure world of `perdure list worlds`.")],
    destination: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The .npz file to write.")],
    expert: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who acts, of `perdure list experts`; the world's own if unset.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="A run's folder: its final policy acts.", show_default=False)
    ] = None,
    episodes: Annotated[int, typer.Option(help="Whole episodes to record.")] = 100,
    random_share: Annotated[float, typer.Option(help="Share of the steps with a random action, in [0, 1].")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of first states and random actions.")] = 0,
) -> None:
    """Record the episodes of an expert, or of a trained policy, as a dataset.

    Extensions such as prior_data and gail read such a file; in Python it is perdure.rl.dataset.TransitionDataset.

    \b
    Examples:
      perdure record perdure/pendulum -o expert.npz
      perdure record perdure/pendulum --random-share 0.5 -o mixed.npz
      perdure record perdure/pendulum --run runs/pendulum-sac-1a2b3c -o medium.npz
    """
    from perdure import named
    from perdure.core import registry
    from perdure.frozen import FrozenPolicy

    if expert is not None and run is not None:
        raise ConfigError(f"--expert is {expert!r} and --run {run}; one acts, so give one")
    named.prepare_jax()
    from perdure.rl import recording
    from perdure.worlds import catalogue

    if not catalogue.is_pure(world):
        raise ConfigError(f"WORLD is {world!r}, which is no pure world; see perdure list worlds")
    name = world if expert is None else expert
    actor = FrozenPolicy(str(run)) if run is not None else registry.resolve("experts", name, "--expert")()
    dataset = recording.record(
        catalogue.pure(world, {}), actor, episodes=episodes, seed=seed, random_share=random_share
    )
    dataset.save(destination)
    mean = dataset.returns.mean()
    typer.echo(f"{destination}: {dataset.episodes} episodes, {dataset.rows} rows, mean return {mean:.1f}")
