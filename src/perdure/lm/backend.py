"""The machinery of the language backends: windows to batches, estimates, clipped updates, hooks, one checkpoint.

An `Algorithm` of the harness. What a backend adds to proximal policy optimisation are hooks (lm.hooks).
"""

# Optimisers and models are any.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from perdure.core.component import make
from perdure.core.errors import ConfigError, DataError
from perdure.core.records import RolloutWindow
from perdure.lm import batch as batches
from perdure.lm import checkpoint, forward, packing, penalties
from perdure.lm import hooks as folded
from perdure.lm.batch import TokenBatch
from perdure.lm.clipped import Pieces, Rows
from perdure.lm.conversation import Recorded, plain, restored
from perdure.lm.extensions.base import refuse_unknown
from perdure.lm.hindsight import HERBuffer
from perdure.lm.hooks import Hooks
from perdure.lm.policy import LanguagePolicy
from perdure.lm.preparing import Scorer, prepared
from perdure.lm.settings import Settings
from perdure.lm.step import Optimisation, Stepper
from perdure.lm.token_slice import ActionTokens, action_token_start
from perdure.lm.trajectory import Stop
from perdure.metrics.advantages import GAEMode

TRAINING = "training"
"""The folder of a checkpoint that holds what only a resumed training needs."""


