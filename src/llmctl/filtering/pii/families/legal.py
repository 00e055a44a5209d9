"""Legal texts: numbers of cases, and the parties to them.

Numbers of cases have forms that courts prescribe. Parties are found by the role before their name, in Chinese and
English judgments: confidence is low. They are looked for only if asked for (``--pii-types all`` or by name).
"""

from __future__ import annotations

from llmctl.filtering.pii.entity import Entity, near
from llmctl.filtering.pii.families.personal import is_chinese_name

_HAN = r"[\x{4e00}-\x{9fa5}]"
_YEAR = r"[（(〔\[](?:19|20)[0-9]{2}[)）〕\]]"
_KINDS = "[民刑行执赔财清破监知保认仲督催减假协辖]"
_SERIAL = "[0-9]{1,8}号(?:之[一二三四五六七八九十]{1,3})?"
_ROLES = (
    "原审原告|原审被告|再审申请人|被申请执行人|申请执行人|被上诉人|上诉人|被申请人|申请人|被执行人|被告人|被害人|原告|被告|第三人|"
    "委托诉讼代理人|委托代理人|法定代表人|法定代理人|辩护人|证人|审判长|审判员|人民陪审员|书记员|负责人"
)
_ROLES_EN = "(?:Plaintiffs?|Defendants?|Petitioner|Respondent|Appellant|Appellee|Claimant)"
_ORGANISATIONS = (
    *("公司", "银行", "委员会", "医院", "中心", "学校", "大学", "政府", "集团", "合作社", "事务所"),
    *("研究院", "研究所", "分行", "支行", "局", "厂", "店", "部", "社"),
)
_PARTY_EN = r"[A-Z][A-Za-z.'’&-]{1,25}(?:,? (?:[A-Z][A-Za-z.'’&-]{0,25}|of|the|and|&)){0,5}"


def _is_party(value: str) -> bool:
    return is_chinese_name(value) or value.endswith(_ORGANISATIONS)


def _is_caption(value: str) -> bool:
    return len(value) > 2 and not value.endswith((" of", " the", " and", " &"))


ENTITIES = (
    Entity(
        "case_number",
        "The number of a case: Chinese courts and arbitration, federal courts of the United States, British neutral "
        "citations, the Court of Justice of the European Union, ECLI.",
        (
            near(
                _YEAR, f"{_YEAR} ?{_HAN}{{1,4}}[0-9]{{0,4}}{_HAN}{{0,3}}{_KINDS}{_HAN}{{0,4}}(?:字第?)?{_SERIAL}", 0, 90
            ),
            near(
                "仲(?:裁|案)?字",
                f"{_HAN}{{1,6}}仲(?:裁|案)?字[（(〔\\[]?(?:(?:19|20)[0-9]{{2}})?[)）〕\\]]?第?[0-9]{{1,8}}号",
                24,
                40,
            ),
            near(
                "[0-9]:[0-9]{2}-[a-z]{2}-",
                r"[0-9]:[0-9]{2}-(?:cv|cr|mj|bk|md|mc|ap|po)-[0-9]{3,6}(?:-[A-Z]{1,4}){0,3}\b",
                0,
                32,
            ),
            near(
                r"\[(?:19|20)[0-9]{2}\] [A-Z]{2}",
                r"\[(?:19|20)[0-9]{2}\] "
                "(?:UKSC|UKHL|UKPC|EWCA (?:Civ|Crim)|EWHC|UKUT|CSIH|CSOH|HCA|FCA|SCC|NZSC|NZCA|IESC)"
                r" [0-9]{1,5}(?: \([A-Za-z]{2,12}\))?",
                0,
                32,
            ),
            near(r"Case [CTF]-[0-9]", r"\bCase ([CTF]-[0-9]{1,4}/[0-9]{2}(?: P)?)\b", 0, 16),
            near("ECLI:", r"ECLI:[A-Z]{2}:[A-Z0-9]{1,7}:(?:19|20)[0-9]{2}:[A-Z0-9.]{1,25}", 0, 48),
            near(
                r"(?i:case no|docket no|cause no|aktenzeichen)",
                r"(?i:\bcase no\.?|\bdocket no\.?|\bcause no\.?|\baktenzeichen):? ?"
                "([0-9A-Z]{1,6}[-/: ]?[0-9A-Z]{1,6}[-/ ][0-9A-Z]{1,10})",
                0,
                40,
            ),
        ),
        lambda value: any(char.isdigit() for char in value),
        "form: Supreme People's Court, Fa〔2015〕No. 137; Council conclusions 2011/C 127/01 (ECLI)",
        "medium",
        "none",
    ),
    Entity(
        "legal_party",
        "A party, lawyer or judge named after the role (原告：, 被告人, Plaintiff), with a common family name or "
        "the end of an organisation's name.",
        (
            near(
                f"(?:{_ROLES})[:：（(]",
                rf"(?:{_ROLES})(?:[（(][^（）()\n]{{1,20}}[)）])?[:：] ?({_HAN}{{2,30}})",
                0,
                180,
            ),
            near(
                "[，,](?:男|女|汉族|[0-9]{4}年|住|系|曾用名)",
                f"(?:{_ROLES})({_HAN}{{2,3}})[，,](?:男|女|汉族|[0-9]{{4}}年|住|系|曾用名)",
                36,
            ),
        ),
        _is_party,
        "one of the commonest 200 family names, or a word such as 公司 at the end",
        "low",
        "none",
    ),
    Entity(
        "legal_party",
        "",
        (
            near(f"{_ROLES_EN}[,:]? [A-Z]", rf"\b{_ROLES_EN}[,:]? ({_PARTY_EN})", 0, 160),
            near(r" vs?\. [A-Z]", rf"({_PARTY_EN}),? vs?\. [A-Z][a-z]", 170, 2),
            near(r" vs?\. [A-Z]", rf"[a-z]\.?,? vs?\. ({_PARTY_EN})", 3, 170),
        ),
        _is_caption,
        "",
        "low",
    ),
)
