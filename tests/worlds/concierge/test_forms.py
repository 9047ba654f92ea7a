"""Files of vendors: what is refused as the catalogue is built, and that nothing else goes wrong later."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.errors import ConfigError, PerdureError
from perdure.worlds.concierge import catalogue, judge, patterns, tasks
from perdure.worlds.concierge import settings as regimes
from perdure.worlds.concierge.world import Concierge

PAGE = (Path(__file__).parents[3] / "docs" / "concierge.md").read_text(encoding="utf-8")
CINEMA = next(
    text for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if text.startswith('domain = "cinema"')
)
NUMBERS = "numbers = [45]"
FEE = "pattern 'cinema.booking_fee'"


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(text): the catalogue with a file cinema.toml, and what its path is."""
    folder = tmp_path_factory.mktemp("own")
    path = folder / "domains" / "cinema.toml"
    path.parent.mkdir()

    def loaded(text):
        path.write_text(text, encoding="utf-8")
        return catalogue.Catalogue([folder]), path

    loaded.path = path
    return loaded


def test_the_vendor_of_the_page_loads(load):
    made, _ = load(CINEMA)
    assert made.pattern("cinema.booking_fee").numbers == (45,)


def variants(text):
    return f"{NUMBERS}\nvariants = {text}"


def sixty(**fields):
    given = {"id": '"cinema.x"', "swap": '{ "45" = "60" }', **fields}
    return variants("[{ " + ", ".join(f"{name} = {value}" for name, value in given.items() if value) + " }]")


