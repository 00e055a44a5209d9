"""Secrets: tokens of the usual vendors, private keys, passwords in plain sight.

Vendors' tokens are known by their documented prefix and length. A password or secret without a prefix counts after a
label (`password=`, `api_key:`), if it looks drawn by chance or the label says password.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections import Counter

from llmctl.filtering.pii.entity import Entity, Pattern, near

_URLSAFE = "[A-Za-z0-9_-]"
_PLACEHOLDERS = (
    *("password", "passwd", "secret", "changeme", "example", "none", "null", "true", "false", "string", "your", "xxx"),
    *(
        "***",
        "...",
        "todo",
        "required",
        "optional",
        "default",
        "value",
        "token",
        "undefined",
        "self.",
        "args",
        "config",
    ),
    *("env", "input"),
)


def _entropy(text: str) -> float:
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())


def _is_drawn(value: str) -> bool:
    """Tell whether a token looks drawn by chance: many different characters of more than one kind."""
    return len(set(value)) >= 8 and _entropy(value) > 3.0


def _is_secret(value: str) -> bool:
    kinds = sum(any(test(char) for char in value) for test in (str.isdigit, str.islower, str.isupper))
    return not _is_placeholder(value) and kinds >= 2 and any(map(str.isdigit, value)) and _entropy(value) > 3.0


def _is_placeholder(value: str) -> bool:
    lower = value.lower()
    return any(word in lower for word in _PLACEHOLDERS) or len(set(lower)) < 4


def _is_password(value: str) -> bool:
    if _is_placeholder(value) or value.startswith(("/", "./", "~")) or any(char in value for char in "(){}<>$%"):
        return False
    return sum(any(test(char) for char in value) for test in (str.isdigit, str.isalpha)) == 2


def _is_jwt(value: str) -> bool:
    head = value.split(".", 1)[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (binascii.Error, ValueError):
        return False
    return isinstance(header, dict) and ("alg" in header or "typ" in header)


def _token(prefix: str, rest: str) -> Pattern:
    """Return a pattern for a token; its prefix is the trigger."""
    return near(prefix, prefix + rest, 0, 320)


def _vendor(name: str, what: str, *patterns: Pattern) -> Entity:
    return Entity(name, what, patterns, lambda value: len(set(value)) >= 10, "the vendor's prefix and length")


ENTITIES = (
    Entity(
        "private_key",
        "A private key in PEM armour (RSA, EC, OpenSSH, PGP, encrypted or not), with its body up to 16 KiB.",
        (near("PRIVATE KEY", r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----", 48, 16),),
        checked="form: RFC 7468",
        edges="none",
        until="-----(END|BEGIN) [A-Z0-9 ]{0,40}-----",
    ),
    _vendor(
        "aws_access_key", "An access key of Amazon Web Services.", _token("(?:AKIA|ASIA|AROA|AIDA)", "[A-Z2-7]{16}")
    ),
    Entity(
        "aws_secret_key",
        "A secret key of Amazon Web Services after its label.",
        (
            near(
                "(?i:aws_?secret|secretaccesskey)",
                r"(?i:aws_?secret_?(?:access_?)?key|secretaccesskey)[\s\"'`:=>]{1,6}([A-Za-z0-9/+]{40})",
                0,
                80,
            ),
        ),
        _is_drawn,
        "length, many different characters",
    ),
    _vendor(
        "github_token",
        "A token of GitHub (classic, fine-grained, OAuth, app, refresh).",
        _token("gh[pousr]_", "[A-Za-z0-9]{36,251}"),
        _token("github_pat_", "[A-Za-z0-9]{22}_[A-Za-z0-9]{59}"),
    ),
    _vendor("gitlab_token", "A token of GitLab.", _token("gl(?:pat|dt|rt|ptt|ft|soat|cbt)-", f"{_URLSAFE}{{20,64}}")),
    _vendor(
        "slack_token",
        "A token or webhook of Slack.",
        _token("xox[abeoprs]-", "(?:[0-9A-Za-z]{1,64}-){0,5}[0-9A-Za-z]{10,64}"),
        _token("xapp-[0-9]-", "[A-Z0-9]{9,15}-[0-9]{10,15}-[a-f0-9]{32,64}"),
        _token(r"https://hooks\.slack\.com/services/", "T[A-Z0-9]{8,12}/B[A-Z0-9]{8,12}/[A-Za-z0-9]{20,32}"),
    ),
    _vendor(
        "stripe_key",
        "A secret or restricted key of Stripe.",
        _token("(?:[sr]k_(?:live|test)_|whsec_)", "[A-Za-z0-9]{24,250}"),
    ),
    _vendor(
        "google_api_key",
        "An API key of Google.",
        _token("AIza", f"{_URLSAFE}{{35}}"),
        _token("GOCSPX-", f"{_URLSAFE}{{28}}"),
    ),
    _vendor(
        "llm_api_key",
        "A key of a model provider (OpenAI, Anthropic, Hugging Face, Groq, Replicate).",
        near(
            "sk-[A-Za-z0-9-]{12}",
            rf"sk-(?:proj-|svcacct-|admin-|ant-(?:api|admin)[0-9]{{2}}-|or-v1-)?{_URLSAFE}{{32,200}}",
            0,
            240,
        ),
        _token("hf_", "[A-Za-z]{34}"),
        _token("gsk_", "[A-Za-z0-9]{52}"),
        _token("r8_", "[A-Za-z0-9]{37}"),
    ),
    _vendor(
        "vendor_token",
        "A token of npm, PyPI, Docker, DigitalOcean, SendGrid, Twilio, Telegram, Shopify, Mailgun or Azure.",
        _token("npm_", "[A-Za-z0-9]{36}"),
        _token("pypi-AgE", f"{_URLSAFE}{{50,300}}"),
        _token("dckr_pat_", f"{_URLSAFE}{{27}}"),
        _token("do[opr]_v1_", "[a-f0-9]{64}"),
        _token(r"SG\.", rf"{_URLSAFE}{{22}}\.{_URLSAFE}{{43}}"),
        near("(?:AC|SK)[0-9a-f]{16}", "(?:AC|SK)[0-9a-f]{32}", 0, 20),
        near("[0-9]{8}:AA", rf"[0-9]{{8,10}}:AA{_URLSAFE}{{33}}", 3, 40),
        _token("shp(?:at|ca|pa|ss)_", "[a-fA-F0-9]{32}"),
        near("key-[0-9a-f]{16}", "key-[0-9a-f]{32}", 0, 20),
        _token("AccountKey=", "[A-Za-z0-9+/]{86}=="),
    ),
    Entity(
        "jwt",
        "A JSON Web Token.",
        (near(rf"eyJ{_URLSAFE}+\.{_URLSAFE}+\.{_URLSAFE}+", rf"eyJ{_URLSAFE}+\.{_URLSAFE}+\.{_URLSAFE}+"),),
        _is_jwt,
        "the header is JSON with `alg` or `typ` (RFC 7519)",
    ),
    Entity(
        "password",
        "A password after its label (password, pwd, 密码).",
        (
            near(
                r"(?i:pass(?:word|wd|phrase)|pwd|密码)[\"'`]?(?: ?[:：=]|为|是| is)",
                r"(?i:\bpass(?:word|wd|phrase)|\bpwd|密码)[\"'`]?(?: ?[:：=] ?|为|是| is )[\"'`]?"
                r"([^\s\"'`,;，。；]{6,64})",
                0,
                200,
            ),
            near(
                r"(?i:kennwort|mot de passe|contraseña)[\"'`]? ?[:=]",
                r"(?i:kennwort|mot de passe|contraseña)[\"'`]? ?[:=] ?[\"'`]?([^\s\"'`,;]{6,64})",
                0,
                200,
            ),
        ),
        _is_password,
        "letters and digits, no placeholder, no code",
        "low",
        "none",
    ),
    Entity(
        "secret",
        "A secret after its label (api_key, token, client_secret).",
        (
            near(
                "(?i:api[_-]?key|api[_-]?token|access[_-]?token|auth[_-]?token|client[_-]?secret|secret[_-]?key|bearer)",
                "(?i:api[_-]?key|api[_-]?token|access[_-]?token|auth[_-]?token|client[_-]?secret|secret[_-]?key|bearer)"
                r"[\"'`]?(?: ?(?:=>|[:=]) ?| )[\"'`]?([A-Za-z0-9+/_=.-]{16,128})",
                0,
                140,
            ),
        ),
        _is_secret,
        "entropy above 3 bits a character, no placeholder",
        "medium",
    ),
)
