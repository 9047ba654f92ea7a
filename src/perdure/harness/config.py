"""The experiment document as one frozen record: checked as a whole, hashed, and resolved to plain values."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perdure.core.records import RegimeSchedule
from perdure.harness import consistency, mistakes
from perdure.harness.sections import AlgorithmConfig as AlgorithmConfig
from perdure.harness.sections import DetectorConfig as DetectorConfig
from perdure.harness.sections import EnvironmentConfig as EnvironmentConfig
from perdure.harness.sections import EvaluationConfig as EvaluationConfig
from perdure.harness.sections import ExtensionConfig as ExtensionConfig
from perdure.harness.sections import PolicyConfig as PolicyConfig
from perdure.harness.sections import RegimeConfig as RegimeConfig
from perdure.harness.sections import RewardConfig as RewardConfig
from perdure.harness.sections import RolloutConfig as RolloutConfig
from perdure.harness.sections import RunConfig as RunConfig
from perdure.harness.sections import Section as Section


class ExperimentConfig(Section):
    """A whole experiment document. Raises ConfigError naming the place, the value and the remedy."""

    environment: EnvironmentConfig
    algorithm: AlgorithmConfig
    rollout: RolloutConfig
    regime: RegimeConfig = RegimeConfig()
    reward: RewardConfig | None = None
    evaluation: EvaluationConfig = EvaluationConfig()
    run: RunConfig = RunConfig()

    def __init__(self, /, **sections: Any):
        try:
            super().__init__(**mistakes.plain_document(sections))
        except ValidationError as error:
            raise mistakes.explain(error, type(self)) from None
        consistency.check(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "ExperimentConfig":
        """The experiment of plain document values."""
        return cls(**{str(key): value for key, value in document.items()})

    @property
    def algorithm_id(self) -> str:
        """The algorithm's name in tables and reports."""
        return self.run.algorithm_id or self.algorithm.name

    @property
    def task(self) -> str:
        """The task's name in tables and reports."""
        return self.run.task or self.environment.id

    @property
    def run_id(self) -> str:
        """The directory's name: the given one, or task, algorithm and six digits of the hash."""
        if self.run.run_id is not None:
            return self.run.run_id
        return f"{_word(self.task.split('/')[-1])}-{_word(self.algorithm_id)}-{self.config_hash()[:6]}"

    @property
    def folder(self) -> Path:
        """The run's directory."""
        return Path(self.run.output_dir) / self.run_id

    def schedule(self) -> RegimeSchedule | None:
        """The segments of the run, each in multiples of n_envs; None if only the environment knows them."""
        return consistency.schedule(self)

    def config_hash(self) -> str:
        """SHA-256 of the resolved document's canonical JSON, without output_dir and run_id."""
        document = self._named()
        document["run"] = {key: value for key, value in document["run"].items() if key not in ("output_dir", "run_id")}
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def resolved(self) -> dict[str, Any]:
        """The document with every default filled in, as plain values; it reads back as an equal experiment."""
        document = self._named()
        document["run"]["run_id"] = self.run_id
        return document

    def meta(self) -> dict[str, Any]:
        """`RunConfig.meta` with the names filled in, and the configuration's hash."""
        named = self.run.model_copy(
            update={"run_id": self.run_id, "algorithm_id": self.algorithm_id, "task": self.task}
        )
        return {**named.meta(), "config_hash": self.config_hash()}

    def _named(self) -> dict[str, Any]:
        dumped = self.model_dump(mode="json")
        dumped["regime"] |= mistakes.plain(self.regime.fields(), "regime") | {"params": None}
        dumped["run"] |= {"algorithm_id": self.algorithm_id, "task": self.task}
        if self.algorithm.name in consistency.GROUP_LEARNERS:
            del dumped["rollout"]["window_steps"]  # They have none, and refuse it.
        given = {name: section for name, section in dumped.items() if section is not None}
        # Only a section's own unset keys go; a null inside kwargs is a value.
        return {
            name: {key: value for key, value in section.items() if value is not None} for name, section in given.items()
        }


def _word(name: str) -> str:
    """A name as part of a folder's name: plain letters and digits, and never nothing."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)[:60].strip("-.") or "x"
