"""What can be laid out as shards: tokens, shards of llmctl in any format, and files that other tools wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmctl.artifacts.files import FileRecord, write_file
from llmctl.artifacts.inputs import Input, open_input
from llmctl.artifacts.manifest import MANIFEST_NAME, STATE_FOLDER, Manifest, read_manifest
from llmctl.artifacts.shards import EXPORT_KIND, KIND
from llmctl.artifacts.tokens import KIND as TOKENS_KIND
from llmctl.artifacts.tokens import TOKENIZER_FOLDER, TokenizerFacts, token_parts
from llmctl.errors import UserError
from llmctl.sharding.config import ShardConfig
from llmctl.sharding.formats import FORMATS
from llmctl.sharding.vocabulary import Vocabulary, open_vocabulary

TOKENS = "tokens"
SIDECAR_FOLDER = "documents"


def sidecar_of(path: str) -> str:
    """Return the path of the table that describes the documents of a shard of an export."""
    return f"{SIDECAR_FOLDER}/{path.removeprefix('data/').replace('/', '-')}.parquet"


@dataclass(frozen=True)
class Part:
    """Documents that are read together: a block of tokens, or a file (or row group) of a format.

    Attributes:
        name: what accounting calls it.
        format: ``tokens``, or a name of `FORMATS`.
        table: Parquet with `tokens_schema` columns; `start` counts ids for tokens, otherwise bytes.
        ids: the file of the ids.
        sidecar: a table of an export that describes its documents.
        dtype: of the ids in the file, once it is known.
    """

    name: str
    format: str
    ids: Path
    table: Path | None = None
    group: int = 0
    sidecar: Path | None = None
    dtype: str = ""


@dataclass
class TokenSource:
    """An opened input of the stage.

    Attributes:
        inputs: the source, and a tokenizer where the source has none.
        tokenizer: files of the tokenizer, by their name below ``tokenizer/``.
        manifest: of the source, if llmctl wrote it.
    """

    inputs: list[Input]
    facts: TokenizerFacts
    tokenizer: dict[str, Path]
    parts: list[Part]
    manifest: Manifest | None

    @property
    def imported(self) -> bool:
        """Tell whether tables of the documents must be made first."""
        return any(part.table is None for part in self.parts)

    def copy_tokenizer(self, root: Path) -> list[FileRecord]:
        """Write the tokenizer into another artifact."""
        return [
            write_file(root, f"{TOKENIZER_FOLDER}/{name}", path.read_bytes()) for name, path in self.tokenizer.items()
        ]


def open_source(source: Path, config: ShardConfig) -> TokenSource:
    """Open what the stage reads.

    Raises:
        UserError: there is nothing, or texts, which are sent to `llmctl tokenize`; or no tokenizer is known.
    """
    if (source.is_dir() and (source / STATE_FOLDER).is_dir()) or (source / MANIFEST_NAME).is_file():
        if (source / MANIFEST_NAME).is_file() and read_manifest(source).kind == "documents":
            raise _texts(source)
        return _open_artifact(source, config)
    if not source.exists():
        raise UserError(f"{source} does not exist", "give the output of `llmctl tokenize`")
    return _open_foreign(source, config)


def _texts(source: Path) -> UserError:
    return UserError(f"{source} holds no token ids", f"tokenize it first: llmctl tokenize {source} tokens")


def _open_artifact(source: Path, config: ShardConfig) -> TokenSource:
    opened = open_input(source, kinds=(TOKENS_KIND, KIND, EXPORT_KIND), raw=False)
    assert opened.manifest is not None
    manifest = opened.manifest
    if config.tokenizer is not None:
        raise UserError(f"{source} has its tokenizer", "leave --tokenizer away: it is for files of other tools")
    prefix = f"{TOKENIZER_FOLDER}/"
    tokenizer = {
        path.relative_to(opened.root / TOKENIZER_FOLDER).as_posix(): path
        for path in (opened.root / record.path for record in manifest.files if record.path.startswith(prefix))
    }
    facts = TokenizerFacts.from_manifest(manifest, source)
    if opened.kind == TOKENS_KIND:
        parts = [
            Part(f"data/{part.table.name}", TOKENS, part.tokens, part.table, dtype=facts.dtype)
            for part in token_parts(opened)
        ]
    else:
        name = str(manifest.config.get("format", "tfrecord"))
        if name not in FORMATS:
            raise UserError(f"{source} has the format {name!r}, which this llmctl does not know", "upgrade llmctl")
        parts = []
        known = {record.path for record in manifest.files}
        for row in manifest.statistics.get("shards", ()):
            path = str(row["path"])
            if path not in known:
                raise UserError(f"the manifest of {source} does not vouch for {path}", "make the folder again")
            sidecar = sidecar_of(path)
            parts += _parts_of(name, opened.root / path, path, opened.root / sidecar if sidecar in known else None)
    return TokenSource([opened], facts, tokenizer, parts, manifest)


def _parts_of(name: str, path: Path, shown: str, sidecar: Path | None) -> list[Part]:
    return [
        Part(shown, name, path, group=group, sidecar=sidecar) for group in range(max(1, FORMATS[name].groups(path)))
    ]


def _open_foreign(source: Path, config: ShardConfig) -> TokenSource:
    found = foreign_files(source)
    if found is None:
        raise _texts(source)
    name, files = found
    if config.tokenizer is None:
        raise UserError(
            f"{source} holds ids in {name} files, and nothing says which tokenizer made them",
            "give it with --tokenizer: a Hugging Face folder, a tokenizer.json or an output of llmctl",
        )
    vocabulary: Vocabulary = open_vocabulary(config.tokenizer, config.eos_token)
    opened = open_input(source)
    root = source if source.is_dir() else source.parent
    parts = [part for path in files for part in _parts_of(name, path, path.relative_to(root).as_posix(), None)]
    return TokenSource([opened, vocabulary.input], vocabulary.facts, vocabulary.files, parts, None)


def foreign_files(source: Path) -> tuple[str, list[Path]] | None:
    """Return the format of files that other tools wrote, told by their content, and the files; None without any.

    Raises:
        BrokenFile: a file of the format is damaged.
    """
    for name in ("megatron", "mds", "parquet"):
        files = FORMATS[name].found(source)
        if files:
            return name, files
    return None


def inputs_damage(inputs: Sequence[Input]) -> str | None:
    """Read the files of artifacts again; return a sentence for the first that is damaged."""
    for source in inputs:
        damaged = source.manifest.damaged_files() if source.manifest is not None else []
        if damaged:
            return f"{source.root}: {damaged[0]}"
    return None
