"""Who may look: whoever has the token that the command printed, from this machine, on a page of our own.

The token is good for one start. A browser that brings it gets a cookie, which no script and no other site can use.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src-elem 'self'; style-src-attr 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""What the browser may load: nothing from outside. Charts place themselves by attributes of style."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Access:
    """The token of one start, and the names under which this server may be called."""

    hosts: frozenset[str]
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def cookie(self) -> str:
        """Name of the cookie: one for each port, as cookies do not tell ports apart."""
        return f"rhfedmtl-{min(self.hosts).rpartition(':')[2]}"

    def fits(self, given: str | None) -> bool:
        """Whether this is the token."""
        return given is not None and hmac.compare_digest(given.encode(), self.token.encode())


class Guard:
    """Lets through what may look, and puts the rules for browsers on every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, access = Request(scope), self._access
        asked = request.query_params.get("token")
        refusal = self._refusal(request, asked)

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if refusal is None and asked is not None:
                    headers.append("set-cookie", f"{access.cookie}={access.token}; Path=/; HttpOnly; SameSite=Strict")
            await send(message)

        await (self._app if refusal is None else PlainTextResponse(refusal, 403))(scope, receive, marked)

    def _refusal(self, request: Request, asked: str | None) -> str | None:
        headers: Headers = request.headers
        if headers.get("host", "") not in self._access.hosts:
            return "this page answers to its own address alone"
        origin = headers.get("origin")
        if origin is not None and origin.removeprefix("http://") not in self._access.hosts:
            return "this page answers to pages of its own alone"
        if request.method not in ("GET", "HEAD"):
            return "this page only looks"
        if not self._access.fits(asked if asked is not None else request.cookies.get(self._access.cookie)):
            return "open the address that `rhfedmtl dashboard` printed: it holds the token"
        return None
