"""The six metrics of a continual run, from its stream of steps alone.

reward, adaptation_speed, forgetting, recovery_time, stability, performance_gap: each a `Metric`
that counts what was censored and says why it is undefined where it is.
"""

# pyright: strict

from perdure.core.records import Stream
from perdure.metrics import dynamics, levels
from perdure.metrics.curves import Curve as Curve
from perdure.metrics.curves import RecoveryCurve as RecoveryCurve
from perdure.metrics.curves import recovery_curves as recovery_curves
from perdure.metrics.curves import smoothed as smoothed
from perdure.metrics.metric import DEFAULTS, check_options
from perdure.metrics.metric import Metric as Metric
from perdure.metrics.metric import Options as Options
from perdure.metrics.scores import Scores, score_points
from perdure.metrics.visits import visits_of

NAMES = ("reward", "adaptation_speed", "forgetting", "recovery_time", "stability", "performance_gap")
"""The six, in the order in which they are shown."""


def six_metrics(stream: Stream, options: Options = DEFAULTS) -> dict[str, Metric]:
    """Each of `NAMES` -> its Metric, for one seed of one run.

    Raises DataError for a stream that cannot be used (rows out of order, a reward that is not
    finite) and ConfigError for an option outside its range. Example:

        six_metrics(stream)["forgetting"].value
    """
    check_options(options)
    scores = score_points(stream)
    seen, nothing, seed = visits_of(stream, scores, options), _nothing(stream, scores), stream.seed
    return {
        "reward": levels.reward(seen, nothing, options, seed),
        "adaptation_speed": dynamics.adaptation_speed(seen, nothing, options, seed),
        "forgetting": levels.forgetting(seen, options, seed),
        "recovery_time": dynamics.recovery_time(seen, nothing, options, seed),
        "stability": dynamics.stability(seen, nothing, options, seed),
        "performance_gap": levels.performance_gap(seen, nothing, options, seed),
    }


def _nothing(stream: Stream, scores: Scores) -> str:
    """Why a stream may have no score at all."""
    if not len(stream.step):
        return "the run has no steps yet"
    return f"no episode began and ended inside one segment ({scores.straddling} straddle a shift)"
