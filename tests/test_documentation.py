"""The documentation says what is there: every key, name and command, and documents that are valid."""

import re
from pathlib import Path

import pytest
import yaml

from perdure.cli import app
from perdure.core import registry
from perdure.harness import config, load

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECTIONS = {
    "environment": config.EnvironmentConfig,
    "algorithm": config.AlgorithmConfig,
    "rollout": config.RolloutConfig,
    "regime": config.RegimeConfig,
    "reward": config.RewardConfig,
    "evaluation": config.EvaluationConfig,
    "run": config.RunConfig,
}
FAMILY_PAGES = {
    "agents": ("agents.md", "## {}\n"),
    "experts": ("extensions.md", "`{}`"),
    "extensions": ("extensions.md", "`{}`"),
    "worlds": ("worlds.md", "`{}`"),
    "text_worlds": ("text-worlds.md", "`{}`"),
    "trainers": ("language.md", "`{}`"),
    "language_extensions": ("language.md", "`{}`"),
    "regimes": ("regimes.md", "`{}`"),
    "rewards": ("rewards.md", "`{}`"),
    "detectors": ("regimes.md", "`{}`"),
}


def blocks(language: str) -> list[tuple[str, str]]:
    """Every fenced block of a language, with the page and line it stands on."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in re.finditer(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            found.append((f"{page.relative_to(ROOT)}:{line}", match.group(1)))
    return found


def documents() -> list[tuple[str, str]]:
    whole = ("environment:", "base:")
    return [(place, text) for place, text in blocks("yaml") if text.startswith(whole)]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_the_document_is_documented(section):
    page = (ROOT / "docs" / "document.md").read_text()
    part = page.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    assert [key for key in SECTIONS[section].model_fields if f"`{key}`" not in part] == []


@pytest.mark.parametrize("family", FAMILY_PAGES)
def test_every_registered_name_is_documented(family):
    page, pattern = FAMILY_PAGES[family]
    text = (ROOT / "docs" / page).read_text()
    assert [name for name in registry.names(family) if pattern.format(name) not in text] == []


def test_every_command_is_documented():
    text = "".join(page.read_text() for page in PAGES)
    names = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    groups = [(group.name, group.typer_instance) for group in app.registered_groups]
    names += [f"{name} {each.callback.__name__}" for name, group in groups for each in group.registered_commands]
    assert [name for name in names if f"perdure {name}" not in text] == []


@pytest.mark.parametrize(("place", "text"), documents(), ids=[place for place, _ in documents()])
def test_documents_in_the_documentation_are_valid(place, text, tmp_path, monkeypatch):
    from perdure import build

    for module, source in modules():
        (tmp_path / module).write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "document.yaml"
    file.write_text(text)
    document = load.read(file)
    if document.is_sweep:
        load.sweep_of(document)
    else:
        build.check(load.experiment_of(document))


@pytest.mark.parametrize(("place", "text"), blocks("yaml"), ids=[place for place, _ in blocks("yaml")])
def test_yaml_in_the_documentation_is_yaml(place, text):
    assert yaml.safe_load(text)


@pytest.mark.parametrize(("place", "text"), blocks("python"), ids=[place for place, _ in blocks("python")])
def test_python_in_the_documentation_compiles(place, text):
    compile(text, place, "exec")


def modules() -> list[tuple[str, str]]:
    """The files that pages have their reader write: the block after "Put\\nthis into `NAME.py`"."""
    text = "".join((ROOT / "docs" / name).read_text() for name in ("quickstart.md", "own-extension.md"))
    return re.findall(r"into `(\w+\.py)`:\n\n```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_pages_have_the_modules_that_their_documents_name():
    assert [name for name, _ in modules()] == ["thermostat.py", "wander.py"]


@pytest.mark.parametrize("agent", ["dqn", "ppo"])
def test_the_extension_of_the_page_trains_with_agents_of_both_kinds(agent, tmp_path, monkeypatch):
    from perdure import build

    source = dict(modules())["wander.py"]
    assert len([line for line in source.splitlines() if line.strip()]) <= 20
    (tmp_path / "wander.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    document = yaml.safe_load(next(text for place, text in documents() if "own-extension.md" in place))
    kwargs = {"hidden": [8]} | ({} if agent == "ppo" else {"feed": {"learning_starts": 32, "batch_size": 16}})
    document["algorithm"] |= {"name": agent, "kwargs": kwargs}
    document |= {"rollout": {"total_steps": 256, "n_envs": 2, "window_steps": 64}, "run": {"output_dir": str(tmp_path)}}
    metrics = build.run_experiment(config.ExperimentConfig.from_document(document)).window_metrics
    assert metrics[-1]["metrics"]["wander/distance"] > 0
