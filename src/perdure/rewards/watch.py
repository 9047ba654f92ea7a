"""A watch over a running reward: a component that never changes says nothing to a learner."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from perdure.rewards.spec import RewardSpec


class ConstantWatch:
    """Reports each watched component once it has had the same raw value for `steps` steps in a row.

    Terms of episode scope, which are zero within an episode, and those that read nothing are not
    watched. After a change of its value a component can be reported again.
    """

    def __init__(self, spec: RewardSpec, steps: int = 10_000):
        self.steps = steps
        self._last = {
            term.name: np.nan for term in spec.terms if term.component.scope == "step" and term.component.requires()
        }
        self._same = dict.fromkeys(self._last, 0)

    def observe(self, raw: Mapping[str, Any]) -> list[str]:
        """Messages about components that became suspicious with this step's raw values (scalars, or one a lane)."""
        messages = []
        for name, last in self._last.items():
            values = np.asarray(raw[name], float)
            uniform = bool(np.all(values == values.flat[0]))
            value = float(values.flat[0]) if uniform else np.nan
            self._same[name] = self._same[name] + 1 if value == last else int(uniform)
            self._last[name] = value
            if self._same[name] == self.steps:
                messages.append(
                    f"reward component {name} was {value:g} for {self.steps} steps; is its key ever written?"
                )
        return messages
