"""The payment vendor's books: tokens given out, money taken and given back."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from perdure.worlds.concierge import chance, schema
from perdure.worlds.concierge.contract import Contract
from perdure.worlds.concierge.judge import Refusal
from perdure.worlds.concierge.records import Charge


class Payments:
    """Tokens and charges of one errand; `fresh(prefix, *parts)` makes an id that names nothing yet.

    `short`: tokens are told apart by a syllable.
    """

    def __init__(self, seed: int, now: str, mfa_code: str, fresh: Callable[..., str], short: bool):
        self.tokens: dict[str, int] = {}
        """Token -> the version of its scope."""
        self.charges: dict[str, Charge] = {}
        self._seed, self._now, self._mfa_code, self._fresh, self._short = seed, now, mfa_code, fresh, short

    def branch(self, fresh: Callable[..., str]) -> "Payments":
        """Payments of their own that stand where these do."""
        other = Payments(self._seed, self._now, self._mfa_code, fresh, self._short)
        other.tokens, other.charges = dict(self.tokens), dict(self.charges)
        return other

    def call(self, kind: str, contract: Contract, values: Mapping[str, Any]) -> dict[str, Any] | Refusal:
        """The answer to a call of one of the vendor's own tools."""
        if kind == "issue":
            return self._issue(contract, values)
        return self._charge(contract, values) if kind == "charge" else self._refund(values)

    def pay(self, contract: Contract, amount: int, values: Mapping[str, Any], booking_id: str) -> Charge | Refusal:
        """Take money (rupees); nothing changes where it is refused. `booking_id` is "" for a charge by hand."""
        issued = self.tokens.get(values["payment_token"])
        if issued is None:
            return Refusal("auth_error", "TOKEN_INVALID", {})
        if issued != contract.auth:
            return _insufficient(contract)
        if contract.mfa_above and amount > contract.mfa_above and values.get("mfa_code") != self._mfa_code:
            return Refusal("auth_error", "MFA_REQUIRED", {"mfa_threshold_inr": contract.mfa_above})
        charge_id = self._fresh(contract.prefix, "charge", amount, booking_id)
        self.charges[charge_id] = Charge(charge_id, amount, booking_id)
        return self.charges[charge_id]

    def give_back(self, charge_id: str) -> None:
        """Refund a charge in full."""
        charge = self.charges[charge_id]
        self.charges[charge_id] = charge._replace(refunded=charge.amount)

    def _issue(self, contract: Contract, values: Mapping[str, Any]) -> dict[str, Any] | Refusal:
        if values["requested_scope"] != f"{schema.SCOPE}{contract.auth}":
            return _insufficient(contract)
        token = self._token(contract.auth)
        self.tokens[token] = contract.auth
        return {"payment_token": token, "scope": values["requested_scope"]}

    def _token(self, version: int) -> str:
        """A token that was not given out yet."""
        drawn = ((self._seed, "token", number) for number in itertools.count(len(self.tokens)))
        named = (
            chance.identifier("TOK", True, *each)
            if self._short
            else f"token_v{version}_{chance.number(*each) & 0xFFFF:04x}"
            for each in drawn
        )
        return next(token for token in named if token not in self.tokens)

    def _charge(self, contract: Contract, values: Mapping[str, Any]) -> dict[str, Any] | Refusal:
        for charge in self.charges.values():
            if not charge.booking_id and charge.amount == values["amount_inr"] and not charge.refunded:
                return Refusal(
                    "policy_error", "DUPLICATE_CHARGE", {"existing_id": charge.charge_id, "original_ts": self._now}
                )
        paid = self.pay(contract, values["amount_inr"], values, "")
        return paid if isinstance(paid, Refusal) else {"charge_id": paid.charge_id, "amount_inr": paid.amount}

    def _refund(self, values: Mapping[str, Any]) -> dict[str, Any] | Refusal:
        charge = self.charges.get(values["charge_id"])
        if charge is None or charge.booking_id:
            return Refusal("policy_error", "UNKNOWN_ID", {"field_name": "charge_id"})
        left = charge.amount - charge.refunded
        if values["amount_inr"] > left:
            return Refusal("policy_error", "REFUND_TOO_LARGE", {"available_inr": left})
        self.charges[charge.charge_id] = charge._replace(refunded=charge.refunded + values["amount_inr"])
        return {"charge_id": charge.charge_id, "refunded_inr": values["amount_inr"]}


def surfaced(refused: Refusal) -> Refusal:
    """A refused payment as a booking tool reports it."""
    if refused.code == "TOKEN_INVALID":
        return refused
    mfa = {"mfa_required": True} if refused.code == "MFA_REQUIRED" else {}
    return Refusal("auth_error", "PAYMENT_AUTH_FAILED", {**mfa, **refused.extras})


def _insufficient(contract: Contract) -> Refusal:
    return Refusal("auth_error", "AUTH_SCOPE_INSUFFICIENT", {"required_scope": f"{schema.SCOPE}{contract.auth}"})
