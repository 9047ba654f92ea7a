"""What vendors answer: worked calls, error codes with exactly their extras, and no half-done write."""

import pytest

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


def test_a_search_answers_with_several_flights_of_the_day_and_is_repeatable(vendors):
    found = flights(vendors())
    assert 3 <= len(found) <= 8
    assert found == flights(vendors())
    assert all(row["depart"].startswith("2026-05-09T") and row["depart"].endswith("+05:30") for row in found)
    assert len({row["flight_id"] for row in found}) == len(found)
    assert found != ask(vendors(), "airline.search", **{**TRIP, "to": "GOI"}).response["results"]


def test_filters_are_kept(vendors):
    shop = vendors()
    limit = sorted(row["price"] for row in flights(shop))[1]
    cheap = ask(shop, "airline.search", **TRIP, max_price_inr=limit).response["results"]
    assert [row["price"] <= limit for row in cheap] == [True, True]
    assert ask(shop, "airline.search", **TRIP, max_price_inr=1).response == {"results": []}
    early = ask(shop, "airline.search", **TRIP, time_window="morning").response["results"]
    assert all(5 <= int(row["depart"][11:13]) < 12 for row in early)


def test_flights_of_the_past_are_not_shown_and_not_sold(vendors):
    now = "2026-05-09T13:00"
    shop = vendors(now=now)
    assert all(row["depart"][:16] >= now for row in flights(shop))


def test_a_booking_charges_and_a_cancellation_gives_back(vendors):
    shop = vendors()
    flight, key = flights(shop)[0], token(shop)
    made = ask(shop, "airline.book", flight_id=flight["flight_id"], payment_token=key, passenger_count=2)
    assert made.status == "ok"
    assert made.response["price"] == 2 * flight["price"]
    assert made.response["seats_confirmed"] == 2
    (charge,) = shop.payments.charges.values()
    assert (charge.amount, charge.refunded) == (2 * flight["price"], 0)
    name = made.response["booking_id"]
    assert ask(shop, "airline.get_booking", booking_id=name).response["cancelled"] is False
    assert ask(shop, "airline.cancel", booking_id=name).response["refund_inr"] == charge.amount
    assert shop.standing() == []
    assert next(iter(shop.payments.charges.values())).refunded == charge.amount
    assert error(ask(shop, "airline.cancel", booking_id=name)) == (
        "policy_error",
        {"error_code": "ALREADY_CANCELLED", "existing_id": name},
    )


def test_the_same_booking_twice_is_a_duplicate_and_another_is_not(vendors):
    shop = vendors()
    call = {"flight_id": flights(shop)[0]["flight_id"], "payment_token": token(shop)}
    first = ask(shop, "airline.book", **call)
    again = error(ask(shop, "airline.book", **call))
    extras = {"existing_id": first.response["booking_id"], "original_ts": "2026-05-01T10:00"}
    assert again == ("policy_error", {"error_code": "DUPLICATE_BOOKING", **extras})
    assert ask(shop, "airline.book", **call, passenger_count=2).status == "ok"
    assert len(shop.payments.charges) == 2


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ({"from": "BLR", "to": "DEL"}, {"error_code": "MISSING_FIELD", "field_name": "date"}),
        ({**TRIP, "origin": "BLR"}, {"error_code": "UNKNOWN_FIELD", "field_name": "origin"}),
        (
            {**TRIP, "date": "2026-02-30"},
            {"error_code": "TYPE_MISMATCH", "field_name": "date", "expected": "date", "got": "string"},
        ),
        (
            {**TRIP, "max_price_inr": True},
            {"error_code": "TYPE_MISMATCH", "field_name": "max_price_inr", "expected": "integer", "got": "boolean"},
        ),
        (
            {**TRIP, "max_price_inr": -1},
            {"error_code": "TYPE_MISMATCH", "field_name": "max_price_inr", "expected": "integer", "got": "integer"},
        ),
        (
            {**TRIP, "to": "LON"},
            {"error_code": "TYPE_MISMATCH", "field_name": "to", "expected": "city", "got": "string"},
        ),
        ({**TRIP, "\ud800<x": 1}, {"error_code": "UNKNOWN_FIELD", "field_name": "??x"}),
    ],
)
def test_schema_errors_carry_what_they_must_and_no_more(vendors, arguments, answer):
    assert error(ask(vendors(), "airline.search", **arguments)) == ("schema_error", answer)


def test_unknown_ids_and_tokens_leave_everything_as_it_was(vendors):
    shop = vendors()
    flight = flights(shop)[0]["flight_id"]
    assert (
        error(ask(shop, "airline.book", flight_id="AIR-0000", payment_token=token(shop)))[1]["error_code"]
        == "UNKNOWN_ID"
    )
    refused = error(ask(shop, "airline.book", flight_id=flight, payment_token="token_v1_zzzz"))
    assert refused == ("auth_error", {"error_code": "TOKEN_INVALID"})
    assert error(ask(shop, "airline.get_booking", booking_id="AIR-1"))[1] == {
        "error_code": "UNKNOWN_ID",
        "field_name": "booking_id",
    }
    assert (shop.bookings, shop.payments.charges) == ({}, {})


