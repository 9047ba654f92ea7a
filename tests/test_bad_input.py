"""What a clumsy or hostile user may ask for: refused in one line that names the place, the value and the remedy."""

import copy

import pytest
import yaml

from perdure.core.component import component
from perdure.core.extension import Extension

DOCUMENT = {
    "environment": {"id": "perdure/cartpole"},
    "algorithm": {"name": "ppo", "kwargs": {"hidden": [8], "feed": {"epochs": 1, "minibatches": 2}}},
    "rollout": {"total_steps": 400, "n_envs": 2, "window_steps": 50},
    "evaluation": {"episodes": 1},
    "run": {"seeds": [0], "run_id": "run"},
}
SEGMENTS = [{"id": "earth", "steps": 200}, {"id": "moon", "steps": 200, "params": {"gravity": 1.6}}]
REWARD = {"components": [{"name": "env_scalar"}]}


@component
class NeedsBoundary(Extension):
    """An extension that does nothing without being told of a shift."""

    needs = frozenset({"boundary"})


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("PERDURE_CACHE", "off")


@pytest.fixture
def write(tmp_path):
    """Write a document: dotted path -> value (None takes it away) changes it; the file."""

    def make(changes=None, text=None, name="experiment.yaml"):
        document = copy.deepcopy(DOCUMENT)
        document["run"]["output_dir"] = str(tmp_path / "runs")
        for path, value in (changes or {}).items():
            *sections, last = path.split(".")
            part = document
            for section in sections:
                part = part.setdefault(section, {})
            part[last] = value
            if value is None:
                del part[last]
        content = yaml.safe_dump(document) if text is None else text
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return make


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"enviroment": {}}, "enviroment ({}) is not a key here; did you mean 'environment'?"),
        ({"environment.idd": 1}, "environment.idd (1) is not a key here; did you mean 'id'?"),
        ({"environment.kwargs": {"horizn": 9}}, "environment.kwargs.horizn is not a key here; did you mean 'horizon'?"),
        ({"algorithm.kwarg": {}}, "algorithm.kwarg ({}) is not a key here; did you mean 'kwargs'?"),
        ({"algorithm.kwargs.hiden": [8]}, "algorithm.kwargs.hiden is not a key here; did you mean 'hidden'?"),
        ({"algorithm.kwargs.feed.epochz": 1}, "algorithm.kwargs.feed.epochz is not a key here; did you mean 'epochs'?"),
        (
            {"algorithm.name": "dqn", "algorithm.kwargs": {"optimiser": {"learning_rte": 1}}},
            "algorithm.kwargs.optimiser.learning_rte is not a key here; did you mean 'learning_rate'?",
        ),
        (
            {"algorithm.extensions": [{"name": "l2_init", "kwargs": {"strenght": 1.0}}]},
            "algorithm.extensions[0].kwargs.strenght is not a key here; did you mean 'strength'?",
        ),
        (
            {"algorithm.extensions": [{"name": "l2_init", "strength": 1.0}]},
            "what is the component's own goes under algorithm.extensions[0].kwargs",
        ),
        ({"algorithm.hidden": [8]}, "what is the component's own goes under algorithm.kwargs"),
        ({"rollout.windowsteps": 1}, "rollout.windowsteps (1) is not a key here; did you mean 'window_steps'?"),
        ({"n_envs": 4}, "n_envs (4) is not a key here; it belongs elsewhere: write rollout.n_envs"),
        ({"algorithm.seeds": [1]}, "algorithm.seeds ([1]) is not a key here; it belongs elsewhere: write run.seeds"),
        ({"evaluation.episode": 1}, "evaluation.episode (1) is not a key here; did you mean 'episodes'?"),
        ({"run.seedz": [1]}, "run.seedz ([1]) is not a key here; did you mean 'seeds'?"),
        ({"regime": {"segmants": []}}, "did you mean 'segments'? (and set regime.provider)"),
        ({"regime": {"segments": SEGMENTS}}, "it belongs to: schedule (set regime.provider)"),
        (
            {"regime": {"provider": "schedule", "segments": [{"id": "a", "step": 400}]}},
            "regime.segments[0].step is not a key here; did you mean 'steps'?",
        ),
        ({"reward": {"spec": {**REWARD, "clp": [0, 1]}}}, "reward.spec.clp is not a key here; did you mean 'clip'?"),
    ],
)
def test_a_misspelt_or_misplaced_key_is_named_with_its_line_and_the_right_one(write, refusal, changes, says):
    file = write(changes)
    said = refusal("validate", file)
    assert said.startswith(f"{file}:")
    assert said.split(":")[1].isdecimal()
    assert says in said


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"environment.id": "perdure/cartpol"}, "did you mean 'perdure/cartpole'?"),
        ({"environment.id": "CartPol-v1"}, "did you mean 'CartPole-v1'?"),
        ({"environment.id": "nowhere.at_all:env"}, "environment.id: cannot import 'nowhere.at_all'"),
        ({"algorithm.name": "ppoo"}, "did you mean 'ppo'?"),
        ({"algorithm.name": "l2_init"}, "which is an extension; list it under algorithm.extensions"),
        ({"algorithm.extensions": [{"name": "l2init"}]}, "did you mean 'l2_init'?"),
        ({"regime": {"provider": "schedul"}}, "did you mean 'schedule'?"),
        ({"regime": {"boundary_source": "detector", "detector": {"name": "cusm"}}}, "did you mean 'cusum'?"),
        ({"reward": {"spec": {"components": [{"name": "env_scalr"}]}}}, "did you mean 'env_scalar'?"),
        ({"algorithm.kwargs.activation": "rellu"}, "algorithm.kwargs.activation is 'rellu'; did you mean 'relu'?"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_one(write, refusal, changes, says):
    assert says in refusal("validate", write(changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"environment": 3}, "environment is 3; it must be a mapping of keys to values"),
        ({"algorithm.kwargs": [1]}, "algorithm.kwargs is [1]; it must be a mapping"),
        ({"algorithm.kwargs.hidden": "abc"}, "algorithm.kwargs.hidden is 'abc'; it must be a list"),
        ({"algorithm.kwargs.hidden": ["8"]}, "algorithm.kwargs.hidden[0] is '8'; it must be a whole number"),
        ({"algorithm.kwargs.hidden": [-8]}, "algorithm.kwargs.hidden is [-8]; give at least one layer"),
        ({"algorithm.kwargs.discount": True}, "algorithm.kwargs.discount is True; it must be a number"),
        ({"algorithm.extensions": ["l2_init"]}, "algorithm.extensions[0] is 'l2_init'; it must be a mapping"),
        ({"rollout.total_steps": "many"}, "rollout.total_steps is 'many'; it must be a whole number"),
        ({"rollout.total_steps": -4}, "rollout.total_steps is -4; it must be greater than 0"),
        ({"rollout.total_steps": 401}, "401, which is not a multiple of rollout.n_envs (2); use 400 or 402"),
        ({"rollout.total_steps": 10**12}, "rollout.total_steps comes to 1000000000000 steps; compiled programs count"),
        ({"rollout.total_steps": float("nan")}, "rollout.total_steps is nan, but a document holds finite numbers"),
        ({"run.seeds": []}, "run.seeds is []; it must not be empty"),
        ({"run.seeds": [1, 1]}, "run.seeds holds 1 more than once"),
        ({"run.seeds": [2**70]}, "run.seeds[0] is 1180591620717411303424; it must be less than"),
        ({"reward": {}}, "reward.spec is missing; give it a value"),
        ({"reward": {"spec": {}}}, "reward.spec names no components"),
        ({"regime": {"boundary_source": "detector"}}, "regime.detector is missing; name one of: cusum, page_hinkley"),
        ({"regime": {"boundary_source": "detector", "detector": {}}}, "regime.detector.name is missing"),
        ({"regime": {"provider": "environment"}}, "perdure/cartpole reports no regimes"),
        ({"evaluation.regimes": ["mars"]}, "evaluation.regimes[0] is 'mars', a regime that never occurs in this run"),
        (
            {"reward": {"spec": {**REWARD, "regime_overrides": {"mars": {"env_scalar": 2.0}}}}},
            "reward.spec.regime_overrides.mars is given, a regime that never occurs in this run",
        ),
        (
            {"regime": {"provider": "schedule", "segments": [{**SEGMENTS[0], "params": {"gravty": 1}}, SEGMENTS[1]]}},
            "regime 'earth': perdure/cartpole has no parameter 'gravty'; did you mean 'gravity'?",
        ),
        (
            {
                "environment.id": "CartPole-v1",
                "regime": {"provider": "schedule", "segments": [SEGMENTS[0], {**SEGMENTS[1], "params": {"gravty": 1}}]},
            },
            "regime 'moon': params.gravty is no attribute of CartPoleEnv; did you mean 'gravity'?",
        ),
        ({"environment.id": "perdure/pendulum", "algorithm.name": "dqn", "algorithm.kwargs": {}}, "Pendulum is cont"),
        ({"algorithm.name": "sac", "algorithm.kwargs": {}}, "SAC acts in continuous worlds; CartPole is discrete"),
        ({"algorithm.kwargs.feed.minibatches": 7}, "100 rows, which do not split into feed.minibatches = 7"),
        (
            {"algorithm.name": "dqn", "algorithm.kwargs": {"feed": {"capacity": 9}}},
            "capacity is 9, less than feed.batch_size 64; enlarge it",
        ),
        ({"run.run_id": "../elsewhere"}, "run.run_id is '../elsewhere'; it must be a folder's name"),
        ({"run.run_id": "x" * 300}, "it must be a folder's name of at most 200"),
        ({"run.output_dir": "a\0b"}, "it must be a path without null characters"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_place_and_the_remedy(write, refusal, changes, says):
    assert says in refusal("validate", write(changes))


def test_an_extension_that_needs_boundaries_is_refused_where_none_are_told(write, refusal, perdure_command):
    changes = {"algorithm.extensions": [{"name": f"{__name__}:NeedsBoundary"}]}
    said = refusal("validate", write(changes))
    assert said == "extensions[0] (NeedsBoundary) needs boundary; choose boundary_source oracle or detector"
    told = {"regime": {"provider": "schedule", "boundary_source": "oracle", "segments": SEGMENTS}}
    assert perdure_command("validate", write(changes | told))[0] == 0


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('x')", "obs.__class__", "lambda: 1", "9**9**9", "(" * 9_999, "open('x')", "obs", "1 +"],
)
def test_a_hostile_reward_is_never_evaluated_and_refused_at_once(write, refusal, text):
    spec = {"components": [{"name": "expression", "params": {"text": text}}]}
    said = refusal("validate", write({"reward": {"spec": spec}}))
    assert "reward" in said
    assert len(said) < 400


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.yaml", "", "a.yaml is empty; an experiment begins with"),
        ("a.yaml", "- a\n- b\n", "a.yaml holds ['a', 'b'], not a mapping of sections"),
        ("a.yaml", "run: {}\nrun: {}\n", "a.yaml:2:1: run stands twice in one section, first at"),
        ("a.yaml", "run:\n\tseeds: [1]\n", "a.yaml:2:1: found character '\\t' that cannot start any token"),
        ("a.yaml", "run: {seeds: [1]\n", "correct the YAML"),
        ("a.yaml", "run: &a\n  b: *a\n", "the alias contains itself"),
        ("a.yaml", "run: !!python/object/apply:os.system [id]\n", "is not allowed in a document; leave it out"),
        ("a.yaml", "a: 1\n---\nb: 1\n", "but found another document"),
        ("a.yaml", bytes(range(256)), "a.yaml is not UTF-8 text (byte 128)"),
        ("a.yaml", "[" * 9_999, "is nested too deeply to be a document"),
        ("a.yaml", f"a: &a [{'x, ' * 99}]\nb: &b [{'*a, ' * 99}]\nc: [{'*b, ' * 99}]\n", "more than 200,000 values"),
        ("a.json", "{'run': 1}", "a.json:1:2: Expecting property name"),
        ("a.toml", "run = = 1", "correct the TOML"),
    ],
)
def test_a_file_that_is_no_document_is_named_with_the_place(write, refusal, name, text, says):
    assert says in refusal("run", write(text=text, name=name))


def test_a_path_that_is_no_document_is_named(write, refusal, tmp_path):
    write()
    assert "experimen.yaml does not exist; did you mean 'experiment.yaml'?" in refusal(
        "run", tmp_path / "experimen.yaml"
    )
    assert (
        refusal("run", tmp_path / "a" / "b")
        == f"{tmp_path / 'a' / 'b'} does not exist; name a document, or a run's folder"
    )
    assert "Is a directory" in refusal("run", tmp_path)
    assert "File name too long" in refusal("run", tmp_path / ("x" * 5_000))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("rollout.total_steps", "does not read path=value"),
        ("rollout..n_envs=1", "does not read path=value"),
        ("run.seeds=[1", "correct the YAML"),
        ("run.seeds[4]=1", "the list has entries [0] to [0], not 4"),
        ("rollout.total_steps.x=1", "'x' cannot be set inside 400"),
        ("rollout.total_step=1", "did you mean 'total_steps'?"),
        ("algorithm.kwargs.hiden=[8]", "algorithm.kwargs.hiden is not a key here"),
    ],
)
def test_a_wrong_override_is_named_as_it_was_written(write, refusal, override, says):
    said = refusal("run", write(), "--set", override)
    assert said.startswith(f"--set {override}")
    assert says in said
