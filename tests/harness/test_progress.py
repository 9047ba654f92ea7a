import io
import sys

import pytest

from perdure.core.errors import RunFailed
from perdure.harness.progress import Progress
from perdure.harness.run import execute


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(fake, folder, stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream)
    execute(fake.job(folder)._replace(progress=True))
    return stream.getvalue()


def test_the_log_has_plain_lines_of_steps_evaluations_and_checkpoints(fake, tmp_path):
    execute(fake.job(tmp_path / "run"))
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "step 32 of 1,000 (3%)" in log
    assert "step 0: evaluated earth 10.3, moon 2.1" in log
    assert "step 1,000: checkpoint: checkpoints/000000001000" in log
    assert "\x1b" not in log


def test_elsewhere_than_on_a_terminal_the_same_lines_go_to_standard_error(fake, tmp_path, monkeypatch):
    text = shown(fake, tmp_path / "run", io.StringIO(), monkeypatch)
    assert "fake-run  step 1,000: evaluated" in text
    assert "\x1b" not in text


def test_a_terminal_shows_a_bar_with_speed_score_and_regime(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    text = shown(fake, tmp_path / "run", Terminal(), monkeypatch)
    assert "steps/s" in text
    assert "100%" in text
    assert "return" in text
    assert "earth_again" in text


def test_progress_can_be_silent(fake, tmp_path, capsys):
    execute(fake.job(tmp_path / "run"))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_the_score_is_reward_a_finished_episode_or_reward_a_step(fake, tmp_path):
    learner = fake.FakeLearner(reward=lambda step: step * 0 + 2.0)
    _, window, _ = learner.advance(learner.init((0, 3)), fake.SCHEDULE, 100)
    for score, told in {"return": "return 32  earth", "reward": "reward 2  earth"}.items():
        progress = Progress(tmp_path / f"{score}.txt", {"score": score}, fake.SCHEDULE, show=False)
        progress.window(window, [])
        progress.close()
        assert told in (tmp_path / f"{score}.txt").read_text()


def test_a_log_that_cannot_be_written_is_named(fake, tmp_path):
    (tmp_path / "log.txt").mkdir()
    with pytest.raises(RunFailed, match=r"cannot write .*log\.txt"):
        Progress(tmp_path / "log.txt", {}, fake.SCHEDULE, show=False)
