import json
import math

import pytest

from perdure.core.errors import ConfigError, DataError, PerdureError, RunFailed
from perdure.harness.collector import RolloutCollector
from perdure.worlds.adapters.gymnasium import make
from perdure.worlds.adapters.reward_function import RewardWorld

ROWS = [{"prompt": f"{n} squared?", "answer": str(n * n), "level": n % 2} for n in range(10)]


def exact(prompts, completions, answer, **others):
    assert len(prompts) == len(completions) == len(answer) == 1
    return [float(said == right) for said, right in zip(completions, answer, strict=True)]


def brevity(completions):
    return [-float(len(said)) for said in completions]


def numbers_only(completions, **others):
    return [1.0 if said.isdigit() else None for said in completions]


def seen(world, count=30):
    return [world.reset(seed=0)[0], *(world.reset()[0] for _ in range(count))]


def test_one_function_over_rows():
    world = RewardWorld(exact, ROWS)
    observation, _ = world.reset(seed=3)
    right = next(row["answer"] for row in ROWS if row["prompt"] == observation)
    assert world.step(right) == ("", 1.0, True, False, {"reward_components": {"exact": 1.0}})
    world.reset(seed=3)
    assert world.step("no")[1] == 0


def test_several_functions_are_weighted_and_told_apart():
    world = RewardWorld([exact, brevity, exact], ROWS, weights=[2, 0.5, 1])
    world.reset(options={"task": {"index": 3}})
    _, reward, *_, info = world.step("9")
    assert reward == pytest.approx(2 * 1 - 0.5 * 1 + 1)
    assert info["reward_components"] == {"exact_0": 2.0, "brevity": -0.5, "exact_2": 1.0}


def test_none_does_not_apply_and_only_none_is_missing():
    both = RewardWorld([numbers_only, brevity], ROWS)
    both.reset(seed=0)
    assert both.step("nine")[1] == -4
    alone = RewardWorld(numbers_only, ROWS)
    alone.reset(seed=0)
    assert math.isnan(alone.step("nine")[1])
    alone.reset(seed=0)
    assert alone.step("9")[1] == 1


def test_messages_make_completions_of_messages_and_texts_of_text():
    found = []

    def keep(prompts, completions):
        found.append((prompts, completions))
        return [0.0]

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    world = RewardWorld(keep, [{"prompt": messages}, {"prompt": messages[1:]}, {"prompt": "Hi"}])
    told = [world.reset(options={"task": {"index": index}})[0] for index in range(3) if world.reset(seed=0)]
    assert told == ["system: Be brief.\nuser: Hi", "Hi", "Hi"]
    for index in range(3):
        world.reset(options={"task": {"index": index}})
        world.step({"a": 1} if index == 2 else "Yes")
    assistant = [[{"role": "assistant", "content": "Yes"}]]
    assert found == [([messages], assistant), ([messages[1:]], assistant), (["Hi"], ['{"a": 1}'])]


def test_an_awaited_function_counts_too():
    async def later(completions):
        return [0.25]

    world = RewardWorld(later, ROWS)
    world.reset(seed=0)
    assert world.step("x")[1] == 0.25


def test_rows_come_by_seed_and_every_row_comes():
    assert seen(RewardWorld(exact, ROWS)) == seen(RewardWorld(exact, ROWS))
    assert set(seen(RewardWorld(exact, ROWS), 200)) == {row["prompt"] for row in ROWS}


def test_a_regime_chooses_rows_by_their_columns():
    world = RewardWorld(exact, ROWS)
    world.set_regime({"level": 1.0})
    assert set(seen(world, 100)) == {row["prompt"] for row in ROWS if row["level"] == 1}
    world.set_regime({})
    assert set(seen(world, 200)) == {row["prompt"] for row in ROWS}
    with pytest.raises(ConfigError, match=r"no row has \{'level': 7\}"):
        world.check_regime({"level": 7})
    assert len(set(seen(world, 200))) == 10