class Backend:
    """Trains a LanguagePolicy on windows of environment steps by proximal policy optimisation.

    `options` are the keys of `lm.settings.Settings` (`preset` among them) and of `lm.step.Optimisation`. An
    `optimizer` of one's own must cover `trainable_parameters()`. `replay_size` -1 keeps nothing; otherwise rows whose
    relabelled reward is positive are kept and mixed in, without correction for their age, as the reference does.
    `hooks` act in their order. ConfigError for unknown or unusable options, Refused for some that exclude others.
    """

    keys_of: ClassVar[tuple[type, ...]] = (Settings, Optimisation)

    def __init__(
        self,
        policy: LanguagePolicy,
        optimizer: torch.optim.Optimizer | None = None,
        replay_size: int = -1,
        *,
        hooks: Sequence[Hooks] = (),
        **options: Any,
    ):
        refuse_unknown(options, Settings, Optimisation)
        names = {each.name for each in dataclasses.fields(Optimisation)}
        steps = {name: options.pop(name) for name in list(options) if name in names}
        self.settings = make(Settings, options, "algorithm.kwargs").resolved()
        self.settings.refuse_sampling(policy.sampling)
        if policy.without_value_head is not None and self.settings.preset != "reference":
            raise DataError(
                f"{policy.without_value_head} has no value head, and a new one spoils the first updates of a trained "
                "policy; train one before, or set value_head: fresh in the policy's kwargs"
            )
        self._policy, self.hooks = policy, folded.unique(hooks)
        self.replay: Any = HERBuffer(replay_size, seed=self.settings.replay_seed)
        """A store with add(batch), sample(count), state() and load(state)."""
        self.updates = 0
        self.minibatch: TokenBatch | None = None
        """The rows of the optimiser step under way."""
        policy.attach(self.hooks)
        others = [parameter for hook in self.hooks for parameter in hook.parameters()]
        self.stepper = Stepper(
            policy.model,
            make(Optimisation, steps, "algorithm.kwargs"),
            value_head=policy.value_head,
            others=others,
            seed=self.settings.seed,
        )
        if optimizer is not None:
            self.stepper.optimizer = _covering(optimizer, self.trainable_parameters())
        self._start = penalties.snapshot(self._of_model()) if self.settings.kl_coeff else {}
        self._waiting: list[Recorded] = []
        for hook in self.hooks:
            hook.begin(self)

    @property
    def policy(self) -> LanguagePolicy:
        """The policy that acts and is trained."""
        return self._policy

    def trainable_parameters(self) -> list[nn.Parameter]:
        """What the optimiser moves and the gradient's norm covers: model (or adapter), value head, hooks' own."""
        return list(self.stepper.named.values())

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """The trainable parameters of the model by their own names, and of the value head as v_head.*."""
        head = {f"v_head.{name}": each for name, each in self._policy.value_head.named_parameters()}
        return {**self._of_model(), **head}

    def update(self, window: RolloutWindow) -> dict[str, float]:
        """Train on a window; its metrics.

        Means over optimiser steps: policy_loss, value_loss, entropy (nats a token), kl (old to new policy, nats a
        token), ratio_mean, clip_fraction, step/gradient_norm, step/penalty. Of the window: ratio_first (mean ratio of
        the first step), explained_variance, sampler/mean_difference, answer_tokens (mean), truncated_answers (share),
        invalid_action_rate (share, where the world says info["valid"]), rows. Hooks' as NAME/KEY.
        """
        batch = self.mix_replay(self.batch_from(window))
        for hook in self.hooks:
            batch = hook.batch(self, batch)
        batch = batch.one_turn_a_row() if self.settings.answer_a_row else batch
        metrics = {**self._train(batch), **_of_answers(batch), **_of_actions(window)}
        self.updates += 1
        self._policy.refresh()
        return metrics | folded.after_update(self.hooks, self)

    def on_regime_shift(self, shift: Mapping[str, Any]) -> None:
        """Tell the hooks; the algorithm itself has nothing to do."""
        for hook in self.hooks:
            hook.shift(self, shift)

    def batch_from(self, window: RolloutWindow) -> TokenBatch:
        """The recorded answers of a window's steps, their rewards, and their episodes unless gae is degenerate."""
        episodic = self.settings.gae == GAEMode.EPISODIC
        tail = self._policy.tail if episodic and self.settings.bootstrap == "value" else None
        recorded = [*self._waiting, *self._policy.take_generated()]
        batch, self._waiting = batches.of_window(window, recorded, tail)
        if not episodic:
            batch = TokenBatch(batch.rows)
        if self.settings.answer_a_row or self.replay.enabled:
            batch = batch.one_turn_a_row()
        return dataclasses.replace(batch, rows=tuple(self._sliced(row) for row in batch.rows))

    def mix_replay(self, batch: TokenBatch) -> TokenBatch:
        """Store the batch, then add as many rows as it has from the store; without the structure of episodes.

        Fresh rows go in first, so that some may come twice; the first update only fills the store.
        """
        if not self.replay.enabled:
            return batch
        self.replay.add(batch)
        drawn = self.replay.sample(len(batch)) if self.updates else []
        if not drawn:
            return batch
        return TokenBatch((*batch.tokens, *(batches.rewarded(sample.tokens, sample.reward) for sample in drawn)))

    def score(self, batch: TokenBatch) -> forward.Scores:
        """What the policy says of a batch's trained tokens, with gradients (log-probabilities, values, entropies)."""
        packed = packing.pack(batch.rows, self._policy.chat.pad_id, device=self._policy.model.device)
        return self._scorer.score(packed, entropy=True)

    def save_checkpoint(self, path: str | Path) -> None:
        """Everything that changes, into a folder that `LanguagePolicy.from_checkpoint` reads as well."""
        folder = Path(path) / TRAINING
        self._policy.save(path)
        folder.mkdir(exist_ok=True)
        replay = self.replay.state()
        state = {
            "policy": self._policy.state_dict(),
            "stepper": self.stepper.state_dict(),
            "updates": self.updates,
            "replay": {**replay, "samples": [[plain(row), reward] for row, reward in replay["samples"]]},
            "start": self._start,
            "waiting": [plain(row) for row in self._waiting],
            "hooks": folded.states(self.hooks),
        }
        checkpoint.save(folder, **self._modules, extra=state)

    def load_checkpoint(self, path: str | Path) -> None:
        """Take up what `save_checkpoint` wrote, bit for bit; DataError for another program's checkpoint."""
        state = checkpoint.load(Path(path) / TRAINING, **self._modules)
        folded.load(self.hooks, state["hooks"], path)
        self.stepper.load_state_dict(state["stepper"])
        self.updates, self._start = state["updates"], state["start"]
        samples = [(restored(row), reward) for row, reward in state["replay"]["samples"]]
        self.replay.load({**state["replay"], "samples": samples})
        self._waiting = [restored(row) for row in state["waiting"]]
        self._policy.load_state_dict(state["policy"])

    @property
    def _modules(self) -> dict[str, Any]:
        model, head = self._policy.model, self._policy.value_head
        return {"model": model, "value_head": head, "optimizer": self.stepper.optimizer}

    def _apply_auxiliary_regularization(self) -> Tensor | None:
        """What is added to the loss of each optimiser step, inside the clipped gradient norm: the hooks' penalties."""
        return folded.penalty(self.hooks, self)

    def _train(self, batch: TokenBatch) -> dict[str, float]:
        measured = bool(self.settings.kl_coeff) and self.settings.kl_penalty != "l2_anchor"
        reference = self._reference if measured else None
        rows, metrics = prepared(self._scorer, batch, self.settings, self.updates, reference)
        order = np.random.Generator(np.random.Philox(key=[self.settings.seed, self.updates]))
        found: list[dict[str, float]] = []
        model = self._policy.model
        model.train(bool(self.settings.update_dropout))
        try:
            for _ in range(self.settings.epochs):
                shuffled = order.permutation(len(batch.rows)).tolist()
                for begin in range(0, len(shuffled), self.settings.minibatch):
                    found.append(self._step(rows, batch, shuffled[begin : begin + self.settings.minibatch]))
        finally:
            model.eval()
            self.minibatch = None
        means = {name: float(np.mean([each[name] for each in found])) for name in found[0]}
        if self._adapted and not self.settings.kl_under_adapters:
            means["kl"] = 0.0
        return {**means, **metrics, "ratio_first": found[0]["ratio_mean"], "rows": float(len(batch.rows))}

    def _step(self, rows: Rows, batch: TokenBatch, index: list[int]) -> dict[str, float]:
        self.minibatch = batch.select(index)
        pieces = Pieces(self._scorer, rows.take(index), self.settings)
        stepped = self.stepper.step(pieces.losses(), [self._anchor, self._apply_auxiliary_regularization])
        return {**pieces.totals(), **stepped}

    def _reference(self, packed: packing.Batch) -> Tensor:
        return self._scorer.reference(packed, self._of_model(), self._start)

    @property
    def _scorer(self) -> Scorer:
        policy, settings = self._policy, self.stepper.settings
        temperature, tokens = policy.sampling.temperature, settings.tokens_per_micro_batch
        return Scorer(policy.model, policy.value_head, policy.chat.pad_id, temperature, tokens, settings.bf16)

    def _anchor(self) -> Tensor | None:
        """The reference's L2 anchor: kl_coeff times the squared distance from the first weights."""
        if not self.settings.kl_coeff or self.settings.kl_penalty != "l2_anchor":
            return None
        return self.settings.kl_coeff * penalties.pull(self._of_model(), self._start)

    def _of_model(self) -> dict[str, nn.Parameter]:
        return penalties.trained(self._policy.model)

    @property
    def _adapted(self) -> bool:
        return hasattr(self._policy.model, "peft_config")

    def _sliced(self, row: Recorded) -> Recorded:
        """The row with only the action's tokens of each answer trainable."""
        mode = ActionTokens(str(self.settings.action_tokens))
        if mode is ActionTokens.ALL:
            return row
        mask, known, whole = list(row.mask), self._policy.marks, mode is ActionTokens.OUTERMOST_JSON
        for turn in row.turns:
            ids = row.ids[turn.start : turn.end]
            pieces = [self._policy.chat.decode([token]) for token in ids] if whole else None
            start, _ = action_token_start(ids, mode=mode, pieces=pieces, **known)
            mask[turn.start : turn.start + start] = [False] * start
        return dataclasses.replace(row, mask=mask)


