"""Regime providers: which configuration is in force at which step of a run.

A provider whose segments carry parameters makes the world change (through a controller); one whose
segments carry none only labels what the world does by itself. What can be checked without knowing
the run is checked at construction, and the message starts with the field; the rest is checked by
`plan`, and the message starts with "regime.".
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from perdure.core.capabilities import regime_from_info, regime_origin_from_info
from perdure.core.component import component
from perdure.core.errors import ConfigError, RunFailed, nearest
from perdure.core.records import Params, Segment
from perdure.regimes.drift import Drift as Drift
from perdure.regimes.drift import Waypoint as Waypoint
from perdure.regimes.markov import Durations as Durations
from perdure.regimes.markov import Random as Random
from perdure.regimes.replay import Replay as Replay
from perdure.regimes.schedules import RegimeState, Scheduled, cut, lay, refuse_misfit

CANONICAL = (
    "baseline",
    "edi_spike",
    "infra_degradation",
    "financial_pressure",
    "workforce_constrained",
    "baseline_revisit",
)
"""The canonical names in order; the last one repeats the first."""


@component
class Constant(Scheduled):
    """One configuration for the whole run: the control of every experiment on change."""

    id: str = "constant"
    state: dict[str, float] | None = None
    """Parameters to set; None leaves the world as it comes."""

    def plan(self, total_steps: int, n_envs: int = 1) -> tuple[Segment, ...]:
        """One segment."""
        return lay([(self.id, self.id, total_steps, self.state)])


@component
class Piece:
    """One entry of a schedule's `segments`."""

    id: str
    steps: int
    """Length in environment steps of one seed."""
    origin: str | None = None
    """The id of an earlier entry, whose configuration this one repeats."""
    params: dict[str, float] | None = None


