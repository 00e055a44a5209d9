"""Money: payment cards, IBAN and other numbers of accounts and banks."""

from __future__ import annotations

import re

from llmctl.filtering.pii.checksums import luhn, mod_97_10, only, weighted
from llmctl.filtering.pii.entity import Entity, labelled, near, number

# Length of an IBAN by country: SWIFT IBAN Registry, release 99.
_IBAN_LENGTHS = {
    country: int(length)
    for length, countries in {
        "15": "NO",
        "16": "BE",
        "18": "DK FI FO GL NL SD FK",
        "19": "MK SI",
        "20": "AT BA EE KZ LT LU MN XK",
        "21": "CH HR LI LV",
        "22": "BG BH CR DE GB GE IE ME RS VA",
        "23": "AE GI IL IQ OM SO TL",
        "24": "AD CZ ES MD PK RO SA SE SK TN VG",
        "25": "LY PT ST",
        "26": "IS TR",
        "27": "BI DJ FR GR IT MC MR SM",
        "28": "AL AZ BY CY DO GT HU LB NI PL SV",
        "29": "BR EG PS QA UA",
        "30": "JO KW MU YE",
        "31": "MT SC",
        "32": "LC",
        "33": "RU",
    }.items()
    for country in countries.split()
}
_CARD_GROUPS = re.compile(
    r"[0-9]{13,19}|[0-9]{4}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{1,7}|[0-9]{4}([ -])[0-9]{6}\2[0-9]{4,5}"
)


def _is_card(value: str) -> bool:
    digits = only(value)
    return bool(_CARD_GROUPS.fullmatch(value)) and _is_issued(digits) and luhn(digits) and len(set(digits)) > 1


def _is_issued(digits: str) -> bool:
    """Tell whether the first digits and the length are those of a scheme (ISO/IEC 7812; the schemes' own pages)."""
    length, first = len(digits), int(digits[:4])
    if digits[0] == "4":
        return length in (13, 16, 19)
    if 5100 <= first <= 5599 or 2221 <= first <= 2720 or 2200 <= first <= 2204:
        return length == 16
    if first // 100 in (34, 37):
        return length == 15
    if first // 10 in range(300, 306) or first // 100 in (36, 38, 39):
        return length in (14, 16)
    if 3528 <= first <= 3589 or first == 6011 or first // 100 in (62, 65, 81) or first // 10 in range(644, 650):
        return 16 <= length <= 19
    return first // 100 in (50, 56, 57, 58, 63, 67) and length in (16, 18, 19)


def _is_iban(value: str) -> int:
    """Return how many characters are an IBAN: words in capitals may follow it."""
    length = _IBAN_LENGTHS.get(value[:2])
    if length is None:
        return 0
    compact = value.replace(" ", "")[:length]
    if len(compact) < length or not mod_97_10(compact[4:] + compact[:4]):
        return 0
    taken = position = 0
    while taken < length:
        taken += value[position] != " "
        position += 1
    return 0 if value[position : position + 1].isalnum() else position


def _is_routing(value: str) -> bool:
    return weighted(value, (3, 7, 1) * 3) % 10 == 0 and value[:2] != "00"


ENTITIES = (
    Entity(
        "payment_card",
        "The number of a payment card (Visa, Mastercard, American Express, UnionPay, JCB, Discover, Diners, Maestro).",
        (number(r"[2-6][0-9]{3}(?:[ -]?[0-9]){9,15}"),),
        _is_card,
        "Luhn digit (ISO/IEC 7812-1), issuer's first digits and length",
        "high",
        "digits",
    ),
    Entity(
        "iban",
        "An International Bank Account Number, in one word or in groups.",
        (near("[A-Z]{2}[0-9]{2} ?[A-Z0-9]{3}", r"[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]){11,38}", 2, 80),),
        _is_iban,
        "MOD 97-10 and the country's length (ISO 13616)",
    ),
    Entity(
        "bank_identifier",
        "A Business Identifier Code (BIC, SWIFT) after its label.",
        (
            labelled(
                r"\bbic\b|\bswift(?:[ -]?code|[ -]?bic)?\b|\bbic/swift", r"[A-Z]{6}[A-Z2-9][A-NP-Z0-9](?:[A-Z0-9]{3})?"
            ),
        ),
        checked="form: ISO 9362",
        confidence="medium",
    ),
    Entity(
        "us_routing_number",
        "A routing transit number of a bank in the United States, after its label.",
        (labelled(r"\brouting(?: transit)?|\baba\b|\brtn\b", "[0-9]{9}"),),
        _is_routing,
        "weights 3-7-1 (American Bankers Association)",
        "high",
        "digits",
    ),
    Entity(
        "bank_account",
        "The number of a bank account after its label (account number, Kontonummer, 账号, 卡号).",
        (
            labelled(
                r"\b(?:bank )?account (?:number|no|#)|\bacct\b|\bkontonummer|\bkonto-nr|"
                "银行账号|银行卡号|开户账号|账号|帐号|卡号",
                r"[0-9](?:[ -]?[0-9]){7,19}",
            ),
        ),
        confidence="medium",
        edges="digits",
    ),
    Entity(
        "card_security_code",
        "The three or four digits on the back of a card, after their label (CVV, CVC, 安全码).",
        (labelled(r"\bcvv2?\b|\bcvc2?\b|\bcard security code|安全码", "[0-9]{3,4}"),),
        confidence="medium",
        edges="digits",
    ),
)
