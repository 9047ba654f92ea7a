"""An idea of one's own added to SAC without touching it: targets pulled towards zero.

python examples/05_own_extension.py runs/examples
"""

import sys
from pathlib import Path

from perdure import build
from perdure.core.component import component
from perdure.core.extension import Extension
from perdure.harness import config


@component
class Damped(Extension):
    """Pulls every regression target towards zero."""

    share: float = 0.01

    def on_target(self, agent_state, state, batch, target, ctx):
        """The target, a little smaller; and how much smaller, as a metric."""
        return (1.0 - self.share) * target, {"damped/removed": abs(self.share * target).mean()}


def main(output_dir: str) -> None:
    """Name the class as "module:Extension" in the document."""
    sys.path.insert(0, str(Path(__file__).parent))
    document = {
        "environment": {"id": "perdure/pendulum"},
        "algorithm": {
            "name": "sac",
            "kwargs": {"feed": {"capacity": 2_000, "batch_size": 32, "learning_starts": 200}, "hidden": [16, 16]},
            "extensions": [{"name": f"{Path(__file__).stem}:Damped", "kwargs": {"share": 0.05}}],
        },
        "rollout": {"total_steps": 512, "window_steps": 128},
        "run": {"seed": 0, "output_dir": output_dir},
    }
    result = build.run_experiment(config.ExperimentConfig.from_document(document))
    print(result.window_metrics[-1]["metrics"])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/examples")
