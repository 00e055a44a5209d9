"""Read JSON lines: one object a line, lines split at ``\\n`` only, and one bad line never costs another.

Blank lines are no records and are counted nowhere. NaN and integers of any size are read as Python reads them;
in the metadata NaN becomes null, since JSON has no NaN.
"""

from __future__ import annotations

import json
from typing import Any

from llmctl.artifacts.raw.columns import ABSENT, Columns, dump_json, is_inexact, may_be_inexact, take_field, text_error
from llmctl.artifacts.raw.pieces import Piece, RecordFault, too_long

_BOM = b"\xef\xbb\xbf"


def add_lines(piece: Piece, columns: Columns) -> None:
    """Add every record of a piece, and every line that is none to the invalid records."""
    import orjson

    options = columns.options
    text_field, max_bytes = options.text_field, options.max_record_bytes
    # The fields are at the top level unless there is a dot: then the careful path finds them.
    nested = any("." in name for name in (text_field, options.id_field, options.source_field, options.lang_field))
    fixed_source = options.source is not None
    id_field, source_field, lang_field = options.id_field, options.source_field, options.lang_field
    loads, dumps = orjson.loads, orjson.dumps
    path, source = columns.path, columns.source
    ids, texts, sources = columns.ids, columns.texts, columns.sources
    langs, metadata = columns.langs, columns.metadata
    end = piece.offset
    lines = piece.data.split(b"\n")
    piece.num_newlines = len(lines) - 1
    for number, line in enumerate(lines):
        offset, end = end, end + len(line) + 1
        try:
            record = loads(line)
            text = record[text_field]
            if nested or type(text) is not str or len(line) > max_bytes:
                raise TypeError
        except (ValueError, KeyError, TypeError, IndexError):
            _add_carefully(line, number, offset, piece, columns)
            continue
        del record[text_field]
        identifier = record.pop(id_field, None)
        label = None if fixed_source else record.pop(source_field, None)
        lang = record.pop(lang_field, None)
        dumped = dumps(record) if record else None
        if identifier is None:
            identifier = f"{path}#{offset}"
        if not label:
            label = source
        if (
            type(identifier) is not str
            or type(label) is not str
            or (lang is not None and (type(lang) is not str or not lang))
            or (dumped is not None and may_be_inexact(dumped))
        ):
            _add_carefully(line, number, offset, piece, columns)
            continue
        ids.append(identifier)
        texts.append(text)
        sources.append(label)
        langs.append(lang)
        metadata.append(dumped)
    columns.pending += len(piece.data)
    columns.flush_if_large()


def _add_carefully(line: bytes, number: int, offset: int, piece: Piece, columns: Columns) -> None:
    """Add a line that is not plain: an unusual record, a blank line, or an invalid one."""
    if not line.strip():
        return
    options = columns.options
    try:
        if len(line) > options.max_record_bytes:
            raise RecordFault(too_long(options.max_record_bytes))
        record = _parse(line[3:] if offset == 0 and line.startswith(_BOM) else line)
        if record is None:
            return
        text = take_field(record, options.text_field, ABSENT)
        if not isinstance(text, str):
            raise RecordFault(text_error(record, options.text_field, text))
    except RecordFault as failure:
        line_number = None if piece.line is None else piece.line + number
        columns.reject(str(failure), line_number, offset, line)
        return
    columns.add(record, text, f"#{offset}")


def _parse(line: bytes) -> dict[str, Any] | None:
    """Parse one line exactly; None for a line that holds nothing but a byte order mark.

    Raises:
        RecordFault: with the kind of fault before the first colon.
    """
    import orjson

    if not line.strip():
        return None
    try:
        record = orjson.loads(line)
        if is_inexact(record):
            record = json.loads(line)
    except ValueError:
        record = _parse_as_python(line)
    if not isinstance(record, dict):
        kind = "null" if record is None else type(record).__name__
        raise RecordFault(f"not a JSON object: {kind}")
    return record


def _parse_as_python(line: bytes) -> Any:
    """Parse what orjson refuses: NaN and infinity pass, what cannot be stored as UTF-8 does not."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as failure:
        raise RecordFault(f"not UTF-8: {failure.reason} at byte {failure.start}") from None
    try:
        record = json.loads(text)
        dump_json(record)
    except UnicodeEncodeError:
        raise RecordFault("lone surrogate: an escape that is no character") from None
    except RecursionError:
        raise RecordFault("not JSON: nested too deeply") from None
    except json.JSONDecodeError as failure:
        raise RecordFault(f"not JSON: {failure.msg} at character {failure.pos}") from None
    except ValueError as failure:
        raise RecordFault(f"not JSON: {failure}") from None
    return record