OF_PATTERNS = [
    (NUMBERS, f'{NUMBERS}\nmoved_from = "0"', "moved_from is '0'; it must be a whole number"),
    (NUMBERS, f"{NUMBERS}\nmoved_from = [0]", "moved_from is [0]; it must be a whole number"),
    (NUMBERS, f"{NUMBERS}\nmoved_from = true", "moved_from is True; it must be a whole number"),
    (NUMBERS, f"{NUMBERS}\nmoved_from = 0.5", "moved_from is 0.5; it must be a whole number"),
    (NUMBERS, "numbers = 45", "numbers is 45; it must be a list"),
    (NUMBERS, 'numbers = ["45"]', "numbers[0] is '45'; it must be a whole number"),
    ("from = 1", 'from = "1"', "from is '1'; it must be a whole number"),
    ("to = 2", "to = 0", "to is 0; it must be a whole number, 1 or more"),
    ("from = 1\nto = 2", "from = 2\nto = 1", "to is 1; it must be 2 or one more"),
    ("to = 2", "to = 4", "to is 4; it must be 1 or one more"),
    ("from = 1\nto = 2", "from = 5\nto = 6", "from is 5; a vendor drifts from one of the versions [1]"),
    (NUMBERS, f'{NUMBERS}\ngrace = "2"', "grace is '2'; it must be a whole number from 0 to 16"),
    (NUMBERS, f"{NUMBERS}\ngrace = -1", "grace is -1; it must be a whole number from 0 to 16"),
    (NUMBERS, f"{NUMBERS}\ngraze = 2", "has the unknown key 'graze'; did you mean 'grace'?"),
    (NUMBERS, f"{NUMBERS}\nvarients = []", "has the unknown key 'varients'; known: "),
    (NUMBERS, f'{NUMBERS}\nconsent = "no"', "consent is 'no'; it must be true or false"),
    (NUMBERS, f"{NUMBERS}\nexpires = 1", "expires is 1; it must be true or false"),
    (
        "budget = true }\nnotice",
        "budgte = true }\nnotice",
        "needs has the unknown key 'budgte'; did you mean 'budget'?",
    ),
    ("budget = true }\nnotice", 'budget = "yes" }\nnotice', "needs.budget is 'yes'; it must be true or false"),
    ("needs = { budget = true }", 'needs = { constraint = "buget" }', "needs.constraint is 'buget'; did you mean"),
    (
        "needs = { budget = true }",
        'needs = { prefer = ["lowest:foo"] }',
        "needs.prefer has an entry that is 'foo'; kno",
    ),
    ("needs = { budget = true }", 'needs = { prefer = ["lowest:ticket"] }', "needs: phrases.lowest:ticket has no Eng"),
    ("needs = { budget = true }", "needs = { request = { tikets = 1 } }", "needs.request has a key that is 'tikets'"),
    ("needs = { budget = true }", "needs = { either = [] }", "needs.either is []; it must be a list of 1 or more"),
    ("needs = { budget = true }", 'needs = { not_after = ["cinema.q"] }', "needs.not_after has an entry that is"),
    (
        NUMBERS,
        f'{NUMBERS}\nshows = {{ tools = ["bok"] }}',
        "shows.tools has an entry that is 'bok'; did you mean 'book'",
    ),
    (
        NUMBERS,
        f'{NUMBERS}\nshows = {{ codes = ["MISSING_FEILD"] }}',
        "shows.codes has an entry that is 'MISSING_FEILD'; did you mean 'MISSING_FIELD'",
    ),
    (
        'words = { en = ["booking fee"] }',
        'words = { en = "booking fee" }',
        "words.en is 'booking fee'; it must be a li",
    ),
    ('words = { en = ["booking fee"] }', "words = { }", "words and tell need at least en"),
    ('words = { en = ["booking fee"] }', 'words = { en = ["charge"] }', "tell.en is 'a booking fee of"),
    ("tell = { en =", "tell = { hi =", "words and tell need at least en"),
    ("tell = { en =", "tell = { xx =", "tell has the unknown key 'xx'; known: en, hi"),
    (
        "₹45 a ticket",
        "some rupees",
        "tell.en is 'a booking fee of some rupees now applies'; it must hold the number 45",
    ),
    (NUMBERS, "numbers = [46]", "tell.en is 'a booking fee of"),
    (f"{NUMBERS}", f"{NUMBERS}\nmoved_from = 0\nvariants = 3", "variants is 3; it must be a list"),
    ('type = "pricing"', 'type = "price"', "type is 'price'; did you mean 'pricing'?"),
    ('op = "fee_append"', 'op = "fee_apend"', "patch[0].op is 'fee_apend'; did you mean 'fee_append'?"),
    ('at = "pricing", value', 'at = "pricing", valu', "patch[0] lacks value; give each a value"),
    ('id = "cinema.booking_fee"\n', "", "lacks id; give each a value"),
    (NUMBERS, variants('["x"]'), "variants[0] is 'x'; it must be a table"),
    (NUMBERS, variants('{ id = "cinema.x" }'), "variants is {'id': 'cinema.x'}; it must be a list"),
    (NUMBERS, sixty(swap=""), "variants[0] lacks swap; give each a value"),
    (NUMBERS, sixty(id=""), "variants[0] lacks id; give each a value"),
    (NUMBERS, sixty(notice='"hello"'), "variants[0] has the unknown key 'notice'"),
    (NUMBERS, sixty(swap='{ "45" = 60 }'), "variants[0].swap.45 is 60; it must be a text"),
    (NUMBERS, sixty(swap='{ "45" = "sixty" }'), "swap turns the number 45 into 'sixty'; give digits"),
    (NUMBERS, sixty(swap='{ "" = "60" }'), "swap replaces the empty text; give what is to be replaced"),
    (NUMBERS, sixty(swap='{ "46" = "60" }'), "has the patch of 'cinema.booking_fee'; its swap"),
    (NUMBERS, sixty(id='"airline.x"'), "id is 'airline.x'; it must be 'cinema.' and letters, digits or _"),
    (NUMBERS, sixty(id='"cinema.booking_fee"'), "stands twice; ids are unique"),
]
OF_VENDORS = [
    (
        'tickets = { type = "count", r',
        'tickets = { type = "cuont", r',
        "tools.book.args.tickets.type is 'cuont'; did you",
    ),
    (
        'city = { type = "city" }\ndate',
        'city = { type = "citi" }\ndate',
        "tools.search.args.city.type is 'citi'; did you",
    ),
    (
        'show_id = { type = "id" }',
        'show_id = { type = "offered:x" }',
        "tools.book.args.show_id.type is 'offered:x'; noth",
    ),
    ('test = "at_most"', 'test = "at_moist"', "constraints.budget.test is 'at_moist'; did you mean 'at_most'?"),
    (
        "Get us {tickets}",
        "Get us {tickts}",
        "skeletons.en[0] has a placeholder that is 'tickts'; did you mean 'tickets'?",
    ),
    (
        "Get us {tickets}",
        "Get us seats",
        "skeletons.en[0] is 'Get us seats for a film in {city} {date}, {purpose}.'; it must",
    ),
    (
        "in {city} {date}, {purp",
        "in {city}, {purp",
        "skeletons.en[0] is 'Get us {tickets} for a film in {city}, {purpose}.'",
    ),
    ("{n} tickets", "some tickets", "phrases.tickets.en is 'some tickets'; it must hold {n}, or nobody is told"),
    ("At most {value}", "Not much", "phrases.budget.en is 'Not much in all.'; it must hold {value}, or nobody is told"),
    (
        ', ["rating", "rating"]]',
        "]",
        "template 'cinema.best': 'highest:rating' is a wish about the fact 'rating', which views.offer does not show",
    ),
    (
        '["ticket_inr", "ticket"], ',
        "",
        "template 'cinema.best': 'budget' is a wish about the fact 'total', which views.offer does not show; nobody",
    ),
    ('["rating", "rating"]]', '["ticket_inr", "rating"]]', "views.offer shows 'ticket_inr' twice; give each field a"),
    (
        "patch = [{ op",
        'patch = [{ op = "remove", at = "views.offer", field = "rating" }, { op',
        "after pattern 'cinema.booking_fee': template 'cinema.best': 'highest:rating' is a wish about the fact",
    ),
    ("Get us {tickets}", "Get us {tickets", "skeletons.en[0]: unexpected '{' in field name; write {{"),
    ("Get us {tickets}", "Get us {tickets:d}", "skeletons.en[0] formats {tickets}; give the name alone"),
    ('tickets = { en = "{n} tickets" }\n', "", "phrases.tickets has no English text; add at least en"),
    (
        "{value} in all",
        "{values} in all",
        "phrases.budget.en has a placeholder that is 'values'; did you mean 'value'?",
    ),
    ('kind = "cancel"', 'kind = "cancle"', "tools.cancel.kind is 'cancle'; did you mean 'cancel'?"),
    ("[slots]", '[policies.x]\nkind = "departd"\ncode = "X"\n[slots]', "policies.x.kind is 'departd'; did you mean"),
    (
        "[slots]",
        '[policies.x]\nkind = "departed"\ncode = "X"\n[slots]',
        "policies.x is of kind 'departed'; that needs the",
    ),
    ("low = 120, high = 400", "low = 400, high = 120", "offers.attributes.ticket.low is 400; it must not be above"),
    ("low = 120, high = 400", "low = 120, high = 140", "offers.attributes.ticket is distinct, but low to high by step"),
    ("count = [3, 5]", "count = [5, 3]", "offers.count is [5, 3]; it must be [low, high] of whole numbers"),
    ("count = [3, 5]", "count = [3, 6]", "offers.attributes.starts.times is [10, 13, 16, 19, 22]; give an hour for"),
    ('["ticket_inr", "ticket"]', '["ticket_inr", "tiket"]', "views.offer[2] is 'tiket'; did you mean 'ticket'?"),
    (
        '["ticket_inr", "ticket"]',
        '["ticket_inr", "starts", "paise"]',
        "views.offer[2] is 'starts'; that fact is a moment",
    ),
    ('of = "ticket"', 'of = "tiket"', "pricing[0].of is 'tiket'; did you mean 'ticket'?"),
    ('of = "ticket"', 'of = "starts"', "pricing[0].of is 'starts'; that fact is a moment; it must be a number"),
    ('per = "tickets"\n', 'per = "tickts"\n', "pricing[0].per is 'tickts'; did you mean 'tickets'?"),
    ('per = "tickets"\n', 'if = "early"\n', "pricing[0].if is 'early'; "),
    ('fact = "total"', 'fact = "totl"', "constraints.budget.fact is 'totl'; did you mean 'total'?"),
    ("[[pricing]]", "[[pricng]]", "domain cinema lacks the section pricing"),
    ("[[pricing]]", "extra = 1\n[[pricing]]", "views.extra is 1; it must be a list of 1 or more"),
    ('prefix = "CIN"', 'prefix = "CIN"\npage_sice = 2', "has the unknown key 'page_sice'; did you mean 'page_size'?"),
    ('payment_token = { type = "token" }\n', "", "tools.book: a tool of kind 'book' needs the argument payment_token"),
    ('["booking_id", "booking_id"], ', "", "views.booking[0] is ['show_id', 'id']; a booking must begin with"),
    ('prefer = ["highest:rating"]', "prefer = []", "templates[0].prefer is []; it must be a list of 1 or more"),
    (
        'prefer = ["highest:rating"]',
        'prefer = ["best:rating"]',
        "template 'cinema.best': prefer has an entry that is 'be",
    ),
    ("days = [1, 10]", "days = [1, 10, 2]", "slots.date.days is [1, 10, 2]; it must be [low, high]"),
    ("choice = [2, 3, 4]", 'choice = ["two"]', "slots.tickets.choice has a value that is 'two'; it must be of"),
    (
        'city = { type = "city" }\ndate = { type = "date", d',
        'date = { type = "date", d',
        "tools.search.keys has an entry",
    ),
    ('id = "cinema.best"', 'id = "cinema.best"\nheld_out = "no"', "templates[0].held_out is 'no'; it must be true or"),
    (
        "amount = 45",
        "amout = 45",
        "after pattern 'cinema.booking_fee': pricing[1] has the unknown key 'amout'; did you",
    ),
    (
        'per = "tickets", at',
        'per = "tikets", at',
        "after pattern 'cinema.booking_fee': pricing[1].per is 'tikets'; did",
    ),
]


