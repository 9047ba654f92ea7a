"""Training on groups of episodes with one start: what a document sets, and one seed's update."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from perdure.core import capabilities, seeds
from perdure.core.component import component
from perdure.core.errors import ConfigError, Refused, nearest
from perdure.lm import checkpoint, forward, packing, penalties, update
from perdure.lm import hooks as folded
from perdure.lm.batch import TokenBatch
from perdure.lm.conversation import Recorded
from perdure.lm.hooks import Hooks
from perdure.lm.objectives import kl
from perdure.lm.objectives.table import RECIPES, Objective
from perdure.lm.objectives.weigh import weigh
from perdure.lm.policy import LanguagePolicy
from perdure.lm.sampling import refuse_untrainable
from perdure.lm.step import Optimisation, Stepper

Tensor = torch.Tensor


@component
class GroupTraining:
    """How a policy learns from the scores of whole episodes.

    One update plays rollout.groups_per_update x rollout.group_size episodes of at most `turns` answers,
    and makes epochs x minibatches optimiser steps on all of them.
    """

    objective: Objective = RECIPES["grpo"]
    """Advantage, loss, aggregation and divergence; any of them may be changed."""
    recipe: str | None = None
    """Instead of `objective`: grpo, dr_grpo, dapo, gspo, cispo, sapo, rloo, reinforce or maxrl, as published."""
    optimisation: Optimisation = Optimisation()
    turns: int = 8
    """Answers of an episode at most; one that the world has not ended by then is truncated."""
    epochs: int = 1
    """Passes over the episodes of an update."""
    minibatches: int = 1
    """Optimiser steps of a pass."""
    allow_improper: bool = False
    """Whether advantages may be scaled by each group's own rewards where the world's reward is a proper score."""

    default_group_size: ClassVar[int] = 8
    """Episodes of a group where the document does not say."""

    def __post_init__(self):
        if self.recipe is not None:
            known = [name for name, each in RECIPES.items() if not each.needs_values]
            if self.recipe not in known:
                raise ConfigError(f"recipe is {self.recipe!r}; {nearest(self.recipe, known)}")
            if self.objective not in (type(self).objective, RECIPES[self.recipe]):
                raise ConfigError(f"recipe is {self.recipe!r} and objective is given too; keep one of them")
            object.__setattr__(self, "objective", RECIPES[self.recipe])
        for name in ("turns", "epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.objective.needs_values:
            raise ConfigError("objective.advantage is 'gae', which needs a critic; train with lm/ppo")


def refuse_improper(training: GroupTraining, env: Any) -> None:
    """Refused where a world pays honest confidence most, and the advantages would no longer."""
    objective = training.objective
    scaled = objective.advantage == "maxrl" or (objective.advantage == "grpo" and objective.scale in (None, "group"))
    if scaled and not training.allow_improper and capabilities.capability(env, "proper_reward"):
        raise Refused(
            f"{env} has a proper score as its reward, and {objective.advantage} scales advantages by each group's own "
            "rewards, under which over- and understated confidence pay; set algorithm.kwargs.recipe: dr_grpo, or "
            "allow_improper: true"
        )


class GroupBackend:
    """One seed: its policy, optimiser, hooks and divergence controller. Hooks see it as they see lm.backend.Backend."""

    def __init__(self, training: GroupTraining, policy: LanguagePolicy, hooks: Sequence[Hooks], seed: int):
        own = training.objective.old_logprobs == "sampler"
        refuse_untrainable(policy.sampling, own=own, key="objective.old_logprobs", remedy="trainer")
        self.training, self.policy, self.hooks, self.seed = training, policy, folded.unique(hooks), seed
        self.updates = 0
        self.minibatch: TokenBatch | None = None
        """All rows of the update under way."""
        self.controller = training.objective.controller()
        policy.attach(self.hooks)
        self.stepper = Stepper(
            policy.model,
            training.optimisation,
            others=[each for hook in self.hooks for each in hook.parameters()],
            seed=seeds.stream(seed, "replay"),
        )
        self._reference = self._frozen()
        for hook in self.hooks:
            hook.begin(self)

    def named_parameters(self) -> dict[str, torch.nn.Parameter]:
        """The trainable parameters of the model by their own names."""
        return penalties.trained(self.policy.model)

    def score(self, batch: TokenBatch) -> Any:
        """What the policy says of a batch's trained tokens, with gradients."""
        packed = packing.pack(batch.rows, self.policy.chat.pad_id, device=self.policy.model.device)
        temperature = self.policy.sampling.temperature
        return forward.score(
            self.policy.model, packed.ids_BT, packed.lengths_B, temperature=temperature, where_BT=packed.mask_BT
        )

    def update(self, rows: Sequence[Recorded]) -> dict[str, float]:
        """Train on finished episodes; means over the optimiser steps, and what the advantages say of the groups."""
        batch = TokenBatch(tuple(rows))
        for hook in self.hooks:
            batch = hook.batch(self, batch)
        self.minibatch = batch
        policy, training, objective = self.policy, self.training, self.training.objective
        options = {
            "reference": self._reference,
            "tokens": training.optimisation.tokens_per_micro_batch,
            "temperature": policy.sampling.temperature,
            "bf16": training.optimisation.bf16,
        }
        packed = packing.pack(batch.rows, policy.chat.pad_id, device=policy.model.device)
        packed, metrics = update.prepared(policy.model, packed, objective, **options)
        divergences = None
        if objective.kl == "reward":
            assert packed.reference_BT is not None, "a divergence has a reference"
            found_BT = kl.estimate(objective.estimator, packed.old_BT, packed.reference_BT, packed.mask_BT)
            divergences = packing.unpadded(found_BT, packed.lengths_B)
        coefficient = self.controller.coefficient
        weighed = weigh(objective, batch.rows, divergences=divergences, kl_coefficient=coefficient)
        ready = packing.filled(packed, advantages=weighed.advantages)
        policy.model.train()
        try:
            found = update.update(
                self.stepper,
                policy.model,
                ready,
                objective,
                kl_coefficient=coefficient,
                penalties=[self._penalty],
                temperature=policy.sampling.temperature,
                epochs=training.epochs,
                minibatches=training.minibatches,
                order=np.random.Generator(np.random.Philox(key=[seeds.stream(self.seed, "replay"), self.updates])),
            )
        finally:
            policy.model.eval()
            self.minibatch = None
        metrics |= found | weighed.metrics
        if packed.reference_BT is not None:
            metrics |= self._adapt(packed)
        return metrics | self._updated()

    def shift(self, shift: Mapping[str, Any]) -> None:
        """Tell the hooks."""
        for hook in self.hooks:
            hook.shift(self, shift)

    def save(self, folder: Path) -> None:
        """Everything that changes."""
        extra = {
            "policy": self.policy.state_dict(),
            "stepper": self.stepper.state_dict(),
            "updates": self.updates,
            "controller": self.controller.state_dict(),
            "hooks": folded.states(self.hooks),
        }
        checkpoint.save(folder, model=self.policy.model, optimizer=self.stepper.optimizer, extra=extra)

    def load(self, folder: Path) -> None:
        """Take up what `save` wrote, bit for bit."""
        extra = checkpoint.load(folder, model=self.policy.model, optimizer=self.stepper.optimizer)
        self.stepper.load_state_dict(extra["stepper"])
        self.controller.load_state_dict(extra["controller"])
        self.updates = extra["updates"]
        folded.load(self.hooks, extra["hooks"], folder)
        self.policy.load_state_dict(extra["policy"])

    def _updated(self) -> dict[str, float]:
        self.updates += 1
        self.policy.refresh()
        return folded.after_update(self.hooks, self)

    def _adapt(self, batch: packing.Batch) -> dict[str, float]:
        """Measure how far the policy stood from the reference before the update; the controller answers to it."""
        assert batch.reference_BT is not None, "the update measured it"
        distance_BT = kl.estimate("k3", batch.old_BT, batch.reference_BT, batch.mask_BT)
        measured = float(distance_BT[batch.mask_BT].mean())
        found = {"kl/measured": measured, "kl/coefficient": self.controller.coefficient}
        self.controller.update(measured, len(batch.lengths_B))
        return found

    def _penalty(self) -> Tensor | None:
        return folded.penalty(self.hooks, self)

    def _frozen(self) -> Any:
        """A copy of the model as it begins, where a divergence needs one and no adapter can be switched off."""
        if self.training.objective.kl == "none" or hasattr(self.policy.model, "disable_adapter"):
            return None
        return copy.deepcopy(self.policy.model).requires_grad_(False).eval()
