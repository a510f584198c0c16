"""Image references as people write them (case C01)."""

from __future__ import annotations

import pytest

from rental.images import BadReferenceError, Reference, parse

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "domain", "path", "tag", "digest"),
    [
        ("debian", "", "debian", "", ""),
        ("lessor/workspace:1", "", "lessor/workspace", "1", ""),
        ("reg.example.test:5000/team/img", "reg.example.test:5000", "team/img", "", ""),
        ("reg.example.test:5000/team/img:1.0", "reg.example.test:5000", "team/img", "1.0", ""),
        (f"img@sha256:{HEX}", "", "img", "", f"sha256:{HEX}"),
        (f"img:1.0@sha256:{HEX}", "", "img", "1.0", f"sha256:{HEX}"),
        ("localhost/img", "localhost", "img", "", ""),
        ("[::1]:5000/img", "[::1]:5000", "img", "", ""),
        ("a__b/c---d.e:V1_x-Y.z", "", "a__b/c---d.e", "V1_x-Y.z", ""),
        ("Reg.Example.test/img", "Reg.Example.test", "img", "", ""),
    ],
)
def test_a_good_reference_is_kept_exactly(text: str, domain: str, path: str, tag: str, digest: str) -> None:  # case C01
    assert parse(text) == Reference(text, domain, path, tag, digest)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "an image is needed"),
        ("Team/Img", "lower case"),
        ("team/Img", "lower case"),
        (" img ", "blanks"),
        ("img\n", "blanks"),
        ("im g", "cannot be part"),
        ("im\u00a0g", "cannot be part"),
        ("img:", "tag after the colon is missing"),
        ("img:-x", "no tag"),
        ("img:" + "x" * 129, "no tag"),
        ("img@sha256:123", "exactly 64 digits"),
        (f"img@md5:{HEX}", "sha256"),
        (f"img@sha256:{HEX.upper()}", "exactly 64 digits"),
        ("img@", "sha256"),
        ("-v", "no part of an image name"),
        ("--privileged", "no part of an image name"),
        ("../x", "no host"),
        ("a/../b", "no part of an image name"),
        ("img;id", "no part of an image name"),
        ("$(id)", "no part of an image name"),
        ("a//b", "no part of an image name"),
        ("/a", "no part of an image name"),
        ("reg.example.test:70000/a", "no port"),
        ("reg.example.test:0/a", "no port"),
        ("reg.example.test:x/a", "no host"),
        ("x" * 301, "at most 300"),
        ("x" * 256, "at most 255"),
        (HEX, "image id"),
    ],
)
def test_a_bad_reference_is_refused_by_its_cause(text: str, cause: str) -> None:  # case C01
    with pytest.raises(BadReferenceError, match=cause):
        parse(text)
