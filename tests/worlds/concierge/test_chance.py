import subprocess
import sys

from perdure.worlds.concierge import chance


def test_numbers_depend_on_every_part_and_their_borders():
    assert chance.number("a", "bc") != chance.number("ab", "c")
    assert chance.number(1, 2) == chance.number("1", "2") != chance.number(2, 1)


def test_draws_are_the_same_under_every_hash_seed():
    code = "from perdure.worlds.concierge.chance import *; d = Draws(3, 'x'); print(number(5), d.bits(), d.below(1000))"
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(runs) == 1


def test_the_stream_is_splitmix64():
    draws = chance.Draws("x")
    draws._state = 1234567
    assert [draws.bits() for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_draws_cover_their_ranges_evenly():
    draws = chance.Draws("even")
    counts = [0] * 6
    for _ in range(6000):
        counts[draws.below(6)] += 1
    assert min(counts) > 880
    assert max(counts) < 1120
    assert {draws.between(10, 20, 5) for _ in range(100)} == {10, 15, 20}
    assert sorted(draws.sample("abcd", 4)) == list("abcd")


def test_weights_are_proportions_and_nothing_else_is_drawn():
    draws = chance.Draws("weights")
    drawn = [draws.weighted({"a": 3.0, "b": 0.0, "c": 1.0}) for _ in range(4000)]
    assert "b" not in drawn
    assert abs(drawn.count("a") / 4000 - 0.75) < 0.03
    assert abs(sum(draws.happens(0.2) for _ in range(4000)) / 4000 - 0.2) < 0.03
