"""What a metric is (`Metric`) and the constants its definitions share (`Options`)."""

# pyright: strict

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from perdure.core.errors import ConfigError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Metric(NamedTuple):
    """One measured number with everything needed to judge it; undefined is None with a reason, never NaN."""

    name: str
    value: float | None
    n: int
    """How many things the value averages over: configurations, segments, revisits, boundaries, cells."""
    censored: int
    """How many of those ended before the event was seen; each enters the mean at the last step it was watched."""
    low: float | None
    """Lower end of the interval at `Options.level`; None where there is too little to resample."""
    high: float | None
    reason: str | None
    """A sentence on why `value` is None; None where there is a value."""
    unit: str
    higher_is_better: bool
    details: Mapping[str, Any]
    """What the value was made of, as JSON values (numbers, strings, booleans, None, lists, dicts)."""


class Options(NamedTuple):
    """The free constants of the six metrics, at their published defaults."""

    window_fraction: float = 1 / 20
    """The smoothing window W as a share of the segment: W = max(1, floor(share * n_k)) steps."""
    tail_fraction: float = 0.2
    """The share q of a segment, at its end, whose mean is its tail."""
    adaptation_level: float = 0.9
    """The share a of the climb from head to tail at which a segment counts as adapted."""
    recovery_level: float = 0.95
    """The share b of the drop below the previous level that must be made good."""
    worst_fraction: float = 0.1
    """The share of the worst scores whose mean is the conditional value at risk."""
    epsilon: float = 1e-8
    """The smallest denominator of a relative value."""
    level: float = 0.95
    """Coverage of every interval."""
    samples: int = 1000
    """Resamples behind every interval."""
    attainable: Mapping[str, float] = {}
    """origin -> the best score anybody is known to reach there (oracle, planner, or a run on it alone)."""


DEFAULTS = Options()
"""The published constants."""


def check_options(options: Options) -> None:
    """Raise ConfigError for a constant outside its range."""
    shares = ("window_fraction", "tail_fraction", "adaptation_level", "recovery_level", "worst_fraction")
    for name in shares:
        value = getattr(options, name)
        if not 0 < value <= 1:
            raise ConfigError(f"options.{name} is {value}; it is a share above 0 and at most 1")
    if not 0 < options.level < 1:
        raise ConfigError(f"options.level is {options.level}; an interval covers more than 0 and less than 1")
    if not options.epsilon > 0:
        raise ConfigError(f"options.epsilon is {options.epsilon}; it must be above 0")
    if options.samples < 1:
        raise ConfigError(f"options.samples is {options.samples}; an interval needs at least one resample")


def share(fraction: float, length: int) -> int:
    """A share of `length` steps, rounded down but never below one step."""
    # 0.29 * 100 is 28.999999999999996; the small addition keeps such a product whole.
    return max(1, int(fraction * length + 1e-9))


def number(value: Any) -> float | None:
    """A plain float, or None where there is none; for JSON."""
    return None if value is None else float(value)
