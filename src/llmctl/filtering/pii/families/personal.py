"""Who somebody is and where they live: dates of birth, names, postal addresses.

Names and addresses are found by the words around them, without a model of language: confidence is low, many are missed,
and some that are found are none. They are looked for only if asked for (``--pii-types all`` or by name).
"""

from __future__ import annotations

from llmctl.filtering.pii.dates import is_date
from llmctl.filtering.pii.entity import Entity, labelled, near

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    "(?i:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|"
    "Nov(?:ember)?|Dec(?:ember)?)"
)
_ZH_DATE = "(?:19|20)[0-9]{2} ?年 ?[0-9]{1,2} ?月 ?[0-9]{1,2} ?日"
_DATE = (
    f"{_ZH_DATE}|(?:19|20)[0-9]{{2}}[-/.][0-9]{{1,2}}[-/.][0-9]{{1,2}}"
    "|[0-9]{1,2}[-/.][0-9]{1,2}[-/.](?:19|20)?[0-9]{2}"
    f"|[0-9]{{1,2}}(?:st|nd|rd|th)? {_MONTH},? (?:19|20)[0-9]{{2}}"
    f"|{_MONTH} [0-9]{{1,2}}(?:st|nd|rd|th)?,? (?:19|20)[0-9]{{2}}"
)
SURNAMES = frozenset(
    "王李张刘陈杨黄赵吴周徐孙马朱胡郭何林罗高郑梁谢宋唐许韩邓冯曹彭曾肖田董潘袁蔡蒋余于杜叶程魏苏吕丁任卢姚沈钟姜崔谭陆范汪廖石金韦贾夏付方邹"
    "熊白孟秦邱侯江尹薛闫雷龙黎史陶贺顾毛郝龚邵万覃武钱戴严莫孔向汤温康施文牛樊葛邢安齐易乔伍庞颜倪庄聂章鲁岳翟殷申欧耿关兰焦俞左柳甘祝包宁"
    "尚符舒阮柯纪梅童凌毕单裴霍涂成苗谷曲盛冉翁蓝路游辛靳管柴蒙鲍华喻祁房蒲滕萧"
)
_PROVINCES = (
    "北京|天津|上海|重庆|河北|山西|内蒙古|辽宁|吉林|黑龙江|江苏|浙江|安徽|福建|江西|山东|河南|湖北|湖南|广东|广西|海南|四川|贵州|云南|西藏|陕西|"
    "甘肃|青海|宁夏|新疆|香港|澳门|台湾"
)
_UNIT = "(?:号楼|号院|号|弄|栋|幢|楼|室|单元|层|座)"
_NAME_EN = r"[A-Z][a-z]{1,20}(?:[ -](?:[A-Z]\.|[A-Z][a-z'’]{1,20})){1,3}"
_STREETS = (
    "Street|St|Avenue|Ave|Road|Rd|Boulevard|Blvd|Lane|Ln|Drive|Dr|Court|Ct|Place|Square|Sq|Terrace|Parkway|Pkwy|"
    "Highway|Hwy|Crescent"
)
_HAN = r"[\x{4e00}-\x{9fa5}]"
_HAN_OR_WORD = r"[\x{4e00}-\x{9fa5}A-Za-z0-9-]"
_ZH_NUMBER = f"[0-9]{{1,6}}{_UNIT}|村[0-9一二三四五六七八九十]{{1,3}}组"
_ZH_REST = f"(?:{_HAN_OR_WORD}{{0,12}}?{_UNIT}){{0,4}}"
_ZH_FROM_PROVINCE = (
    f"(?:{_PROVINCES})(?:省|市|自治区|壮族自治区|回族自治区|维吾尔自治区)?{_HAN}{{0,16}}?(?:市|区|县|旗|镇|乡|街道|州)"
    f"{_HAN_OR_WORD}{{0,24}}?(?:[0-9]{{1,6}}{_UNIT}|村[0-9一二三四五六七八九十]{{1,3}}组){_ZH_REST}"
)
_ZH_FROM_LABEL = (
    f"(?:住所地|住所|住址|地址|户籍所在地|户籍地|经营场所|现住|家住|住)[:：]?((?:{_HAN}{{2,9}}(?:省|市|区|县|旗|镇|乡|州|街道)){{1,4}}"
    f"{_HAN_OR_WORD}{{1,24}}?(?:[0-9]{{1,6}}{_UNIT}|村[0-9一二三四五六七八九十]{{1,3}}组){_ZH_REST})"
)
_EN_STREET = (
    r"[1-9][0-9]{0,5}[A-Za-z]?,? (?:[NSEW]\.? )?(?:[A-Z0-9][A-Za-z0-9'’.-]{1,20} ){1,4}"
    rf"(?:{_STREETS})\b(?:\.?,? (?:Apt|Apartment|Suite|Ste|Unit|Floor|#)\.? ?#?[A-Za-z0-9-]{{1,6}})?"
    r"(?:\.?,? [A-Z][A-Za-z .]{1,25}?,? [A-Z]{2} [0-9]{5}(?:-[0-9]{4})?)?"
)
_DE_STREETS = r"straße|strasse|str\.|weg|platz|allee|gasse"
_DE_STREET = f"[A-ZÄÖÜ][a-zäöüß]{{2,20}}(?:{_DE_STREETS}) [0-9]{{1,4}}[a-z]?(?:, [0-9]{{5}} [A-ZÄÖÜ][a-zäöüß]{{2,20}})?"


