"""Access control of the dashboard: only a browser on this machine with the printed token gets a page.

`Guard` wraps the application and checks every request. The token is valid until the server stops. A browser that sends
it gets a cookie, which scripts and other sites cannot use.
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
"""Content policy of the browser: nothing from outside. Charts set their positions with style attributes."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Access:
    """The token of a server, and the host names of its address."""

    hosts: frozenset[str]
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def cookie(self) -> str:
        """Name of the cookie; it contains the port, because cookies ignore ports."""
        return f"rhfedmtl-{min(self.hosts).rpartition(':')[2]}"

    def accepts(self, token: str | None) -> bool:
        """Return True if ``given`` is the token."""
        return token is not None and hmac.compare_digest(token.encode(), self.token.encode())


class Guard:
    """Middleware that refuses requests without access, and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, access = Request(scope), self._access
        token = request.query_params.get("token")
        refusal = self._refusal(request, token)

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if refusal is None and token is not None:
                    headers.append("set-cookie", f"{access.cookie}={access.token}; Path=/; HttpOnly; SameSite=Strict")
            await send(message)

        await (self._app if refusal is None else PlainTextResponse(refusal, 403))(scope, receive, marked)

    def _refusal(self, request: Request, token: str | None) -> str | None:
        headers: Headers = request.headers
        if headers.get("host", "") not in self._access.hosts:
            return "this page answers only at its own address"
        origin = headers.get("origin")
        if origin is not None and origin.removeprefix("http://") not in self._access.hosts:
            return "this page answers only to its own pages"
        if request.method not in ("GET", "HEAD"):
            return "this page is read-only"
        if not self._access.accepts(token if token is not None else request.cookies.get(self._access.cookie)):
            return "open the address that `rhfedmtl dashboard` printed: it contains the token"
        return None