def refused(load, old, new):
    assert old in CINEMA, "the fault can be made"
    with pytest.raises(ConfigError) as caught:
        load(CINEMA.replace(old, new, 1))
    text = str(caught.value)
    assert len(text.splitlines()) <= 2
    assert text.startswith(str(load.path))
    return re.sub("^:? ", "", text.removeprefix(str(load.path)))


@pytest.mark.parametrize(("old", "new", "said"), OF_PATTERNS)
def test_a_wrong_entry_of_a_pattern_is_refused_by_name(load, old, new, said):
    text = refused(load, old, new)
    assert re.sub(r"^pattern ('cinema\.\w+'|'airline\.x'|None):? ", "", text).startswith(said)


@pytest.mark.parametrize(("old", "new", "said"), OF_VENDORS)
def test_a_wrong_entry_of_a_vendor_is_refused_by_name(load, old, new, said):
    assert refused(load, old, new).startswith(said)


def test_a_pattern_is_named_by_its_id(load):
    assert refused(load, NUMBERS, f'{NUMBERS}\nmoved_from = "0"') == (
        f"{FEE}: moved_from is '0'; it must be a whole number, 0 or more"
    )


def test_a_patch_without_the_number_that_is_told_is_refused(load):
    text = CINEMA.replace(NUMBERS, f"{NUMBERS}\nmoved_from = 0").replace("amount = 45", "amount = 50")
    with pytest.raises(ConfigError, match="patch does not hold the number 45 of `numbers`"):
        load(text)


