"""The store of sessions: whole ids, the cap, idleness by a clock that the test holds."""

import asyncio

import pytest

pytest.importorskip("openenv")
from perdure.serving.refusals import Refusal
from perdure.serving.sessions import MOST_REMEMBERED, MOST_REPLIES, Session, Sessions, named


class Room:
    """An environment that can be closed."""

    closed = False

    def close(self):
        self.closed = True


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Colliding(str):
    """A text whose hash is that of every other one."""

    def __hash__(self):
        return 7


def refused(call, *arguments):
    with pytest.raises(Refusal) as caught:
        call(*arguments)
    return caught.value.code


def test_ids_with_one_hash_or_one_beginning_share_nothing():
    store = Sessions(Room, Clock(), most=100)
    ids = [Colliding(f"{'a' * 60}{number}") for number in range(50)] + [Colliding("a" * n) for n in range(1, 51)]
    opened = [store.opened(name) for name in ids]
    assert len({id(session.environment) for session in opened}) == 100
    assert [store.found(name) for name in ids] == opened
    store.close(ids[0])
    assert not any(session.environment.closed for session in opened[1:])


def test_a_session_ends_after_its_idle_time_and_not_before():
    clock = Clock()
    store = Sessions(Room, clock, idle=10)
    one, two = store.opened("one"), store.opened("two")
    clock.now = 9.9
    assert store.found("one") is one
    clock.now = 10.0
    assert refused(store.found, "two") == "session_expired"
    assert (one.environment.closed, two.environment.closed, len(store)) == (False, True, 1)
    assert refused(store.found, "three") == "session_not_found"
    assert store.opened("two") is not two
    store.close("two")
    assert refused(store.found, "two") == "session_not_found"


def test_a_session_at_work_is_not_idle():
    clock = Clock()
    store = Sessions(Room, clock, idle=10)
    session = store.opened("one")

    async def work():
        async with session.lock:
            clock.now = 1000
            store.sweep()
            assert len(store) == 1
        store.sweep()
        assert len(store) == 0

    asyncio.run(work())


def test_idle_sessions_make_room_and_busy_ones_do_not():
    clock = Clock()
    store = Sessions(Room, clock, most=2, idle=10)
    store.opened("one")
    clock.now = 5
    store.opened("two")
    assert refused(store.opened, "three") == "max_sessions"
    clock.now = 10
    store.opened("three")
    assert refused(store.found, "one") == "session_expired"
    assert store.found("two")


def test_what_is_remembered_of_expired_sessions_is_bounded():
    clock = Clock()
    store = Sessions(Room, clock, most=10**6, idle=1)
    for number in range(MOST_REMEMBERED + 1):
        store.opened(str(number))
    clock.now = 1
    assert refused(store.found, "1") == "session_expired"
    assert refused(store.found, "0") == "session_not_found"


def test_a_session_keeps_its_last_answers():
    session = Session(Room())
    for number in range(MOST_REPLIES + 1):
        session.remember(str(number), b"a", {"turn": number})
    assert session.reply("0", b"a") is None
    assert session.reply("1", b"a") == {"turn": 1}
    assert refused(session.reply, "1", b"b") == "invalid_action"
    session.forget()
    assert session.reply("1", b"b") is None


@pytest.mark.parametrize("name", ["a", "A-z_9", "x" * 64])
def test_ids_that_have_the_shape(name):
    assert named(name) == name


@pytest.mark.parametrize("name", [None, "", "x" * 65, "a b", "a\n", "é", "a.b"])
def test_ids_that_have_not(name):
    assert refused(named, name) == "missing_session_id"