def test_a_new_scope_refuses_old_tokens_everywhere(vendors):
    shop = vendors()
    flight, old = flights(shop)[0]["flight_id"], token(shop)
    shop.drift("payment.auth_scope_upgrade")
    wanted = {"required_scope": "payments:write:v2"}
    refused = error(ask(shop, "airline.book", flight_id=flight, payment_token=old))
    assert refused == ("auth_error", {"error_code": "PAYMENT_AUTH_FAILED", **wanted})
    direct = error(ask(shop, "payment.charge", amount_inr=10, payment_token=old))
    assert direct == ("auth_error", {"error_code": "AUTH_SCOPE_INSUFFICIENT", **wanted})
    assert (
        error(ask(shop, "payment.get_token", requested_scope="payments:write:v1"))[1]["error_code"]
        == "AUTH_SCOPE_INSUFFICIENT"
    )
    assert shop.bookings == {}
    assert ask(shop, "airline.book", flight_id=flight, payment_token=token(shop, 2)).status == "ok"


def test_a_code_is_asked_for_above_the_threshold_only(vendors):
    shop = vendors(payment=2)
    shop.drift("payment.mfa_required")
    key = token(shop, 2)
    assert ask(shop, "payment.charge", amount_inr=5000, payment_token=key).status == "ok"
    refused = error(ask(shop, "payment.charge", amount_inr=5001, payment_token=key, mfa_code="000000"))
    assert refused == ("auth_error", {"error_code": "MFA_REQUIRED", "mfa_threshold_inr": 5000})
    assert ask(shop, "payment.charge", amount_inr=5001, payment_token=key, mfa_code="424242").status == "ok"


def test_charges_by_hand_are_given_back_by_hand_and_no_more_than_was_taken(vendors):
    shop = vendors()
    key = token(shop)
    made = ask(shop, "payment.charge", amount_inr=100, payment_token=key).response
    assert error(ask(shop, "payment.charge", amount_inr=100, payment_token=key))[1]["error_code"] == "DUPLICATE_CHARGE"
    too_much = ask(shop, "payment.refund", charge_id=made["charge_id"], amount_inr=101)
    assert error(too_much)[1] == {"error_code": "REFUND_TOO_LARGE", "available_inr": 100}
    assert ask(shop, "payment.refund", charge_id=made["charge_id"], amount_inr=100).status == "ok"


def test_passengers_must_be_counted_after_the_drift(vendors):
    shop = vendors(airline=2)
    call = {"flight_id": flights(shop)[0]["flight_id"], "payment_token": token(shop)}
    shop.drift("airline.pax_required")
    answer = {"error_code": "MISSING_PASSENGER_COUNT", "field_name": "passenger_count"}
    assert error(ask(shop, "airline.book", **call)) == ("schema_error", answer)
    made = ask(shop, "airline.book", **call, passenger_count=1)
    assert (made.status, made.schema_version) == ("ok", "v3")


def test_a_renamed_price_expires_what_was_quoted_and_refuses_the_old_argument(vendors):
    shop = vendors()
    old = flights(shop)[0]
    shop.drift("airline.price_rename")
    refused = error(ask(shop, "airline.book", flight_id=old["flight_id"], payment_token=token(shop)))
    assert refused[1] == {"error_code": "QUOTE_EXPIRED", "field_name": "flight_id", "hint": "search again"}
    assert error(ask(shop, "airline.search", **TRIP, max_price_inr=5000))[1]["error_code"] == "UNKNOWN_FIELD"
    new = flights(shop)[0]
    assert new["total_fare_inr"] == old["price"]
    assert not {"price", "currency"} & new.keys()
    assert new["flight_id"] != old["flight_id"]


def test_a_fee_is_added_at_booking_alone_and_announced_once(vendors):
    shop = vendors()
    flight, key = flights(shop)[0], token(shop)
    shop.drift("airline.convenience_fee_append")
    made = ask(shop, "airline.book", flight_id=flight["flight_id"], payment_token=key)
    assert made.response["price"] == flight["price"] + 199
    assert "199" in made.response["_notice"]
    assert flights(shop)[0]["price"] == flight["price"]
    assert "_notice" not in ask(shop, "airline.search", **TRIP).response


def test_notices_wait_for_their_vendor_and_are_joined(vendors):
    shop = vendors()
    shop.post("airline", "One.")
    shop.post("airline", "Two.")
    assert "_notice" not in ask(shop, "payment.get_token", requested_scope="payments:write:v1").response
    assert ask(shop, "airline.search", **TRIP).response["_notice"] == "One. Two."
