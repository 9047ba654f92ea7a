"""The command line: what each command prints, its exit codes, and what it must not import."""

import json
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import perdure
from perdure import cli, demos
from perdure.core.errors import Refused, RunFailed
from perdure.harness.config import ExperimentConfig
from perdure.harness.signals import Interrupted

TRAINING = (
    *("run", "demo", "sweep", "eval", "export", "verify", "record"),
    *("pipeline", "sft", "warmup-value", "warmup-lcm"),
)
READING = ("metrics", "report", "compare", "validate", "show", "list")
EXPERIMENT = """\
environment: {id: perdure/cartpole}
algorithm: {name: ppo}
rollout: {total_steps: 1000, n_envs: 4}
run: {seeds: [0, 1], output_dir: OUT}
"""
SWEEP = """\
base: experiment.yaml
families: {ppo: {}, dqn: {algorithm: {name: dqn}}}
seeds: [0, 1, 2]
output_dir: OUT
"""


@pytest.fixture
def documents(tmp_path):
    out = str(tmp_path / "out")
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT.replace("OUT", out))
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("OUT", out))
    return tmp_path


@pytest.fixture
def trainer(monkeypatch):
    """A stand-in for the composition root that trains nothing and notes what it was asked for."""
    calls = []
    row = {"step": 9, "seed": 0, "regime": "a", "returns": [1.0, 2.0], "lengths": [3, 5]}

    def note(name, answer=None):
        def call(*arguments, **options):
            calls.append((name, arguments, options))
            if isinstance(answer, BaseException):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return call

    module = types.ModuleType("perdure.build")
    vars(module).update(
        calls=calls,
        note=note,
        run_experiment=note("run_experiment", lambda config: types.SimpleNamespace(folder=config.folder)),
        check=note("check"),
        evaluate_run=note("evaluate_run", [row]),
        export_run=note("export_run"),
    )
    monkeypatch.setitem(sys.modules, "perdure.build", module)
    monkeypatch.setattr(perdure, "build", module, raising=False)
    return module


@pytest.fixture
def trace(tmp_path):
    """A run that somebody else made: one-step episodes that pay 1, then 3."""
    for name in ("mine", "theirs"):
        rows = [
            {"seed": 0, "step": step, "reward": 1.0 + 2.0 * (step >= 40), "terminated": True, "truncated": False}
            | {"algorithm_id": name, "task": "t", "run_id": name, "regime": {"id": "calm" if step < 40 else "storm"}}
            for step in range(80)
        ]
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "traces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "runs"


