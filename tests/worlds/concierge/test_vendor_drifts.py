"""What the particular vendors do before and after their drifts, by worked calls."""

import itertools

from perdure.worlds.concierge import offers
from perdure.worlds.concierge.vendors import Vendors

TRIP = {"from": "BLR", "to": "DEL", "date": "2026-05-09"}
RIDE = {"pickup": "mall", "drop": "airport", "pickup_time_ist": "2026-05-02T08:00"}


def ask(vendors, name, turn=1, **arguments):
    return vendors.call(name, arguments, turn)


def token(vendors, version=1):
    return ask(vendors, "payment.get_token", requested_scope=f"payments:write:v{version}").response["payment_token"]


def error(result):
    return result.status, dict(result.response)


def flights(vendors):
    return ask(vendors, "airline.search", **TRIP).response["results"]


def test_cab_classes_school_hours_and_the_breakdown_that_adds_up(vendors):
    shop = vendors()
    unavailable = {"error_code": "VEHICLE_CLASS_UNAVAILABLE", "available": ["mini", "sedan"]}
    assert error(ask(shop, "cab.estimate", **RIDE, vehicle_class="suv")) == ("policy_error", unavailable)
    shop.drift("cab.school_hours_mini_reject")
    refused = {"error_code": "SCHOOL_HOURS_MINI_REJECTED", "available": ["sedan"]}
    assert error(ask(shop, "cab.book", **RIDE, vehicle_class="mini", payment_token=token(shop))) == (
        "policy_error",
        refused,
    )
    late = {**RIDE, "pickup_time_ist": "2026-05-02T09:00"}
    assert ask(shop, "cab.book", **late, vehicle_class="mini", payment_token=token(shop)).status == "ok"
    newer = vendors(cab=2)
    newer.drift("cab.fare_breakdown")
    view = ask(newer, "cab.estimate", **RIDE, vehicle_class="suv").response
    assert sum(view["fare_breakdown"].values()) == view["total_inr"]
    assert set(view["fare_breakdown"]) == {"base", "surge", "tolls", "gst"}


def test_a_stay_costs_nights_and_tax_and_early_arrival_half_a_night(vendors):
    stay = {"checkin": "2026-05-10", "checkout": "2026-05-13"}
    shop = vendors()
    rows = ask(shop, "hotel.search", city="PNQ", **stay).response["results"]
    row = next(row for row in rows if not row["early_checkin_free"])
    total = 3 * row["nightly_rate"] + (3 * row["nightly_rate"] * 18 + 50) // 100
    assert row["total_with_tax"] == total
    call = {"hotel_id": row["hotel_id"], **stay, "payment_token": token(shop), "arrival_time": "09:00"}
    shop.drift("hotel.early_checkin_tnc")
    assert ask(shop, "hotel.book", **call).response["total_with_tax"] == total + (row["nightly_rate"] + 1) // 2
    backwards = {**call, "checkin": "2026-05-13", "checkout": "2026-05-10"}
    assert error(ask(shop, "hotel.book", **backwards)) == (
        "policy_error",
        {"error_code": "INVALID_STAY", "field_name": "checkout"},
    )


def test_a_tax_number_is_asked_for_above_the_threshold_with_the_total(vendors):
    shop = vendors(hotel=2)
    stay = {"checkin": "2026-05-10", "checkout": "2026-05-14"}
    rows = ask(shop, "hotel.search", city="PNQ", **stay).response["results"]
    row = next(row for row in rows if row["total_with_tax"] > 7500)
    shop.drift("hotel.gst_field")
    call = {"hotel_id": row["hotel_id"], **stay, "payment_token": token(shop)}
    extras = {"field_name": "gst_number", "gst_threshold_inr": 7500, "computed_total_inr": row["total_with_tax"]}
    assert error(ask(shop, "hotel.book", **call)) == ("schema_error", {"error_code": "MISSING_GST_NUMBER", **extras})
    assert ask(shop, "hotel.book", **call, gst_number="29ABCDE1234F1Z5").status == "ok"


