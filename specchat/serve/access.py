"""The check of requests: they need the key and a name of this server, and come from no other site's page."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from urllib.parse import urlsplit


def fresh_key() -> str:
    return secrets.token_urlsafe(12)


@dataclass(frozen=True)
class Access:
    """The checks of a server that this machine alone is meant to reach.

    Args:
        guarded: only this machine's own names are answered to, so that no page elsewhere can pass for this one by
            pointing its own name here.
    """

    host: str
    port: int
    guarded: bool
    key: str = field(default_factory=fresh_key, repr=False)

    def refuses_page(self, host: str, origin: str | None) -> str:
        """Why a request under this name, from a page of this origin, is not answered; empty where it is."""
        names = (f"{name}:{self.port}" for name in (self.host, f"[{self.host}]", "localhost"))
        if self.guarded and _plain(host) not in map(_plain, names):
            why = "this server answers only to the address that it printed"
            return f"{why}; a tunnel must have the same port at both ends"
        if origin and _plain(_place(origin)) != _plain(host):
            return "pages from elsewhere are not let in"
        return ""

    def knows(self, key: str) -> bool:
        return secrets.compare_digest(key.encode(errors="replace"), self.key.encode())


def _place(origin: str) -> str:
    """Host and port of a page's origin; empty where it is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _plain(host: str) -> str:
    """Host and port in one form: clients leave out the port that a browser does not show."""
    return host.lower().removesuffix(":80")
