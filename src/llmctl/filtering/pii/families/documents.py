"""Numbers of documents: passports, machine-readable lines, files of patients, employees and students.

Passports have no common form or check digit, so a number counts only after its label. The machine-readable zone of a
passport carries five check digits.
"""

from __future__ import annotations

from llmctl.filtering.pii.checksums import only
from llmctl.filtering.pii.entity import Entity, labelled, near


def _mrz_digit(field: str) -> str:
    values = (0 if char == "<" else int(char, 36) for char in field)
    return str(sum(value * (7, 3, 1)[position % 3] for position, value in enumerate(values)) % 10)


def _is_mrz(value: str) -> bool:
    line = value[-44:]
    fields = ((line[0:9], line[9]), (line[13:19], line[19]), (line[21:27], line[27]))
    if any(_mrz_digit(field) != digit for field, digit in fields):
        return False
    personal = line[42] == _mrz_digit(line[28:42]) or (line[42] == "<" and set(line[28:42]) == {"<"})
    return personal and _mrz_digit(line[0:10] + line[13:20] + line[21:43]) == line[43]


def _has_digits(value: str) -> bool:
    return len(only(value)) >= 4


ENTITIES = (
    Entity(
        "passport",
        "The number of a passport or travel permit after its label (passport, Reisepass, passeport, 护照, 通行证).",
        (
            labelled(
                r"\bpassport|\breisepass|\bpasseport|\bpasaporte|护照|護照|通行证|パスポート|旅券",
                "[A-Z]{0,3}[0-9]{5,9}[A-Z]?|[CFGHJKLMNPRTVWXYZ][0-9CFGHJKLMNPRTVWXYZ]{8}",
            ),
        ),
        _has_digits,
        "four digits at least",
        "medium",
    ),
    Entity(
        "passport_mrz",
        "The machine-readable zone of a passport (its second line, with the first if that stands before it).",
        (
            near(
                "[0-9][A-Z<]{3}[0-9]{7}[MFX<][0-9]{7}",
                r"(?:P[A-Z<][A-Z<]{3}[A-Z<]{39}\s{1,2})?"
                "[A-Z0-9<]{9}[0-9][A-Z<]{3}[0-9]{7}[MFX<][0-9]{7}[A-Z0-9<]{14}[0-9<][0-9]",
                56,
                16,
            ),
        ),
        _is_mrz,
        "five digits, weights 7-3-1 (ICAO Doc 9303, part 4)",
        edges="none",
    ),
    Entity(
        "medical_record",
        "The number of a patient's file after its label (medical record number, MRN, 病历号, 住院号).",
        (labelled(r"\bmedical record|\bmrn\b|\bpatient id|病历号|病案号|住院号|门诊号", "[A-Z]{0,3}[0-9]{5,12}"),),
        confidence="medium",
    ),
    Entity(
        "member_number",
        "A number of an employee, student or customer after its label (employee ID, student ID, 工号, 学号).",
        (
            labelled(
                r"\bemployee (?:id|number|no)|\bstaff (?:id|number|no)|\bstudent (?:id|number|no)|"
                r"\bcustomer (?:id|number|no)|\bmatrikelnummer|工号|学号|会员号",
                "[A-Z]{0,4}-?[0-9]{4,12}",
            ),
        ),
        confidence="low",
    ),
)
