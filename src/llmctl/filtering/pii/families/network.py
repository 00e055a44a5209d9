"""Where a machine or a person is: addresses of networks and devices, coordinates, links that carry a password."""

from __future__ import annotations

import ipaddress

from llmctl.filtering.pii.checksums import luhn, only
from llmctl.filtering.pii.entity import Entity, labelled, near

_RESOLVERS = frozenset({"1.1.1.1", "1.0.0.1", "8.8.8.8", "8.8.4.4", "9.9.9.9"})


def _is_ipv4(value: str) -> bool:
    parts = value.split(".")
    if any((len(part) > 1 and part[0] == "0") or int(part) > 255 for part in parts):
        return False
    # Small numbers throughout are a version, a section or an object identifier more often than an address.
    if max(map(int, parts)) < 32 and value not in _RESOLVERS:
        return False
    # Loopback, masks and 0.0.0.0 point at nobody.
    address = ipaddress.IPv4Address(value)
    return not (address.is_loopback or address.is_unspecified or parts[0] in ("0", "255"))


def _is_ipv6(value: str) -> bool:
    try:
        address = ipaddress.IPv6Address(value)
    except ValueError:
        return False
    # "::" and "::1" are everybody's; "a::b" and the like is a name in C++ more often than an address.
    return not (address.is_loopback or address.is_unspecified) and sum(char in "0123456789" for char in value) >= 2


def _is_mac(value: str) -> bool:
    digits = value.replace(":", "").replace("-", "").replace(".", "").lower()
    return len(set(digits)) > 2


def _is_imei(value: str) -> bool:
    return luhn(only(value))


def _is_pair(value: str) -> bool:
    latitude, _, longitude = value.replace("，", ",").partition(",")
    return abs(float(latitude)) <= 90 and abs(float(longitude)) <= 180 and len(set(only(value))) > 2


_OCTET = "[0-9]{1,3}"
_HEX_COLONS = "[0-9a-fA-F]:[0-9a-fA-F]{0,4}:"
_DEGREES = (
    r"[0-9]{1,3}(?:\.[0-9]{1,8})? ?° ?(?:[0-9]{1,2}(?:\.[0-9]{1,6})? ?['′] ?)?"
    r"(?:[0-9]{1,2}(?:\.[0-9]{1,6})? ?(?:\"|″|''))? ?"
)

ENTITIES = (
    Entity(
        "ipv4",
        "An IPv4 address, private ones included; loopback, masks, 0.0.0.0 and what looks like a version are not.",
        (near(rf"[0-9]\.{_OCTET}\.{_OCTET}\.[0-9]", rf"{_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}", 3, 4),),
        _is_ipv4,
        "four numbers up to 255 without leading zeros, one of them above 31 (public resolvers excepted)",
        "medium",
        "digits",
    ),
    Entity(
        "ipv6",
        "An IPv6 address; `::` and `::1` are not.",
        (
            near(_HEX_COLONS, "(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}", 40, 40),
            near(_HEX_COLONS, "(?:[0-9a-fA-F]{1,4}:){1,6}(?::[0-9a-fA-F]{1,4}){1,6}", 40, 40),
            near(_HEX_COLONS, "[0-9a-fA-F]{3,4}:(?:[0-9a-fA-F]{1,4}:){0,6}:", 40, 40),
        ),
        _is_ipv6,
        "form: RFC 4291, section 2.2",
        edges="none",
    ),
    Entity(
        "mac_address",
        "The hardware address of a network card.",
        (
            near("(?:[0-9a-fA-F]{2}:){3}", "(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}", 9, 12),
            near("(?:[0-9a-fA-F]{2}-){3}", "(?:[0-9a-fA-F]{2}-){5}[0-9a-fA-F]{2}", 9, 12),
            near(r"[0-9a-fA-F]{4}\.[0-9a-fA-F]{4}\.", r"[0-9a-fA-F]{4}\.[0-9a-fA-F]{4}\.[0-9a-fA-F]{4}", 0, 4),
        ),
        _is_mac,
        "form: IEEE 802",
        "high",
        "digits",
    ),
    Entity(
        "imei",
        "The number of a mobile device (IMEI) after its label.",
        (labelled(r"\bimei\b", r"[0-9]{2}[ -]?[0-9]{6}[ -]?[0-9]{6}[ -]?[0-9]"),),
        _is_imei,
        "Luhn digit (3GPP TS 23.003, section 6.2)",
        "high",
        "digits",
    ),
    Entity(
        "coordinates",
        "A place as latitude and longitude: decimal with four digits or more behind the point, or degrees and minutes.",
        (
            near(
                r"\.[0-9]{4,15}[,，] ?[-+]?[0-9]",
                r"[-+]?[0-9]{1,2}\.[0-9]{4,15}[,，] ?[-+]?[0-9]{1,3}\.[0-9]{4,15}",
                4,
                24,
            ),
        ),
        _is_pair,
        "within ±90 and ±180 degrees (ISO 6709)",
        "medium",
        "digits",
    ),
    Entity(
        "coordinates",
        "",
        (
            near("°", rf"{_DEGREES}[NS北南][,，]?[ ]?{_DEGREES}[EWO东西]", 40, 80),
            near("°", rf"[NS]{_DEGREES}[,，]?[ ]?[EW]{_DEGREES}", 40, 80),
        ),
        confidence="medium",
    ),
    Entity(
        "url_credentials",
        "A link or connection string that carries a user and a password.",
        (
            near(
                r"://[^\s/:@]+:[^\s/@]+@",
                r"(?i:https?|ftps?|sftp|ssh|git|svn|wss?|mongodb(?:\+srv)?|postgres(?:ql)?|mysql|redis|rediss|amqps?|smtps?|imaps?|ldaps?|jdbc:[a-z]{2,12})://[^\s/:@<>\"'{}|$\[\]]{1,64}:[^\s/@<>\"'{}$\[\]]{1,128}@[A-Za-z0-9.\-]{1,253}",
                40,
                256,
            ),
        ),
        checked="form: RFC 3986, section 3.2.1",
    ),
)
