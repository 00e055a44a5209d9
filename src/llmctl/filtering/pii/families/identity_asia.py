"""Numbers of the person in Asia and Oceania.

A number whose check is weak (one digit in ten) or whose form is common counts only after its label.
"""

from __future__ import annotations

from llmctl.filtering.pii.checksums import luhn, mod_11_2, only, verhoeff, weighted
from llmctl.filtering.pii.dates import is_date, is_short_date
from llmctl.filtering.pii.entity import Entity, labelled, near, number

_PROVINCE_CODES = (
    "11 12 13 14 15 21 22 23 31 32 33 34 35 36 37 41 42 43 44 45 46 50 51 52 53 54 61 62 63 64 65 71 81 82 83"
)
_PROVINCES = frozenset(_PROVINCE_CODES.split())
_USCC = "0123456789ABCDEFGHJKLMNPQRTUWXY"
_USCC_WEIGHTS = tuple(pow(3, position, 31) for position in range(17))
_GB_11714 = (3, 7, 9, 10, 5, 8, 4, 2)
# Letters of Taiwanese identity cards: their two-digit codes.
_TW_CODES = {letter: 10 + position for position, letter in enumerate("ABCDEFGHJKLMNPQRSTUVXYWZIO")}


def _is_cn_resident(value: str) -> bool:
    return (
        value[:2] in _PROVINCES and is_date(int(value[6:10]), int(value[10:12]), int(value[12:14])) and mod_11_2(value)
    )


def _is_cn_resident_15(value: str) -> bool:
    return value[:2] in _PROVINCES and is_date(1900 + int(value[6:8]), int(value[8:10]), int(value[10:12]))


def _is_cn_company(value: str) -> bool:
    organisation = 11 - sum(int(char, 36) * weight for char, weight in zip(value[8:16], _GB_11714, strict=True)) % 11
    if value[16] != ("X" if organisation == 10 else "0" if organisation == 11 else str(organisation)):
        return False
    total = sum(_USCC.index(char) * weight for char, weight in zip(value[:17], _USCC_WEIGHTS, strict=True))
    return value[2:4] in _PROVINCES | {"10"} and _USCC[-total % 31] == value[17]


def _is_hk(value: str) -> bool:
    letters = [char for char in value[:2] if char.isalpha()]
    numbers = [36, *(ord(char) - 55 for char in letters)][-2:]
    numbers += [int(char) for char in only(value)[:6]]
    check = value.rstrip(")）")[-1]
    return (sum(number * weight for number, weight in zip(numbers, range(9, 1, -1), strict=True))
            + (10 if check == "A" else int(check))) % 11 == 0  # fmt: skip


