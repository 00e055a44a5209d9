"""Vehicles: identification numbers and licence plates."""

from __future__ import annotations

from llmctl.filtering.pii.entity import Entity, labelled, near

_VALUES = dict(
    zip("ABCDEFGHJKLMNPRSTUVWXYZ", (1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 7, 9, 2, 3, 4, 5, 6, 7, 8, 9), strict=True)
)
_WEIGHTS = (8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2)
_CHARS = "[A-HJ-NPR-Z0-9]"

_PROVINCES = "京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼"


def _is_vin(value: str) -> bool:
    total = sum(
        (int(char) if char.isdigit() else _VALUES[char]) * weight for char, weight in zip(value, _WEIGHTS, strict=True)
    )
    rest = total % 11
    return _is_mixed(value) and value[8] == ("X" if rest == 10 else str(rest))


def _is_mixed(value: str) -> bool:
    return sum(map(str.isdigit, value)) >= 4 and sum(map(str.isalpha, value)) >= 3


def _has_digit_and_letter(value: str) -> bool:
    return any(map(str.isdigit, value)) and any(map(str.isalpha, value)) and len(value) >= 4


def _has_digits(value: str) -> bool:
    return sum(map(str.isdigit, value)) >= 2


ENTITIES = (
    Entity(
        "vin",
        "A vehicle identification number with its check digit.",
        (near(f"{_CHARS}{{17}}", f"{_CHARS}{{17}}", 16, 16),),
        _is_vin,
        "modulus 11 in place 9 (ISO 3779; 49 CFR 565.15)",
    ),
    Entity(
        "vin",
        "",
        (
            labelled(
                r"\bvin\b|\bvehicle identification|车架号|车辆识别代号|\bfahrgestellnummer|(?-i:\bFIN\b)",
                f"{_CHARS}{{17}}",
            ),
        ),
        _is_mixed,
        "",
        "medium",
    ),
    Entity(
        "licence_plate",
        "A Chinese licence plate, or another after its label (licence plate, Kennzeichen, 车牌号).",
        (
            near(
                f"[{_PROVINCES}][A-HJ-NP-Z]",
                f"[{_PROVINCES}][A-HJ-NP-Z][·• ]?[A-HJ-NP-Z0-9]{{4,5}}[A-HJ-NP-Z0-9学警港澳挂]",
                0,
                12,
            ),
        ),
        _has_digits,
        "form: GA 36-2018",
        "medium",
        "none",
    ),
    Entity(
        "licence_plate",
        "",
        (
            labelled(
                r"\blicen[sc]e plate|\bnumber plate|\bplate (?:number|no)|\bregistration (?:plate|mark)|\bkennzeichen|"
                r"\bimmatriculation|车牌号?码?",
                r"[A-ZÄÖÜ0-9]{1,3}(?:[ ·-]?[A-Z0-9]{1,4}){1,3}\b",
            ),
        ),
        _has_digit_and_letter,
        "",
        "medium",
    ),
)
