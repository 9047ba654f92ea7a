"""The Gymnasium face of the concierge world: text or structured observations, two action protocols, regimes."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import EnvSpec

from perdure.core import capabilities, jsontext
from perdure.core.errors import ConfigError, PerdureError, nearest
from perdure.worlds.concierge import chance, interface, legacy, protocol, schema, scoring, tasks, telling
from perdure.worlds.concierge.catalogue import PAYMENT, Catalogue
from perdure.worlds.concierge.errand import Errand, Task
from perdure.worlds.concierge.records import MAX_TURNS, Action, Observation
from perdure.worlds.concierge.settings import Settings, settings
from perdure.worlds.text.lanes import LaneWorld
from perdure.worlds.text.spaces import AnyText

PROFILES = ("proper", *legacy.PROFILES)
SPLITS = ("train", "validation")
TRAINING_SEEDS = 900_000
"""Task seeds of the training split above a stage's base."""


class Concierge(LaneWorld):
    """An errand an episode, up to 8, 12 or 16 turns by stage; the reward comes at the end, and lies in [0, 1].

    `params` are a regime's numbers (see settings.settings) for what regimes leave out. An episode keeps those
    that were in force when it began. `reset(seed=n)` begins lane n, whose k-th task depends on (n, k) and the
    regime alone; `reset(options={"task": {"seed": s}})` poses the task of a seed without leaving the lane.

    `observations` is "text" or "structured" (a mapping with the vendor's answer as JSON text), `protocol` "json" or
    "native", `profile` one of PROFILES, `split` one of SPLITS. `terse` is for small models: three offers at most,
    English and Hinglish, days by their date, no decoys unless a regime asks for them, short texts, the tools that
    are needed. `data` names folders with further domains.

    `info` after a step: `action_valid`, `turn`; at the end also `success`, `verifier_pass`, `reward_components`,
    `breakdown`, `facts` (what evaluations keep); `trace` holds what happened out of the agent's sight (drifts that
    came into force, how it ended).
    """

    name = "perdure/concierge"
    task_key = "seed"
    bounds_source = "the range of the reward; the oracle reaches 1"

    def __init__(
        self,
        params: Mapping[str, float] | None = None,
        observations: str = "text",
        protocol: str = "json",
        profile: str = "proper",
        split: str = "train",
        terse: bool = False,
        data: Sequence[str] = (),
    ):
        for name, value, allowed in (
            ("observations", observations, ("text", "structured")),
            ("protocol", protocol, ("json", "native")),
            ("profile", profile, PROFILES),
            ("split", split, SPLITS),
        ):
            if value not in allowed:
                raise ConfigError(f"{self.name}: {name} is {value!r}; {nearest(str(value), allowed)}")
        if isinstance(data, str) or not isinstance(data, Sequence):
            raise ConfigError(f"{self.name}: data is {data!r}; give a list of folders: [{str(data or 'shows')!r}]")
        if not isinstance(params or {}, Mapping):
            raise ConfigError(f"{self.name}: params is {params!r}; give names with numbers")
        if not isinstance(terse, bool):
            raise ConfigError(f"{self.name}: terse is {terse!r}; it is true or false")
        self.catalogue = _catalogue(tuple(map(str, data)))
        self._observations, self._protocol, self._profile = observations, protocol, profile
        self._split, self._terse = split, terse
        self._defaults = dict(params or {})
        self._kwargs = {
            "params": self._defaults,
            "observations": observations,
            "protocol": protocol,
            "profile": profile,
            "split": split,
            "terse": self._terse,
            "data": list(map(str, data)),
        }
        self.observation_space = AnyText(jsontext.SEARCHED) if observations == "text" else interface.structured_space()
        self.action_space = AnyText(jsontext.SEARCHED)
        entry = "perdure.worlds.concierge.world:Concierge"
        self.spec = EnvSpec(
            id=self.name, entry_point=entry, max_episode_steps=max(MAX_TURNS.values()), kwargs=self._kwargs
        )
        super().__init__()
        self._task_seed = 0
        self._errand: Errand | None = None
        self._said: list[tuple[Action | None, str]] = []
        self._seen: Observation | None = None
        self._followed = 0
        self.set_regime({})
        self._asked = dict(self._params)

    def check_regime(self, params: Mapping[str, float]) -> Settings:
        """What `params` mean, those left out as the world was built; changes nothing.

        ConfigError for a wrong one, and where they leave no task that is worth posing.
        """
        chosen = settings(self.catalogue, {**self._defaults, **params}, self._terse)
        tasks.check(self.catalogue, chosen)
        return chosen

    def set_regime(self, params: Mapping[str, float]) -> None:
        """Have the next episode follow `params`; what is left out is as the world was built."""
        self._settings = self.check_regime(params)
        self._params = {name: float(value) for name, value in {**self._defaults, **params}.items()}

    @property
    def regime(self) -> dict[str, float]:
        """The parameters of the present episode."""
        return dict(self._asked)

    def describe_run(self) -> dict[str, str]:
        """The hash of all that is data: vendors, patterns, words. A run goes on with the same alone."""
        return {capabilities.DATA: self.catalogue.hash}

    @property
    def proper_reward(self) -> bool:
        """Whether stating the true probability of success earns most."""
        return self._profile == "proper"

    @property
    def task(self) -> Task:
        """The present task with all that is hidden from the agent; PerdureError before the first reset."""
        return self._running().task

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The request of the next task of the lane, or of the first of lane `seed`."""
        named = self.begin(seed, options)
        assert self._seed is not None, "a lane has begun"
        self._task_seed = self._of_lane(self._seed, self._episode) if named is None else named
        self._asked = dict(self._params)
        return self._begin(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One turn; `action` is text, a JSON object or an Action. What is none costs the turn and R4."""
        errand = self._running()
        done, error = protocol.parsed(action, self._protocol)
        fired = len(errand.drifts)
        self._seen = errand.step(done, error)
        self._said.append((done, error))
        info: dict[str, Any] = {"action_valid": not self._seen.error, "turn": self._seen.turn - 1}
        trace: dict[str, Any] = {}
        if len(errand.drifts) > fired:
            trace["events"] = [{"drift": event.pattern_id, "turn": event.turn} for event in errand.drifts[fired:]]
        reward = 0.0
        if self._seen.done:
            reward = self._finish(errand, info, trace)
        if trace:
            info["trace"] = trace
        return self._told(self._seen), reward, self._seen.done, False, info

    def bounds(self, params: Mapping[str, float] | None = None) -> tuple[float, float]:
        """The range of an episode's return, the same in every regime."""
        return 0.0, 1.0

    def expert(self, observation: Any = None, info: Mapping[str, Any] | None = None) -> str:
        """What the oracle says next, in this world's protocol.

        It knows the goal and needs no observation; PerdureError where earlier turns were not its own.
        """
        turn, solution = self._running().turn, self.task.oracle
        while self._followed < turn and self._said[self._followed][0] == solution[self._followed]:
            self._followed += 1
        if self._followed < turn or turn == len(solution):
            raise PerdureError(f"{self.name}: the expert must be followed from the first turn on; reset first")
        return protocol.written(solution[turn], self._protocol, self._terse)

    def demonstrations(
        self, count: int, seed: int, params: Mapping[str, float] | None = None
    ) -> Iterator[interface.Demonstration]:
        """`count` tasks of lane `seed` under `params` (None: those in force), each as the oracle does it."""
        other = type(self)(
            **{**self._kwargs, "params": self._params if params is None else {**self._defaults, **params}}
        )
        for number in range(count):
            observation, _ = other.reset(seed=seed) if number == 0 else other.reset()
            messages: list[dict[str, str]] = []
            reward, over, info = 0.0, False, {}
            while not over:
                said = other.expert()
                messages += [
                    {"role": "user", "content": interface.as_text(observation)},
                    {"role": "assistant", "content": said},
                ]
                observation, reward, over, _, info = other.step(said)
            yield interface.Demonstration(messages, reward, bool(info["success"]), other.regime)

    def tools(self) -> list[dict[str, Any]]:
        """The tools of the present episode as published at its start: functions with strict JSON Schemas."""
        errand = Errand(self.catalogue, self.task)
        places = self.catalogue.words["places"]
        listed = [
            interface.function(
                tool.name.replace(".", "_"),
                tool.description,
                schema.json_schema(tool, errand.vendors.contracts[tool.domain], places),
            )
            for tool in errand.vendors.tools.values()
            if tool.domain in self._domains()
        ]
        return [*listed, *interface.own_tools(sorted(errand.vendors.contracts))]

    def get_state(self) -> dict[str, Any]:
        """Everything that `reset` and `step` depend on, as JSON values."""
        return {
            **super().get_state(),
            "task_seed": self._task_seed if self._errand is not None else None,
            "params": dict(self._params),
            "asked": dict(self._asked),
            "said": [[None if action is None else interface.plain(action), error] for action, error in self._said],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `get_state` was asked; DataError for the state of another world."""
        super().set_state(state)
        self._errand, self._said = None, []
        if state["task_seed"] is not None:
            self._task_seed = state["task_seed"]
            self.set_regime(state["asked"])
            self._begin()
            for values, error in state["said"]:
                action = None if values is None else Action(**values)
                self._seen = self._running().step(action, error)
                self._said.append((action, error))
        self._asked = dict(state["asked"])
        self.set_regime(state["params"])

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self._kwargs.items())
        return f"Concierge({said}, catalogue={self.catalogue.hash!r})"

    def _begin(self) -> Any:
        task = tasks.generated(self.catalogue, self._task_seed, self._settings)
        self._errand = Errand(self.catalogue, task)
        self._said, self._followed = [], 0
        self._seen = self._errand.start()
        return self._told(self._seen)

    def _finish(self, errand: Errand, info: dict[str, Any], trace: dict[str, Any]) -> float:
        """The reward of a finished errand, with what it is made of in `info`."""
        episode = errand.record()
        result = scoring.scored(self.catalogue, episode)
        reward = result.reward
        if self._profile != "proper":
            reward = legacy.scored(self.catalogue, episode, self._profile)
        info["success"], info["verifier_pass"] = episode.success, float(episode.success)
        info["reward_components"] = dict(scoring.components(result))
        info["breakdown"] = {"profile": self._profile, "language": episode.goal.language, **result.breakdown()}
        info["facts"] = {
            "success": episode.success,
            "drifts noticed": result.evidence.recall,
            "confidence": result.confidence,
            "squared error of confidence": result.brier,
            "language": episode.goal.language,
            "domain": episode.goal.domain,
            "drift": [event.pattern_id for event in episode.drifts],
        }
        trace["ended"], trace["drifts"] = episode.ended, [event.pattern_id for event in episode.drifts]
        return float(reward)

    def _told(self, seen: Observation) -> Any:
        if self._observations == "structured":
            return interface.structured(seen)
        if seen.turn == 0:
            return telling.opening(self._running().vendors, seen, self._protocol, self._terse, self._domains())
        said = self._said[-1][0]
        return telling.following(seen, self._terse, (said.tool_args or {}) if said is not None else {})

    def _domains(self) -> tuple[str, ...]:
        """Vendors whose tools are told of."""
        return (self.task.goal.domain, PAYMENT) if self._terse else tuple(self.catalogue.domains)

    def _running(self) -> Errand:
        if self._errand is None:
            raise PerdureError(f"{self.name} is at no errand; call reset() first")
        return self._errand

    def _of_lane(self, lane: int, episode: int) -> int:
        """The task seed of a lane's episode, within the split."""
        drawn = chance.number(lane, "lane", episode)
        if self._split == "validation":
            return tasks.VALIDATION[drawn % len(tasks.VALIDATION)]
        return tasks.STAGE_BASE[self._settings.stage] + drawn % TRAINING_SEEDS


def _catalogue(folders: tuple[str, ...]) -> Catalogue:
    """The catalogue of the folders as their files are now; made once for files that stay as they are."""
    files = [path for folder in folders for path in sorted(Path(folder).glob("*/*.toml"))]
    return _loaded(folders, tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files))


@functools.lru_cache(maxsize=8)
def _loaded(folders: tuple[str, ...], files: tuple[tuple[str, int, int], ...]) -> Catalogue:
    return Catalogue([Path(folder) for folder in folders])