def test_a_fork_and_a_state_go_on_from_the_same_place():
    world = RewardWorld(exact, ROWS)
    world.set_regime({"level": 1})
    world.reset(seed=5)
    fork, other = world.fork(), RewardWorld(exact, ROWS)
    other.set_state(json.loads(json.dumps(world.get_state())))
    fork.step("x")
    fork.set_regime({})
    assert world.step("x")[1] == other.step("x")[1] == 0
    assert [world.reset()[0] for _ in range(9)] == [other.reset()[0] for _ in range(9)]
    with pytest.raises(DataError, match="of 10 rows, not of 1"):
        RewardWorld(exact, ROWS[:1]).set_state(world.get_state())


@pytest.mark.parametrize("returned", [1.0, [1.0, 2.0], [], ["high"], None, [[1.0]]])
def test_a_function_that_breaks_its_contract_is_named(returned):
    def wrong(completions):
        return returned

    world = RewardWorld(wrong, ROWS)
    world.reset(seed=0)
    with pytest.raises(RunFailed, match=r"the reward function wrong returned .* a list with one number or None"):
        world.step("x")


def test_a_function_that_raises_fails_the_run_with_its_place():
    def broken(completions):
        raise KeyError("gold")

    policy = type("Says", (), {"act": lambda self, observation: "x"})()
    collector = RolloutCollector(RewardWorld(broken, ROWS), policy, 4, seed=0)
    with pytest.raises(RunFailed, match=r"step 0, environment 0 .* raised KeyError: 'gold'"):
        collector.collect(1)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((exact, []), DataError, "rows is empty"),
        ((exact, [{"question": "?"}]), DataError, "row 0 has no 'prompt'"),
        ((exact, [{"prompt": [{"role": "user"}]}]), DataError, "is no message"),
        ((exact, [{"prompt": "?"}]), ConfigError, "exact needs 'answer'"),
        ((lambda completion_ids: [0.0], ROWS), ConfigError, "needs 'completion_ids'"),
        (([], ROWS), ConfigError, "rewards is empty"),
        (([exact], ROWS, [1, 2]), ConfigError, "weights are"),
        (([exact], ROWS, [float("nan")]), ConfigError, "weights are"),
        (([3], ROWS), ConfigError, "3 is no function"),
        ((exact, "nowhere.jsonl"), DataError, "nowhere.jsonl cannot be read"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        RewardWorld(*arguments)


def test_rows_from_a_file_and_functions_by_name(tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "paid.py").write_text(
        "def exact(completions, answer, **_):\n    return [float(completions[0] == answer[0])]\n\n"
        "def rows():\n    return [{'prompt': 'one', 'answer': '1'}]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    name = "perdure.worlds.adapters.reward_function:RewardWorld"
    world = make(name, {"rewards": "paid:exact", "rows": str(tmp_path / "rows.jsonl")})
    world.reset(options={"task": {"index": 4}})
    assert world.step("16")[1] == 1
    short = make(name, {"rewards": ["paid:exact"], "rows": "paid:rows", "weights": [3]})
    short.reset(seed=0)
    assert short.step("1")[1] == 3
    (tmp_path / "rows.jsonl").write_text('{"prompt": "?"}\n{')
    with pytest.raises(DataError, match="line 2 is no JSON"):
        RewardWorld(brevity, tmp_path / "rows.jsonl")


def test_a_step_needs_an_open_question():
    world = RewardWorld(exact, ROWS)
    with pytest.raises(PerdureError, match="call reset"):
        world.step("x")
    world.reset(seed=0)
    world.step("x")
    with pytest.raises(PerdureError, match="call reset"):
        world.step("x")
    for task in ({"index": 10}, {"index": -1}, {}, 3):
        with pytest.raises(ConfigError, match="the task is"):
            world.reset(options={"task": task})
