"""The records every layer shares. Arrays are NumPy here; nothing needs JAX or torch.

Steps. `step = t * n_envs + lane` counts the environment steps of ONE seed over all its copies
(lanes); segments, budgets, evaluation marks and metrics are all in this unit.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Params = Mapping[str, float]


class Spec(NamedTuple):
    """What an agent must know of a world before it starts."""

    obs_shape: tuple[int, ...]
    action_dim: int
    """Number of actions if `discrete`, else number of dimensions of the action vector."""
    discrete: bool
    low: tuple[float, ...] = ()
    """Lower bounds of a continuous action, one per dimension (world units); empty if discrete."""
    high: tuple[float, ...] = ()
    horizon: int = 1000
    """Longest episode in steps; in a never-ending world, the length of an evaluation."""
    episodic: bool = True
    """Whether episodes end. The score of an episodic world is the return of each finished
    episode; of a never-ending one, the reward of each step."""


class Segment(NamedTuple):
    """A stretch of a run under one configuration: steps [start, end) of each seed."""

    id: str
    origin: str
    """The id of the configuration this segment repeats; its own id if it is new."""
    start: int
    end: int
    params: Params | None = None
    """What the controller sets, or None where the segment only labels."""
    params_end: Params | None = None
    """In a drift: the parameters reached at `end`, moving linearly from `params`."""


class RegimeSchedule(NamedTuple):
    """The segments of a whole run in order, contiguous from step 0."""

    segments: tuple[Segment, ...]
    boundary_source: str = "none"
    """What the algorithm is told of a shift: "oracle", "detector" or "none"."""

    @property
    def total_steps(self) -> int:
        return self.segments[-1].end

    def index_at(self, step: Any) -> Any:
        """Index of the segment in force at each step (scalar or array)."""
        inner: Any = np.array([segment.end for segment in self.segments[:-1]], np.int64)
        return inner.searchsorted(step, side="right")


class Shift(NamedTuple):
    """What an algorithm is told at a boundary."""

    ending: str
    ending_origin: str
    starting: str
    starting_origin: str
    step: int
    source: str
    """"oracle" or "detector"."""

    def mapping(self) -> dict[str, Any]:
        """The plain mapping handed to `Algorithm.on_regime_shift`."""
        return self._asdict()


@dataclass
class Transition:
    """One step of one environment copy, as third-party algorithms see it."""

    step: int
    observation: Any
    action: Any
    reward: float
    terminated: bool
    truncated: bool
    regime_id: str | None = None
    boundary: bool = False
    """First step of a new configuration."""
    reward_components: Mapping[str, float] = field(default_factory=dict[str, float])
    logprob: float | None = None
    value: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    next_observation: Any = None
    """The true successor, also where an episode ended."""
    lane: int = 0
    regime_origin: str | None = None


COLUMNS = ("seed", "step", "lane", "reward", "terminated", "truncated", "regime", "origin", "boundary")


@dataclass
class RolloutWindow:
    """An administrative slice of experience: ordered rows as columns, transitions as a view.

    A window's end is not an episode end. `columns` maps each name of `COLUMNS` (and `action`,
    and `component/NAME` for reward components) to an array with one row per environment step,
    ordered by seed, then step. `regime` and `origin` hold names, or numbers of the schedule's
    segments. Compiled learners give columns only; host windows give transitions.
    """

    transitions: Sequence[Transition] = ()
    run: Mapping[str, Any] = field(default_factory=dict[str, Any])
    columns: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    seed: int = 0

    def __post_init__(self):
        if not self.columns:
            self.columns = columns_of(self.transitions, self.seed)

    def __len__(self) -> int:
        return len(self.columns["step"])

    @property
    def last_step(self) -> int:
        """One past the highest step in the window."""
        return int(self.columns["step"].max()) + 1 if len(self) else 0

    def rewards(self) -> np.ndarray:
        """Rewards in row order."""
        return self.columns["reward"]

    def terminals(self) -> np.ndarray:
        """Where an episode ended, for either reason."""
        return self.columns["terminated"] | self.columns["truncated"]

    def by_regime(self) -> list["RolloutWindow"]:
        """The window split wherever the configuration changes, in order (one seed's rows)."""
        labels = self.columns["regime"]
        cuts = np.flatnonzero(labels[1:] != labels[:-1]) + 1
        edges = [0, *cuts.tolist(), len(self)]
        return [
            RolloutWindow(
                transitions=self.transitions[a:b],
                run=self.run,
                columns={name: column[a:b] for name, column in self.columns.items()},
                seed=self.seed,
            )
            for a, b in itertools.pairwise(edges)
            if b > a
        ]


def columns_of(transitions: Sequence[Transition], seed: int) -> dict[str, np.ndarray]:
    """The columns of a host window. Labels that are None become the empty string."""
    rows = list(transitions)
    columns: dict[str, np.ndarray] = {
        "seed": np.full(len(rows), seed, np.int64),
        "step": np.array([row.step for row in rows], np.int64),
        "lane": np.array([row.lane for row in rows], np.int32),
        "reward": np.array([row.reward for row in rows], np.float64),
        "terminated": np.array([row.terminated for row in rows], bool),
        "truncated": np.array([row.truncated for row in rows], bool),
        "regime": np.array([row.regime_id or "" for row in rows], dtype=object),
        "origin": np.array([row.regime_origin or row.regime_id or "" for row in rows], dtype=object),
        "boundary": np.array([row.boundary for row in rows], bool),
    }
    for name in sorted({name for row in rows for name in row.reward_components}):
        values = [row.reward_components.get(name, np.nan) for row in rows]
        columns[f"component/{name}"] = np.array(values, np.float64)
    return columns


Fact = bool | float | str | list[str] | None
"""What a world says of an episode: a number, a label, or several labels; None where it does not say."""


def numbers(facts: Sequence[Fact]) -> list[float]:
    """The numbers and truth values among facts."""
    return [float(fact) for fact in facts if isinstance(fact, bool | int | float)]


class Said(NamedTuple):
    """One turn of a conversation with a text world."""

    saw: str
    """What the world showed."""
    said: str
    """What the policy answered, as text or JSON."""
    reward: float


class Evaluation(NamedTuple):
    """Greedy episodes of a frozen policy on one configuration, for every seed S."""

    returns: np.ndarray
    """[S, episodes] undiscounted score of each episode (mean reward per step if never-ending)."""
    lengths: np.ndarray
    """[S, episodes] steps of each episode."""
    metrics: Mapping[str, np.ndarray]
    """Scalars per seed, [S] each, such as "entropy"; extension diagnostics land here."""
    features: Mapping[str, np.ndarray]
    """Last hidden activations on recent observations, network name -> [S, rows, units]."""
    facts: Mapping[str, Sequence[Sequence[Fact]]] = {}
    """What the world says of each episode at its end (info["facts"]), name -> [S, episodes]."""
    samples: Sequence[Sequence[Sequence[Said]]] = ()
    """The first episodes of each seed, turn by turn, where the world speaks text; [S, a few, turns]."""
    trained: Sequence[int] = ()
    """[S] steps that the policy of each seed had learned from, where its last window reached past the mark."""


class Stream(NamedTuple):
    """One seed of one run as the metrics read it, rows ordered by step."""

    run_id: str
    algorithm_id: str
    task: str
    seed: int
    step: np.ndarray
    lane: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    segments: tuple[Segment, ...]
    score: str = "return"
    """"return": a score per finished episode, at its last row. "reward": one per step."""
    bounds: Mapping[str, tuple[float | None, float | None]] = {}
    """origin -> (low, high) in score units, where the world offers them."""
    total_steps: int | None = None
    """What the run was asked for; more than the rows hold if it is unfinished."""


class EvaluationRow(NamedTuple):
    """One line of evaluations.jsonl: one seed, one regime, one mark."""

    run_id: str
    algorithm_id: str
    task: str
    seed: int
    step: int
    """The mark: the policy evaluated is the one in force after this many steps (but see `trained`)."""
    regime: str
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    metrics: Mapping[str, float]
    facts: Mapping[str, Sequence[Fact]] = {}
    """What the world says of each episode, in the order of `returns`."""
    samples: Sequence[Sequence[Said]] = ()
    """The first of the episodes, turn by turn, where the world speaks text."""
    trained: int | None = None
    """Steps that the policy had learned from, where windows of whole episodes reached past the mark `step`."""
