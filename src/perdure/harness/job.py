"""What a run is given and what it gives back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from perdure.core import records
from perdure.core.protocols import Learner
from perdure.harness import trace
from perdure.harness.evaluation import EvaluationPlan
from perdure.harness.sinks import Sink


class Job(NamedTuple):
    """Everything `execute` needs; `build` makes it from a document."""

    learner: Learner
    schedule: records.RegimeSchedule
    meta: Mapping[str, Any]
    """What run.json shall say beyond what the harness knows itself; needs "seeds" and "config_hash"."""
    folder: Path
    total_steps: int
    evaluation: EvaluationPlan = EvaluationPlan()
    checkpoint_every: int | None = None
    """Steps between checkpoints; without it only the end and an interruption save."""
    resume: bool = False
    progress: bool = True
    """Show progress on standard error; log.txt is written in any case."""
    trace_path: Path | None = None
    """JSON-lines trace; by default FOLDER/traces.jsonl for host learners, and Parquet in FOLDER/steps for others."""
    export_dir: Path | None = None
    export_external: Mapping[str, Any] | None = None
    sinks: tuple[Sink, ...] = ()
    """Further listeners."""


class RunResult(NamedTuple):
    """What a run left behind. The six metrics are never here: they are read from the trace."""

    window_metrics: list[dict[str, Any]]
    """The lines of windows.jsonl."""
    provenance: Mapping[str, Any]
    stationary: bool
    """Whether one configuration only was seen."""
    trace_path: Path
    folder: Path
    counts: Mapping[str, int]
    """"steps" of each seed, "rows" of the trace, "windows", "evaluations", "events"."""
    evaluations: list[dict[str, Any]]
    """The lines of evaluations.jsonl at the last mark."""


@runtime_checkable
class RecordsItself(Protocol):
    """A learner that steps host environments: it writes each row as it happens."""

    def record_to(self, rows: trace.JsonlTrace) -> None:
        """Write rows there from now on; called before `init` or `load`."""
        ...

    def provenance(self) -> Mapping[str, Any]:
        """What the environments say of themselves, after `init` or `load`."""
        ...