def test_orders_need_known_dishes_a_minimum_and_after_the_drift_modifiers(vendors):
    shop = vendors(restaurant=2)
    row = ask(shop, "restaurant.search", city="BLR").response["results"][0]
    dish = row["menu"][0]
    call = {"restaurant_id": row["restaurant_id"], "payment_token": token(shop)}
    small = error(ask(shop, "restaurant.order", **call, items=[{"dish_id": dish["dish_id"], "qty": 1}]))
    assert small == (
        "policy_error",
        {"error_code": "MIN_ORDER_NOT_MET", "min_order_inr": 299, "got_total_inr": dish["price_inr"]},
    )
    missing = error(ask(shop, "restaurant.order", **call, items=[{"dish_id": "pizza", "qty": 1}]))
    assert missing[1] == {"error_code": "DISH_UNAVAILABLE", "missing": ["pizza"]}
    shop.drift("restaurant.items_shape_bump")
    enough = {"dish_id": dish["dish_id"], "qty": 5}
    assert error(ask(shop, "restaurant.order", **call, items=[enough])) == (
        "schema_error",
        {"error_code": "INVALID_ITEMS_SHAPE", "field_name": "items"},
    )
    made = ask(shop, "restaurant.order", **call, items=[{**enough, "modifiers": []}])
    assert made.response["total"] == 5 * dish["price_inr"] + row["delivery_inr"]
    tracked = ask(shop, "restaurant.track", order_id=made.response["order_id"]).response
    assert tracked["items"] == [{**enough, "modifiers": []}]


def test_vegetarian_kitchens_serve_egg_until_the_drift(vendors):
    shop = vendors(restaurant=2)
    kitchens = [
        row
        for city in ("BLR", "DEL", "PNQ", "GOI")
        for row in ask(shop, "restaurant.search", city=city, veg_only=True).response["results"]
    ]
    diets = {dish["diet"] for row in kitchens for dish in row["menu"]}
    assert diets == {"veg", "egg"}
    shop.drift("restaurant.veg_filter_semantic")
    kitchens = [
        row
        for city in ("BLR", "DEL", "PNQ", "GOI")
        for row in ask(shop, "restaurant.search", city=city, veg_only=True).response["results"]
    ]
    assert {dish["diet"] for row in kitchens for dish in row["menu"]} == {"veg"}


def test_pages_hold_two_and_lead_to_all(vendors):
    stay = {"city": "PNQ", "checkin": "2026-05-10", "checkout": "2026-05-11"}
    shop = vendors()
    names = [row["rating"] for row in ask(shop, "hotel.search", **stay).response["results"]]
    shop.drift("hotel.pages")
    seen, page = [], 1
    while page:
        answer = ask(shop, "hotel.search", **stay, page=page).response
        assert len(answer["results"]) <= 2
        seen += [row["rating"] for row in answer["results"]]
        page = answer.get("next_page", 0)
    assert seen == names


def test_limits_and_outages_pass(vendors):
    shop = vendors()
    ask(shop, "cab.estimate", turn=1, **RIDE, vehicle_class="sedan")
    shop.drift("cab.rate_limit")
    call = {**RIDE, "vehicle_class": "sedan", "payment_token": token(shop)}
    waits = [error(ask(shop, "cab.book", turn=turn, **call))[1].get("retry_after_turns") for turn in (3, 4, 5)]
    assert waits == [3, 2, 1]
    assert ask(shop, "cab.book", turn=6, **call).status == "ok"


def test_a_decoy_outage_swallows_one_call_and_changes_nothing(vendors):
    shop = vendors(failing=("book",))
    call = {"flight_id": flights(shop)[0]["flight_id"], "payment_token": token(shop)}
    late = ask(shop, "airline.book", **call)
    assert error(late) == ("timeout", {"error_code": "TIMEOUT"})
    assert 5000 <= late.latency_ms <= 7000
    assert shop.bookings == {}
    assert ask(shop, "airline.book", **call).status == "ok"


def test_one_call_in_128_times_out_and_a_retry_is_another_draw(vendors, data):
    shop = Vendors(data, 11, "2026-05-01T10:00", {}, {}, "1")
    results = [ask(shop, "airline.search", **TRIP) for _ in range(4000)]
    late = [result.status == "timeout" for result in results]
    assert 12 <= sum(late) <= 55
    assert not all(later for here, later in itertools.pairwise(late) if here)
    assert all(50 <= result.latency_ms <= 400 for result in results if result.status == "ok")


def test_listings_do_not_depend_on_what_else_was_asked(vendors, data):
    shop = vendors()
    ask(shop, "airline.search", **{**TRIP, "to": "COK"})
    assert flights(shop) == flights(vendors())
    spec = data.domains["airline"]["offers"]
    assert offers.listing(spec, "airline", 1, TRIP) != offers.listing(spec, "airline", 2, TRIP)
    assert len(offers.listing(spec, "airline", 1, TRIP, most=3)) == 3
