"""The warm-up of a latent context: an encoder that names the regime of a window, before the policy is trained.

Cross-entropy on regimes, those that repeat an earlier one taken as that one (a repetition cannot be told from it),
every regime drawn as often as any other; and the consistency of latents along a stretch of one regime. Runs are held
out whole, so that no window that judges shares a step with one that is trained on.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from perdure.core.errors import DataError, nearest
from perdure.lm.context import EncoderShape, RegimeContextEncoder, consistency_loss
from perdure.lm.extensions.latent_context import Context, LatentContext
from perdure.lm.stages import fitting
from perdure.lm.stages.dataset import held_out_rows
from perdure.lm.stages.folder import write_json
from perdure.lm.stages.sections import LcmConfig
from perdure.lm.stages.trajectories import Record

STRETCH = 32
"""Windows in a row that the consistency of a step is measured on."""


def run(
    encoder: RegimeContextEncoder,
    records: Callable[[], list[Record]],
    settings: LcmConfig,
    folder: Path,
    say: Callable[[str], None],
    *,
    origins: bool = True,
) -> fitting.Fitted:
    """Train `encoder` on episodes that name their regimes; leaves encoder.safetensors and data.json in `folder`."""
    data = windows(records(), encoder.shape, encoder.labels, origins=origins)
    task = Recogniser(encoder, data, settings)
    source = {"file": settings.file} if settings.file is not None else settings.rollouts.model_dump()
    write_json(folder / "data.json", {"source": source, **task.card()})
    fitted = fitting.fit(task, settings, folder, say)
    encoder.save(folder)
    return fitted


class Windows(NamedTuple):
    """What an encoder would have seen, step by step."""

    rows_NKF: np.ndarray
    labels_N: np.ndarray
    """The number of the regime in force."""
    runs_N: np.ndarray
    stretches_N: np.ndarray
    """Steps of one run under one regime share a number; it rises from stretch to stretch."""


def windows(records: Sequence[Record], shape: EncoderShape, labels: Sequence[str], *, origins: bool = True) -> Windows:
    """The window before each answer, as the latent context of a policy forms it; records of a run in order of time.

    DataError for a record without a regime, or with one that is none of `labels`.
    """
    config = LatentContext(encoder=shape, labels=tuple(labels), told_steps=0)
    context, run, stretch, last = Context(config), None, -1, ""
    found: list[np.ndarray] = []
    marks: list[tuple[int, int, int]] = []
    for record in sorted(records, key=lambda record: record.seed):
        if record.seed != run:
            context, run, last = Context(config), record.seed, ""
        label = _label(record, labels, origins)
        stretch += record.regime != last
        last = record.regime
        for observation, reward in _steps(record):
            context.see(observation)
            found.append(context.window())
            marks.append((label, record.seed, stretch))
            context.observe(observation, reward, {}, ended=False)
    if not found:
        raise DataError("there is no step to learn regimes from; give episodes with answers")
    labels_N, runs_N, stretches_N = (np.array(column) for column in zip(*marks, strict=True))
    return Windows(np.stack(found), labels_N, runs_N, stretches_N)


class Recogniser:
    """The task (stages.fitting.Task) of an encoder on windows.

    DataError where a regime has no window among those that are trained on.
    """

    value_head: nn.Module | None = None

    def __init__(self, encoder: RegimeContextEncoder, data: Windows, settings: LcmConfig):
        self.model, self.settings = encoder, settings
        self._data = data
        self._rows_NKF, self._labels_N = torch.from_numpy(data.rows_NKF), torch.from_numpy(data.labels_N)
        runs = np.unique(data.runs_N)
        held = held_out_rows(len(runs), settings.holdout, settings.seed) if len(runs) > 1 else set[int]()
        self.held_runs = [int(runs[place]) for place in sorted(held)]
        judged_N = np.isin(data.runs_N, self.held_runs)
        self._held, self._train = np.flatnonzero(judged_N), np.flatnonzero(~judged_N)
        self._of = [self._train[data.labels_N[self._train] == place] for place in range(len(encoder.labels))]
        for name, places in zip(encoder.labels, self._of, strict=True):
            if not len(places):
                raise DataError(
                    f"no window of regime {name!r} is there to train on; give episodes of it, or take it out of labels"
                )
        self.rows = len(self._train)

    def losses(self, rows: Sequence[int], step: int) -> Iterator[Callable[[], Tensor]]:
        """The step's cross-entropy, and its consistency; its windows are drawn regime by regime, not row by row."""
        random = np.random.Generator(np.random.Philox(key=[self.settings.seed, step]))
        places = [self._of[number % len(self._of)] for number in range(self.settings.batch)]
        chosen = np.array([each[random.integers(len(each))] for each in places])
        yield lambda: nn.functional.cross_entropy(self._logits(chosen), self._labels_N[chosen])
        if self.settings.consistency:
            begin = int(random.integers(len(self._train)))
            stretch = self._train[begin : begin + STRETCH]
            yield lambda: self.settings.consistency * self._consistency(stretch)

    def judge(self) -> dict[str, float]:
        """Cross-entropy and accuracy of the held-out windows, every regime among them counted alike."""
        if not len(self._held):
            return {}
        with torch.no_grad():
            logits_NR, wanted_N = self._logits(self._held), self._labels_N[self._held]
        weight_N = 1.0 / torch.bincount(wanted_N, minlength=logits_NR.shape[1])[wanted_N].float()
        weight_N = weight_N / weight_N.sum()
        losses_N = nn.functional.cross_entropy(logits_NR, wanted_N, reduction="none")
        right_N = (logits_NR.argmax(-1) == wanted_N).float()
        return {"loss": float((losses_N * weight_N).sum()), "accuracy": float((right_N * weight_N).sum())}

    def card(self) -> dict[str, object]:
        """What data.json says."""
        names = self.model.labels
        counts = Counter(names[int(label)] for label in self._labels_N)
        return {
            "labels": list(names),
            "features": self.model.read() | {"steps": str(self.model.shape.steps)},
            "windows": {"train": len(self._train), "held_out": len(self._held), **dict(sorted(counts.items()))},
            "held_out_runs": self.held_runs,
        }

    def _logits(self, places: np.ndarray) -> Tensor:
        return self.model(self._rows_NKF[places]).logits_BR

    def _consistency(self, places: np.ndarray) -> Tensor:
        _, lengths = np.unique(self._data.stretches_N[places], return_counts=True)
        return consistency_loss(self.model(self._rows_NKF[places]).z_BD, lengths.tolist())


def _label(record: Record, labels: Sequence[str], origins: bool) -> int:
    name = record.origin if origins else record.regime
    if name is None:
        raise DataError(f"{record.place} names no regime; give regime {{id, origin}}")
    if name not in labels:
        raise DataError(
            f"{record.place} is of regime {name!r}, which is none of the encoder's labels; {nearest(name, labels)}"
        )
    return list(labels).index(name)


def _steps(record: Record) -> Iterator[tuple[object, float]]:
    """(what was shown, what the answer was worth) of each turn; a bare record has its reward at the end."""
    shown = record.observations or _asked(record)
    known = record.trajectory.turns if record.trajectory is not None else []
    rewards = [turn.reward for turn in known] or [0.0] * (len(shown) - 1) + [record.reward or 0.0]
    if len(rewards) != len(shown):
        raise DataError(f"{record.place} shows {len(shown)} observations for {len(rewards)} answers; give one for each")
    return zip(shown, rewards, strict=True)


def _asked(record: Record) -> list[str]:
    """The user's message before each answer."""
    pairs = zip(record.messages, record.messages[1:], strict=False)
    return [asked["content"] for asked, said in pairs if said["role"] == "assistant"]
