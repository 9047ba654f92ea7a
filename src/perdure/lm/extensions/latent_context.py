"""A latent of the regime told to the policy in words, at the head of the user's turn."""

from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.lm.context import (
    CANONICAL_REGIMES,
    DESCRIBED,
    Encoded,
    EncoderShape,
    RegimeContextEncoder,
    consistency_loss,
    regime_description,
)
from perdure.lm.conversation import EVALUATION
from perdure.lm.extensions.base import at_least
from perdure.lm.features import features
from perdure.lm.hooks import Hooks
from perdure.lm.replay import Reservoir


@component
class LatentContext:
    """The last K observations and rewards, encoded, name the likeliest regimes in every prompt.

    After each update the encoder takes `told_steps` steps of its own, by cross-entropy, on windows of regimes whose
    names the boundary source has told. `consistency` makes neighbouring latents of an episode alike, in the policy's
    own steps. Where both are 0 the encoder stays as its warm-up left it. Published code trains consistency alone,
    so that its head stays as it was.
    """

    encoder: EncoderShape = EncoderShape()
    labels: tuple[str, ...] = CANONICAL_REGIMES
    """The regimes that the head tells apart."""
    origins: bool = True
    """Whether a regime that repeats an earlier one is learned as that one."""
    described: int = DESCRIBED
    """How many regimes the prefix names."""
    told_steps: int = 16
    told_learning_rate: float = 1e-2
    """Of Adam."""
    per_regime: int = 64
    """Windows remembered of each told regime."""
    rows: int = 32
    """Remembered windows that one of these steps sees."""
    consistency: float = 0.0
    """Weight of the consistency of latents."""
    recent: int = 256
    """Windows since the last update that the consistency is measured on, at most."""
    warmup: str = ""
    """A folder or file with a trained encoder."""
    foreign_warmup: bool = False
    """Whether one with other labels or features may be taken up as far as it fits."""
    seed: int = 0

    def __post_init__(self):
        at_least(self, described=1, told_steps=0, told_learning_rate=0, per_regime=1, rows=1, consistency=0, recent=2)

    def build(self, policy: Any = None) -> "Context":
        """The part itself, its encoder warmed up where a warm-up is named."""
        part = Context(self)
        if self.warmup:
            part.encoder.load_warmup(Path(self.warmup), foreign=self.foreign_warmup)
        return part


