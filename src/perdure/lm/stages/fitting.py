"""The loop that trains every stage: batches, judgements, early stop, checkpoints, a resume that is bit for bit.

Which rows a step sees depends on (seed, step) alone, so that a checkpoint needs no cursor.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from perdure.core.errors import RunFailed
from perdure.harness import checkpoint, signals
from perdure.harness.lines import JsonLines
from perdure.lm import checkpoint as weights
from perdure.lm.stages.sections import FitConfig
from perdure.lm.step import Optimisation, Stepper

Tensor = torch.Tensor
METRICS = "metrics.jsonl"


class Task(Protocol):
    """What a stage trains, and on what."""

    rows: int
    """How many rows there are to train on."""

    @property
    def model(self) -> torch.nn.Module:
        """Whose parameters are trained, as far as they are trainable."""
        ...

    @property
    def value_head(self) -> torch.nn.Module | None:
        """What is trained beside it."""
        ...

    def losses(self, rows: Sequence[int], step: int) -> Iterable[Callable[[], Tensor]]:
        """The parts of a step's loss on some rows, whose sum is its mean."""
        ...

    def judge(self) -> dict[str, float]:
        """What is held out says: "loss", and whatever else; empty where nothing is held out."""
        ...


class Fitted(NamedTuple):
    """How a stage ended."""

    steps: int
    best_step: int
    """The step whose weights were kept."""
    first: dict[str, float]
    """The judgement of the weights it began with."""
    best: dict[str, float]


def fit(task: Task, settings: FitConfig, folder: Path, say: Callable[[str], None] = lambda text: None) -> Fitted:
    """Train `task`, leaving metrics.jsonl, and checkpoints while it goes on, in `folder`; its best weights stay in it.

    Goes on from the folder's newest checkpoint. Raises RunFailed for a loss that is not finite, and
    harness.signals.Interrupted, a checkpoint saved, after Ctrl-C or SIGTERM.
    """
    loop = _Loop(task, settings, folder, say)
    try:
        with signals.caught() as stop:
            while not loop.is_over:
                loop.step()
                if stop.signal is not None:
                    loop.save()
                    raise signals.Interrupted(folder, loop.stepper.steps, stop.signal)
        return loop.result()
    finally:
        loop.lines.close()


class _Loop:
    def __init__(self, task: Task, settings: FitConfig, folder: Path, say: Callable[[str], None]):
        self.task, self.settings, self.folder, self.say = task, settings, folder, say
        self.stepper = Stepper(task.model, _optimisation(settings), value_head=task.value_head, seed=settings.seed)
        self.best: dict[str, Tensor] = {}
        self.told: dict[str, Any] = {"first": {}, "best": {}, "best_step": 0, "worse": 0}
        self.losses: list[float] = []
        self.began = time.monotonic()
        saved = checkpoint.checkpoints(folder)
        counts = self._load(saved[-1]) if saved else {}
        self.lines = JsonLines(folder / METRICS, counts.get("rows", 0), counts.get("bytes", 0))
        self._begun = bool(saved)

    @property
    def is_over(self) -> bool:
        patience = self.settings.patience
        return self.stepper.steps >= self.settings.steps or bool(patience and self.told["worse"] >= patience)

    def step(self) -> None:
        """One optimiser step; before the first one the weights are judged as they are."""
        if not self._begun:
            self._judge()
            self._begun = True
        rows = rows_of(self.stepper.steps, self.task.rows, self.settings.batch, self.settings.seed)
        found = self.stepper.step(self.task.losses(rows, self.stepper.steps))
        self.losses.append(found["step/loss"])
        steps = self.stepper.steps
        if steps % self.settings.evaluate_every == 0 or steps == self.settings.steps:
            self._judge()
        if steps % self.settings.checkpoint_every == 0 and not self.is_over:
            self.save()

    def save(self) -> None:
        """A checkpoint of everything."""
        self.lines.flush()
        checkpoint.write_checkpoint(self.folder, self.stepper.steps, self._write, {"lines": self.lines.counts()})

    def result(self) -> Fitted:
        """The best weights back in their places; without a judgement the last ones are the best."""
        self.lines.flush()
        with torch.no_grad():
            for name, each in self.best.items():
                self.stepper.named[name].copy_(each)
        told, steps = self.told, self.stepper.steps
        return Fitted(steps, told["best_step"] if self.best else steps, told["first"], told["best"])

    def _judge(self) -> None:
        """Judge the weights, keep them if they are the best yet, and say where things stand."""
        found, steps = self.task.judge(), self.stepper.steps
        trained = {"trained_loss": float(np.mean(self.losses))} if self.losses else {}
        self.losses = []
        if found and not math.isfinite(found["loss"]):
            raise RunFailed(f"step {steps}: the held-out loss is {found['loss']}; lower the learning rate")
        if found and (not self.told["best"] or found["loss"] < self.told["best"]["loss"]):
            self.told |= {"best": found, "best_step": steps, "worse": 0}
            self.best = {name: each.detach().clone() for name, each in self.stepper.named.items()}
        elif found:
            self.told["worse"] += 1
        self.told["first"] = self.told["first"] or found
        self.lines.write([{"step": steps, **trained, **found}])
        told = "  ".join(f"{name} {value:.4g}" for name, value in {**trained, **_held(found)}.items())
        self.say(f"step {steps} of {self.settings.steps}  {told}  {time.monotonic() - self.began:.1f} s")

    def _write(self, folder: Path) -> None:
        extra = {"stepper": self.stepper.state_dict(), "told": self.told, "best": self.best, "losses": self.losses}
        weights.save(folder, **self._modules, extra=extra)

    def _load(self, folder: Path) -> Mapping[str, int]:
        state = weights.load(folder, **self._modules)
        self.stepper.load_state_dict(state["stepper"])
        self.told, self.best, self.losses = state["told"], state["best"], state["losses"]
        self.say(f"going on at step {self.stepper.steps}")
        return checkpoint.read_json(folder / "harness.json")["lines"]

    @property
    def _modules(self) -> dict[str, Any]:
        return {"model": self.task.model, "value_head": self.task.value_head, "optimizer": self.stepper.optimizer}


def rows_of(step: int, count: int, batch: int, seed: int) -> list[int]:
    """Rows of optimiser step `step`: pass after pass over `count` rows, each pass in an order of its own."""
    found: list[int] = []
    at = step * batch
    while len(found) < min(batch, count):
        order = np.random.Generator(np.random.Philox(key=[seed, 2 + at // count])).permutation(count)
        taken = order[at % count :][: batch - len(found)]
        found += taken.tolist()
        at += len(taken)
    return found


def _held(found: Mapping[str, float]) -> dict[str, float]:
    return {f"held-out {name}": value for name, value in found.items()}


def _optimisation(settings: FitConfig) -> Optimisation:
    return Optimisation(
        optimizer=settings.optimizer,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        schedule=settings.schedule,
        warmup_steps=settings.warmup_steps,
        hold_steps=settings.hold_steps,
        total_steps=None if settings.schedule == "constant" else settings.steps,
        tokens_per_micro_batch=settings.tokens_per_micro_batch,
        bf16=settings.bf16,
    )
