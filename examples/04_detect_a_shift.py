"""Find a shift that nobody announces, from the rewards alone, with both detectors.

python examples/04_detect_a_shift.py
"""

from typing import Any

import numpy as np

from perdure.regimes import detectors

SHIFT = 500


def main() -> None:
    """Rewards around 1 that fall to 0.5 at step 500; print where each detector raises its alarm."""
    noise = np.random.default_rng(0).normal(0.0, 0.1, 1_000)
    rewards = np.where(np.arange(1_000) < SHIFT, 1.0, 0.5) + noise
    known: tuple[Any, ...] = (detectors.PageHinkley(threshold=3.0, tolerance=0.05), detectors.Cusum())
    for detector in known:
        state = detector.start(np)
        for step, reward in enumerate(rewards):
            state, alarm = detector.step(np, state, reward)
            if alarm:
                print(f"{type(detector).__name__}: step {step}, {step - SHIFT} steps after the shift")


if __name__ == "__main__":
    main()
