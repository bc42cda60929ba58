"""Downloads: checked, resumed, never half; against a server on this machine that serves a tiny HAR."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.data.har_layout import tiny, write_folder, zip_bytes, zip_in_zip

from rhfedmtl.data import cache
from rhfedmtl.data.loaders import har
from rhfedmtl.errors import DataError


class Shop:
    """What the server has, how far it gets before the connection breaks, and what it was asked."""

    def __init__(self) -> None:
        self.content = b""
        self.break_after: int | None = None
        self.ranges = True
        self.asked: list[str | None] = []
        self.url = ""


@pytest.fixture
def shop() -> Iterator[Shop]:
    """Server on the loopback interface."""
    shop = Shop()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Serve the content, or the rest of it from where the client asks."""
            wanted = self.headers.get("Range")
            shop.asked.append(wanted)
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and shop.ranges else 0
            if start >= len(shop.content):
                self.send_error(416)
                return
            body = shop.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if shop.break_after is None else body[: shop.break_after])
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    shop.url = f"http://127.0.0.1:{server.server_port}/har.zip"
    yield shop
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def offered(shop: Shop, no_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Offer a tiny HAR, packed as UCI packs it, under the address and checksum that the loader uses."""
    shop.content = zip_in_zip(zip_bytes(write_folder(tiny(), tmp_path)))
    monkeypatch.setattr(har, "URL", shop.url)
    monkeypatch.setattr(har, "SHA256", hashlib.sha256(shop.content).hexdigest())
    return shop


def test_har_is_fetched_once_and_then_kept(offered: Shop, no_data: Path) -> None:
    """The first use downloads and parses, the second reads the cache without a word to the server."""
    first = har.load()
    second = har.load()
    assert len(offered.asked) == 1
    assert (first.X == second.X).all()
    assert first.feature_names == second.feature_names
    assert not list(no_data.glob("*.part"))


def test_a_broken_download_goes_on_where_it_stopped(offered: Shop, no_data: Path) -> None:
    """What arrived is kept aside, is never taken for data, and only the rest is asked for."""
    offered.break_after = 1000
    with pytest.raises(DataError, match=r"cannot download .* --data watch or --data synthetic"):
        har.load()
    assert [path.name for path in no_data.iterdir()] == [f"{har.ARCHIVE}.part"]
    offered.break_after = None
    assert len(har.load().X) == 36
    assert offered.asked == [None, "bytes=1000-"]


def test_a_server_without_ranges_is_asked_for_everything_again(offered: Shop) -> None:
    """A server that ignores the range sends the whole file, which replaces the part."""
    offered.break_after, offered.ranges = 1000, False
    with pytest.raises(DataError, match="cannot download"):
        har.load()
    offered.break_after = None
    assert len(har.load().X) == 36


def test_a_part_longer_than_the_file_is_started_anew(offered: Shop, no_data: Path) -> None:
    """A part that cannot belong to the file is thrown away."""
    no_data.mkdir()
    (no_data / f"{har.ARCHIVE}.part").write_bytes(b"x" * (len(offered.content) + 5))
    assert len(har.load().X) == 36
    assert offered.asked[-1] is None


def test_a_wrong_checksum_leaves_nothing_behind(offered: Shop, no_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not the expected one is refused and not kept."""
    monkeypatch.setattr(har, "SHA256", "0" * 64)
    with pytest.raises(DataError, match=r"does not have the SHA-256 0000"):
        har.load()
    assert not list(no_data.iterdir())


def test_offline_the_message_says_what_works(no_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing answers, the error names the address and the ways to go on without it."""
    monkeypatch.setattr(har, "URL", "http://127.0.0.1:9/har.zip")
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9.*--path.*--data synthetic"):
        har.load()


def test_a_missing_page_is_an_error(offered: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal by the server is reported as such."""
    offered.content = b""
    with pytest.raises(DataError, match=r"416|Range"):
        har.load()


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error says which folder failed and how to choose another."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RHFEDMTL_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="set RHFEDMTL_CACHE"):
        cache.download("http://127.0.0.1:9/x", "x", "0" * 64, "")


def test_files_of_the_user_come_before_the_cache(
    no_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RHFEDMTL_DATA is looked at first, then the cache."""
    no_data.mkdir()
    (no_data / "har.npz").touch()
    assert cache.find(["nothing", "har.npz"]) == no_data / "har.npz"
    (tmp_path / "har.npz").touch()
    monkeypatch.setenv("RHFEDMTL_DATA", str(tmp_path))
    assert cache.find(["har.npz"]) == tmp_path / "har.npz"
    assert cache.find(["nothing"]) is None
    monkeypatch.delenv("RHFEDMTL_CACHE")
    assert cache.cache_folder().name == "rhfedmtl"