def test_help_and_names_import_nothing_heavy():
    code = """
import sys
from perdure import cli
sys.argv = ["perdure", *sys.argv[1:]]
try:
    cli.main()
finally:
    heavy = {"jax", "torch", "matplotlib", "pyarrow", "gymnasium", "scipy"}
    print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""
    for arguments in (["--help"], ["run", "--help"], ["list", "regimes"]):
        finished = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        assert finished.stdout.splitlines()[-1] == "[]"


def test_the_module_runs_as_a_program():
    command = [sys.executable, "-m", "perdure", "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == f"perdure {metadata.version('perdure')}\n"


@pytest.mark.parametrize("command", TRAINING + READING)
def test_every_command_has_help_with_an_example(perdure_command, command):
    code, out, _ = perdure_command(command, "--help")
    assert code == 0
    assert f"perdure {command}" in out.split("Example", 1)[1]


def test_unknown_commands_and_options_are_errors_of_use(perdure_command):
    assert perdure_command("rn")[0] == 2
    code, _, err = perdure_command("run", "x.yaml", "--resum")
    assert code == 2
    assert "--resume" in err


def test_show_prints_the_resolved_document(perdure_command, documents):
    code, out, _ = perdure_command("show", documents / "experiment.yaml", "--set", "rollout.window_steps=32")
    assert code == 0
    shown = yaml.safe_load(out)
    assert shown["rollout"] == {"total_steps": 1000, "n_envs": 4, "window_steps": 32, "auto_reset": True}
    assert ExperimentConfig.from_document(shown).resolved() == shown


def test_show_prints_a_sweep_with_its_base(perdure_command, documents):
    shown = yaml.safe_load(perdure_command("show", documents / "sweep.yaml")[1])
    assert shown["base"]["rollout"]["total_steps"] == 1000
    assert shown["seeds"] == [0, 1, 2]


def test_an_error_is_one_line_with_its_place_and_exit_code_2(perdure_command, documents):
    file = documents / "experiment.yaml"
    code, out, err = perdure_command("show", file, "--set", "rollout.n_env=2")
    assert (code, out) == (2, "")
    assert err == "error: --set rollout.n_env=2: rollout.n_env (2) is not a key here; did you mean 'n_envs'?\n"


def test_run_hands_everything_over_and_says_what_comes_next(perdure_command, documents, trainer):
    arguments = ["--set", "run.seed=7", "--resume", "--export", "bundle", "--trace", "t.jsonl"]
    code, out, err = perdure_command("run", documents / "experiment.yaml", *arguments)
    ((name, (config,), options),) = trainer.calls
    assert (code, out, name) == (0, "", "run_experiment")
    assert config.run.seeds == (7,)
    assert options == {"trace_path": Path("t.jsonl"), "export_dir": Path("bundle"), "resume": True, "progress": True}
    assert f"perdure metrics {config.folder}" in err
    assert perdure_command("run", documents / "experiment.yaml", "--quiet") == (0, "", "")
    assert trainer.calls[1][2]["progress"] is False


def test_a_failed_run_exits_with_1(perdure_command, documents, trainer):
    trainer.run_experiment = trainer.note("run_experiment", RunFailed("step 7: the disk is full; free some space"))
    code, _, err = perdure_command("run", documents / "experiment.yaml")
    assert (code, err) == (1, "error: step 7: the disk is full; free some space\n")


def test_unexpected_exceptions_are_not_swallowed(monkeypatch, documents, trainer):
    trainer.run_experiment = trainer.note("run_experiment", ZeroDivisionError("a bug"))
    monkeypatch.setattr(sys, "argv", ["perdure", "run", str(documents / "experiment.yaml")])
    with pytest.raises(ZeroDivisionError):
        cli.main()


@pytest.mark.parametrize(("stopped", "code"), [(KeyboardInterrupt(), 130), (Interrupted(Path("x"), 5, 15), 143)])
def test_an_interrupted_run_says_how_to_go_on(perdure_command, documents, trainer, stopped, code):
    trainer.run_experiment = trainer.note("run_experiment", stopped)
    found, _, err = perdure_command("run", documents / "experiment.yaml")
    folder = trainer.calls[0][1][0].folder
    assert (found, err) == (code, f"interrupted; go on with: perdure run {folder} --resume\n")


@pytest.mark.parametrize(
    ("arguments", "which", "folder"),
    [
        ((), "control", "runs/demo"),
        (("-o", "here"), "control", "here"),
        (("language",), "language", "runs/demo-language"),
    ],
)
def test_demo_prints_the_table_and_the_page(perdure_command, monkeypatch, arguments, which, folder):
    calls = []

    def shown(name):
        def demo(output_dir, progress=True, say=None):
            calls.append((name, output_dir, progress))
            return demos.Shown(["metric", "ppo"], [["reward", "1.0"]], Path("demo/report.html"))

        return demo

    for name in demos.NAMES:
        monkeypatch.setattr(demos, name, shown(name))
    code, out, _ = perdure_command("demo", *arguments)
    assert code == 0
    assert out.splitlines()[-2].split() == ["reward", "1.0"]
    assert out.splitlines()[-1] == "report: demo/report.html"
    assert calls == [(which, Path(folder), True)]


def test_a_demo_of_another_name_is_refused_with_the_nearest(perdure_command):
    code, _, err = perdure_command("demo", "langauge")
    assert code == 2
    assert "did you mean 'language'" in err


def test_dry_runs_show_the_cost_and_write_nothing(perdure_command, documents):
    code, out, _ = perdure_command("sweep", documents / "sweep.yaml", "--dry-run")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()[2:4]] == ["ppo", "dqn"]
    assert out.splitlines()[-1] == "2 run(s), 6,000 environment steps"
    assert not (documents / "out").exists()


def test_a_sweep_is_checked_before_it_starts(perdure_command, documents, trainer):
    trainer.check = trainer.note("check", Refused("algorithm.kwargs.rate is not a key here"))
    code, _, err = perdure_command("sweep", documents / "sweep.yaml")
    assert (code, err) == (2, "error: algorithm.kwargs.rate is not a key here\n")
    assert not (documents / "out").exists()


def test_a_sweep_with_a_failed_run_exits_with_1(perdure_command, documents, trainer, monkeypatch):
    from perdure.harness import executor

    failing = lambda document, resume: [sys.executable, "-c", "import sys; sys.exit('error: no luck')"]
    run_sweep = executor.run_sweep
    monkeypatch.setattr(executor, "run_sweep", lambda config, **options: run_sweep(config, failing, **options))
    code, out, err = perdure_command("sweep", documents / "sweep.yaml")
    assert code == 1
    assert "0 run(s) finished, 2 failed" in out
    assert out.count("exit code 1: error: no luck") == 2
    assert err.count("started (seeds 0 1 2)") == 2


def test_validate_checks_every_run(perdure_command, documents, trainer):
    code, out, _ = perdure_command("validate", documents / "experiment.yaml")
    assert (code, len(trainer.calls)) == (0, 1)
    assert out.startswith(f"OK {documents / 'experiment.yaml'}: cartpole-ppo-")
    code, out, _ = perdure_command("validate", documents / "sweep.yaml")
    assert (code, len(trainer.calls)) == (0, 3)
    assert [line.split()[0] for line in out.splitlines()] == ["OK", "OK"]


@pytest.mark.parametrize("family", ["regimes", "detectors", "rewards", "worlds"])
def test_list_describes_every_name(perdure_command, family):
    from perdure.core import registry

    code, out, _ = perdure_command("list", family)
    assert code == 0
    described = {line.split()[0]: line.split()[1:] for line in out.splitlines()[2:]}
    assert set(described) == set(registry.names(family))
    assert all(described.values())


def test_list_shows_the_fields_of_one_name(perdure_command):
    _, out, _ = perdure_command("list", "rewards", "constant")
    assert ["value", "float", "1.0"] in [line.split() for line in out.splitlines()]
    code, _, err = perdure_command("list", "detectors", "cusm")
    assert code == 2
    assert "did you mean 'cusum'?" in err


def test_eval_prints_rows_or_json(perdure_command, trainer):
    code, out, _ = perdure_command("eval", "run", "--regimes", "a, b", "--episodes", "3")
    assert code == 0
    assert out.splitlines()[-1].split() == ["9", "0", "a", "1.50", "4.00"]
    assert trainer.calls == [("evaluate_run", (Path("run"), ("a", "b"), 3), {})]
    assert json.loads(perdure_command("eval", "run", "--json")[1])[0]["returns"] == [1.0, 2.0]
    assert trainer.calls[-1][1] == (Path("run"), None, 8)


def test_export_names_the_bundle(perdure_command, trainer):
    assert perdure_command("export", "run")[1] == "run/bundle\n"
    assert perdure_command("export", "run", "-o", "there")[1] == "there\n"
    assert [call[1] for call in trainer.calls] == [(Path("run"), Path("run/bundle")), (Path("run"), Path("there"))]


def test_verify_tells_problems_with_exit_code_1(perdure_command, tmp_path, monkeypatch):
    from perdure.harness import export

    monkeypatch.setattr(export, "verify", lambda path: ["policy/actor.npz is altered"])
    assert perdure_command("verify", tmp_path) == (1, "policy/actor.npz is altered\n", "")
    monkeypatch.setattr(export, "verify", lambda path: [])
    assert perdure_command("verify", tmp_path) == (0, f"{tmp_path}: whole and unchanged\n", "")


def test_metrics_reads_anybodys_trace(perdure_command, trace):
    code, out, _ = perdure_command("metrics", trace)
    assert code == 0
    assert out.splitlines()[0].split()[-2:] == ["mine", "theirs"]
    found = json.loads(perdure_command("metrics", trace / "mine", trace / "mine", "--json")[1])
    assert [group["algorithm_id"] for group in found["groups"]] == ["mine"]


def test_metrics_of_nothing_is_an_error(perdure_command, tmp_path):
    code, _, err = perdure_command("metrics", tmp_path / "nowhere")
    assert code == 2
    assert "nowhere" in err


def test_report_and_compare_write_a_page(perdure_command, trace):
    code, out, _ = perdure_command("report", trace)
    assert (code, out) == (0, f"{trace / 'report.html'}\n")
    page = trace / "page.html"
    code, out, _ = perdure_command("compare", trace, "-o", page, "--title", "Calm & storm")
    assert code == 0
    assert "mine > theirs" in out
    assert "Calm &amp; storm" in page.read_text()
