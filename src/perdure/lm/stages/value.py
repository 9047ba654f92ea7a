"""The critic's warm start: the value head alone, on returns of the frozen policy's own episodes.

Monte-Carlo returns for lam 1; below it TD(lambda) targets of the critic as it stands. The frozen
model's hidden states are computed once. N trainable tokens, D width.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from perdure.core.errors import DataError
from perdure.lm import estimates, forward, packing
from perdure.lm.objectives import advantages
from perdure.lm.stages import fitting, trajectories
from perdure.lm.stages.dataset import held_out_rows
from perdure.lm.stages.folder import write_json
from perdure.lm.stages.sections import RolloutsConfig, ValueConfig
from perdure.lm.stages.trajectories import Record
from perdure.lm.trajectory import Trajectory

Tensor = torch.Tensor


def run(
    policy: Any,
    play: Callable[[RolloutsConfig], list[Record]],
    settings: ValueConfig,
    gamma: float,
    folder: Path,
    say: Callable[[str], None],
) -> fitting.Fitted:
    """Train the critic of `policy` on episodes that `play` makes, once; leaves the policy with it in `folder`."""
    records = trajectories.kept(folder / trajectories.ROLLOUTS, lambda: play(settings.rollouts))
    rewards = [record.reward for record in records if record.reward is not None]
    card = {"source": {"kind": "rollouts", **settings.rollouts.model_dump()}, "episodes": len(records)}
    write_json(
        folder / "data.json", card | {"mean_reward": float(np.mean(rewards)) if rewards else None, "gamma": gamma}
    )
    fitted = fitting.fit(Critic(policy, records, settings, gamma=gamma), settings, folder, say)
    policy.save(folder)
    return fitted


class States(NamedTuple):
    """The frozen model's last hidden states of one episode, in fp32."""

    before_ND: Tensor
    """Before each trainable token: what its value is read from."""
    final_D: Tensor
    """After the last token: what a truncated episode goes on from."""


class Critic:
    """The task (stages.fitting.Task) of a policy's value head; the model's own parameters are frozen.

    DataError where no episode is left to train on.
    """

    def __init__(self, policy: Any, records: Sequence[Record], settings: ValueConfig, *, gamma: float):
        self.model, self.value_head = policy.model, policy.value_head
        self._gamma, self._lam = gamma, settings.lam
        self._episodes = [record.trajectory for record in records if record.trajectory is not None]
        held = held_out_rows(len(self._episodes), settings.holdout, settings.seed)
        self._held = sorted(held)
        self._train = [number for number in range(len(self._episodes)) if number not in held]
        if not self._train:
            raise DataError(
                f"of {len(self._episodes)} episodes {len(held)} are held out, and none is left to learn values from; "
                "raise rollouts.runs or rollouts.episodes"
            )
        self.rows = len(self._train)
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        self._states = states(policy, self._episodes, settings.tokens_per_micro_batch)

    def losses(self, rows: Sequence[int], step: int) -> Iterator[Callable[[], Tensor]]:
        """The mean squared error over the trainable tokens of some episodes; no gradient through the targets."""
        yield lambda: self._errors([self._train[row] for row in rows]).square().mean()

    def judge(self) -> dict[str, float]:
        """The held-out mean squared error, and the share of the returns' variance that the values explain."""
        if not self._held:
            return {}
        with torch.no_grad():
            errors_N = self._errors(self._held)
            values_N = torch.cat([self.value_head(self._states[each].before_ND) for each in self._held])
        values, errors = values_N.double().numpy(force=True), errors_N.double().numpy(force=True)
        explained = estimates.explained_variance(values, values - errors)
        told = {} if math.isnan(explained) else {"explained_variance": explained}
        return {"loss": float(np.square(errors).mean()), **told}

    def targets(self, number: int) -> Tensor:
        """The returns [N] that the values of an episode's trainable tokens are drawn to."""
        episode, found = self._episodes[number], self._states[number]
        with torch.no_grad():
            values_N = self.value_head(found.before_ND).double().numpy(force=True)
            bootstrap = float(self.value_head(found.final_D)) if episode.truncated else 0.0
        mask = np.array(episode.mask, bool)
        returns = advantages.gae(
            values_N,
            advantages.token_rewards(episode)[mask],
            advantages.turn_ends(episode)[mask],
            gamma=self._gamma,
            lam=self._lam,
            bootstrap=bootstrap,
        ).returns
        return torch.tensor(returns, dtype=torch.float32, device=found.before_ND.device)

    def _errors(self, chosen: Sequence[int]) -> Tensor:
        values_N = self.value_head(torch.cat([self._states[each].before_ND for each in chosen]))
        return values_N - torch.cat([self.targets(each) for each in chosen])


def states(policy: Any, episodes: Sequence[Trajectory], tokens: int) -> list[States]:
    """The hidden states of each episode that its values are read from, in passes of about `tokens` tokens."""
    packed = packing.pack(episodes, policy.chat.pad_id, device=policy.model.device)
    found: dict[int, States] = {}
    policy.model.eval()
    for rows in packing.plan(packed.lengths_B.tolist(), tokens):
        part, seen = packing.take(packed, rows), list[Tensor]()

        def keep(hidden_BTD: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(hidden_BTD)
            return hidden_BTD[..., 0]

        with torch.no_grad():
            forward.score(policy.model, part.ids_BT, part.lengths_B, value_head=keep, where_BT=part.mask_BT)
        for row, hidden_TD, mask_T, length in zip(rows, seen[0], part.mask_BT, part.lengths_B, strict=True):
            found[row] = States(hidden_TD[mask_T.nonzero()[:, 0] - 1].clone(), hidden_TD[int(length) - 1].clone())
    return [found[row] for row in range(len(episodes))]
