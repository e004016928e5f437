"""URLs, origins, sites and which of them are suitable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggservice.wire import ReportStatus, SharedInfo, Spans, is_reporting_origin, parse_origin, parse_shared_info_batch
from aggservice.wire.errors import SharedInfoError
from aggservice.wire.origins import is_other_url, parse_url
from ara_client.origins import RequestError, parse_destination, parse_suitable_origin


@pytest.mark.parametrize(
    ("text", "origin", "site", "suitable"),
    [
        ("https://a.shop.example/path?q#f", "https://a.shop.example", "https://shop.example", True),
        ("HTTPS://Shop.Example:443", "https://shop.example", "https://shop.example", True),
        ("https://shop.example:8443/", "https://shop.example:8443", "https://shop.example", True),
        ("https://user:pass@shop.example/", "https://shop.example", "https://shop.example", True),
        ("https:shop.example", "https://shop.example", "https://shop.example", True),
        ("https:\\\\shop.example\\x", "https://shop.example", "https://shop.example", True),
        ("  https://shop.exam\tple \n", "https://shop.example", "https://shop.example", True),
        ("https://sh%6Fp.example", "https://shop.example", "https://shop.example", True),
        ("https://bücher.example", "https://xn--bcher-kva.example", "https://xn--bcher-kva.example", True),
        ("https://Straße.example", "https://xn--strae-oqa.example", "https://xn--strae-oqa.example", True),
        ("https://βόλος。example", "https://xn--nxasmm1c.example", "https://xn--nxasmm1c.example", True),
        ("https://ＳＨＯＰ.ex\u00adample", "https://shop.example", "https://shop.example", True),
        ("https://☃.example", "https://xn--n3h.example", "https://xn--n3h.example", True),
        ("https://x.y.co.uk", "https://x.y.co.uk", "https://y.co.uk", True),
        ("https://a.b.github.io", "https://a.b.github.io", "https://b.github.io", True),
        ("https://github.io", "https://github.io", "https://github.io", True),
        ("https://com", "https://com", "https://com", True),
        ("https://a.shop.example.", "https://a.shop.example.", "https://shop.example.", True),
        ("https://10.1.2.3", "https://10.1.2.3", "https://10.1.2.3", True),
        ("https://0x7f.1", "https://127.0.0.1", "https://127.0.0.1", True),
        ("https://[::1]:8443", "https://[::1]:8443", "https://[::1]", True),
        ("http://shop.example", "http://shop.example", "http://shop.example", False),
        ("http://localhost:8080", "http://localhost:8080", "http://localhost", True),
        ("http://a.localhost", "http://a.localhost", "http://a.localhost", True),
        ("http://127.9.9.9", "http://127.9.9.9", "http://127.9.9.9", True),
        ("http://[::1]", "http://[::1]", "http://[::1]", True),
        ("http://[::2]", "http://[::2]", "http://[::2]", False),
        ("http://localhost.", "http://localhost.", "http://localhost.", True),
        ("http://[::ffff:127.0.0.1]", "http://[::ffff:7f00:1]", "http://[::ffff:7f00:1]", False),
        ("https://[1:0:0:2::3]", "https://[1:0:0:2::3]", "https://[1:0:0:2::3]", True),
        ("https://[0:10:0:0:1:0:0:1]", "https://[0:10::1:0:0:1]", "https://[0:10::1:0:0:1]", True),
        ("https://[::]", "https://[::]", "https://[::]", True),
        ("https://shop.example:" + "0" * 5000 + "8443", "https://shop.example:8443", "https://shop.example", True),
    ],
)
def test_origins(text: str, origin: str, site: str, suitable: bool) -> None:
    parsed = parse_origin(text)
    assert parsed is not None
    assert (str(parsed), parsed.site, parsed.suitable) == (origin, site, suitable)
    assert is_reporting_origin(origin) == suitable
    assert is_reporting_origin(text) == (suitable and text == origin)  # only as a browser writes it


@pytest.mark.parametrize(
    "text",
    [
        "", "shop.example", "//shop.example", "https://", "https:///", "https://a b", "https://a..b", "https://a:b",
        "https://a:65536", "https://[::1", "https://[zz]", "https://[::1]x", "https://%ff", "https://a%00b",
        "https://1.2.3.4.5", "https://256.1.1.1", "https://1.2.3.09", "https://" + "a" * 64 + ".example",
        "https://a\u200db.example", "https://\u0301a.example", "https://\u05d0a.example", "https://é..example",
        "https://-1.1.1.1", "https://+1.2.3.4", "https://1_0.0.0.1", "https://0x-1.1", "https://0x0x1.1",
        "https://0o7.1.1.1", "https://[fe80::1%25eth0]", "https://[fe80::1%eth0]", "https://a\x1fb.example",
        "android-app://x", "data:text/plain,x", "https://\ud800",
    ],
)  # fmt: skip
def test_what_is_not_an_http_url(text: str) -> None:
    assert parse_url(text) is None
    assert not is_reporting_origin(text)


@pytest.mark.parametrize(
    ("text", "site"),
    [
        ("https://.shop.example", "https://shop.example"), ("https://a..shop.example", "https://shop.example"),
        ("https://a..example", "https://.example"), ("https://..example", "https://..example"),
        ("https://shop.example..", "https://shop.example.."), ("https://..", "https://.."),
        ("https://a...b.example", "https://b.example"), ("https://.co.uk", "https://.co.uk"),
        ("https://a..co.uk", "https://.co.uk"), ("https://sh op.example", "https://sh%20op.example"),
        ("https://sh*op.example", "https://sh%2Aop.example"), ("https://ä b.example", "https://xn--%20b-koa.example"),
        ("https://\u200d.example", "https://xn--1ug.example"), ("https://" + "x" * 64 + ".example", None),
        ("blob:https://shop.example/x", "https://shop.example"), ("BLOB:https://shop.example", "https://shop.example"),
        ("filesystem:https://shop.example/x", "https://shop.example"),
    ],
)  # fmt: skip
def test_destinations_that_only_chromium_accepts(text: str, site: str | None) -> None:
    """Each was registered in a Chromium 147, which reported this destination."""
    origin = parse_destination(text)
    assert origin is not None
    assert origin.site == (site or text)
    assert parse_origin(text) is None or text == "https://sh*op.example"


@pytest.mark.parametrize("text", ["filesystem:https://shop.example/", "blob:", "https://a%25.example", "https://a|b"])
def test_destinations_that_chromium_refuses(text: str) -> None:
    assert parse_destination(text) is None


def test_only_names_with_an_owner_have_a_registrable_site() -> None:
    sites = {
        "https://a.shop.example": "https://shop.example", "https://com": None, "https://10.1.2.3": None,
        "https://[::1]": None, "http://localhost": None,
    }  # fmt: skip
    for text, site in sites.items():
        parsed = parse_origin(text)
        assert parsed is not None
        assert parsed.registrable_site == site


def test_urls_keep_what_follows_the_origin() -> None:
    assert str(parse_url("https://r.test")) == "https://r.test/"
    assert str(parse_url("https://r.test/a b\\c?x=é#y")) == "https://r.test/a%20b/c?x=%C3%A9#y"
    assert str(parse_url("https://r.test?x\\y")) == "https://r.test/?x\\y"


def test_other_urls_are_told_from_nonsense() -> None:
    assert is_other_url("android-app://com.example/x")
    assert not is_other_url("https://")
    assert not is_other_url("nonsense")


def test_same_site_is_schemeful() -> None:
    a, b, c = (parse_origin(text) for text in ("https://a.x.test", "https://b.x.test:8443", "http://a.x.test"))
    assert a is not None and b is not None and c is not None
    assert a.site == b.site
    assert a.site != c.site


def test_a_callers_url_must_be_suitable() -> None:
    with pytest.raises(RequestError, match="use https"):
        parse_suitable_origin("http://shop.example")


@given(
    st.text(max_size=40) | st.text(alphabet="0123456789-+_.xo:[]%a", max_size=20),
    st.sampled_from(["", "https://", "http:", "https://x.test/", "https://[", "https://1."]),
)
def test_parsing_never_raises_and_is_idempotent(text: str, prefix: str) -> None:
    url = parse_url(prefix + text)
    if url is not None:
        assert url.origin.site
        again = parse_url(str(url))
        assert again is not None
        assert again.origin == url.origin


def test_a_host_that_looks_like_an_address_spoils_its_own_report_only() -> None:
    texts = [
        f'{{"api":"shared-storage","report_id":"{"0" * 8}-0000-4000-8000-{"0" * 12}","reporting_origin":"{origin}",'
        '"scheduled_report_time":"1234","version":"1.0"}'
        for origin in ("https://shop.example", "https://-1.1.1.1", "https://" + "a." * 1500 + "test")
    ]
    columns = parse_shared_info_batch(Spans.of([text.encode() for text in texts]))
    malformed = ReportStatus.ATTRIBUTION_REPORT_TO_MALFORMED
    assert columns.status.tolist() == [ReportStatus.OK, malformed, malformed]
    for text in texts[1:]:
        with pytest.raises(SharedInfoError) as caught:
            SharedInfo.parse(text)
        assert caught.value.status == malformed
