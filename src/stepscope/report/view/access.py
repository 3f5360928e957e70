"""Visitors of a server of ours: who may look, and what an answer is; no library is needed for either."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

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
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9a-fA-F:]+)\]|(?P<name>[^:\[\]]+))(?::\d{1,5})?")


def cookie_name(token: str) -> str:
    """Return the name of the cookie of a token: a browser sends the cookies of a host to all of its ports."""
    return f"{COOKIE}_{hashlib.sha256(token.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Access:
    """token: None where the server listens on the loopback interface alone, and none was asked for."""

    token: str | None = None

    def refusal(self, headers: Mapping[str, str], token_in_address: str | None) -> str | None:
        """Return why a request is refused; None where it is let in. given: the token of its address, if any.

        Without a token the Host header must name this machine: a page elsewhere whose name is made to lead to
        127.0.0.1 (DNS rebinding) still sends that name. A token is nothing that such a page could know.
        """
        if self.token is None:
            return (
                None if is_local_host(headers.get("Host", "")) else "this address is not one of this server's own names"
            )
        offered = (
            token_in_address,
            _bearer_token(headers.get("Authorization", "")),
            *_cookie_tokens(headers.get("Cookie", "")),
        )
        if any(token is not None and _are_tokens_equal(token, self.token) for token in offered):
            return None
        return "the token is missing or wrong: open the address that `stepscope view` printed"

    def is_token(self, text: str) -> bool:
        """Return whether this is the token; never where there is none."""
        return self.token is not None and _are_tokens_equal(text, self.token)


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
    match = _HOST.fullmatch(host)
    return match is not None and is_loopback((match["ipv6"] or match["name"]).lower())


def _bearer_token(header: str) -> str | None:
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def _cookie_tokens(header: str) -> list[str]:
    """Return the tokens in the cookies of views on this host: of this one, and of those on other ports."""
    # Cookies of other servers on this host may have forms that http.cookies refuses, and ours with them.
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return [value for name, _, value in pairs if name.startswith(COOKIE)]


def _are_tokens_equal(token: str, other: str) -> bool:
    return hmac.compare_digest(token.encode(), other.encode())
