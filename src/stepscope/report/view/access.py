"""Who may look: requests to this machine by one of its own names, or with the token."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

COOKIE = "stepscope_view"
_OWN_NAME = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE)


@dataclass(frozen=True)
class Access:
    """token: None where the server listens on the loopback interface alone, and none was asked for."""

    token: str | None = None

    def refusal(self, headers: Mapping[str, str], given: str | None) -> str | None:
        """Why a request is refused; None where it is let in. given: the token of its address, if any.

        Without a token the Host header must name this machine: a page elsewhere whose name is made to lead to
        127.0.0.1 (DNS rebinding) still sends that name. A token is nothing that such a page could know.
        """
        if self.token is None:
            return None if own_name(headers.get("Host", "")) else "this address is not one of this server's own names"
        offered = (given, _bearer(headers.get("Authorization", "")), _cookie(headers.get("Cookie", "")))
        if any(one is not None and _same(one, self.token) for one in offered):
            return None
        return "the token is missing or wrong: open the address that `stepscope view` printed"

    def knows(self, given: str) -> bool:
        """Whether this is the token; never where there is none."""
        return self.token is not None and _same(given, self.token)


def is_loopback(host: str) -> bool:
    """Whether an address that a server listens at is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_name(host: str) -> bool:
    """Whether a Host header names this machine; any port, since a tunnel may have another."""
    return _OWN_NAME.fullmatch(host) is not None


def _bearer(header: str) -> str | None:
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def _cookie(header: str) -> str | None:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return None
    return None if found is None else found.value


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
