"""Ways to reach a person: e-mail, telephone, accounts of messengers.

Telephone numbers have no check digit. One in international form counts if its country code is assigned (ITU-T E.164,
list of assigned codes); one in a national form counts for the United States and Canada and for China, whose forms are
narrow; any other counts only after a label such as *Tel.* or 电话.
"""

from __future__ import annotations

from llmctl.filtering.pii.checksums import only
from llmctl.filtering.pii.entity import Entity, labelled, near, number

# "icon@2x.png", "user@host.local/…" and the like are no addresses.
_SUFFIXES = (
    "png jpg jpeg gif svg webp ico css js ts py pyc rb go rs c h cc cpp java html htm xml json yaml yml md txt so dll "
    "service socket target mount timer conf cfg ini lock"
)
_FILE_SUFFIXES = frozenset(_SUFFIXES.split())
_TWO_DIGITS = (
    "20 27 30 31 32 33 34 36 39 40 41 43 44 45 46 47 48 49 51 52 53 54 55 56 57 58 60 61 62 63 64 65 66 81 82 84 86 90 "
    "91 92 93 94 95 98"
)
_TWO_DIGIT_CODES = frozenset(_TWO_DIGITS.split())
_THREE_DIGITS = "21 22 23 24 25 26 29 35 37 38 42 50 59 67 68 69 85 88 96 97 99"
_THREE_DIGIT_GROUPS = frozenset(_THREE_DIGITS.split())
_SPARE_CODES = (
    "210 214 215 217 219 259 292 293 294 295 296 384 388 422 424 425 426 427 428 429 671 684 693 694 695 696 697 698 "
    "699 851 854 857 858 859 884 885 887 889 969 978 990 997 999"
)
_SPARE = frozenset(_SPARE_CODES.split())


def _is_email(value: str) -> bool:
    local, _, domain = value.rpartition("@")
    if ".." in value or local.endswith(".") or domain.rpartition(".")[2].lower() in _FILE_SUFFIXES:
        return False
    return not any(label.startswith("-") or label.endswith("-") for label in domain.split("."))


def _is_international(value: str) -> bool:
    digits = only(value)
    three = digits[:2] in _THREE_DIGIT_GROUPS and digits[:3] not in _SPARE
    known = three or digits[0] in "17" or digits[:2] in _TWO_DIGIT_CODES
    if digits[0] == "1":
        return len(digits) == 11 and digits[1] in "23456789" and digits[4] in "23456789"
    return known and 8 <= len(digits) <= 15 and len(set(digits)) > 2


def _is_labelled_phone(value: str) -> bool:
    return 6 <= len(only(value)) <= 15 and value.count("(") == value.count(")") and value.count(".") < 5


def _is_us(value: str) -> bool:
    digits = only(value)[-10:]
    separators = only(value[-9:], " .-")
    return digits[1:3] != "11" and digits[4:6] != "11" and len(set(digits)) > 2 and len(separators) == 2


ENTITIES = (
    Entity(
        "email",
        "An e-mail address.",
        (
            near(
                "@[A-Za-z0-9]",
                r"[A-Za-z0-9][A-Za-z0-9._%+'-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}",
                64,
                256,
            ),
        ),
        _is_email,
        "no double point, no file suffix for a top-level domain (form: RFC 5321, section 4.1.2)",
    ),
    Entity(
        "phone_cn",
        "A Chinese mobile or landline number.",
        (
            number(r"(?:\+?86[ -]?)?1[3-9][0-9][ -]?[0-9]{4}[ -]?[0-9]{4}"),
            number(r"(?:\+?86[ -]?)?\(?0(?:10|2[0-57-9]|[3-9][0-9]{2})(?:[-－]|\)[ ]?)[2-9][0-9]{6,7}"),
        ),
        confidence="medium",
        edges="digits",
        checked="form: Ministry of Industry and Information Technology, numbering plan of 2017",
    ),
    Entity(
        "phone_us",
        "A telephone number of the North American Numbering Plan.",
        (
            number(
                r"(?:\+?1[-. ])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[-. ])[2-9][0-9]{2}[-. ][0-9]{4}",
                r"[2-9][0-9]{2}\)?[-. ]{1,2}[2-9][0-9]{2}[-. ][0-9]{4}",
            ),
        ),
        lambda value: _is_us(value.replace(") ", "-").replace(")", "-")),
        "form: NANPA; neither area code nor exchange ends in 11",
        "medium",
        "digits",
    ),
    Entity(
        "phone",
        "A telephone number in international form, or any after a label (Tel., Fax, Mobile, 电话, 手机).",
        (number(r"\+[1-9][0-9]{0,2}(?:[ .\-/]{0,2}\(?[0-9]\)?){6,14}", r"\+[1-9][0-9]{0,2}[ .\-/]{0,2}\(?[0-9]"),),
        _is_international,
        "country code assigned, at most 15 digits: ITU-T E.164",
        "medium",
        "digits",
    ),
    Entity(
        "phone",
        "",
        (
            labelled(
                r"\btel(?:ephone|efon)?|\bphone|\bmobile|\bcell(?:ular)? ?(?:phone|:)|\bfax|"
                r"\bteléfono|\btéléphone|\bhandy|联系电话|电话|手机|传真",
                r"\(?[0-9](?:[ .\-/]{0,3}[()]?[0-9]){5,14}",
            ),
        ),
        _is_labelled_phone,
        "",
        "medium",
        "digits",
    ),
    Entity(
        "messenger_account",
        "An account of a messenger after its label (QQ, WeChat, 微信号, Telegram, Skype, WhatsApp).",
        (
            labelled(r"\bqq号?码?|扣扣", r"[1-9][0-9]{4,10}"),
            near(
                r"(?i:微信号?|wechat(?: id)?|telegram|skype|whatsapp)[ ]?[:：=]",
                r"(?i:微信号?|\bwechat(?: id)?|\btelegram|\bskype|\bwhatsapp)[ ]?[:：=][ ]?"
                "(@?[A-Za-z][A-Za-z0-9_.-]{5,30})",
                0,
                40,
            ),
        ),
        confidence="low",
    ),
)