def test_a_number_with_commas_needs_a_swap_of_its_own(load):
    text = CINEMA.replace("₹45", "₹1,200").replace("amount = 45", "amount = 1200")
    wanted = 'numbers = [1200]\nvariants = [{ id = "cinema.x", swap = { "1200" = "1500" } }]'
    short = text.replace(NUMBERS, wanted)
    with pytest.raises(ConfigError, match=r"'cinema\.x': tell\.en is 'a booking fee of ₹1,200"):
        load(short)
    made, _ = load(short.replace('"1200" = "1500"', '"1200" = "1500", "1,200" = "1,500"'))
    assert "₹1,500" in made.pattern("cinema.x").tell["en"]


def test_swaps_are_made_at_once_and_leave_versions_and_the_number_before_alone():
    entry = {"from": 45, "to": 45, "grace": 45, "moved_from": 45, "numbers": [45], "notice": "45 and 60, not 145"}
    made = patterns.varied(entry, {"45": "60", "60": "75"}, "x", "here")
    kept = {"from": 45, "to": 45, "grace": 45, "moved_from": 45}
    assert made == {**kept, "numbers": [60], "notice": "60 and 75, not 145", "id": "x"}


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 200),
    st.sampled_from([10**12, 0.5, float("inf")]),
    st.sampled_from(
        ["", "x", "{n}", "{", "45", "id", "city", "total", "count", "2026-05-01", "items", "menu", "search"]
    ),
    st.lists(st.sampled_from([0, 1, "x", True]), max_size=2),
    st.dictionaries(st.sampled_from(["en", "type", "x"]), st.sampled_from([1, "city", "x"]), max_size=2),
)


@st.composite
def mutations(draw, whole, top=False):
    """A copy of a document with one value replaced, or one key dropped or renamed."""
    if not isinstance(whole, (dict, list)) or not whole or (not top and draw(st.integers(0, 9)) == 0):
        return draw(VALUES)
    names = list(whole) if isinstance(whole, dict) else list(range(len(whole)))
    at = draw(st.sampled_from(names))
    way = draw(st.sampled_from(["below", "below", "below", "below", "drop", "rename"]))
    if isinstance(whole, list):
        rest = [whole[at]] if way != "drop" else []
        changed = [draw(mutations(rest[0]))] if way == "below" else rest
        return [*whole[:at], *changed, *whole[at + 1 :]]
    if way == "below":
        return {**whole, at: draw(mutations(whole[at]))}
    rest = {name: value for name, value in whole.items() if name != at}
    return rest if way == "drop" else {**rest, draw(st.sampled_from([f"{at}x", "type", "date", "x"])): whole[at]}