def _of_answers(batch: TokenBatch) -> dict[str, float]:
    """How long answers are, and how many the limit of tokens or the context cut."""
    turns = [turn for row in batch.rows for turn in row.turns]
    cut = [turn.stop in (Stop.LENGTH, Stop.CONTEXT) for turn in turns]
    return {
        "answer_tokens": float(np.mean([turn.end - turn.start for turn in turns])),
        "truncated_answers": float(np.mean(cut)),
    }


def _of_actions(window: RolloutWindow) -> dict[str, float]:
    """The share of invalid actions, where the world says which are."""
    valid = [bool(step.info["valid"]) for step in window.transitions if "valid" in step.info]
    return {"invalid_action_rate": 1 - sum(valid) / len(valid)} if valid else {}


def _covering(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> Any:
    """The optimiser, if it moves every trainable parameter."""
    moved = {id(each) for group in optimizer.param_groups for each in group["params"]}
    missing = sum(id(each) not in moved for each in parameters)
    if missing:
        raise ConfigError(
            f"the optimizer misses {missing} of {len(parameters)} trainable tensors, such as the value head's; "
            "build it over the model's and policy.value_head's parameters, or leave it out"
        )
    for group in optimizer.param_groups:
        group["rate"] = group["lr"]  # What the stepper's schedule multiplies.
    return optimizer
