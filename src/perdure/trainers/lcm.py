"""Proximal policy optimisation of a policy that is told of its regime by a latent context, registered as lm/lcm.

An encoder of the last K observations (and rewards) names the likeliest regimes, in words, at the head of the user's
turn. Corrected by default: its features read values, the last reward is among them, and its head learns regimes
whose names the boundary source has told. `preset="reference"`: bags of key paths, a reward slot that is 0, and online
only the consistency of neighbouring latents, whose gradient never reaches the head.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from perdure.core.component import make
from perdure.core.errors import ConfigError
from perdure.lm import preset as presets
from perdure.lm.backend import Backend
from perdure.lm.context import (
    CANONICAL_REGIMES,
    Encoded,
    EncoderShape,
    RegimeContextEncoder,
    consistency_loss,
    reference_shape,
    regime_description,
)
from perdure.lm.extensions.base import refuse_unknown
from perdure.lm.extensions.latent_context import Context, LatentContext
from perdure.lm.features import STATE_DIM, HashMode, state_features
from perdure.lm.hooks import Hooks
from perdure.lm.settings import Settings
from perdure.lm.step import Optimisation

__all__ = [
    "CANONICAL_REGIMES",
    "STATE_DIM",
    "EncoderShape",
    "HashMode",
    "LCMBackend",
    "RegimeContextEncoder",
    "consistency_loss",
    "regime_description",
    "state_features",
]

PRESET: Mapping[str, tuple[Any, Any]] = {
    "told_steps": (16, 0),
    "consistency": (0.0, 0.1),
    "origins": (True, False),
    "foreign_warmup": (False, True),
}
"""Key of LatentContext -> (corrected, reference)."""


class LCMBackend(Backend):
    """Proximal policy optimisation with a latent context that names the regime in every prompt.

    `context_encoder` is a RegimeContextEncoder of one's own, whose shape and labels then hold; else one is made as
    `encoder` (an EncoderShape, or its keys) says, from `context_seed` (by default `seed`). `hash_mode` changes the
    shape's. Episodes count in the advantages (gae episodic) under both presets.
    """

    keys_of: ClassVar[tuple[type, ...]] = (LatentContext, Settings, Optimisation)

    def __init__(
        self,
        policy: Any,
        optimizer: Any = None,
        replay_size: int = -1,
        *,
        context_encoder: RegimeContextEncoder | None = None,
        hash_mode: HashMode | str | None = None,
        hooks: Sequence[Hooks] = (),
        **options: Any,
    ):
        refuse_unknown({key: 0 for key in options if key != "context_seed"}, LatentContext, Settings, Optimisation)
        config = _config(options, hash_mode, context_encoder)
        self.context = Context(config, context_encoder) if context_encoder is not None else config.build()
        super().__init__(policy, optimizer, replay_size, hooks=(self.context, *hooks), **{"gae": "episodic", **options})

    @property
    def encoder(self) -> RegimeContextEncoder:
        """The encoder, the same for acting and for training."""
        return self.context.encoder

    def observe(self, observation: Any, lane: int = 0) -> None:
        """One row more of what a lane has seen; `policy.act` does this itself."""
        self.context.see(observation, lane)

    def encode_recent(self, lane: int = 0) -> Encoded:
        """Latent and logits of a lane's last K rows, zeros before its first, as a batch of one."""
        return self.context.encode_recent(lane)

    def regime_prefix(self, lane: int = 0) -> str:
        """The text that opens the lane's next user turn."""
        return self.context.prefix(lane)

    def load_warmup(self, path: str | Path) -> list[str]:
        """Take up a trained encoder; the names of the tensors that do not fit, which keep what they were.

        DataError where its labels or features are others, unless `foreign_warmup`.
        """
        return self.context.encoder.load_warmup(path, foreign=self.context.config.foreign_warmup)


def _config(
    options: dict[str, Any], hash_mode: HashMode | str | None, encoder: RegimeContextEncoder | None
) -> LatentContext:
    """The keys of LatentContext, taken out of `options`, with the preset's defaults."""
    keys = {each.name for each in dataclasses.fields(LatentContext)} - {"seed"}
    given = {key: options.pop(key) for key in list(options) if key in keys}
    given["seed"] = options.pop("context_seed", options.get("seed", 0))
    preset = options.get("preset", "corrected")
    chosen = presets.resolve(preset, PRESET, given)
    if encoder is not None:
        if "encoder" in given or "labels" in given or hash_mode is not None:
            raise ConfigError(
                "context_encoder brings its own shape and labels; leave encoder, labels and hash_mode out"
            )
        made = LatentContext()
        return dataclasses.replace(made, **{**given, **chosen, "encoder": encoder.shape, "labels": encoder.labels})
    shape = reference_shape() if preset == "reference" else EncoderShape()
    changes = given.pop("encoder", {})
    shape = changes if isinstance(changes, EncoderShape) else make(EncoderShape, {**vars(shape), **changes}, "encoder")
    if hash_mode is not None:
        shape = dataclasses.replace(shape, hash_mode=HashMode(hash_mode))
    config = make(LatentContext, {**given, **chosen}, "algorithm.kwargs")
    return dataclasses.replace(config, encoder=shape)
