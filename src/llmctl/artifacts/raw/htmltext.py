"""Text of HTML pages, by resiliparse in a process of its own: a page that hangs or crashes the parser costs itself.

The main-content heuristic takes a time that grows with the square of the nesting (10,000 nested elements: 2 s), so
each page has a limit of processor time, which, unlike a limit by the clock, does not depend on how busy the machine is.
"""

from __future__ import annotations

import atexit
import os
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from typing import IO

from llmctl.artifacts.raw.pieces import RecordFault

# Seconds of processor time for one page; set before the first page is read.
CPU_LIMIT_VARIABLE = "LLMCTL_HTML_CPU_S"
DEFAULT_CPU_LIMIT_S = 10
MEMORY_LIMIT_BYTES = 8 << 30
_HEADER = struct.Struct("<QQ")
_OK, _FAILED = 0, 1


def cpu_limit_s() -> int:
    """Return the seconds of processor time that one page may take."""
    value = os.environ.get(CPU_LIMIT_VARIABLE, "")
    return int(value) if value.isdigit() and int(value) > 0 else DEFAULT_CPU_LIMIT_S


class _Extractor:
    """The process that parses; started when the first page comes, and again after it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def extract(self, page: bytes, charset: str) -> tuple[str, str]:
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        name = charset.encode("utf-8", "replace")[:100]
        try:
            process.stdin.write(_HEADER.pack(len(name), len(page)) + name)
            process.stdin.write(page)
            process.stdin.flush()
            status, title, text = _read_reply(process.stdout)
        except (EOFError, BrokenPipeError):
            raise RecordFault(self._cause_of_death()) from None
        if status == _FAILED:
            raise RecordFault(f"broken HTML: {text}")
        return text, title

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "llmctl.artifacts.raw.htmltext"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is the parent's matter; the end of stdin ends this process
            )
            self._owner = os.getpid()
        return self._process

    def _cause_of_death(self) -> str:
        assert self._process is not None
        try:
            status = self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._forget()
        if status == -signal.SIGXCPU:
            return f"HTML takes too long: more than {cpu_limit_s()} s"
        return f"HTML crashes the parser: status {status}"

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
            self._forget()

    def _forget(self) -> None:
        assert self._process is not None
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what was not sent yet has no reader any more
                if pipe is not None:
                    pipe.close()
        self._process = None


_extractor = _Extractor()
atexit.register(_extractor.close)


def html_text(page: bytes, charset: str = "") -> tuple[str, str]:
    """Return the main text and the title of a page.

    Args:
        page: its bytes; UTF-8 where that fits, else what `charset` or the page says, else what its bytes look like.
        charset: from the server, if it said.

    Raises:
        RecordFault: the parser fails, crashes, or takes too long.
    """
    return _extractor.extract(page, charset)


def _read_exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _read_reply(stream: IO[bytes]) -> tuple[int, str, str]:
    status = _read_exactly(stream, 1)[0]
    title_size, text_size = _HEADER.unpack(_read_exactly(stream, _HEADER.size))
    title = _read_exactly(stream, title_size).decode("utf-8", "replace")
    return status, title, _read_exactly(stream, text_size).decode("utf-8", "replace")


def _serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer pages until the end of the input."""
    while True:
        try:
            name_size, page_size = _HEADER.unpack(_read_exactly(requests, _HEADER.size))
            charset = _read_exactly(requests, name_size).decode("utf-8", "replace")
            page = _read_exactly(requests, page_size)
        except EOFError:
            return
        _limit_cpu()
        status, title, text = _OK, "", ""
        try:
            text, title = _extract(page, charset)
        except Exception as failure:  # whatever the parser says is told, and the next page is served
            status, text = _FAILED, f"{type(failure).__name__} {failure}"
        title_bytes, text_bytes = title.encode("utf-8", "replace"), text.encode("utf-8", "replace")
        replies.write(bytes([status]) + _HEADER.pack(len(title_bytes), len(text_bytes)))
        replies.write(title_bytes)
        replies.write(text_bytes)
        replies.flush()


def _limit_cpu() -> None:
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + cpu_limit_s() + 1
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _extract(page: bytes, charset: str) -> tuple[str, str]:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    tree = HTMLTree.parse(_decode(page, charset))
    # The heuristic finds nothing on pages without running text; these are read whole.
    text = extract_plain_text(tree, main_content=True) or extract_plain_text(tree, main_content=False)
    return str(text), str(tree.title or "").strip()


def _decode(page: bytes, charset: str) -> str:
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    try:
        return page.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    if charset:
        try:
            return page.decode(charset)
        except (LookupError, ValueError):  # no such charset, or not this one
            pass
    return str(bytes_to_str(page, detect_encoding(page, from_html_meta=True) or "utf-8", errors="replace"))


if __name__ == "__main__":
    import resource

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    if hard_limit == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, hard_limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _serve(sys.stdin.buffer, sys.stdout.buffer)
