"""The loop of the stages: order of rows, judgements, early stop, resume."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from perdure.core.errors import RunFailed
from perdure.harness import checkpoint
from perdure.harness.runs import read_lines
from perdure.lm.stages import fitting
from perdure.lm.stages.sections import FitConfig


class Line:
    """Draw w to 3 on rows 0..9; the held-out loss is what `judged` makes of w."""

    value_head, rows = None, 10

    def __init__(self, judged=lambda w: (w - 3) ** 2):
        self.model, self.judged, self.seen = torch.nn.Linear(1, 1, bias=False), judged, []
        torch.nn.init.zeros_(self.model.weight)

    @property
    def w(self):
        return float(self.model.weight.detach()[0, 0])

    def losses(self, rows, step):
        self.seen.append(rows)
        yield lambda: (self.model.weight - 3).square().sum() * (1 + 0.01 * sum(rows))

    def judge(self):
        return {"loss": self.judged(self.w)} if self.judged else {}


SETTINGS = FitConfig(steps=12, batch=4, learning_rate=0.1, evaluate_every=4, checkpoint_every=5, schedule="constant")


def settings(**changes):
    return SETTINGS.model_copy(update=changes)


def test_every_pass_takes_each_row_once_in_an_order_of_its_own():
    taken = [row for step in range(5) for row in fitting.rows_of(step, 10, 4, seed=1)]
    assert sorted(taken[:10]) == sorted(taken[10:]) == list(range(10))
    assert taken[:10] != taken[10:] != list(range(10))
    assert Counter(len(fitting.rows_of(step, 10, 4, seed=1)) for step in range(9)) == {4: 9}
    assert sorted(fitting.rows_of(3, 2, 4, seed=1)) == [0, 1], "a batch never takes a row twice where there are few"


def test_the_best_weights_are_kept_and_judgements_written(tmp_path):
    task = Line(judged=lambda w: abs(w - 0.35))
    fitted = fitting.fit(task, settings(), tmp_path)
    assert (fitted.steps, fitted.best_step) == (12, 4)
    assert fitted.first == {"loss": 0.35}
    lines = read_lines(tmp_path / fitting.METRICS, [])
    assert [line["step"] for line in lines] == [0, 4, 8, 12]
    assert abs(task.w - 0.35) == fitted.best["loss"] == lines[1]["loss"]


def test_patience_ends_it(tmp_path):
    fitted = fitting.fit(Line(judged=lambda w: w), settings(steps=100, patience=2), tmp_path)
    assert (fitted.steps, fitted.best_step) == (8, 0)


def test_without_anything_held_out_the_last_weights_count(tmp_path):
    task = Line(judged=None)
    fitted = fitting.fit(task, settings(), tmp_path)
    assert fitted == fitting.Fitted(12, 12, {}, {})
    assert task.w > 0.9


@pytest.mark.parametrize("stop", [6, 11])
def test_a_killed_stage_goes_on_bit_for_bit(tmp_path, stop):
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    reference = Line()
    expected = fitting.fit(reference, settings(), whole)
    broken = Line()
    losses = broken.losses

    def killed(rows, step):
        if step == stop:
            raise KeyboardInterrupt
        return losses(rows, step)

    broken.losses = killed
    with pytest.raises(KeyboardInterrupt):
        fitting.fit(broken, settings(), torn)
    assert [int(path.name) for path in checkpoint.checkpoints(torn)] == [5, 10][: stop // 5]
    resumed = Line()
    assert fitting.fit(resumed, settings(), torn) == expected
    assert len(resumed.seen) == 12 - stop // 5 * 5
    assert resumed.w == reference.w
    assert (torn / fitting.METRICS).read_bytes() == (whole / fitting.METRICS).read_bytes()


def test_a_held_out_loss_that_is_not_finite_ends_it(tmp_path):
    with pytest.raises(RunFailed, match="held-out loss is nan"):
        fitting.fit(Line(judged=lambda w: float("nan")), settings(), tmp_path)


def test_a_signal_saves_and_says_where(tmp_path, monkeypatch):
    task, stop = Line(), SimpleNamespace(signal=None)
    losses = task.losses

    def signalled(rows, step):
        stop.signal = 15 if step == 2 else None
        return losses(rows, step)

    task.losses = signalled
    monkeypatch.setattr(fitting.signals, "caught", lambda: __import__("contextlib").nullcontext(stop))
    with pytest.raises(fitting.signals.Interrupted) as caught:
        fitting.fit(task, settings(), tmp_path)
    assert (caught.value.step, caught.value.exit_code) == (3, 143)
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["000000000003"]
