"""Record episodes of a clumsy expert, learn from them alone, then go on in the world.

python examples/07_offline.py runs/examples
"""

import sys
from pathlib import Path

from perdure import TD3, Adam, Replay, load_run, train
from perdure.extensions.expert import ImitationLoss
from perdure.extensions.prior_data import PriorData
from perdure.rl.dataset import TransitionDataset
from perdure.rl.recording import record
from perdure.worlds.pure.experts import PendulumExpert
from perdure.worlds.pure.pendulum import Pendulum


def recorded(path: Path) -> TransitionDataset:
    """Twenty episodes, half of whose steps are random, in a file that the run's document can name."""
    dataset = record(Pendulum(), PendulumExpert(), episodes=20, random_share=0.5)
    dataset.save(path)
    return dataset


def main(output_dir: str) -> None:
    """TD3+BC: updates on the dataset, then steps in the world with batches from both."""
    dataset = recorded(Path(output_dir) / "pendulum-mixed.npz")
    print(f"the dataset returns {dataset.returns.mean():.0f} an episode")
    agent = TD3(
        feed=Replay(capacity=1_000, batch_size=64, learning_starts=0),
        hidden=(64, 64),
        actor_optimiser=Adam(learning_rate=1e-3),
        critic_optimiser=Adam(learning_rate=1e-3),
        normalize_observations=True,
    )
    run = train(
        agent,
        "perdure/pendulum",
        total_steps=500,
        window_steps=500,
        extensions=[ImitationLoss(target="replay", alpha=2.5), PriorData(dataset, offline_updates=8_000)],
        output_dir=output_dir,
        run_id="offline",
        progress=False,
    )
    for row in load_run(run.folder).evaluations:
        learned = "from it alone" if row.step == 0 else f"after {row.step} steps in the world"
        print(f"learned {learned}: {sum(row.returns) / len(row.returns):.0f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/examples")
