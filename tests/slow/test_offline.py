"""What each recipe of offline learning makes of a dataset, beside cloning it; docs/results/offline.md says it."""

import statistics
from pathlib import Path
from typing import NamedTuple

import pytest

from perdure.harness import load
from perdure.rl.dataset import TransitionDataset

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "offline.md"
DATASETS = ("expert", "mixed", "medium")
RECORDING = r"""perdure record perdure/pendulum -o data/pendulum-expert.npz --episodes 50
perdure record perdure/pendulum -o data/pendulum-mixed.npz --episodes 50 --random-share 0.5
perdure run configs/sac_pendulum.yaml --set run.run_id=half-trained --set run.seeds=[0] \
  --set rollout.total_steps=3_000 --set evaluation.every=3_000 \
  --set algorithm.kwargs.hidden=[64,64] --set algorithm.kwargs.feed.batch_size=128 \
  --set algorithm.kwargs.actor_optimiser.learning_rate=1e-3 \
  --set algorithm.kwargs.critic_optimiser.learning_rate=1e-3 \
  --set algorithm.kwargs.temperature_optimiser.learning_rate=1e-3
perdure record perdure/pendulum -o data/pendulum-medium.npz --episodes 50 --random-share 0.2 --run runs/half-trained"""
HEAD = f"""# Learning from data, measured

Five seeds of each recipe on the pendulum, by the documents named; `make test-slow` trains them and writes this page.
*Data* is the mean return of the dataset's own episodes. The other returns are of the greedy policy, twenty episodes a
seed, after so many steps in the world; 0 is what the dataset alone taught. Intervals are 95 % bootstrap intervals of
the mean over seeds.

The datasets hold fifty episodes, 10,000 rows: *expert* is the scripted expert, *mixed* the same with a random action at
half of the steps, *medium* a half-trained SAC with a random action at a fifth of them.

```bash
{RECORDING}
```

*Cloning* is the document of TD3+BC with an `alpha` so small that the critic has no say: the same network, rows,
normaliser and number of updates. A row of another dataset than its document's names it by
`--set algorithm.extensions.1.kwargs.dataset=data/pendulum-medium.npz`.

- From mixed data every recipe gets far above cloning. CQL and Cal-QL get to the expert that half of the data is of, but
  so does SAC on the data without any such term: half of these actions are random, which may be all that it needs.
- From medium data SAC without the term ends no better than untrained, and CQL well above cloning. TD3+BC and ReBRAC are
  not clearly above cloning.
- From the expert's own data TD3+BC is no better than cloning; both fall short of the expert on some seeds.
- After 2,000 steps in the world Cal-QL is not clearly above what it learned from the data. RLPD's mean is above that of
  SAC without data, but their intervals overlap.
- GAIL, which is never told the world's reward, gets above an untrained policy, but is far below cloning the same
  demonstrations, and wanders from evaluation to evaluation. Two other settings, tried on other seeds, were no better.

Little was tuned. The half-trained run of the medium data was chosen by its return. TD3+BC and ReBRAC had 5,000
updates at first, which were too few for ReBRAC on three of these seeds. CQL and Cal-QL take 5,000 updates of
smaller batches and fewer samples than in their papers, to save time.

| recipe and data | data | steps | mean | interval | seeds, lowest to highest | document |
|---|---|---|---|---|---|---|
"""


class Case(NamedTuple):
    """A recipe on a dataset."""

    recipe: str
    data: str | None
    changes: tuple[str, ...] = ()
    """Settings that differ from the recipe's document, but for the dataset."""
    step: int = 0
    """Which evaluation counts; that of step 0 is of what the dataset alone taught."""
    better: str | None = "untrained"
    """The case whose mean return this one's must exceed."""

    @property
    def settings(self) -> tuple[str, ...]:
        """All that is changed."""
        if self.recipe in ("gail", "rlpd"):
            return self.changes
        position = 2 if self.recipe == "rebrac" else 1
        return (*self.changes, f"algorithm.extensions.{position}.kwargs.dataset=data/pendulum-{self.data}.npz")


NO_CRITIC = "algorithm.extensions.0.kwargs.alpha=1e-6"
NO_TERM = "algorithm.extensions.0.kwargs.alpha=0"
CASES = {
    "untrained": Case("gail", None, better=None),
    **{f"cloning, {data}": Case("td3_bc", data, (NO_CRITIC,)) for data in DATASETS},
    "td3_bc, expert": Case("td3_bc", "expert"),
    "td3_bc, mixed": Case("td3_bc", "mixed", better="cloning, mixed"),
    "td3_bc, medium": Case("td3_bc", "medium"),
    "rebrac, mixed": Case("rebrac", "mixed", better="cloning, mixed"),
    "rebrac, medium": Case("rebrac", "medium"),
    "cql without its term, mixed": Case("cql", "mixed", (NO_TERM,), better="cloning, mixed"),
    "cql without its term, medium": Case("cql", "medium", (NO_TERM,), better=None),
    "cql, mixed": Case("cql", "mixed", better="cloning, mixed"),
    "cql, medium": Case("cql", "medium", better="cloning, medium"),
    "cal_ql, mixed": Case("cal_ql", "mixed", better="cloning, mixed"),
    "cal_ql, mixed, then steps": Case("cal_ql", "mixed", step=2_000, better="rlpd, mixed"),
    "rlpd, mixed": Case("rlpd", "mixed", step=3_000, better="sac without data"),
    "sac without data": Case("rlpd", None, ("algorithm.extensions=[]",), step=3_000),
    "gail, expert": Case("gail", "expert", step=204_800),
}


@pytest.fixture(scope="module")
def pages(load_module):
    return load_module(Path(__file__).with_name("pages.py"))


@pytest.fixture(scope="module")
def runs():
    """(recipe, settings) -> {step: [mean return of each seed]} of the runs done so far."""
    return {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("offline")


@pytest.fixture
def recorded(folder, monkeypatch, perdure_command):
    """The working directory where the documents find their datasets, recorded by the commands of the page."""
    monkeypatch.chdir(folder)
    if not Path("configs").exists():
        Path("configs").symlink_to(ROOT / "configs")
        for line in RECORDING.replace("\\\n", "").splitlines():
            code, _, err = perdure_command(*line.split()[1:])
            assert code == 0, err


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("recorded")
def test_the_recipe_does_better_than_what_it_is_compared_with(name, runs, pages):
    case = CASES[name]
    found = returns(case, runs, pages)
    write(name, found, pages)
    assert len(found) == 5
    assert case.better is None or statistics.mean(found) > statistics.mean(returns(CASES[case.better], runs, pages))


def write(name, found, pages):
    """Put the row of a case into the page."""
    case = CASES[name]
    data = (
        "-" if case.data is None else f"{TransitionDataset.load(f'data/pendulum-{case.data}.npz').returns.mean():.1f}"
    )
    shown = ", ".join(f"`{each}`" for each in (f"configs/{case.recipe}_pendulum.yaml", *case.changes))
    pages.write_row(PAGE, HEAD, CASES, [name, data, f"{case.step:,}", *pages.summed_up(found), shown])


def returns(case, runs, pages):
    """The mean return of each seed at the evaluation that counts; a run is done once."""
    key = (case.recipe, case.settings)
    if key not in runs:
        changes = (*case.settings, f"run.run_id=run-{len(runs)}")
        runs[key] = pages.trained(load.experiment(ROOT / "configs" / f"{case.recipe}_pendulum.yaml", changes))
    return runs[key][case.step]
