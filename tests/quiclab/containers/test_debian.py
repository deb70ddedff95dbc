"""
Promises of quiclab/containers/debian.py: the host's apt sources say where a base comes from.
"""

from pathlib import Path

import pytest

from quiclab.containers.debian import (
    AptSource,
    Mirrors,
    find_mirrors,
    load_apt_sources,
    parse_apt_sources,
    render_base_sources,
)

DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.test/debian
Suites: bookworm
  bookworm-updates
Components: main contrib

Types: deb
URIs: http://mirror.test/debian-security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://mirror.test/off
Suites: x
Components: main

Types: deb-src
URIs: http://mirror.test/source
Suites: x
Components: main
"""


def test_deb822_sources_are_read_and_disabled_ones_left_out() -> None:
    """Continued lines belong to their field; what is off and source packages do not count."""
    assert parse_apt_sources(DEB822, is_deb822=True) == [
        AptSource(
            "http://mirror.test/debian", ("bookworm", "bookworm-updates"), ("main", "contrib")
        ),
        AptSource("http://mirror.test/debian-security", ("bookworm-security",), ("main",)),
    ]


def test_one_line_sources_are_read_with_their_options_skipped() -> None:
    """Options in brackets may hold blanks; comments and source packages do not count."""
    text = (
        "# deb http://mirror.test/no x main\n"
        "deb-src http://mirror.test/no x main\n"
        "deb [ arch=amd64 signed-by=/k.gpg ] http://mirror.test/debian/ trixie main # all\n"
        "deb http://mirror.test/incomplete\n"
    )
    assert parse_apt_sources(text, is_deb822=False) == [
        AptSource("http://mirror.test/debian/", ("trixie",), ("main",))
    ]


@pytest.mark.parametrize(
    ("sources", "mirrors"),
    [
        ([], Mirrors(None, None)),
        (
            [
                AptSource("https://vendor.test/deb", ("trixie",), ("main",)),
                AptSource("http://archive.test/ubuntu", ("noble",), ("main",)),
            ],
            Mirrors(None, None),
        ),
        (
            [
                AptSource("http://company.test/mirror/debian/", ("trixie",), ("main",)),
                AptSource("http://company.test/debian-security", ("trixie-security",), ("main",)),
                AptSource("http://second.test/debian", ("trixie",), ("main",)),
            ],
            Mirrors("http://company.test/mirror/debian/", "http://company.test/debian-security"),
        ),
    ],
    ids=["none", "other distributions", "a company's mirror"],
)
def test_mirrors_are_debians_own_places_whoever_serves_them(
    sources: list[AptSource], mirrors: Mirrors
) -> None:
    """Another vendor's packages are never taken for Debian's."""
    assert find_mirrors(sources) == mirrors


def test_base_takes_updates_and_security_from_the_hosts_places() -> None:
    """A base image is as current as one from a registry."""
    text = render_base_sources("trixie", Mirrors("http://m/debian", "http://m/sec"), default="d\n")
    assert text == (
        "deb http://m/debian trixie main\n"
        "deb http://m/debian trixie-updates main\n"
        "deb http://m/sec trixie-security main\n"
    )


def test_base_of_sid_has_no_updates() -> None:
    """There, packages come newer and not in addition."""
    text = render_base_sources("sid", Mirrors("http://m/debian", "http://m/sec"), default="")
    assert text == "deb http://m/debian sid main\n"


def test_base_keeps_debootstraps_own_place_where_the_host_knows_no_debian() -> None:
    """On another distribution nothing is invented."""
    assert render_base_sources("trixie", Mirrors(None, None), default="deb d\n") == "deb d\n"


def test_apt_folder_is_read_in_both_forms_and_other_files_are_not(tmp_path: Path) -> None:
    """`.list` and `.sources` count, backups do not; no folder at all is no source."""
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text("deb http://a/debian x main\n")
    (parts / "b.sources").write_text("Types: deb\nURIs: http://b\nSuites: x\nComponents: main\n")
    (parts / "c.list.save").write_text("deb http://c x main\n")
    assert [source.uri for source in load_apt_sources(tmp_path)] == ["http://a/debian", "http://b"]
    assert load_apt_sources(tmp_path / "absent") == []