@component
class Schedule(Scheduled):
    """A fixed list of segments, gone through once, or again and again where `repeat` is set.

    An id that occurs again is the same configuration. An entry with an `origin`, and a further
    entry of the same id, inherit the parameters of the first one; giving different ones is an error.
    """

    segments: tuple[Piece, ...]
    repeat: bool = False

    def __post_init__(self):
        self._pieces()

    def plan(self, total_steps: int, n_envs: int = 1) -> tuple[Segment, ...]:
        """The segments as listed; a repeated list is cut at the run's end."""
        once = lay(self._pieces())
        if not self.repeat:
            refuse_misfit(once, total_steps, "regime.segments", "set regime.repeat: true")
            return once
        if once[-1].start >= total_steps:
            position = next(i for i, segment in enumerate(once) if segment.start >= total_steps)
            raise ConfigError(
                f"regime.segments[{position}] ({once[position].id}) never occurs: it starts at step "
                f"{once[position].start} of {total_steps}; lengthen the run or take it out"
            )
        return cut(lay(self._pieces() * -(-total_steps // once[-1].end)), total_steps)

    def covering(self, step: int) -> tuple[Segment, ...]:
        """The list, as often as needed to cover `step`; ConfigError past the end of one that does not repeat."""
        once = self._pieces()
        length = sum(steps for _, _, steps, _ in once)
        if not self.repeat and step >= length:
            raise ConfigError(f"regime.segments end at step {length}, before step {step}; add one or set repeat: true")
        return lay(once * (step // length + 1))

    def _pieces(self) -> list[tuple[str, str, int, Params | None]]:
        if not self.segments:
            raise ConfigError("segments is empty; a schedule needs at least one")
        origins: dict[str, str] = {}
        params: dict[str, Params | None] = {}
        pieces = []
        for position, piece in enumerate(self.segments):
            place = f"segments[{position}]"
            if piece.steps <= 0:
                raise ConfigError(f"{place}.steps is {piece.steps}; a segment needs at least one step")
            if not piece.id:
                raise ConfigError(f"{place}.id is empty; a segment needs a name")
            origin = _root(piece, origins, place)
            if origin not in params:
                params[origin] = piece.params
            elif piece.params is not None and piece.params != params[origin]:
                raise ConfigError(
                    f"{place}.params is {piece.params}, but {origin!r}, which it repeats, has {params[origin]}; "
                    "leave params out, or give the segment an id and origin of its own"
                )
            origins[piece.id] = origin
            pieces.append((piece.id, origin, piece.steps, params[origin]))
        return pieces


@component
class Canonical(Scheduled):
    """The six canonical regimes in order, the sixth a revisit of the first.

    `steps` is one length for all, a list of six, or None for six equal parts of the run (in whole
    steps of all copies; the first ones are longer where it does not divide).
    """

    steps: int | tuple[int, ...] | None = None
    states: dict[str, dict[str, float]] | None = None
    """Parameters by regime id; a regime left out means the world as it comes. None only labels."""

    def __post_init__(self):
        known = CANONICAL[:-1]
        for name in self.states or {}:
            if name == CANONICAL[-1]:
                raise ConfigError(f"states.{name} repeats {CANONICAL[0]}; set states.{CANONICAL[0]} instead")
            if name not in known:
                raise ConfigError(f"states.{name} is not a canonical regime; {nearest(name, known)}")
        for steps in self._listed() or ():
            if steps <= 0:
                raise ConfigError(f"steps is {self.steps}; every segment needs at least one step")

    def plan(self, total_steps: int, n_envs: int = 1) -> tuple[Segment, ...]:
        """Six segments."""
        lengths = self._listed() or _equal_parts(total_steps, n_envs)
        segments = self._lay(lengths)
        refuse_misfit(segments, total_steps, "regime.steps", "leave regime.steps out for equal parts")
        return segments

    def covering(self, step: int) -> tuple[Segment, ...]:
        """All six; needs `steps`, since equal parts depend on the run's length."""
        lengths = self._listed()
        if lengths is None:
            raise ConfigError("regime.steps is not given; for equal parts use schedule(provider, total_steps)")
        if step >= sum(lengths):
            raise ConfigError(f"regime.steps end at step {sum(lengths)}, before step {step}; give longer ones")
        return self._lay(lengths)

    def _lay(self, lengths: tuple[int, ...]) -> tuple[Segment, ...]:
        origins = (*CANONICAL[:-1], CANONICAL[0])
        states = self.states or {}
        settings = [None if self.states is None else states.get(origin, {}) for origin in origins]
        return lay(list(zip(CANONICAL, origins, lengths, settings, strict=True)))

    def _listed(self) -> tuple[int, ...] | None:
        if self.steps is None:
            return None
        listed = (self.steps,) * len(CANONICAL) if isinstance(self.steps, int) else self.steps
        if len(listed) != len(CANONICAL):
            raise ConfigError(f"steps has {len(listed)} entries; the canonical schedule has {len(CANONICAL)} segments")
        return listed


@component
class Environment:
    """Trusts the labels in the environment's own info; a step without one ends the run."""

    scheduled: ClassVar[bool] = False

    def at(self, step: int, info: Mapping[str, Any]) -> RegimeState:
        """The label that the info of `step` carries; RunFailed where it carries none."""
        name, boundary = regime_from_info(info)
        if name is None:
            raise RunFailed(
                f"regime.provider is environment, but the info of step {step} has no regime id; "
                "have the environment set info['regime'], or choose another provider"
            )
        return RegimeState(name, boundary, regime_origin_from_info(info) or name)


def _root(piece: Piece, origins: Mapping[str, str], place: str) -> str:
    """The configuration an entry stands for: its origin's own origin, that of an earlier entry of its id, or itself."""
    if piece.origin is None or piece.origin == piece.id:
        return origins.get(piece.id, piece.id)
    if piece.origin not in origins:
        hint = nearest(piece.origin, origins) if origins else "the first segment has none before it"
        raise ConfigError(f"{place}.origin is {piece.origin!r}, which is no earlier segment's id; {hint}")
    origin = origins[piece.origin]
    if origins.get(piece.id, origin) != origin:
        raise ConfigError(f"{place}.id {piece.id!r} already repeats {origins[piece.id]!r}; give it another id")
    return origin


def _equal_parts(total_steps: int, n_envs: int) -> tuple[int, ...]:
    rounds, rest = divmod(total_steps, n_envs)
    if rounds < len(CANONICAL) or rest:
        raise ConfigError(
            f"rollout.total_steps is {total_steps}; six regimes over {n_envs} copies need a multiple of {n_envs}, "
            f"and at least {len(CANONICAL) * n_envs}"
        )
    each, longer = divmod(rounds, len(CANONICAL))
    return tuple((each + (position < longer)) * n_envs for position in range(len(CANONICAL)))
