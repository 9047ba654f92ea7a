"""Where the episodes of a stage come from, as a document says: a file, an expert, a frozen policy."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from perdure.core import registry
from perdure.lm import tokens
from perdure.lm.stages import collecting, folder, trajectories
from perdure.lm.stages.collecting import Regime
from perdure.lm.stages.sections import DataConfig, LcmConfig, RolloutsConfig, SftConfig
from perdure.lm.stages.trajectories import Record

MakeEnv = Callable[[int], Any]
Say = Callable[[str], None]


def examples(
    data: DataConfig, make_env: MakeEnv, policy: Any, regimes: Sequence[Regime], say: Say
) -> tuple[Iterable[Record], dict[str, Any]]:
    """Records to learn from, and what the data card says of their source."""
    if data.expert is None:
        file, warnings = Path(data.file or ""), list[str]()
        records = trajectories.read(file, warnings)
        for warning in warnings:
            say(f"warning: {warning}")
        return records, {"kind": "file", "name": file.name, "sha256": folder.digest(file, "stages.sft.data.file")}
    told = data.expert
    expert = None
    if told.factory is not None:
        expert = registry.load(told.factory, "stages.sft.data.expert.factory")(**told.kwargs)
    played = collecting.expert_episodes(
        make_env, policy, regimes, episodes=told.episodes, turns=told.turns, seed=told.seed, expert=expert
    )
    return played, {"kind": "expert", **told.model_dump(mode="json"), "regimes": [each.id for each in regimes]}


def vocabulary(records: Iterable[Record], settings: SftConfig, place: Path) -> Path:
    """The stage's tokenizer, trained once on what its examples say."""
    file = place / "vocabulary.json"
    if not file.exists():
        assert settings.vocabulary is not None
        tokens.train_tokenizer(
            (message["content"] for record in records for message in record.messages), settings.vocabulary, file
        )
    return file


def rollouts(
    make_env: MakeEnv, regimes: Sequence[Regime], policy: Any, settings: RolloutsConfig, *, say: Say
) -> list[Record]:
    """Sampled episodes of a frozen policy under each regime."""
    return collecting.rollouts(make_env, policy, regimes, **settings.model_dump(), say=say)


def labelled(
    settings: LcmConfig,
    place: Path,
    make_policy: Callable[[], Any],
    play: Callable[[Any, RolloutsConfig], list[Record]],
) -> list[Record]:
    """Episodes that name their regimes: a file's, or the policy's own, played once and kept in the stage's folder."""
    if settings.file is not None:
        return trajectories.read(Path(settings.file))
    return trajectories.kept(place / trajectories.ROLLOUTS, lambda: play(make_policy(), settings.rollouts))