WITH_MORE = CINEMA.replace(
    NUMBERS,
    f'{NUMBERS}\nmoved_from = 0\ngrace = 1\nvariants = [{{ id = "cinema.booking_fee_60", swap = {{ "45" = "60" }} }}]',
)


@settings(max_examples=150)
@given(st.data())
def test_one_change_of_a_file_loads_or_is_refused_and_what_loads_poses_a_task_or_says_why_not(load, data):
    changed = data.draw(mutations(tomllib.loads(WITH_MORE), top=True))
    with pytest.MonkeyPatch.context() as patched:
        read = catalogue._parsed
        patched.setattr(catalogue, "_parsed", lambda path: ("", changed) if path == load.path else read(path))
        patched.setattr(tasks, "MOST_ATTEMPTS", 12)
        load.path.touch()
        try:
            made = catalogue.Catalogue([load.path.parents[1]])
        except ConfigError:
            return
        for params in ({"stage": 2, "drift": 1}, {"stage": 1}):
            try:
                chosen = {"language_en": 1, **{f"domain_{name}": 1 for name in made.consumers if name == "cinema"}}
                own = {f"pattern_{name.replace('.', '_')}": 1 for name in made.patterns if name.startswith("cinema")}
                tasks.generated(made, 1_000_000, regimes.settings(made, {**params, **chosen, **own}))
            except PerdureError:
                continue


def test_the_codes_that_no_file_says_are_those_of_the_sources():
    sources = [path.read_text(encoding="utf-8") for path in Path(judge.__file__).parent.glob("*.py")]
    said = {code for text in sources for code in re.findall(r'Refusal\(\s*"\w+",\s*"([A-Z_]+)"', text)}
    assert said | {"MISSING_FIELD", "TIMEOUT"} == set(judge.ANYWHERE)


def test_a_file_may_begin_with_a_mark_of_its_encoding(load):
    made, _ = load("\ufeff" + CINEMA)
    assert made.pattern("cinema.booking_fee").numbers == (45,)


def test_a_world_made_after_its_file_was_changed_has_the_change(load):
    load(CINEMA)
    folder = str(load.path.parents[1])
    before = Concierge(data=[folder])
    load.path.write_text(CINEMA.replace("amount = 45", "amount = 46").replace("45", "46"), encoding="utf-8")
    after = Concierge(data=[folder])
    assert after.catalogue.pattern("cinema.booking_fee").numbers == (46,)
    assert before.describe_run() != after.describe_run() == {"data": after.catalogue.hash}
    assert Concierge(data=[folder]).catalogue is after.catalogue


AMONG_OTHERS = [
    ({"stage": 1}, 'request = "tickets"', 'request = "tikets"', "the oracle fails "),
    ({"stage": 1}, "low = 120, high = 400", "low = -400, high = -120", "no offer fulfils the wishes"),
    ({"stage": 2}, 'notice = "A booking fee of 45 INR per ticket now applies."', "", "a drift shows itself to nobody"),
    ({"stage": 2}, "amount = 45", "amount = 0", "no offer fulfils the wishes, or no budget makes the drifts decide"),
]


@pytest.mark.parametrize(("params", "old", "new", "why"), AMONG_OTHERS)
def test_a_vendor_or_pattern_that_is_never_posed_is_refused_among_others_too(load, params, old, new, why):
    assert old in CINEMA
    load(CINEMA.replace(old, new))
    with pytest.raises(ConfigError, match=rf"vendors cinema, patterns .*: in \d+ of them {why}"):
        Concierge({**params, "language_en": 1}, data=[str(load.path.parents[1])])
    load(CINEMA)
    Concierge({**params, "language_en": 1}, data=[str(load.path.parents[1])])


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"data": "shows"}, r"data is 'shows'; give a list of folders: \['shows'\]"),
        ({"data": None}, r"data is None; give a list of folders"),
        ({"data": 3}, r"data is 3; give a list of folders"),
        ({"params": ["stage"]}, r"params is \['stage'\]; give names with numbers"),
    ],
)
def test_a_world_says_what_data_and_params_are(kwargs, said):
    with pytest.raises(ConfigError, match=said):
        Concierge(**kwargs)


def test_a_folder_named_as_a_file_is_refused(tmp_path):
    (tmp_path / "domains" / "x.toml").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"x\.toml cannot be read: "):
        catalogue.Catalogue([tmp_path])
