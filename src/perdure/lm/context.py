"""A latent of the regime from the last K steps, and the text by which a policy is told of it.

An LSTM reads hashed features of what was observed, each with the reward that came with it; its last state
gives a latent of unit norm and one logit a regime. The description of the likeliest regimes becomes the prefix of
the user's turn.
"""

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from perdure.core.component import component
from perdure.core.errors import ConfigError, DataError
from perdure.lm.features import STATE_DIM, FeatureKind, HashMode
from perdure.lm.weights import read_weights
from perdure.regimes.providers import CANONICAL

CANONICAL_REGIMES = CANONICAL
"""The published order of the six regimes, which is the order of the logits."""

DESCRIBED = 2
"""Regimes that a description names."""

FILES = ("encoder.safetensors", "encoder.pt")
"""File names of a trained encoder in a folder, in the order of preference; the first is written."""


class Encoded(NamedTuple):
    """What the encoder makes of windows."""

    z_BD: Tensor
    """The latent, of unit norm."""
    logits_BR: Tensor


@component
class EncoderShape:
    """What an encoder reads, and how wide it is; the defaults are perdure's, `reference_shape` the published ones."""

    steps: int = 8
    """K, the steps of a window, for acting and for training alike."""
    width: int = 256
    """Entries of the features of one step."""
    features: FeatureKind = FeatureKind.VALUES
    hash_mode: HashMode = HashMode.STABLE
    live_reward: bool = True
    """Whether the slot beside the features holds the last reward; else it holds 0."""
    embedding: int = 64
    hidden: int = 64
    latent: int = 32

    def __post_init__(self):
        for name in ("steps", "width", "embedding", "hidden", "latent"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")


def reference_shape(hash_mode: HashMode = HashMode.STABLE, steps: int = 8) -> EncoderShape:
    """The published encoder: bags of key paths in 4096 entries, mapped to 256, and a reward slot that is 0."""
    return EncoderShape(
        steps=steps, width=STATE_DIM, features=FeatureKind.KEYS, hash_mode=hash_mode, live_reward=False,
        embedding=256, hidden=128, latent=64,
    )  # fmt: skip


class RegimeContextEncoder(nn.Module):
    """[B, K, width + 1] -> linear map -> LSTM -> its last state -> a latent of unit norm, and logits of it.

    `labels` name the logits. The weights come from `seed` alone.
    """

    def __init__(self, shape: EncoderShape | None = None, labels: Sequence[str] = CANONICAL_REGIMES, *, seed: int = 0):
        super().__init__()
        self.shape, self.labels = shape or EncoderShape(), tuple(labels)
        if len(self.labels) < 1 or len(set(self.labels)) != len(self.labels):
            raise ConfigError(f"labels are {list(self.labels)}; name each regime once")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = nn.Linear(self.shape.width + 1, self.shape.embedding)
            self.lstm = nn.LSTM(self.shape.embedding, self.shape.hidden, batch_first=True)
            self.latent = nn.Linear(self.shape.hidden, self.shape.latent)
            self.regime_head = nn.Linear(self.shape.latent, len(self.labels))

    def forward(self, rows_BKF: Tensor) -> Encoded:
        """The latent [B, D] and the logits [B, R] of windows whose last row is the newest, zeros before their start."""
        outputs_BKH, _ = self.lstm(torch.tanh(self.embed(rows_BKF)))
        z_BD = nn.functional.normalize(self.latent(outputs_BKH[:, -1]), dim=-1)
        return Encoded(z_BD, self.regime_head(z_BD))

    def save(self, folder: Path) -> None:
        """Write encoder.safetensors: the weights, and in its header the labels and what the features are."""
        from safetensors.torch import save_file

        weights = {name: tensor.contiguous().cpu() for name, tensor in self.state_dict().items()}
        save_file(weights, str(folder / FILES[0]), metadata={"labels": json.dumps(self.labels), **self.read()})

    def read(self) -> dict[str, str]:
        """What the features are, as text: all that must agree for weights to mean the same."""
        return {name: str(getattr(self.shape, name)) for name in ("features", "hash_mode", "width", "live_reward")}

    def load_warmup(self, path: Path | str, *, foreign: bool = False) -> list[str]:
        """Take up a trained encoder from a file or folder; the names of the tensors that were left out.

        Tensors of another shape are left out, a head over other classes for one: they keep what they were.
        Without `foreign`, a file whose labels or features are said to be others is refused (DataError). A
        file of which nothing fits is refused in any case.
        """
        file = _found(Path(path))
        tensors, header = read_weights(file)
        self._refuse_foreign(header, file, foreign)
        own = self.state_dict()
        fitting = {name: each for name, each in tensors.items() if name in own and each.shape == own[name].shape}
        if not fitting:
            raise DataError(f"{file} has no tensor that fits this encoder; its names are {sorted(tensors)[:8]}")
        self.load_state_dict(fitting, strict=False)
        return sorted((own.keys() | tensors.keys()) - fitting.keys())

    def _refuse_foreign(self, header: dict[str, str], file: Path, foreign: bool) -> None:
        ours = {"labels": json.dumps(self.labels), **self.read()}
        for name, value in ours.items():
            if not foreign and name in header and header[name] != value:
                raise DataError(
                    f"{file} was trained with {name} {header[name]}, this encoder has {value}; make them agree, or "
                    "set foreign_warmup to take what fits"
                )


def regime_description(
    logits: Sequence[float] | Tensor, *, labels: Sequence[str] = CANONICAL_REGIMES, top: int = DESCRIBED
) -> str:
    """`[REGIME: financial_pressure(0.68) | edi_spike(0.19)]`: the `top` likeliest regimes and their probabilities.

    Descending, two decimals; of equals the earlier label comes first. Raises ConfigError unless there is one
    finite logit a label.
    """
    values = [float(each) for each in logits]
    if len(values) != len(labels) or not all(math.isfinite(each) for each in values):
        raise ConfigError(f"logits are {values} for {len(labels)} regimes; give one finite number a regime")
    weights = [math.exp(each - max(values)) for each in values]
    shares = [weight / sum(weights) for weight in weights]
    order = sorted(range(len(shares)), key=lambda index: -shares[index])[:top]
    return "[REGIME: " + " | ".join(f"{labels[index]}({shares[index]:.2f})" for index in order) + "]"


def consistency_loss(z_TD: Tensor, episode_lengths: Iterable[int] | None = None) -> Tensor:
    """mean (1 - cos(z_t, z_{t+1})) over neighbours inside an episode; 0 where there are none.

    Rows are in the order of time. Without lengths they are one episode; lengths that do not add up raise ConfigError.
    """
    lengths = [len(z_TD)] if episode_lengths is None else [int(each) for each in episode_lengths]
    if sum(lengths) != len(z_TD):
        raise ConfigError(f"episode lengths {lengths[:8]} sum to {sum(lengths)}, there are {len(z_TD)} latents")
    ends = set(itertools.accumulate(lengths))
    within = [row for row in range(len(z_TD) - 1) if row + 1 not in ends]
    if not within:
        return z_TD.sum() * 0
    neighbours = torch.tensor(within, device=z_TD.device)
    return (1 - nn.functional.cosine_similarity(z_TD[neighbours], z_TD[neighbours + 1], dim=-1)).mean()


def _found(path: Path) -> Path:
    files = [path] if path.is_file() else [path / name for name in FILES if (path / name).is_file()]
    if not files:
        raise DataError(f"{path} holds no trained encoder ({', '.join(FILES)}); check the path")
    return files[0]
