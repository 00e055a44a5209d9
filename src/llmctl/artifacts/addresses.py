"""Addresses of object storage among the paths of a command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmctl import console
from llmctl.artifacts.manifest import MANIFEST_NAME
from llmctl.artifacts.remote import Remote, cache_folder, url_of
from llmctl.errors import LimitPassed, UserError


@contextmanager
def local_paths(arguments: dict[str, Any], *, verify: bool, overwrite: bool, writes: bool) -> Iterator[dict[str, Any]]:
    """Give a command folders of this machine for the URLs among its paths, and copy its output where it belongs.

    Args:
        arguments: of the command; those that are a `Path` or a list of them are looked at, `output` is written to.
        verify: copy inputs again and let the command find damage.
        overwrite: whether an output that another run made may be replaced.
        writes: whether the command's output may be in object storage.

    Raises:
        UserError: an address is wrong, or the storage cannot be used.
        RunFailed: the storage fails.
    """
    urls = {name: _urls(value) for name, value in arguments.items()}
    if not any(urls.values()):
        yield arguments
        return
    given, names = dict(arguments), {}
    output = _output(urls, writes)
    for name, found in urls.items():
        if not found or name == "output":
            continue
        local = {}
        for url in found:
            remote = Remote(url, cache_folder(url, "input"))
            console.show_as(str(remote.local.absolute()), url)
            local[url] = remote.fetch(verify)
            names[str(local[url].absolute())] = url
        value = arguments[name]
        given[name] = (
            [local.get(url_of(path) or "", path) for path in value]
            if isinstance(value, (list, tuple))
            else next(iter(local.values()))
        )
    if output is None:
        yield given
        return
    console.show_as(str(output.local.absolute()), output.url)
    output.prepare(overwrite)
    given["output"] = output.local
    try:
        yield given
    except LimitPassed:
        _publish(output, names)
        raise
    _publish(output, names)


def _publish(output: Remote, names: dict[str, str]) -> None:
    if (output.local / MANIFEST_NAME).is_file():
        output.publish({**names, str(output.local.absolute()): output.url})


def _urls(value: Any) -> list[str]:
    paths = value if isinstance(value, (list, tuple)) else [value]
    return [url for path in paths if isinstance(path, Path) and (url := url_of(path)) is not None]


def _output(urls: dict[str, list[str]], writes: bool) -> Remote | None:
    found = urls.get("output")
    if not found:
        return None
    if not writes:
        raise UserError(
            f"this command writes to a folder of this machine, not to {found[0]}",
            "give a local folder, and copy it when the run has ended",
        )
    for other in [url for name, others in urls.items() if name != "output" for url in others]:
        if f"{found[0]}/".startswith(f"{other}/") or f"{other}/".startswith(f"{found[0]}/"):
            raise UserError(
                f"the output {found[0]} and the input {other} lie inside one another", "choose another output folder"
            )
    return Remote(found[0], cache_folder(found[0], "output"))