def _is_tw(value: str) -> bool:
    code = _TW_CODES[value[0]]
    return (code // 10 + code % 10 * 9 + weighted(value[1:], (8, 7, 6, 5, 4, 3, 2, 1, 1))) % 10 == 0


def _is_kr(value: str) -> bool:
    digits = only(value)
    check = (11 - weighted(digits[:12], (2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5)) % 11) % 10
    return is_short_date(digits[:2], digits[2:4], digits[4:6]) and check == int(digits[12])


def _is_jp(value: str) -> bool:
    digits = only(value)
    rest = weighted(digits[:11][::-1], (2, 3, 4, 5, 6, 7, 2, 3, 4, 5, 6)) % 11
    return int(digits[11]) == (0 if rest <= 1 else 11 - rest)


def _is_sg(value: str) -> bool:
    total = weighted(value[1:8], (2, 7, 6, 5, 4, 3, 2)) + (4 if value[0] in "TG" else 3 if value[0] == "M" else 0)
    letters = {"S": "JZIHGFEDCBA", "T": "JZIHGFEDCBA", "F": "XWUTRQPNMLK", "G": "XWUTRQPNMLK", "M": "KLJNPQRTUWX"}
    position = 10 - total % 11 if value[0] == "M" else total % 11
    return letters[value[0]][position] == value[8]


def _is_aadhaar(value: str) -> bool:
    digits = only(value)
    return digits != digits[::-1] and verhoeff(digits)


def _is_au_tfn(value: str) -> bool:
    return weighted(only(value), (1, 4, 3, 7, 5, 8, 6, 9, 10)) % 11 == 0


def _is_au_medicare(value: str) -> bool:
    digits = only(value)
    return weighted(digits, (1, 3, 7, 9, 1, 3, 7, 9)) % 10 == int(digits[8])


def _is_il(value: str) -> bool:
    return luhn(value) and len(set(value)) > 2


def _is_tr(value: str) -> bool:
    digits = [int(char) for char in value]
    tenth = (sum(digits[0:9:2]) * 7 - sum(digits[1:8:2])) % 10
    return digits[9] == tenth and digits[10] == sum(digits[:10]) % 10


ENTITIES = (
    Entity(
        "cn_resident_id",
        "A Chinese resident identity number: 18 characters anywhere, the old 15 digits after a label.",
        (number("[1-9][0-9]{5}(?:18|19|20)[0-9]{9}[0-9Xx]", r"[0-9]{17}[0-9Xx]"),),
        _is_cn_resident,
        "province, date of birth, ISO/IEC 7064 MOD 11-2 (GB 11643-1999)",
        "high",
        "digits",
    ),
    Entity(
        "cn_resident_id",
        "",
        (labelled("身份证件?|公民身份", "[1-9][0-9]{14}"),),
        _is_cn_resident_15,
        edges="digits",
    ),
    Entity(
        "cn_company_code",
        "A Chinese unified social credit code.",
        (number("[1-9A-HJ-NPQRTUWXY][1-9][0-9]{6}[0-9A-HJ-NPQRTUWXY]{10}", r"[1-9][0-9]{6}[0-9A-HJ-NPQRTUWXY]{10}"),),
        _is_cn_company,
        "modulus 31 (GB 32100-2015), of the organisation modulus 11 (GB 11714-1997)",
    ),
    Entity(
        "hk_identity_card",
        "The number of a Hong Kong identity card.",
        (
            near("[A-Z][0-9]{6}[(（]", r"[A-Z]{1,2}[0-9]{6}[(（][0-9A][)）]", 1, 4),
            labelled(r"\bhkid\b|香港身份证|香港身份證", "[A-Z]{1,2}[0-9]{6}[0-9A]"),
        ),
        _is_hk,
        "modulus 11 (Hong Kong Immigration Department)",
        edges="none",
    ),
    Entity(
        "tw_identity_card",
        "The number of a Taiwanese identity card.",
        (number("[A-Z][12][0-9]{8}", r"[A-Z][12][0-9]{8}"),),
        _is_tw,
        "weights 1-9-8-7-6-5-4-3-2-1-1, modulus 10 (Ministry of the Interior)",
        "medium",
    ),
    Entity(
        "kr_resident_id",
        "A Korean resident registration number.",
        (number("[0-9]{6}-[1-8][0-9]{6}", r"[0-9]{6}-[1-8][0-9]{6}"),),
        _is_kr,
        "date of birth, modulus 11 (Resident Registration Act, enforcement rules)",
        "high",
        "digits",
    ),
    Entity(
        "jp_my_number",
        "A Japanese individual number after its label (マイナンバー, 個人番号, My Number).",
        (labelled(r"マイナンバー|個人番号|\bmy number", "[0-9]{4}[ -]?[0-9]{4}[ -]?[0-9]{4}"),),
        _is_jp,
        "modulus 11 (Ordinance 85 of 2014, article 5)",
        "high",
        "digits",
    ),
    Entity(
        "sg_nric",
        "A Singaporean NRIC or FIN.",
        (number("[STFGM][0-9]{7}[A-Z]", r"[STFGM][0-9]{7}[A-Z]"),),
        _is_sg,
        "check letter, modulus 11 (Immigration and Checkpoints Authority)",
    ),
    Entity(
        "in_aadhaar",
        "An Indian Aadhaar number in groups of four, or after its label.",
        (
            number("[2-9][0-9]{3}[ -][0-9]{4}[ -][0-9]{4}", r"[0-9]{4}[ -][0-9]{4}[ -][0-9]{4}"),
            labelled(r"\baadhaa?r|\buidai\b|\buid\b", "[2-9][0-9]{11}"),
        ),
        _is_aadhaar,
        "Verhoeff's digit (UIDAI)",
        "medium",
        "digits",
    ),
    Entity(
        "in_pan",
        "An Indian permanent account number.",
        (near("[A-Z]{5}[0-9]{4}[A-Z]", "[A-Z]{3}[ABCFGHJLPT][A-Z][0-9]{4}[A-Z]"),),
        lambda value: value[5:9] != "0000",
        "letter of the holder's kind (Income Tax Department)",
        "medium",
    ),
    Entity(
        "au_tfn",
        "An Australian tax file number after its label.",
        (labelled(r"\btfn\b|\btax file", "[0-9]{3} ?[0-9]{3} ?[0-9]{3}"),),
        _is_au_tfn,
        "modulus 11 (Australian Taxation Office)",
        "high",
        "digits",
    ),
    Entity(
        "au_medicare",
        "An Australian Medicare number after its label.",
        (labelled(r"\bmedicare", "[2-6][0-9]{3} ?[0-9]{5} ?[0-9](?:[ /-]?[1-9])?"),),
        _is_au_medicare,
        "weights 1-3-7-9, modulus 10 (Services Australia)",
        "high",
        "digits",
    ),
    Entity(
        "il_identity_number",
        "An Israeli identity number after its label (Teudat Zehut, תעודת זהות).",
        (labelled(r"\bteudat zehut|תעודת זהות|ת\.ז\.", "[0-9]{9}"),),
        _is_il,
        "Luhn digit (Population Authority)",
        "high",
        "digits",
    ),
    Entity(
        "tr_identity_number",
        "A Turkish identity number after its label (T.C. Kimlik No, TCKN).",
        (labelled(r"kimlik|\btckn\b", "[1-9][0-9]{10}"),),
        _is_tr,
        "two check digits, modulus 10 (General Directorate of Civil Registration)",
        "high",
        "digits",
    ),
)