class Context(Hooks):
    """The rows each lane has seen lately, an encoder of them, and windows of regimes that were told."""

    name = "latent_context"

    def __init__(self, config: LatentContext, encoder: RegimeContextEncoder | None = None):
        self.config = config
        self.encoder = encoder or RegimeContextEncoder(config.encoder, config.labels, seed=config.seed)
        if self.encoder.labels != config.labels or self.encoder.shape != config.encoder:
            raise ConfigError("the encoder has other labels, or another shape, than latent_context; give both alike")
        self._adam = torch.optim.Adam(self.encoder.parameters(), config.told_learning_rate)
        self._lanes: dict[int, deque[np.ndarray]] = {}
        self._rewards: dict[int, float] = {}
        self._recent: dict[int, list[list[np.ndarray]]] = {}
        """Windows of each lane since the last update, episode by episode."""
        self._present = Reservoir(config.per_regime, config.seed)
        """Windows of the regime in force, whose name is not known yet."""
        self._told: dict[str, list[np.ndarray]] = {}
        self._random = np.random.Generator(np.random.Philox(key=[config.seed, 1]))
        self._found: dict[str, float] = {}

    def begin(self, backend: Any) -> None:
        """The encoder goes where the model is."""
        self.encoder.to(backend.policy.model.device)

    def parameters(self) -> Iterable[nn.Parameter]:
        """What the consistency moves: all but the head."""
        if not self.config.consistency:
            return ()
        head = {id(each) for each in self.encoder.regime_head.parameters()}
        return [each for each in self.encoder.parameters() if id(each) not in head]

    def see(self, observation: Any, lane: int = 0) -> None:
        """One row more: the observation's features, and the reward that came with it."""
        shape = self.config.encoder
        read = features(observation, kind=shape.features, hash_mode=shape.hash_mode, width=shape.width)
        reward = self._rewards.get(lane, 0.0) if shape.live_reward else 0.0
        row = np.append(read, np.float32(np.nan_to_num(reward)))
        self._lanes.setdefault(lane, deque(maxlen=shape.steps)).append(row)
        if lane <= EVALUATION:
            return
        window = self.window(lane)
        self._present.add(window)
        if self.config.consistency > 0:
            episodes = self._recent.setdefault(lane, [[]])
            episodes[-1].append(window)
            if sum(map(len, episodes)) > self.config.recent:
                episodes[:] = [episodes[0][1:], *episodes[1:]] if len(episodes[0]) > 1 else episodes[1:]

    def observe(self, observation: Any, reward: float, info: Mapping[str, Any], lane: int = 0, *, ended: bool) -> None:
        """The reward goes into the next row; regimes outlast episodes, so the rows stay."""
        self._rewards[lane] = float(reward)
        if ended and lane in self._recent:
            self._recent[lane].append([])

    def begin_episode(self, lane: int = 0) -> None:
        """An evaluation knows nothing of earlier ones."""
        if lane <= EVALUATION:
            self._lanes.pop(lane, None)
            self._rewards.pop(lane, None)

    def window(self, lane: int = 0) -> np.ndarray:
        """The last K rows of a lane [K, width + 1], zeros before its first."""
        shape, rows = self.config.encoder, self._lanes.get(lane, ())
        found = np.zeros((shape.steps, shape.width + 1), np.float32)
        for place, row in enumerate(reversed(rows)):
            found[-1 - place] = row
        return found

    def encode_recent(self, lane: int = 0) -> Encoded:
        """What the encoder makes of a lane's window, as a batch of one, without gradients."""
        with torch.no_grad():
            return self.encoder(self._tensor([self.window(lane)]))

    def prefix(self, lane: int = 0) -> str:
        """The likeliest regimes in words."""
        logits_R = self.encode_recent(lane).logits_BR[0]
        return regime_description(logits_R, labels=self.config.labels, top=self.config.described)

    def shift(self, backend: Any, shift: Mapping[str, Any]) -> None:
        """The windows since the last shift get the name of the regime that ended, where it is one of the labels."""
        name = shift["ending_origin" if self.config.origins else "ending"]
        if name in self.config.labels:
            self._told[name] = [*self._present.items, *self._told.get(name, [])][: self.config.per_regime]
        self._present = Reservoir(self.config.per_regime, self.config.seed)

    def penalty(self, backend: Any) -> Tensor | None:
        """The weighted consistency of what was seen since the last update."""
        if not self.config.consistency or not any(map(any, self._recent.values())):
            return None
        return self.config.consistency * self.consistency()

    def consistency(self) -> Tensor:
        """`consistency_loss` of the windows since the last update."""
        episodes = [each for lane in sorted(self._recent) for each in self._recent[lane] if each]
        encoded: Encoded = self.encoder(self._tensor([window for each in episodes for window in each]))
        return consistency_loss(encoded.z_BD, [len(each) for each in episodes])

    def cross_entropy(self) -> Tensor:
        """Of the names of remembered windows, every told regime drawn as often as any other."""
        names = sorted(self._told)
        drawn = [names[number % len(names)] for number in range(self.config.rows)]
        windows = [self._told[name][int(self._random.integers(len(self._told[name])))] for name in drawn]
        logits_BR = self.encoder(self._tensor(windows)).logits_BR
        wanted_B = torch.tensor([self.config.labels.index(name) for name in drawn], device=logits_BR.device)
        accuracy = (logits_BR.argmax(-1) == wanted_B).float().mean()
        self._found = {"accuracy": accuracy.item()}
        return nn.functional.cross_entropy(logits_BR, wanted_B)

    def after_update(self, backend: Any) -> None:
        """Learn the told regimes, where there are two to tell apart; what follows is measured on new windows."""
        self._recent = {lane: [[]] for lane in self._recent}
        if len(self._told) > 1:
            for _ in range(self.config.told_steps):
                self._adam.zero_grad()
                self.cross_entropy().backward()
                self._adam.step()
            self._adam.zero_grad()

    def metrics(self) -> Mapping[str, float]:
        """The accuracy on told windows at the last step, and how many regimes have been told."""
        return {**self._found, "told": float(len(self._told))}

    def state(self) -> dict[str, Any]:
        """The encoder, what each lane saw, and remembered windows."""
        return {
            "encoder": {name: each.detach().clone() for name, each in self.encoder.state_dict().items()},
            "adam": {str(place): dict(each) for place, each in self._adam.state_dict()["state"].items()},
            "lanes": {str(lane): list(rows) for lane, rows in self._lanes.items() if lane > EVALUATION},
            "rewards": {str(lane): each for lane, each in self._rewards.items() if lane > EVALUATION},
            "recent": {str(lane): [list(each) for each in episodes] for lane, episodes in self._recent.items()},
            "present": self._present.state(),
            "told": {name: list(windows) for name, windows in self._told.items()},
            "random": self._random.bit_generator.state,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave."""
        self.encoder.load_state_dict(state["encoder"])
        moments = {int(place): dict(each) for place, each in state["adam"].items()}
        self._adam.load_state_dict({**self._adam.state_dict(), "state": moments})
        steps = self.config.encoder.steps
        self._lanes = {int(lane): deque(rows, maxlen=steps) for lane, rows in state["lanes"].items()}
        self._rewards = {int(lane): float(each) for lane, each in state["rewards"].items()}
        self._recent = {int(lane): [list(each) for each in episodes] for lane, episodes in state["recent"].items()}
        self._present.load(state["present"])
        self._told = {name: list(windows) for name, windows in state["told"].items()}
        self._random.bit_generator.state = state["random"]

    def _tensor(self, windows: list[np.ndarray]) -> Tensor:
        device = next(self.encoder.parameters()).device
        return torch.from_numpy(np.stack(windows)).to(device)
