"""`llmctl show`: what a folder is, where it came from, and whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmctl import console
from llmctl.errors import RunFailed, UserError

if TYPE_CHECKING:
    from llmctl.artifacts.lineage import Ancestor
    from llmctl.artifacts.manifest import Manifest

TEXT_WIDTH = 300
MAX_ROWS = 12


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("show")(command)


def command(
    path: Annotated[Path, typer.Argument(help="A folder that llmctl wrote, a raw file or folder, or a model folder.")],
    *,
    head: Annotated[int, typer.Option("--head", "-n", help="Show the first N documents.", min=0)] = 0,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Read every file again and compare it with its checksum.")
    ] = True,
    text_field: Annotated[str, typer.Option("--text-field", help="Field of raw records that holds the text.")] = "text",
    json_output: Annotated[bool, typer.Option("--json", help="Print the result on stdout as one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings and errors.")] = False,
) -> None:
    """Say what a folder is, where it came from (the chain of inputs), and whether its checksums hold.

    Exit status 1 when a file is missing or differs from its checksum.
    """
    console.configure(json_output=json_output, quiet=quiet)
    from llmctl.artifacts.addresses import local_paths, url_of
    from llmctl.artifacts.manifest import MANIFEST_NAME, STATE_FOLDER

    if url_of(path) is not None:
        with local_paths({"path": path}, verify=verify, overwrite=False, writes=False) as local:
            path = local["path"]
    if path.name == MANIFEST_NAME and path.is_file():
        path = path.parent
    if (path / MANIFEST_NAME).is_file():
        _show_artifact(path, head, verify)
    elif (path / STATE_FOLDER).is_dir():
        _show_unfinished(path)
    elif _is_model_folder(path):
        _show_model(path)
    else:
        _show_raw(path, head, text_field)


# -- a finished artifact ------------------------------------------------------------------------------------------


def _show_artifact(path: Path, head: int, verify: bool) -> None:
    from llmctl.artifacts.kinds import KINDS
    from llmctl.artifacts.lineage import trace
    from llmctl.artifacts.manifest import read_manifest, read_run

    manifest = read_manifest(path)
    ancestors = trace(manifest, path)
    damaged = _verify(manifest) if verify else None
    run = read_run(path)
    documents = _head_of_artifact(path, manifest, head)
    lines = [
        f"{path}: {manifest.kind} ({KINDS[manifest.kind].description})",
        f"  written by llmctl {manifest.stage}, version {manifest.tool_version}, schema {manifest.schema_version}"
        + (f", {run['ended']}" if isinstance(run.get("ended"), str) else ""),
        f"  {_count(len(manifest.files), 'file')}, {_size(sum(file.bytes for file in manifest.files))}"
        f", fingerprint {manifest.fingerprint[:16]}",
        *_statistics_lines(manifest.statistics),
        "made from:" if ancestors else "made from nothing that it names",
        *_ancestor_lines(ancestors),
        *_checksum_lines(manifest, damaged),
        *_document_lines(documents),
    ]
    console.result(
        _harmless("\n".join(lines)),
        path=str(path),
        kind=manifest.kind,
        stage=manifest.stage,
        tool_version=manifest.tool_version,
        schema_version=manifest.schema_version,
        fingerprint=manifest.fingerprint,
        files=len(manifest.files),
        bytes=sum(file.bytes for file in manifest.files),
        config=manifest.config,
        statistics=manifest.statistics,
        inputs=[ancestor.to_mapping() for ancestor in ancestors],
        checksums="not read" if damaged is None else "damaged" if damaged else "hold",
        damaged=damaged or [],
        **({"documents": documents} if documents else {}),
    )
    if damaged:
        raise RunFailed(_harmless(f"{path} is damaged: {damaged[0]}"), "make the folder again, or copy it again")


def _verify(manifest: Manifest) -> list[str]:
    total = sum(file.bytes for file in manifest.files)
    with console.progress("reading checksums", total) as shown:
        return manifest.damaged_files(shown.advance)


def _statistics_lines(statistics: dict[str, Any]) -> list[str]:
    lines = []
    records = statistics.get("records")
    if isinstance(records, dict):
        lines.append("  records: " + ", ".join(f"{_number(value)} {name}" for name, value in records.items()))
    for name, value in statistics.items():
        if name == "records" or value in (None, {}, []):
            continue
        if isinstance(value, dict):
            scalars = {key: item for key, item in value.items() if _is_scalar(item)}
            shown = sorted(scalars.items(), key=_by_size)[:MAX_ROWS] if _all_numbers(scalars) else list(scalars.items())
            if shown:
                more = ", …" if len(scalars) > MAX_ROWS else ""
                lines.append(
                    f"  {name}: " + ", ".join(f"{key} {_number(item)}" for key, item in shown[:MAX_ROWS]) + more
                )
        elif isinstance(value, list):
            lines.append(f"  {name}: {_count(len(value), 'row')} (--json prints them)")
        else:
            lines.append(f"  {name}: {_number(value)}")
    return lines


def _by_size(item: tuple[str, Any]) -> tuple[float, str]:
    return -float(item[1]), item[0]


def _all_numbers(scalars: dict[str, Any]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in scalars.values())


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float))


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _ancestor_lines(ancestors: list[Ancestor], indent: str = "  ") -> list[str]:
    lines = []
    for ancestor in ancestors:
        place = str(ancestor.path) if ancestor.path is not None else ancestor.name
        made = f", by {ancestor.stage}" if ancestor.stage else ""
        size = ""
        if ancestor.num_files is not None:
            size = f", {_count(ancestor.num_files, 'file')}, {_size(ancestor.bytes or 0)}"
        state = {
            "matches": "",
            "changed": " — has changed since",
            "missing": " — is not there any more",
            "unknown": " — its place is not recorded",
        }[ancestor.state]
        fingerprint = f" [{ancestor.fingerprint[:16]}]"
        lines.append(f"{indent}{ancestor.role}: {place} ({ancestor.kind}{made}{size}){fingerprint}{state}")
        lines += _ancestor_lines(ancestor.inputs, indent + "  ")
    return lines


def _checksum_lines(manifest: Manifest, damaged: list[str] | None) -> list[str]:
    if damaged is None:
        return ["checksums: not read (--no-verify)"]
    if not damaged:
        return [f"checksums: all hold ({_count(len(manifest.files), 'file')})"]
    return [f"checksums: {len(damaged):,} of {len(manifest.files):,} files are damaged", *(f"  {it}" for it in damaged)]


def _head_of_artifact(path: Path, manifest: Manifest, count: int) -> list[dict[str, Any]]:
    if not count:
        return []
    if manifest.kind != "documents":
        console.info(f"--head shows documents, and {path} holds {manifest.kind}")
        return []
    from llmctl.artifacts.inputs import open_input
    from llmctl.artifacts.raw.blocks import ReadOptions

    return _first_documents(open_input(path, kinds=("documents",)), ReadOptions(), count)


# -- everything else ----------------------------------------------------------------------------------------------


def _show_unfinished(path: Path) -> None:
    import json

    from llmctl.artifacts.manifest import STATE_FOLDER
    from llmctl.artifacts.output import CLAIM_NAME, UNITS_FOLDER

    try:
        claim = json.loads((path / STATE_FOLDER / CLAIM_NAME).read_bytes())
        stage, kind = str(claim.get("stage")), str(claim.get("kind"))
    except (OSError, ValueError, AttributeError):
        stage, kind = "?", "?"
    units = sum(1 for _ in (path / STATE_FOLDER / UNITS_FOLDER).glob("*.json"))
    lines = [
        f"{path}: unfinished ({kind}, being written by llmctl {stage})",
        f"  {_count(units, 'unit')} of work done",
        f"  the same `llmctl {stage}` command again goes on from there",
    ]
    console.result(
        _harmless("\n".join(lines)), path=str(path), kind=kind, stage=stage, unfinished=True, units_done=units
    )


def _is_model_folder(path: Path) -> bool:
    return (path / "config.json").is_file() and any(
        next(path.glob(pattern), None) is not None for pattern in ("*.safetensors", "*.bin", "tokenizer.json")
    )


def _show_model(path: Path) -> None:
    import json

    try:
        config = json.loads((path / "config.json").read_bytes())
        if not isinstance(config, dict):
            raise ValueError("not an object")
    except ValueError as failure:
        raise UserError(f"{path / 'config.json'} is not JSON: {failure}", "copy the model again") from None
    tensors, parameters, problems = 0, 0, []
    for file in sorted(path.glob("*.safetensors")):
        try:
            count, size = _count_tensors(file)
            tensors, parameters = tensors + count, parameters + size
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as failure:
            problems.append(f"{file.name}: {failure}")
    names = ", ".join(config.get("architectures") or [str(config.get("model_type", "?"))])
    sizes = {key: config[key] for key in _MODEL_KEYS if key in config}
    has_tokenizer = any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))
    lines = [
        f"{path}: a Hugging Face model folder ({names})",
        f"  {_count(parameters, 'parameter')} in {_count(tensors, 'tensor')}",
        *(f"  {key}: {value}" for key, value in sizes.items()),
        f"  tokenizer: {'yes' if has_tokenizer else 'no'}",
        *(f"  damaged: {problem}" for problem in problems),
    ]
    console.result(
        _harmless("\n".join(lines)),
        path=str(path),
        kind="huggingface",
        architectures=config.get("architectures"),
        parameters=parameters,
        tensors=tensors,
        config=config,
        tokenizer=has_tokenizer,
        damaged=problems,
    )
    if problems:
        raise RunFailed(f"{path} is damaged: {problems[0]}", "copy the model again")


_MODEL_KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


def _count_tensors(file: Path) -> tuple[int, int]:
    """Return the number of tensors and of their elements, from the header of a safetensors file alone.

    Raises:
        ValueError: the header is broken, or the file is shorter than it says.
    """
    import json
    import math

    with open(file, "rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if length > file.stat().st_size:
            raise ValueError("the header is cut off")
        header = json.loads(handle.read(length))
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if file.stat().st_size != 8 + length + end:
        raise ValueError(f"{file.stat().st_size:,} bytes instead of {8 + length + end:,}")
    return len(header), sum(math.prod(entry["shape"]) for entry in header.values())


def _show_raw(path: Path, head: int, text_field: str) -> None:
    from llmctl.artifacts.inputs import open_input
    from llmctl.artifacts.raw.blocks import ReadOptions
    from llmctl.artifacts.raw.describe import summarise

    source = open_input(path)
    options = ReadOptions(text_field=text_field)
    summary = summarise(source, options)
    documents = _first_documents(source, options, head) if head else []
    lines = [f"{path}: raw files, {len(source.files):,} of them, {_size(source.total_bytes)}"]
    for item in summary.formats:
        name = f"{item.format} ({item.compression})" if item.compression else item.format
        fields = f"; fields of the first record: {', '.join(item.fields)}" if item.fields else ""
        lines.append(f"  {name}: {_count(item.num_files, 'file')}, {_size(item.bytes)}, such as {item.example}{fields}")
    for file, error in summary.unreadable[:MAX_ROWS]:
        lines.append(f"  not readable: {file}: {error}")
    if len(summary.unreadable) > MAX_ROWS:
        lines.append(f"  not readable: {len(summary.unreadable) - MAX_ROWS:,} more")
    console.result(
        _harmless("\n".join([*lines, *_document_lines(documents)])),
        path=str(path),
        kind="raw",
        files=len(source.files),
        bytes=source.total_bytes,
        formats=[vars(item) for item in summary.formats],
        unreadable=[{"file": file, "error": error} for file, error in summary.unreadable],
        **({"documents": documents} if documents else {}),
    )
    named = [
        item for item in summary.formats if item.fields and text_field not in item.fields and "." not in text_field
    ]
    if named and not any(text_field in item.fields for item in summary.formats):
        console.warning(
            f"no file has a field `{text_field}`", _harmless(f"name the one to read: {', '.join(named[0].fields)}")
        )


def _first_documents(source: Any, options: Any, count: int) -> list[dict[str, Any]]:
    from llmctl.artifacts.raw.describe import first_documents

    batch = first_documents(source, options, count)
    return batch.table.to_pylist() if batch is not None else []


def _document_lines(documents: list[dict[str, Any]]) -> list[str]:
    lines = []
    for document in documents:
        text = document["text"]
        more = f" … ({len(text):,} characters)" if len(text) > TEXT_WIDTH else ""
        shown = text[:TEXT_WIDTH].replace("\n", "⏎")
        lines.append(f"{document['id']} [{document['source']}, {document['lang'] or 'language unknown'}] {shown}{more}")
    return ["first documents:", *(f"  {line}" for line in lines)] if lines else []


def _harmless(text: str) -> str:
    """Return a text that cannot steer a terminal: control characters and direction overrides become escapes."""
    import unicodedata

    def shown(character: str) -> str:
        if character == "\n" or (
            unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
            and not ("\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069")
        ):
            return character
        return character.encode("unicode_escape").decode("ascii")

    return "".join(map(shown, text))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count:,} bytes"
