"""Addresses and keys of cryptocurrencies, which identify their owner's whole history of payments."""

from __future__ import annotations

from llmctl.filtering.pii.checksums import base58check, bech32, eip_55
from llmctl.filtering.pii.entity import Entity, Pattern, near

_BASE58 = "[1-9A-HJ-NP-Za-km-z]"


def _base58(regex: str) -> Pattern:
    return near(rf"{_BASE58}{{26}}", regex, 26, 32)


def _versions(*versions: int, size: int = 21):
    def check(value: str) -> bool:
        payload = base58check(value)
        return payload is not None and len(payload) == size and payload[0] in versions

    return check


def _is_wif(value: str) -> bool:
    payload = base58check(value)
    return payload is not None and payload[0] == 0x80 and len(payload) in (33, 34)


_bitcoin, _litecoin = _versions(0x00, 0x05), _versions(0x30, 0x32)


ENTITIES = (
    Entity(
        "bitcoin_address",
        "A Bitcoin address: Base58Check (1…, 3…), bech32 or bech32m (bc1…).",
        (
            _base58(rf"[13]{_BASE58}{{25,34}}"),
            near("(?:bc1|BC1)[0-9A-Za-z]{11}", "(?:bc1[02-9ac-hj-np-z]{11,71}|BC1[02-9AC-HJ-NP-Z]{11,71})", 0, 72),
        ),
        lambda value: bech32(value) if value[:3].lower() == "bc1" else _bitcoin(value),
        "double SHA-256 (Base58Check), BCH code (BIP 173, BIP 350)",
    ),
    Entity(
        "ethereum_address",
        "An address of Ethereum and the chains alike to it.",
        (near("0x[0-9a-fA-F]{16}", "0x[0-9a-fA-F]{40}", 0, 32),),
        lambda value: eip_55(value) and len(set(value[2:])) > 3,
        "capital letters by Keccak-256 (EIP-55) where both cases occur",
    ),
    Entity(
        "litecoin_address",
        "A Litecoin address: Base58Check (L…, M…) or bech32 (ltc1…).",
        (_base58(rf"[LM]{_BASE58}{{26,33}}"), near("ltc1[0-9a-z]{11}", "ltc1[02-9ac-hj-np-z]{11,71}", 0, 72)),
        lambda value: bech32(value) if value.startswith("ltc1") else _litecoin(value),
        "double SHA-256 (Base58Check), BCH code (BIP 173)",
    ),
    Entity(
        "tron_address",
        "A TRON address.",
        (_base58(rf"T{_BASE58}{{33}}"),),
        _versions(0x41),
        "double SHA-256 (Base58Check)",
    ),
    Entity(
        "crypto_private_key",
        "A private key in Bitcoin's wallet import format.",
        (_base58(rf"(?:5{_BASE58}{{50}}|[KL]{_BASE58}{{51}})"),),
        _is_wif,
        "double SHA-256 (Base58Check)",
    ),
)
