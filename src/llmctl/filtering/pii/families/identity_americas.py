"""Numbers of the person in the Americas and Africa.

A number whose check is weak (one digit in ten) or whose form is common counts only after its label.
"""

from __future__ import annotations

from llmctl.filtering.pii.checksums import luhn, only, weighted
from llmctl.filtering.pii.dates import is_short_date
from llmctl.filtering.pii.entity import Entity, labelled, near, number

_CURP = "0123456789ABCDEFGHIJKLMNÑOPQRSTUVWXYZ"
# Printed on cards in advertisements, never valid (Social Security Administration).
_SSN_NEVER = frozenset({"078051120", "219099999"})


def _is_ssn(value: str) -> bool:
    digits = only(value)
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    return (
        area not in ("000", "666")
        and area[0] != "9"
        and group != "00"
        and serial != "0000"
        and digits not in _SSN_NEVER
        and len(set(digits)) > 1
    )


def _is_itin(value: str) -> bool:
    group = int(only(value)[3:5])
    return 50 <= group <= 65 or 70 <= group <= 88 or 90 <= group <= 92 or 94 <= group <= 99


def _is_sin(value: str) -> bool:
    digits = only(value)
    return digits[0] not in "08" and luhn(digits)


def _check_11(digits: str, weights: range | tuple[int, ...]) -> int:
    rest = weighted(digits, tuple(weights)) % 11
    return 0 if rest < 2 else 11 - rest


def _is_cpf(value: str) -> bool:
    digits = only(value)
    first = _check_11(digits[:9], range(10, 1, -1))
    second = _check_11(digits[:10], range(11, 1, -1))
    return len(set(digits)) > 1 and digits[9:] == f"{first}{second}"


def _is_cnpj(value: str) -> bool:
    digits = only(value)
    weights = (6, 5, 4, 3, 2, 9, 8, 7, 6, 5, 4, 3, 2)
    first, second = _check_11(digits[:12], weights[1:]), _check_11(digits[:13], weights)
    return len(set(digits)) > 1 and digits[12:] == f"{first}{second}"


def _is_curp(value: str) -> bool:
    total = sum(_CURP.index(char) * (18 - position) for position, char in enumerate(value[:17]))
    return is_short_date(value[4:6], value[6:8], value[8:10]) and -total % 10 == int(value[17])


def _is_rut(value: str) -> bool:
    digits = only(value[:-1])
    check = 11 - weighted(digits[::-1], (2, 3, 4, 5, 6, 7, 2, 3)) % 11
    return value[-1].upper() == ("0" if check == 11 else "K" if check == 10 else str(check))


def _is_cuit(value: str) -> bool:
    digits = only(value)
    check = 11 - weighted(digits[:10], (5, 4, 3, 2, 7, 6, 5, 4, 3, 2)) % 11
    return check != 10 and check % 11 == int(digits[10])


def _is_za(value: str) -> bool:
    return is_short_date(value[:2], value[2:4], value[4:6]) and luhn(value)