def is_chinese_name(value: str) -> bool:
    """Tell whether 2 to 4 characters begin with one of the commonest family names."""
    return 2 <= len(value) <= 4 and value[0] in SURNAMES


def _is_birth_date(value: str) -> bool:
    numbers = [int(part) for part in "".join(char if char.isdigit() else " " for char in value).split()]
    if len(numbers) == 2:
        word = next(part for part in value.replace(",", " ").split() if part[:3].lower() in _MONTHS)
        day, year = numbers
        return is_date(year, _MONTHS.index(word[:3].lower()) + 1, day)
    first, second, third = numbers
    if first > 99:
        return is_date(first, second, third)
    year = third if third > 99 else 1900 + third
    return is_date(year, second, first) or is_date(year, first, second)


def _is_zh_address(value: str) -> bool:
    return any(char in value for char in "省市区县镇乡州") and any(
        char in value for char in "路街道巷弄村胡组苑园厦庄里"
    )


ENTITIES = (
    Entity(
        "date_of_birth",
        "A date after a word that makes it a birthday (born, DOB, geboren, 出生日期), or before 出生.",
        (
            labelled(
                r"\bdate of birth|\bbirth ?date|\bbirthday|\bdob\b|\bd\.o\.b\.?|\bborn(?: on)?|\bgeboren(?: am)?|"
                r"\bné(?:e)? le|出生日期|出生年月日?|生日|生于|出生于",
                _DATE,
            ),
            near("日 ?(?:出生|生[，,。；])", rf"({_ZH_DATE}) ?(?:出生|生[，,。；])", 24),
        ),
        _is_birth_date,
        "a day of the calendar",
        "medium",
        "none",
    ),
    Entity(
        "person_name",
        "A name after a title or label (Mr., Dr., Name:, 姓名).",
        (
            near(
                r"\b(?:Mr|Mrs|Ms|Dr|Prof|Herr|Frau|Judge|Justice)\.? [A-Z]",
                rf"\b(?:Mr|Mrs|Ms|Dr|Prof|Herr|Frau|Judge|Justice)\.? ({_NAME_EN})",
                0,
                96,
            ),
            near(
                "(?i:name|contact person|patient|employee): ?[A-Z]",
                rf"\b(?i:name|contact person|patient|employee): ?({_NAME_EN})",
                0,
                96,
            ),
        ),
        confidence="low",
    ),
    Entity(
        "person_name",
        "",
        (
            near(
                "(?:姓名|联系人|收件人|收货人|负责人|经办人|患者)[:：]",
                r"(?:姓名|联系人|收件人|收货人|负责人|经办人|患者)[:：] ?([\x{4e00}-\x{9fa5}]{2,4})",
                0,
                16,
            ),
        ),
        is_chinese_name,
        "",
        "low",
        "none",
    ),
    Entity(
        "postal_address",
        "A postal address: Chinese (from province or label to house number), English (number, street) or German.",
        (
            near(_ZH_NUMBER, _ZH_FROM_PROVINCE, 180, 120),
            near(_ZH_NUMBER, _ZH_FROM_LABEL, 240, 120),
        ),
        _is_zh_address,
        "names of an area and a street or village",
        "low",
        "none",
    ),
    Entity(
        "postal_address",
        "",
        (
            near(rf" (?:{_STREETS})\b", _EN_STREET, 110, 80),
            near("Box [0-9]", r"P\. ?O\. Box [0-9]{1,6}|PO Box [0-9]{1,6}", 8, 8),
            near(f"(?:{_DE_STREETS}) [0-9]", _DE_STREET, 48, 48),
        ),
        confidence="low",
    ),
)
