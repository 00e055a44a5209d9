"""Open object storage through fsspec, and say in one sentence what is wrong with it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llmctl.errors import LlmctlError, RunFailed, UserError, nearest

# Packages that protocols need, where ours or fsspec's extra brings them.
_PACKAGES = {"s3": "pip install 'llmctl[s3]'", "s3a": "pip install 'llmctl[s3]'", "gs": "pip install gcsfs"}
_CREDENTIALS = "check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE) and the rights they give"


def filesystem(url: str) -> tuple[Any, str]:
    """Return the filesystem of a URL and the path in it.

    Raises:
        UserError: the protocol is unknown, or its package is not installed.
    """
    import fsspec
    from fsspec.registry import known_implementations

    protocol = url.split("://", 1)[0]
    try:
        return fsspec.core.url_to_fs(url, use_listings_cache=False) if protocol in ("s3", "s3a") else _open(url)
    except ImportError:
        raise UserError(
            f"{protocol}:// needs a package that is not installed",
            _PACKAGES.get(protocol, f"pip install 'fsspec[{protocol}]'"),
        ) from None
    except ValueError as failure:
        if protocol in known_implementations:
            raise UserError(f"cannot use {url}: {failure}", "check the address") from None
        close = nearest(protocol, known_implementations)
        raise UserError(
            f"{protocol}:// is no storage that fsspec knows",
            f"did you mean {close}://?" if close else "check the address",
        ) from None


def _open(url: str) -> tuple[Any, str]:
    import fsspec

    return fsspec.core.url_to_fs(url)


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn what a storage raises into a sentence.

    Raises:
        UserError: the address, the credentials or the rights are wrong.
        RunFailed: anything else.
    """
    try:
        yield
    except LlmctlError:
        raise
    except FileNotFoundError:
        raise UserError(f"{url} does not exist", "check the address; buckets are not created") from None
    except PermissionError as failure:
        raise UserError(f"no access to {url}: {_first_line(failure)}", _CREDENTIALS) from None
    except Exception as failure:
        if isinstance(failure, OSError) and failure.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunFailed(
                f"no space left on the disk while copying {url}", "free some space, or set LLMCTL_CACHE"
            ) from None
        name = type(failure).__name__
        if "Credential" in name or "Token" in name:
            raise UserError(f"no access to {url}: {_first_line(failure)}", _CREDENTIALS) from None
        if "Connect" in name or "Endpoint" in name or isinstance(failure, (ConnectionError, TimeoutError)):
            raise RunFailed(
                f"cannot reach the storage of {url}: {_first_line(failure)}",
                "check the network and AWS_ENDPOINT_URL; the same command goes on from there",
            ) from None
        raise RunFailed(f"cannot use {url}: {_first_line(failure)}", "the same command goes on from there") from None


def _first_line(failure: Exception) -> str:
    return (str(failure).strip().splitlines() or [type(failure).__name__])[0].rstrip(".")
