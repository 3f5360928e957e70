"""Visitors of a server of ours: who may look, and what an answer is; no library is needed for either."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

HTML, _TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"
_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class HttpAnswer:
    """A response: status, body, its type, and headers beside those that every answer has."""

    status: int
    body: str
    kind: str = _TEXT
    headers: Mapping[str, str] = field(default_factory=dict)

    def all_headers(self) -> dict[str, str]:
        """The headers as they are sent; by themselves answers run nothing and load nothing."""
        policy = {"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'"}
        if self.kind == HTML:
            policy = {"Content-Security-Policy": "frame-ancestors 'none'"}  # beside the one that the page states itself
        return {"Content-Type": self.kind, **_SAFE, **policy, **self.headers}


COOKIE = "stepscope_view"
_OWN_NAME = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE)


@dataclass(frozen=True)
class Access:
    """token: None where the server listens on the loopback interface alone, and none was asked for."""

    token: str | None = None

    def refusal(self, headers: Mapping[str, str], given: str | None) -> str | None:
        """Return why a request is refused; None where it is let in. given: the token of its address, if any.

        Without a token the Host header must name this machine: a page elsewhere whose name is made to lead to
        127.0.0.1 (DNS rebinding) still sends that name. A token is nothing that such a page could know.
        """
        if self.token is None:
            return (
                None if is_local_host(headers.get("Host", "")) else "this address is not one of this server's own names"
            )
        offered = (given, _bearer(headers.get("Authorization", "")), _cookie(headers.get("Cookie", "")))
        if any(token is not None and _are_tokens_equal(token, self.token) for token in offered):
            return None
        return "the token is missing or wrong: open the address that `stepscope view` printed"

    def is_token(self, given: str) -> bool:
        """Return whether this is the token; never where there is none."""
        return self.token is not None and _are_tokens_equal(given, self.token)


def is_loopback(host: str) -> bool:
    """Return whether an address that a server listens at is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_local_host(host: str) -> bool:
    """Return whether a Host header names this machine; any port, since a tunnel may have another."""
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


def _are_tokens_equal(given: str, other: str) -> bool:
    return hmac.compare_digest(given.encode(), other.encode())
