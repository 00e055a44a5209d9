"""Numbers of the person in Europe.

A number whose check is weak (one digit in ten) or whose form is common counts only after its label.
"""

from __future__ import annotations

from llmctl.filtering.pii.checksums import ean, luhn, mod_11_10, only, weighted
from llmctl.filtering.pii.dates import is_short_date
from llmctl.filtering.pii.entity import Entity, labelled, near, number

_DNI = "TRWAGMYFPDXBNJZSQVHLCKE"
_HETU = "0123456789ABCDEFHJKLMNPRSTUVWXY"
_FISCAL_MONTHS = "ABCDEHLMPRST"
_FISCAL_ODD = dict(
    zip(
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16,
         10, 22, 25, 24, 23),
        strict=True,
    )
)  # fmt: skip
_FISCAL_DIGITS = str.maketrans("LMNPQRSTUV", "0123456789")
_NINO_NEVER = frozenset({"BG", "GB", "KN", "NK", "NT", "TN", "ZZ"})


def _is_nino(value: str) -> bool:
    return value.replace(" ", "")[:2] not in _NINO_NEVER


def _is_nhs(value: str) -> bool:
    digits = only(value)
    check = 11 - weighted(digits[:9], range(10, 1, -1)) % 11
    return check != 10 and check % 11 == int(digits[9])


def _is_steuer_id(value: str) -> bool:
    digits = only(value)
    counts = sorted(digits[:10].count(char) for char in set(digits[:10]))
    return digits[0] != "0" and counts[-1] in (2, 3) and counts[-2:] != [2, 2] and mod_11_10(digits)


def _is_nir(value: str) -> bool:
    compact = value.replace(" ", "").replace("2A", "19").replace("2B", "18")
    month = int(compact[3:5])
    return (1 <= month <= 12 or 20 <= month <= 42 or month >= 50) and 97 - int(compact[:13]) % 97 == int(compact[13:])


def _is_dni(value: str) -> bool:
    digits = only(value)
    return len(set(digits)) > 2 and _DNI[int(digits) % 23] == value[-1]


def _is_nie(value: str) -> bool:
    return _DNI[int(f"{'XYZ'.index(value[0])}{only(value)}") % 23] == value[-1]


def _is_codice_fiscale(value: str) -> bool:
    total = 0
    for position, char in enumerate(value[:15]):
        total += int(char, 36) - (10 if char.isalpha() else 0) if position % 2 else _FISCAL_ODD[char]
    day = int(value[9:11].translate(_FISCAL_DIGITS)) % 40
    return value[8] in _FISCAL_MONTHS and 1 <= day <= 31 and chr(65 + total % 26) == value[15]


def _is_pesel(value: str) -> bool:
    month = int(value[2:4]) % 20
    known = is_short_date(value[:2], f"{month:02d}", value[4:6])
    return known and weighted(value, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)) % 10 == 0


def _is_bsn(value: str) -> bool:
    digits = only(value)
    return len(set(digits)) > 2 and weighted(digits, (9, 8, 7, 6, 5, 4, 3, 2, -1)) % 11 == 0


def _is_personnummer(value: str) -> bool:
    digits = only(value)[-10:]
    day = int(digits[4:6])
    day -= 60 if day > 60 else 0  # co-ordination numbers
    return is_short_date(digits[:2], digits[2:4], str(day)) and luhn(digits)


def _is_hetu(value: str) -> bool:
    return is_short_date(value[4:6], value[2:4], value[:2]) and _HETU[int(value[:6] + value[7:10]) % 31] == value[10]


def _is_fodselsnummer(value: str) -> bool:
    digits = only(value)
    day, month = int(digits[:2]), int(digits[2:4])
    first = weighted(digits[:10], (3, 7, 6, 1, 8, 9, 4, 5, 2, 1)) % 11
    second = weighted(digits, (5, 4, 3, 2, 7, 6, 5, 4, 3, 2, 1)) % 11
    return is_short_date(digits[4:6], str(month % 40), str(day % 40)) and first == second == 0


