"""Lists that the user gives as files: bad words, and addresses that are blocked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmctl.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from llmctl.filtering.config import FilterConfig
    from llmctl.filtering.policy import Policy

# A list becomes part of the configuration, so that another list is another run.
LIST_BYTES = 2_000_000
RULE = "blocked_urls"


def with_lists(config: FilterConfig, bad_words: Path | None, blocked_urls: Path | None) -> FilterConfig:
    """Return the configuration with the files' lists in the rules `bad_words` and `blocked_urls`.

    Raises:
        UserError: a file that cannot be read, or holds nothing.
    """
    rules: dict[str, Any] = deepcopy(config.rules)
    for path, rule, key in ((bad_words, "bad_words", "words"), (blocked_urls, RULE, "entries")):
        if path is not None:
            given = rules.get(rule)
            rules[rule] = {**(given if isinstance(given, dict) else {}), key: read_list(path)}
    changed = replace(config, rules=rules)
    changed.validate()
    return changed


def read_list(path: Path) -> list[str]:
    """Return the lines of a file without blank ones and comments, each once.

    Raises:
        UserError: it cannot be read, is too large, no UTF-8, or empty.
    """
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as failure:
        raise UserError(f"{path} cannot be read: {failure.strerror}", "check the path") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8", "save the list as UTF-8, one entry a line") from None
    if len(data) > LIST_BYTES:
        raise UserError(f"{path} has {len(data):,} bytes; lists may have {LIST_BYTES:,}", "give a shorter list")
    lines = [line.strip() for line in text.splitlines()]
    entries = list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
    if not entries:
        raise UserError(f"{path} holds no entries", "write one a line")
    return entries


def identity(policies: Sequence[Policy]) -> str:
    """Return what the column depends on beside the records."""
    lists = [[policy.pattern, list(_entries(policy))] for policy in policies]
    return hashlib.sha256(json.dumps(lists).encode()).hexdigest()[:32]


def blocked(table: pa.Table, policies: Sequence[Policy]) -> dict[str, np.ndarray]:
    """Return {`url_blocked`: float64 of shape [documents]}: 1 on the policy's list, 0 not on it, NaN unknown."""
    import numpy as np

    from llmctl.filtering.policy import policy_of

    values = np.full(table.num_rows, np.nan)
    numbers: dict[str, int] = {}
    columns = [table.column(name).to_pylist() for name in ("id", "source", "metadata")]
    for row, (name, source, metadata) in enumerate(zip(*columns, strict=True)):
        number = numbers.setdefault(source, -1)
        if number < 0:
            number = numbers[source] = policy_of(source, policies)
        entries = _entries(policies[number])
        address = _address(name, metadata)
        if entries and address:
            values[row] = is_blocked(address, _lookup(entries))
    return {"url_blocked": values}


def is_blocked(address: str, entries: frozenset[str]) -> bool:
    """Tell whether an address without scheme, or a domain above it, or a path that it begins with, is on a list."""
    host, slash, path = address.partition("/")
    labels = host.rpartition("@")[2].partition(":")[0].split(".")
    domains = [".".join(labels[place:]) for place in range(len(labels))]
    if any(domain in entries for domain in domains):
        return True
    parts = path.split("/") if slash else []
    prefixes = ["/".join(parts[: place + 1]) for place in range(len(parts))]
    return any(f"{domain}/{prefix}".rstrip("/") in entries for domain in domains for prefix in prefixes)


def _address(name: str, metadata: str | None) -> str:
    url = json.loads(metadata).get("url") if metadata and '"url"' in metadata else None
    url = url if isinstance(url, str) else name if "://" in name[:12] else ""
    return _without_scheme(url)


def _without_scheme(url: str) -> str:
    rest = url.strip().partition("://")[2] or url.strip()
    rest = rest.partition("#")[0].partition("?")[0]
    host, slash, path = rest.partition("/")
    return f"{host.lower().rstrip('.')}{slash}{path}".rstrip("/")


def _entries(policy: Policy) -> tuple[str, ...]:
    parameters = policy.rules.get(RULE)
    return tuple(parameters.entries) if parameters is not None else ()


@lru_cache(maxsize=16)
def _lookup(entries: tuple[str, ...]) -> frozenset[str]:
    return frozenset(_without_scheme(entry.removeprefix("*.")) for entry in entries)