ENTITIES = (
    Entity(
        "us_ssn",
        "A Social Security number of the United States: with hyphens anywhere, without after its label.",
        (
            number("[0-8][0-9]{2}-[0-9]{2}-[0-9]{4}", r"[0-9]{3}-[0-9]{2}-[0-9]{4}"),
            labelled(r"\bssn\b|\bsocial security", "[0-8][0-9]{2} ?[0-9]{2} ?[0-9]{4}"),
        ),
        _is_ssn,
        "area, group and serial that can be issued (Social Security Administration)",
        "medium",
        "digits",
    ),
    Entity(
        "us_itin",
        "An individual taxpayer number of the United States.",
        (
            number("9[0-9]{2}-[5-9][0-9]-[0-9]{4}", r"[0-9]{3}-[0-9]{2}-[0-9]{4}"),
            labelled(r"\bitin\b", "9[0-9]{2} ?[5-9][0-9] ?[0-9]{4}"),
        ),
        _is_itin,
        "group within the issued ranges (Internal Revenue Service, Publication 1915)",
        "medium",
        "digits",
    ),
    Entity(
        "us_ein",
        "An employer's number of the United States after its label.",
        (labelled(r"(?-i:\bF?EIN\b)|\bemployer identification", "[0-9]{2}-[0-9]{7}"),),
        confidence="medium",
        edges="digits",
    ),
    Entity(
        "us_drivers_licence",
        "A driver's licence after its label (driver's license, DL#, 驾驶证).",
        (
            labelled(
                r"\bdriver'?s?[’']?s? licen[sc]e|\bdriving licen[sc]e|\bDL ?#|驾驶证号?码?",
                "[A-Z]{0,2}[0-9][A-Z0-9-]{5,18}",
            ),
        ),
        lambda value: len(only(value)) >= 5,
        "five digits at least",
        "low",
    ),
    Entity(
        "ca_sin",
        "A Canadian social insurance number in groups of three after its label.",
        (
            labelled(
                r"(?-i:\bSIN\b|\bNAS\b)|\bsocial insurance|\bassurance sociale", "[0-9]{3}[ -]?[0-9]{3}[ -]?[0-9]{3}"
            ),
        ),
        _is_sin,
        "Luhn digit (Service Canada)",
        "high",
        "digits",
    ),
    Entity(
        "br_cpf",
        "A Brazilian number of the person: with its points anywhere, without after its label.",
        (
            number(r"[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}", r"\.[0-9]{3}\.[0-9]{3}-[0-9]"),
            labelled(r"\bcpf\b", "[0-9]{11}"),
        ),
        _is_cpf,
        "two digits, modulus 11 (Receita Federal)",
        "high",
        "digits",
    ),
    Entity(
        "br_cnpj",
        "A Brazilian number of the company: with its points anywhere, without after its label.",
        (
            number(r"[0-9]{2}\.[0-9]{3}\.[0-9]{3}/[0-9]{4}-[0-9]{2}", r"[0-9]{3}/[0-9]{4}-[0-9]{2}"),
            labelled(r"\bcnpj\b", "[0-9]{14}"),
        ),
        _is_cnpj,
        "two digits, modulus 11 (Receita Federal)",
        "high",
        "digits",
    ),
    Entity(
        "mx_curp",
        "A Mexican population registry code.",
        (
            near(
                "[A-Z]{4}[0-9]{6}[HMX]",
                "[A-Z][AEIOUX][A-Z]{2}[0-9]{6}[HMX][A-Z]{2}[B-DF-HJ-NP-TV-Z]{3}[0-9A-Z][0-9]",
                0,
                8,
            ),
        ),
        _is_curp,
        "date of birth, modulus 10 (Registro Nacional de Población)",
    ),
    Entity(
        "cl_rut",
        "A Chilean number of the person or company.",
        (
            number(r"[0-9]{1,2}\.[0-9]{3}\.[0-9]{3}-[0-9Kk]", r"\.[0-9]{3}\.[0-9]{3}-[0-9Kk]"),
            labelled(r"(?-i:\bRUT\b|\bRUN\b)", "[0-9]{7,8}-[0-9Kk]"),
        ),
        _is_rut,
        "modulus 11 (Servicio de Impuestos Internos)",
        "high",
        "digits",
    ),
    Entity(
        "ar_cuit",
        "An Argentine tax number (CUIT, CUIL).",
        (number("(?:20|23|24|27|30|33|34)-[0-9]{8}-[0-9]", r"[23][0-9]-[0-9]{8}-[0-9]"),),
        _is_cuit,
        "modulus 11 (AFIP)",
        "high",
        "digits",
    ),
    Entity(
        "za_identity_number",
        "A South African identity number after its label.",
        (labelled(r"\bsouth african id|\brsa id|\bid(?:entity)? (?:number|no)|\bsa id", "[0-9]{10}[01][0-9]{2}"),),
        _is_za,
        "date of birth, Luhn digit (Department of Home Affairs)",
        "high",
        "digits",
    ),
)
