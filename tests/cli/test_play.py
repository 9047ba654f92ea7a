"""perdure play concierge: from a pipe, in a terminal, and with the oracle at the keys."""

import io
import subprocess
import sys

import pytest

from perdure.cli import play
from perdure.core.errors import ConfigError
from perdure.worlds.concierge.world import Concierge


@pytest.fixture
def typed(perdure_command, monkeypatch):
    """Play with these lines on standard input: lines, options -> what was printed."""

    def run(lines, *options):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        code, out, err = perdure_command("play", "concierge", *options)
        assert (code, err) == (0, "")
        return out

    return run


@pytest.fixture(scope="module")
def tools():
    world = Concierge()
    world.reset(seed=0)
    named = {play._name(each["function"]["name"], world): each["function"] for each in world.tools()}
    return {name: tool for name, tool in named.items() if "." in name}


def test_from_a_real_pipe():
    command = [sys.executable, "-m", "perdure", "play", "concierge", "--seed", "3", "--language", "en"]
    given = "say Hello.\nairline.search from=CCU to=AMD date=2026-05-13\nsubmit 0.25\n"
    finished = subprocess.run(command, input=given.encode(), capture_output=True)
    out = finished.stdout.decode()
    assert (finished.returncode, finished.stderr) == (0, b"")
    assert "Kolkata to Ahmedabad" in out
    assert "airline.search: ok" in out
    assert "Not done (submit)" in out
    assert "\x1b" not in out


def test_a_terminal_without_a_script_and_no_input_at_all():
    command = [sys.executable, "-m", "perdure", "play", "concierge", "--seed", "4", "--language", "ta"]
    finished = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command], env={"PYTHONIOENCODING": "ascii"}, capture_output=True
    )
    assert (finished.returncode, finished.stderr) == (0, b"")
    assert b"User (ta): ???" in finished.stdout
    assert finished.stdout.endswith(b"You left; the errand has no score.\n")


def test_what_is_typed_is_what_the_world_is_told(typed):
    world = Concierge({"stage": 2})
    world.reset(seed=3)
    lines, over = [], False
    while not over:
        lines.append(world.expert())
        _, reward, over, _, info = world.step(lines[-1])
    out = typed(lines, "--seed", 3)
    assert reward == 1.0
    assert f"Drifts: {info['trace']['drifts'][0]}" in out
    assert "reward" in out.splitlines()[-2]
    assert "1.000" in out.splitlines()[-2]


def test_the_oracle_does_it(typed):
    out = typed([], "--seed", 3, "--stage", 3, "--oracle")
    assert "Done (submit)" in out
    assert '> {"tool": ' in out


def test_help_and_slips_cost_no_turn(typed):
    out = typed(
        ["?", "? airline.search", "? airline.fly", "", "fly", "submit", "submit much", "report airline"], "--seed", 3
    )
    assert out.count("Turns left") == 1
    assert "airline.search from=BLR" in out
    assert 'from: {"type": "string"' in out
    assert "There is no tool 'airline.fly'" in out
    assert "'fly' is no action" in out
    assert out.count("takes something else") == 3
    assert out.endswith("You left; the errand has no score.\n")


def test_json_that_is_no_action_costs_the_turn(typed):
    out = typed(['{"fly": 1}', "quit", "abort"], "--seed", 3)
    assert "Invalid action: no action was found in the object" in out
    assert "Turns left: 11" in out
    assert "You left" in out


def test_brackets_are_no_markup(typed):
    assert "There is no tool '[/nothing]'" in typed(["? [/nothing]", "abort"], "--seed", 3)


@pytest.mark.parametrize("language", ["hi", "ta", "kn", "en", "hinglish"])
def test_the_user_speaks_as_is_asked_for(typed, language):
    assert f"User ({language}): " in typed([], "--seed", 1, "--language", language)


def test_a_seed_is_drawn_and_told(typed):
    first = typed([])
    seed = first.split()[1].rstrip(",")
    assert typed([], "--seed", seed) == first


def test_languages_that_there_are_not(refusal):
    assert refusal("play", "concierge", "--language", "hinglis") == "--language is 'hinglis'; did you mean 'hinglish'?"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("say Hi there", '{"say": "Hi there"}'),
        ("ask  Which day?", '{"ask": "Which day?"}'),
        ("probe hotel", '{"probe": "hotel"}'),
        ("report hotel tnc", '{"report": "hotel", "kind": "tnc"}'),
        ("submit .5", '{"submit": 0.5}'),
        ("submit 1", '{"submit": 1.0}'),
        ("abort", '{"abort": true}'),
        ('{"x":', '{"x":'),
        ("airline.search", '{"tool": "airline.search", "args": {}}'),
        (
            "airline.search from=BLR max_price_inr=5000 note=a b=c",
            '{"tool": "airline.search", "args": {"from": "BLR", "max_price_inr": 5000, "note": "a", "b": "c"}}',
        ),
        ("airline.book mfa_code=123456", '{"tool": "airline.book", "args": {"mfa_code": "123456"}}'),
        (
            'cafe.order items=[{"dish_id": "x", "qty": 1}] cafe_id=R-1 and more',
            '{"tool": "cafe.order", "args": {"items": [{"dish_id": "x", "qty": 1}], "cafe_id": "R-1 and more"}}',
        ),
    ],
)
def test_short_forms(line, said, tools):
    tools = {**tools, "cafe.order": {"parameters": {"properties": {"cafe_id": {"type": "string"}}}}}
    assert play.meant(line, tools) == said


@pytest.mark.parametrize(
    "line",
    [
        *("say", "submit", "submit -1", "submit nan", "submit 2", "submit 1.5", "abort now", "report x"),
        *("report airline bogus", "report bogus tnc", "probe bogus"),
        *("airline.search BLR", "airline.search from=BLR from=DEL"),
    ],
)
def test_short_forms_that_are_none(line, tools):
    with pytest.raises(ConfigError):
        play.meant(line, tools)


def test_the_command_has_help_with_an_example(perdure_command):
    code, out, _ = perdure_command("play", "concierge", "--help")
    assert code == 0
    assert "perdure play concierge --seed" in out.split("Examples", 1)[1]
