"""The page docs/text-worlds.md runs as it stands."""

import re
from pathlib import Path

import pytest
import yaml

from perdure import build
from perdure.harness.config import ExperimentConfig
from perdure.worlds.adapters import gymnasium as adapter
from perdure.worlds.text.arithmetic import FORMATS, OPERATORS, Arithmetic
from perdure.worlds.text.orders import Orders

PAGE = (Path(__file__).parents[3] / "docs" / "text-worlds.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
MODULES = dict(re.findall(r"into `(\w+\.py)`:\n\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
DOCUMENTS = [
    document
    for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    if "algorithm" in (document := yaml.safe_load(text))
]


@pytest.fixture
def written(tmp_path, monkeypatch):
    for name, source in MODULES.items():
        (tmp_path / name).write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_page_has_the_modules_and_documents_that_it_promises():
    assert list(MODULES) == ["guess.py", "sums.py"]
    assert [document["environment"]["id"].rpartition(":")[2] for document in DOCUMENTS] == [
        "perdure/arithmetic",
        "Guess",
        "RewardWorld",
    ]
    for source in MODULES.values():
        assert len([line for line in source.splitlines() if line.strip()]) <= 20


@pytest.mark.parametrize("source", [source for source in PYTHON if source not in MODULES.values()])
def test_its_programs_run(source, capsys):
    exec(compile(source, "docs/text-worlds.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert not printed or all(re.fullmatch(r"difference \d \d as <N> -> <\d>", line) for line in printed)


@pytest.mark.parametrize("place", range(3))
def test_its_worlds_are_built_and_follow_their_regimes(place, written):
    document = DOCUMENTS[place]
    env = adapter.make(document["environment"]["id"], document["environment"].get("kwargs"))
    schedule = build.schedule_of(ExperimentConfig.from_document(document))
    from perdure.regimes import controllers

    for segment in schedule.segments:
        controllers.controller_for(env).apply(env, segment.params)
        assert env.reset(seed=3) == env.reset(seed=3)
        *_, reward, terminated, truncated, info = env.step("?")
        assert reward < 1
        assert not truncated
        assert isinstance(info, dict)
        assert terminated or place == 1


def test_its_tables_name_every_parameter_and_form():
    for world in (Arithmetic, Orders):
        assert all(f"| `{name}` |" in PAGE for name in world.cases)
    assert all(f"{number} `{form}`" in PAGE for number, form in enumerate(FORMATS))
    assert all(f"{number} {word}" in PAGE for number, (word, _) in enumerate(OPERATORS[:4]))


@pytest.mark.parametrize("place", range(3))
def test_its_documents_train(place, written):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    document = DOCUMENTS[place] | {"run": {"output_dir": str(written / "runs")}}
    metrics = build.run_experiment(ExperimentConfig.from_document(document)).window_metrics
    assert metrics