def _is_cpr(value: str) -> bool:
    digits = only(value)
    return is_short_date(digits[4:6], digits[2:4], digits[:2])


def _is_be(value: str) -> bool:
    digits = only(value)
    numbers = (int(digits[:9]), int(f"2{digits[:9]}"))
    return any(97 - number % 97 == int(digits[9:]) for number in numbers) and int(digits[2:4]) % 20 <= 12


def _is_pt_nif(value: str) -> bool:
    digits = only(value)
    check = 11 - weighted(digits[:8], range(9, 1, -1)) % 11
    return int(digits[8]) == (check if check < 10 else 0)


def _is_ahv(value: str) -> bool:
    return ean(only(value))


def _is_cnp(value: str) -> bool:
    check = weighted(value[:12], (2, 7, 9, 1, 4, 6, 3, 5, 8, 2, 7, 9)) % 11
    return is_short_date(value[1:3], value[3:5], value[5:7]) and int(value[12]) == (1 if check == 10 else check)


ENTITIES = (
    Entity(
        "uk_nino",
        "A British National Insurance number.",
        (
            near(
                "[A-Z]{2} ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D]",
                "[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D]",
            ),
        ),
        _is_nino,
        "prefixes that are issued (HM Revenue and Customs, NIM39110)",
        "medium",
    ),
    Entity(
        "uk_nhs_number",
        "A number of the British National Health Service after its label.",
        (labelled(r"\bnhs\b", "[0-9]{3}[ -]?[0-9]{3}[ -]?[0-9]{4}"),),
        _is_nhs,
        "modulus 11 (NHS Data Dictionary)",
        "high",
        "digits",
    ),
    Entity(
        "de_tax_id",
        "A German tax identification number after its label (Steuer-ID, IdNr).",
        (
            labelled(
                r"steuer-?id(?:entifikations?nummer|nr)?\b|\bsteuerliche identifikationsnummer|\bidnr\b|\btax id\b|"
                r"(?-i:\bTIN\b)",
                "[0-9]{2} ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}",
            ),
        ),
        _is_steuer_id,
        "ISO/IEC 7064 MOD 11,10, one digit twice or thrice (Bundeszentralamt für Steuern)",
        "high",
        "digits",
    ),
    Entity(
        "fr_nir",
        "A French social security number (NIR).",
        (number("[12] ?[0-9]{2} ?[0-9]{2} ?(?:[0-9]{2}|2[AB]) ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}"),),
        _is_nir,
        "key 97 (INSEE)",
        "high",
        "digits",
    ),
    Entity(
        "es_dni",
        "A Spanish identity number.",
        (number("[0-9]{8}-?[A-HJ-NP-TV-Z]", r"[0-9]{8}-?[A-HJ-NP-TV-Z]"),),
        _is_dni,
        "letter, modulus 23 (Ministerio del Interior)",
        "medium",
    ),
    Entity(
        "es_nie",
        "A Spanish number of foreigners.",
        (number("[XYZ]-?[0-9]{7}-?[A-HJ-NP-TV-Z]", r"[XYZ]-?[0-9]{7}"),),
        _is_nie,
        "letter, modulus 23 (Ministerio del Interior)",
    ),
    Entity(
        "it_codice_fiscale",
        "An Italian tax code.",
        (
            near(
                "[A-Z]{6}[0-9LMNP-V]{2}[A-EHLMPR-T][0-9LMNP-V]{2}",
                "[A-Z]{6}[0-9LMNP-V]{2}[A-EHLMPR-T][0-9LMNP-V]{2}[A-Z][0-9LMNP-V]{3}[A-Z]",
                0,
                5,
            ),
        ),
        _is_codice_fiscale,
        "day and month of birth, letter, modulus 26 (Decreto ministeriale 12 March 1974)",
    ),
    Entity(
        "pl_pesel",
        "A Polish PESEL number after its label.",
        (labelled(r"\bpesel\b", "[0-9]{11}"),),
        _is_pesel,
        "date of birth, weights 1-3-7-9 (Ministry of Digital Affairs)",
        "high",
        "digits",
    ),
    Entity(
        "nl_bsn",
        "A Dutch citizen service number after its label (BSN, sofinummer).",
        (labelled(r"\bbsn\b|burgerservice(?:nummer)?|sofi-?nummer", r"[0-9]{9}|[0-9]{4}[ .][0-9]{2}[ .][0-9]{3}"),),
        _is_bsn,
        "eleven test (Rijksdienst voor Identiteitsgegevens)",
        "high",
        "digits",
    ),
    Entity(
        "se_personnummer",
        "A Swedish personal or co-ordination number.",
        (
            number("(?:19|20)?[0-9]{6}[-+][0-9]{4}", r"[0-9]{6}[-+][0-9]{4}"),
            labelled("personnummer", "(?:19|20)?[0-9]{10}"),
        ),
        _is_personnummer,
        "date of birth, Luhn digit (Skatteverket, SKV 704)",
        "medium",
        "digits",
    ),
    Entity(
        "fi_hetu",
        "A Finnish personal identity code.",
        (near("[0-9]{6}[-+A-FU-Y][0-9]{3}", "[0-3][0-9][01][0-9]{3}[-+A-FU-Y][0-9]{3}[0-9A-Y]", 0, 1),),
        _is_hetu,
        "date of birth, modulus 31 (Digital and Population Data Services Agency)",
    ),
    Entity(
        "no_fodselsnummer",
        "A Norwegian birth or D number: in two groups anywhere, in one word after its label.",
        (
            number("[0-7][0-9][0-9]{4} [0-9]{5}", r"[0-9]{6} [0-9]{5}"),
            labelled(r"f[øo]dselsnummer|\bd-nummer|personnummer", "[0-9]{11}"),
        ),
        _is_fodselsnummer,
        "date of birth, two digits, modulus 11 (Skatteetaten)",
        "high",
        "digits",
    ),
    Entity(
        "dk_cpr",
        "A Danish personal number after its label (CPR); its check digit is no longer kept.",
        (labelled(r"\bcpr(?:-?n(?:umme)?r)?\b", "[0-3][0-9][01][0-9]{3}-?[0-9]{4}"),),
        _is_cpr,
        "date of birth (CPR Office)",
        "medium",
        "digits",
    ),
    Entity(
        "be_national_number",
        "A Belgian national number with its points, or after its label.",
        (
            number(r"[0-9]{2}\.[0-9]{2}\.[0-9]{2}-[0-9]{3}[.-][0-9]{2}", r"\.[0-9]{2}\.[0-9]{2}-[0-9]{3}"),
            labelled(r"rijksregister(?:nummer)?|registre national|(?-i:\bNISS\b|\bINSZ\b)", "[0-9]{11}"),
        ),
        _is_be,
        "modulus 97 (Royal Decree of 25 November 1997)",
        "high",
        "digits",
    ),
    Entity(
        "pt_nif",
        "A Portuguese tax number after its label (NIF, contribuinte).",
        (labelled(r"(?-i:\bNIF\b)|contribuinte", "[1-9][0-9]{2} ?[0-9]{3} ?[0-9]{3}"),),
        _is_pt_nif,
        "modulus 11 (Autoridade Tributária)",
        "high",
        "digits",
    ),
    Entity(
        "ch_ahv",
        "A Swiss social insurance number.",
        (number(r"756\.?[0-9]{4}\.?[0-9]{4}\.?[0-9]{2}", r"756\.?[0-9]{4}"),),
        _is_ahv,
        "digit of EAN-13 (Central Compensation Office)",
        "high",
        "digits",
    ),
    Entity(
        "ro_cnp",
        "A Romanian personal number after its label (CNP).",
        (labelled(r"(?-i:\bCNP\b)|cod numeric personal", "[1-9][0-9]{12}"),),
        _is_cnp,
        "date of birth, modulus 11 (Law 105 of 1996)",
        "high",
        "digits",
    ),
)
