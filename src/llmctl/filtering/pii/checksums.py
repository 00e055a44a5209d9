"""Check digits: the arithmetic by which numbers prove that they are what they look like.

Every function takes text whose separators are gone and tells whether the check holds. The sources stand with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_BECH32_GENERATOR = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_BECH32_CONSTANTS = (1, 0x2BC830A3)  # BIP 173 (bech32), BIP 350 (bech32m)

_VERHOEFF_D = (
    "0123456789",
    "1234067895",
    "2340178956",
    "3401289567",
    "4012395678",
    "5987604321",
    "6598710432",
    "7659821043",
    "8765932104",
    "9876543210",
)
_VERHOEFF_P = (
    "0123456789",
    "1576283094",
    "5803796142",
    "8916043527",
    "9453126870",
    "4286573901",
    "2793806415",
    "7046913258",
)


def only(text: str, kept: str = "0123456789") -> str:
    """Return the characters of `text` that are in `kept`."""
    return "".join(char for char in text if char in kept)


def weighted(digits: str, weights: Sequence[int]) -> int:
    """Return the sum of digits times weights, over the shorter of both."""
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=False))


def luhn(digits: str) -> bool:
    """Check the Luhn digit: ISO/IEC 7812-1, annex B."""
    total = 0
    for position, char in enumerate(reversed(digits)):
        value = int(char)
        if position % 2:
            value = value * 2 - 9 if value > 4 else value * 2
        total += value
    return total % 10 == 0


def verhoeff(digits: str) -> bool:
    """Check Verhoeff's digit: J. Verhoeff 1969, "Error detecting decimal codes"."""
    check = "0"
    for position, char in enumerate(reversed(digits)):
        check = _VERHOEFF_D[int(check)][int(_VERHOEFF_P[position % 8][int(char)])]
    return check == "0"


def mod_97_10(text: str) -> bool:
    """Check by ISO/IEC 7064 MOD 97-10, letters as 10 to 35 (IBAN: ISO 13616, after moving the first four)."""
    return int("".join(str(int(char, 36)) for char in text)) % 97 == 1


def mod_11_2(text: str) -> bool:
    """Check by ISO/IEC 7064 MOD 11-2; the last character may be X for ten."""
    product = 0
    for char in text[:-1]:
        product = (product + int(char)) * 2 % 11
    return (product + (10 if text[-1] in "Xx" else int(text[-1]))) % 11 == 1


def mod_11_10(digits: str) -> bool:
    """Check by ISO/IEC 7064 MOD 11,10."""
    product = 10
    for char in digits[:-1]:
        total = (int(char) + product) % 10 or 10
        product = total * 2 % 11
    return (product + int(digits[-1])) % 10 == 1


def ean(digits: str) -> bool:
    """Check the digit of EAN-13: GS1 General Specifications, section 7.9."""
    return sum(int(char) * (3 if position % 2 else 1) for position, char in enumerate(digits)) % 10 == 0


def base58check(text: str) -> bytes | None:
    """Return version and payload of a Base58Check text (Bitcoin wiki, "Base58Check encoding"), None if it is broken."""
    number = 0
    for char in text:
        number = number * 58 + BASE58.index(char)
    body = number.to_bytes((number.bit_length() + 7) // 8, "big")
    body = b"\0" * (len(text) - len(text.lstrip("1"))) + body
    if len(body) < 5:
        return None
    payload, check = body[:-4], body[-4:]
    return payload if hashlib.sha256(hashlib.sha256(payload).digest()).digest()[:4] == check else None


def bech32(text: str) -> bool:
    """Check a segregated-witness address: BIP 173 for bech32, BIP 350 for bech32m."""
    text = text.lower()
    prefix, _, data = text.rpartition("1")
    if not prefix or len(data) < 6 or any(char not in BECH32 for char in data):
        return False
    values = [ord(char) >> 5 for char in prefix] + [0] + [ord(char) & 31 for char in prefix]
    check = 1
    for value in [*values, *(BECH32.index(char) for char in data)]:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate(_BECH32_GENERATOR):
            check ^= generator if top >> bit & 1 else 0
    return check in _BECH32_CONSTANTS


def _round_constants() -> tuple[int, ...]:
    register, constants = 1, []
    for _ in range(24):
        constant = 0
        for bit in range(7):
            if register & 1:
                constant |= 1 << ((1 << bit) - 1)
            register = (register << 1) ^ (0x171 if register & 0x80 else 0)
        constants.append(constant)
    return tuple(constants)


_ROUND_CONSTANTS = _round_constants()
_MASK = (1 << 64) - 1


def _rotate(value: int, by: int) -> int:
    by %= 64
    return ((value << by) | (value >> (64 - by))) & _MASK if by else value


def _permute(lanes: list[list[int]]) -> list[list[int]]:
    for constant in _ROUND_CONSTANTS:
        column = [lanes[x][0] ^ lanes[x][1] ^ lanes[x][2] ^ lanes[x][3] ^ lanes[x][4] for x in range(5)]
        mixed = [column[(x + 4) % 5] ^ _rotate(column[(x + 1) % 5], 1) for x in range(5)]
        lanes = [[lanes[x][y] ^ mixed[x] for y in range(5)] for x in range(5)]
        x, y, current = 1, 0, lanes[1][0]
        for step in range(24):
            x, y = y, (2 * x + 3 * y) % 5
            current, lanes[x][y] = lanes[x][y], _rotate(current, (step + 1) * (step + 2) // 2)
        for y in range(5):
            row = [lanes[x][y] for x in range(5)]
            for x in range(5):
                lanes[x][y] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5] & _MASK)
        lanes[0][0] ^= constant
    return lanes


def keccak_256(data: bytes) -> bytes:
    """Return Ethereum's Keccak-256 of up to 135 bytes (the padding before FIPS 202, so not hashlib's SHA3-256)."""
    if len(data) > 135:
        raise ValueError("one block only")
    block = bytearray(data) + bytearray(136 - len(data))
    block[len(data)] ^= 0x01
    block[135] ^= 0x80
    lanes = [[0] * 5 for _ in range(5)]
    for number in range(17):
        lanes[number % 5][number // 5] = int.from_bytes(block[number * 8 : number * 8 + 8], "little")
    lanes = _permute(lanes)
    return b"".join(lanes[number % 5][number // 5].to_bytes(8, "little") for number in range(4))


def eip_55(address: str) -> bool:
    """Check the capital letters of an Ethereum address: EIP-55. All small or all capital letters carry no check."""
    body = address[2:]
    if body in (body.lower(), body.upper()):
        return True
    digest = keccak_256(body.lower().encode()).hex()
    return all(
        char == (char.upper() if int(digit, 16) > 7 else char.lower())
        for char, digit in zip(body, digest, strict=False)
    )
