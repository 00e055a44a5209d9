"""Finding: overlaps, windows, time linear in the text; placeholders; the arithmetic of check digits."""

from __future__ import annotations

import random

import pytest

from llmctl.errors import UserError
from llmctl.filtering.pii import checksums
from llmctl.filtering.pii.catalogue import entities, family_names, selected_types, type_names
from llmctl.filtering.pii.detect import Found, detector
from llmctl.filtering.pii.mask import masked


def find(text: str, *names: str) -> list[tuple[str, str]]:
    data = text.encode()
    found = detector(selected_types(names or ("all",))).find(memoryview(data))
    return [(item.name, data[item.start : item.end].decode()) for item in found]


def test_families_of_the_folder_are_the_catalogue() -> None:
    # contact crypto documents identity_americas identity_asia identity_europe legal network payment personal secrets
    # vehicles
    assert len(family_names()) == len(set(family_names())) == 12
    for entity in entities():
        assert entity.patterns
        assert entity.confidence != "high" or entity.checked or not entity.what, entity.name


def test_choosing_types() -> None:
    assert selected_types(["email", "phone"]) == ("phone", "email") or selected_types(["email"]) == ("email",)
    assert set(selected_types(["default"])) < set(selected_types(["all"])) == set(type_names())
    assert "person_name" not in selected_types(["default"])
    assert "email" not in selected_types(["-email"])
    assert set(selected_types(["crypto"])) == set(selected_types(["crypto", "high", "-high", "crypto"]))
    with pytest.raises(UserError, match="unknown type"):
        selected_types(["passprt"])


def test_overlaps_go_to_confidence_then_length() -> None:
    # A resident identity number holds what looks like a mobile number; a link with a password holds an address.
    assert find("11010519491231002X") == [("cn_resident_id", "11010519491231002X")]
    assert find("https://me:pw1234@mail.example.org/x") == [("url_credentials", "https://me:pw1234@mail.example.org")]


def test_places_are_bytes_at_borders_of_characters() -> None:
    text = "电邮：张三@x <zhang.san@mail.example.cn>，手机：13812345678。" * 50
    found = find(text)
    assert found == [("email", "zhang.san@mail.example.cn"), ("phone_cn", "13812345678")] * 50


def test_windows_lose_nothing_at_the_ends_of_a_text() -> None:
    for value, name in (("a@example.org", "email"), ("4111111111111111", "payment_card"), ("8.8.4.4", "ipv4")):
        assert find(value) == find(f"{value} ") == [(name, value)]
        assert find(f"x {value}") == [(name, value)]


@pytest.mark.parametrize(
    "piece",
    ["@", "a@", "1 ", "1-2.", "eyJ", "a.b@c.", "-----BEGIN PRIVATE KEY-----", "passport ", "4111 1111 ", "::", "a1B2"],
)
def test_hostile_repetition_costs_no_more_than_its_length(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The work is counted, not timed: bytes handed to RE2 searches.
    from llmctl.filtering.pii import detect

    scanned = [0]
    plain = detect._spans

    def counted(regexp, text, entity, position, stop):
        scanned[0] += stop - position
        return plain(regexp, text, entity, position, stop)

    monkeypatch.setattr(detect, "_spans", counted)
    work = []
    for size in (20_000, 40_000):
        scanned[0] = 0
        text = (piece * size)[:size].encode()
        detector(type_names()).find(text)
        work.append(scanned[0] / size)
    assert work[1] <= 1.1 * work[0] + 1
    assert work[1] <= 2 * sum(len(entity.patterns) for entity in entities())


def test_masking_and_numbering() -> None:
    text = b"a@b.org A@B.org c@d.org"
    found = [Found("email", 0, 7), Found("email", 8, 15), Found("email", 16, 23)]
    assert masked(text, found) == b"<EMAIL> <EMAIL> <EMAIL>"
    assert masked(text, found, consistent=True) == b"<EMAIL_1> <EMAIL_1> <EMAIL_2>"


def test_masking_twice_changes_nothing_more() -> None:
    text = "Write to a@example.org or 4111 1111 1111 1111, Passport No. E12345678; 张三 13812345678".encode()
    once = masked(text, detector(type_names()).find(text))
    assert detector(type_names()).find(once) == []


def test_checksums_catch_every_changed_digit() -> None:
    draw = random.Random(0)
    for check, valid in (
        (checksums.luhn, "79927398713"),
        (checksums.verhoeff, "234123412346"),
        (checksums.mod_11_10, "86095742719"),
        (checksums.mod_11_2, "110105194912310021"[:17] + "X"),
        (checksums.ean, "7569217076985"),
    ):
        assert check(valid)
        for _ in range(50):
            place = draw.randrange(len(valid) - 1)
            other = draw.choice([digit for digit in "0123456789" if digit != valid[place]])
            assert not check(valid[:place] + other + valid[place + 1 :])


def test_keccak_is_the_one_before_the_standard() -> None:
    assert checksums.keccak_256(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
    with pytest.raises(ValueError, match="one block"):
        checksums.keccak_256(bytes(136))
