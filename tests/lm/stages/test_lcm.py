"""The warm-up of a latent context: its windows are those of acting, runs are held out whole, regimes are learned."""

import numpy as np
import pytest
import torch

from perdure.core.errors import DataError
from perdure.lm.context import EncoderShape, RegimeContextEncoder
from perdure.lm.extensions.latent_context import Context, LatentContext
from perdure.lm.stages import lcm
from perdure.lm.stages.sections import LcmConfig
from perdure.lm.stages.trajectories import Record
from perdure.trainers.lcm import LCMBackend

SHAPE = EncoderShape(steps=3, width=32, embedding=16, hidden=16, latent=8)
LABELS = ("calm", "storm")


def record(regime, run, wind, origin=None, reward=0.0):
    messages = [{"role": "user", "content": f"wind {wind}"}, {"role": "assistant", "content": "go"}]
    return Record(messages, reward=reward, regime=regime, origin=origin or regime, seed=run, place="f.jsonl:1")


def stream(runs=4, length=6):
    """Each run is calm, then stormy, then calm again under another name."""
    return [
        record(name, run, wind, origin, reward=wind / 10)
        for run in range(runs)
        for name, origin, wind in (("calm", "calm", 1), ("storm", "storm", 9), ("lull", "calm", 1))
        for _ in range(length)
    ]


def test_windows_are_those_that_a_policy_would_be_told_from():
    found = lcm.windows(stream(2, 2), SHAPE, LABELS)
    context = Context(LatentContext(encoder=SHAPE, labels=LABELS))
    for number, each in enumerate(stream(1, 2)):
        context.see(each.messages[0]["content"])
        np.testing.assert_array_equal(found.rows_NKF[number], context.window())
        context.observe("", each.reward, {}, ended=True)
    np.testing.assert_array_equal(found.rows_NKF[6], found.rows_NKF[0], "a run begins with nothing seen")
    assert found.labels_N.tolist() == [0, 0, 1, 1, 0, 0] * 2
    assert found.runs_N.tolist() == [0] * 6 + [1] * 6
    assert found.stretches_N.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    apart = lcm.windows(stream(1, 1), SHAPE, ("calm", "storm", "lull"), origins=False)
    assert apart.labels_N.tolist() == [0, 1, 2]


def test_runs_are_held_out_whole_and_regimes_drawn_alike():
    data = lcm.windows(stream(4, 6), SHAPE, LABELS)
    task = lcm.Recogniser(RegimeContextEncoder(SHAPE, LABELS), data, LcmConfig(consistency=0.0, batch=10))
    assert len(task.held_runs) == 1
    assert task.rows == 3 * 18
    card = task.card()
    assert card["windows"] == {"train": 54, "held_out": 18, "calm": 48, "storm": 24}
    drawn = []
    task._logits = lambda places: drawn.append(data.labels_N[places]) or torch.zeros(len(places), 2)
    [loss] = task.losses([], 0)
    assert float(loss()) == pytest.approx(np.log(2))
    assert np.bincount(drawn[0]).tolist() == [5, 5]


def test_the_consistency_spans_no_two_stretches():
    data = lcm.windows(stream(1, 1), SHAPE, LABELS)
    task = lcm.Recogniser(RegimeContextEncoder(SHAPE, LABELS), data, LcmConfig(consistency=2.0))
    _, consistency = task.losses([], 0)
    assert float(consistency().detach()) == 0, "stretches of one window have no neighbours"
    longer = lcm.windows(stream(1, 4), SHAPE, LABELS)
    task = lcm.Recogniser(RegimeContextEncoder(SHAPE, LABELS), longer, LcmConfig(consistency=2.0))
    with torch.no_grad():
        z = task.model(torch.from_numpy(longer.rows_NKF)).z_BD.numpy()
    inner = [1 - z[t] @ z[t + 1] for t in range(11) if t not in (3, 7)]
    assert float(task._consistency(np.arange(12)).detach()) == pytest.approx(np.mean(inner), abs=1e-5)


def test_an_encoder_learns_regimes_and_is_read_by_the_trainer(letters, tmp_path):
    encoder = RegimeContextEncoder(SHAPE, LABELS)
    settings = LcmConfig(steps=40, evaluate_every=20, learning_rate=1e-2)
    fitted = lcm.run(encoder, lambda: stream(8), settings, tmp_path, lambda text: None)
    assert fitted.first["accuracy"] < 0.9 < fitted.best["accuracy"]
    backend = LCMBackend(letters.policy(), encoder=vars(SHAPE), labels=LABELS, warmup=str(tmp_path), told_steps=0)
    for _ in range(3):
        backend.observe("wind 9")
        backend.context.observe("", 0.9, {}, ended=False)
    backend.observe("wind 9")
    assert backend.regime_prefix().startswith("[REGIME: storm(")
    assert backend.load_warmup(tmp_path) == []


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([record(None, 0, 1)], "names no regime"),
        ([record("strom", 0, 1)], "none of the encoder's labels; did you mean 'storm'?"),
        ([], "no step to learn regimes from"),
        ([record("calm", 0, 1), record("calm", 1, 1)], "no window of regime 'storm'"),
    ],
)
def test_episodes_that_teach_no_regime_are_refused(records, said):
    with pytest.raises(DataError, match=said):
        lcm.Recogniser(RegimeContextEncoder(SHAPE, LABELS), lcm.windows(records, SHAPE, LABELS), LcmConfig())
