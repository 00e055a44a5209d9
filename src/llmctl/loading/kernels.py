"""The compiled parts of the loader: permutations, best-fit packing, checksums, filling of batches, mixing of sources.

All of them run without the interpreter lock, so that batches are made in the background of a training step. They read
token ids at addresses of memory maps (`TokenDocuments.locations`): no array is made for a document.
"""

from __future__ import annotations

import platform
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from llmctl.text.compile import kernel

PADDING_LABEL = -100
_CRC_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = np.uint64(0xA282EAD8)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 6
_HEADER, _FOOTER = 12, 4


def _crc_tables() -> np.ndarray:
    """Return the eight tables of CRC32C by slices of eight bytes, uint32 [8, 256]."""
    tables = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CRC_POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for step in range(1, 8):
        tables[step] = tables[0, tables[step - 1] & 0xFF] ^ (tables[step - 1] >> np.uint32(8))
    return tables


_CRC = _crc_tables()


@intrinsic
def _pointer(_typing_context: Any, address: Any) -> Any:
    """Turn an address into a pointer."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@kernel
def _bytes_at(address: int, count: int) -> np.ndarray:
    return numba.carray(_pointer(address), count, np.uint8)  # type: ignore[call-arg]


# -- permutations ----------------------------------------------------------------------------------------------------


@kernel
def _mix(value: np.uint64) -> np.uint64:
    """SplitMix64's finaliser."""
    mixed = value + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@kernel
def permute(values: np.ndarray, size: int, key: np.uint64) -> np.ndarray:
    """Apply a pseudo-random permutation of range(size) to values, int64; no table of `size` is held.

    A Feistel network over the next power of four, walked along its cycle until the value is in range (Black and
    Rogaway 2002).
    """
    half = np.uint64(1)
    while (np.uint64(1) << (half + half)) < np.uint64(size):
        half += np.uint64(1)
    mask = (np.uint64(1) << half) - np.uint64(1)
    permuted = np.empty(len(values), dtype=np.int64)
    for index in range(len(values)):
        value = np.uint64(values[index])
        while True:
            left, right = value >> half, value & mask
            for number in range(_ROUNDS):
                mixed = _mix(right ^ _mix(key + np.uint64(number))) & mask
                left, right = right, left ^ mixed
            value = left << half | right
            if value < np.uint64(size):
                break
        permuted[index] = np.int64(value)
    return permuted


# -- best-fit packing ------------------------------------------------------------------------------------------------


@kernel
def _next_open(tree: np.ndarray, size: int, capacity: int) -> int:
    """Return the smallest capacity from `capacity` on of which there is an open bin; -1 if there is none."""
    node = capacity + size
    if tree[node]:
        return capacity
    while node > 1:
        if node % 2 == 0 and tree[node + 1]:
            node += 1
            while node < size:
                node *= 2
                if not tree[node]:
                    node += 1
            return node - size
        node //= 2
    return -1


@kernel
def _set_open(tree: np.ndarray, size: int, capacity: int, value: bool) -> None:
    node = capacity + size
    tree[node] = value
    while node > 1:
        node //= 2
        tree[node] = tree[2 * node] or tree[2 * node + 1]


@kernel
def best_fit(order: np.ndarray, lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, ...]:
    """Pack documents into as few bins of `capacity` tokens as best-fit-decreasing finds.

    Documents longer than a bin are cut into whole bins and a rest; no other is cut (Ding et al. 2024). Among pieces of
    one length the order decides, so that other orders give other neighbours, but always the same number of bins.

    Args:
        order: int64, the documents.
        lengths: int64, tokens by document.

    Returns:
        (first piece of each bin and the end [bins + 1], document, start, length of each piece), int64; pieces
        of a bin are neighbours.
    """
    counts = np.zeros(capacity + 2, dtype=np.int64)
    whole = 0
    for document in order:
        whole += lengths[document] // capacity
        counts[lengths[document] % capacity] += 1
    counts[0] = 0
    rests = counts.sum()
    # A counting sort of the rests, longest first.
    places = np.zeros(capacity + 2, dtype=np.int64)
    for length in range(capacity - 1, 0, -1):
        places[length] = places[length + 1] + counts[length + 1]
    sorted_rests = np.empty(rests, dtype=np.int64)
    for document in order:
        length = lengths[document] % capacity
        if length:
            sorted_rests[places[length]] = document
            places[length] += 1
    size = 1
    while size < capacity + 1:
        size *= 2
    tree = np.zeros(2 * size, dtype=np.bool_)
    heads = np.full(capacity + 1, -1, dtype=np.int64)
    following = np.empty(rests, dtype=np.int64)
    bins = np.empty(rests, dtype=np.int64)
    num_bins = 0
    for index in range(rests):
        length = lengths[sorted_rests[index]] % capacity
        room = _next_open(tree, size, length)
        if room < 0:
            chosen = num_bins
            num_bins += 1
            left = capacity - length
        else:
            chosen = heads[room]
            heads[room] = following[chosen]
            if heads[room] < 0:
                _set_open(tree, size, room, False)
            left = room - length
        bins[index] = chosen
        if left:
            if heads[left] < 0:
                _set_open(tree, size, left, True)
            following[chosen] = heads[left]
            heads[left] = chosen
    firsts = np.zeros(whole + num_bins + 1, dtype=np.int64)
    firsts[1 : whole + 1] = 1
    for index in range(rests):
        firsts[whole + bins[index] + 1] += 1
    for number in range(1, len(firsts)):
        firsts[number] += firsts[number - 1]
    documents = np.empty(whole + rests, dtype=np.int64)
    starts = np.zeros(whole + rests, dtype=np.int64)
    sizes = np.full(whole + rests, capacity, dtype=np.int64)
    piece = 0
    for document in order:
        for part in range(lengths[document] // capacity):
            documents[piece] = document
            starts[piece] = part * capacity
            piece += 1
    filled = firsts[whole:-1].copy()
    for index in range(rests):
        document = sorted_rests[index]
        piece = filled[bins[index]]
        filled[bins[index]] += 1
        documents[piece] = document
        sizes[piece] = lengths[document] % capacity
        starts[piece] = lengths[document] - sizes[piece]
    return firsts, documents, starts, sizes


# -- checksums -------------------------------------------------------------------------------------------------------


@intrinsic
def _crc_of_eight(_typing_context: Any, crc: Any, value: Any) -> Any:
    """Take eight bytes into a CRC32C by the processor's own instruction."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(word, [word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse42.crc32.64.64")
        return builder.call(function, arguments)

    return types.uint64(types.uint64, types.uint64), generate


def _has_instruction() -> bool:
    import llvmlite.binding

    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    return bool(llvmlite.binding.get_host_cpu_features().get("sse4.2", False))


@kernel
def _crc_by_instruction(data: np.ndarray) -> Any:
    crc = np.uint64(0xFFFFFFFF)
    for place in range(0, len(data) - 7, 8):
        value = np.uint64(0)
        for byte in range(8):
            value |= np.uint64(data[place + byte]) << np.uint64(8 * byte)
        crc = _crc_of_eight(crc, value)  # type: ignore[call-arg]
    short = np.uint32(crc)
    for place in range(len(data) // 8 * 8, len(data)):
        short = _CRC[0, (short ^ np.uint32(data[place])) & np.uint32(0xFF)] ^ short >> np.uint32(8)
    return np.int64(short ^ np.uint32(0xFFFFFFFF))


@kernel
def crc_by_tables(data: np.ndarray) -> Any:
    """Return the CRC32C (Castagnoli) of bytes, eight at a time (Kounavis and Berry 2005)."""
    crc = np.uint32(0xFFFFFFFF)
    place = 0
    for place in range(0, len(data) - 7, 8):
        low = crc ^ (
            np.uint32(data[place])
            | np.uint32(data[place + 1]) << np.uint32(8)
            | np.uint32(data[place + 2]) << np.uint32(16)
            | np.uint32(data[place + 3]) << np.uint32(24)
        )
        crc = (
            _CRC[7, low & np.uint32(0xFF)]
            ^ _CRC[6, low >> np.uint32(8) & np.uint32(0xFF)]
            ^ _CRC[5, low >> np.uint32(16) & np.uint32(0xFF)]
            ^ _CRC[4, low >> np.uint32(24)]
            ^ _CRC[3, data[place + 4]]
            ^ _CRC[2, data[place + 5]]
            ^ _CRC[1, data[place + 6]]
            ^ _CRC[0, data[place + 7]]
        )
    for place in range(len(data) // 8 * 8, len(data)):
        crc = _CRC[0, (crc ^ np.uint32(data[place])) & np.uint32(0xFF)] ^ crc >> np.uint32(8)
    return np.int64(crc ^ np.uint32(0xFFFFFFFF))


# CRC32C of bytes, uint8; the tables are for processors without the instruction.
crc32c = _crc_by_instruction if _has_instruction() else crc_by_tables


@kernel
def _is_masked_crc(data: np.ndarray, stored: np.ndarray) -> bool:
    crc = np.uint64(crc32c(data))
    masked = ((crc >> np.uint64(15) | crc << np.uint64(17)) + _MASK_DELTA) & np.uint64(0xFFFFFFFF)
    value = np.uint64(0)
    for index in range(4):
        value |= np.uint64(stored[index]) << np.uint64(8 * index)
    return masked == value


@kernel
def check_records(records: np.ndarray, ends: np.ndarray, tokens: np.ndarray, token_bytes: np.ndarray) -> int:
    """Check frame, both checksums and the place of the ids of TFRecord records.

    Args:
        records, ends: addresses of each record and of the end of its file.
        tokens, token_bytes: address and size of its ids.

    Returns:
        The index of the first record that cannot be trusted; -1 if all are whole.
    """
    for index in range(len(records)):
        address, end = records[index], ends[index]
        if address + _HEADER > end:
            return index
        header = _bytes_at(address, _HEADER)
        if not _is_masked_crc(header[:8], header[8:]):
            return index
        length = np.uint64(0)
        for place in range(8):
            length |= np.uint64(header[place]) << np.uint64(8 * place)
        if length > np.uint64(end - address - _HEADER):
            return index
        start = address + _HEADER
        stop = start + np.int64(length)
        if stop + _FOOTER > end or not _is_masked_crc(_bytes_at(start, stop - start), _bytes_at(stop, _FOOTER)):
            return index
        if tokens[index] < start or tokens[index] + token_bytes[index] > stop:
            return index
    return -1


# -- batches ---------------------------------------------------------------------------------------------------------


@kernel
def _read(data: np.ndarray, place: int, width: int) -> Any:
    if width == 2:
        return np.int64(data[2 * place]) | np.int64(data[2 * place + 1]) << 8
    value = np.int64(0)
    for byte in range(4):
        value |= np.int64(data[4 * place + byte]) << (8 * byte)
    return value


@kernel
def fill(
    firsts: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    addresses: np.ndarray,
    width: int,
    eos: int,
    batch: np.ndarray,
) -> None:
    """Write sequences into a batch, int64 [4, sequences, seq_len]: inputs, labels, positions, documents.

    The labels of a piece are its tokens, its inputs the tokens one place before: EOS before the first of a document.
    What is left of a sequence has labels of -100.

    Args:
        firsts: first piece of each sequence, and the end.
        starts, sizes: range of each piece in its document, in tokens.
        addresses: of the first id of the document of each piece.
        width: bytes of an id, 2 or 4, little endian.
    """
    seq_len = batch.shape[2]
    for row in range(batch.shape[1]):
        inputs, labels, positions, documents = batch[0, row], batch[1, row], batch[2, row], batch[3, row]
        column = 0
        for piece in range(firsts[row], firsts[row + 1]):
            start, size, number = starts[piece], sizes[piece], piece - firsts[row]
            data = _bytes_at(addresses[piece] + start * width, size * width)
            before = eos
            if start:
                before = _read(_bytes_at(addresses[piece] + (start - 1) * width, width), 0, width)
            if width == 2:
                for index in range(size):
                    labels[column + index] = np.int64(data[2 * index]) | np.int64(data[2 * index + 1]) << 8
            else:
                for index in range(size):
                    labels[column + index] = _read(data, index, 4)
            if size:
                inputs[column] = before
            for index in range(1, size):
                inputs[column + index] = labels[column + index - 1]
            for index in range(size):
                positions[column + index] = index
            for index in range(size):
                documents[column + index] = number
            column += size
        number = firsts[row + 1] - firsts[row]
        for index in range(column, seq_len):
            inputs[index], labels[index] = eos, PADDING_LABEL
            positions[index], documents[index] = index - column, number


# -- mixing of sources -----------------------------------------------------------------------------------------------


@kernel
def take_turns(counts: np.ndarray, taken: np.ndarray, amount: int) -> np.ndarray:
    """Choose the sources of the next samples so that at every one each source is within one sample of its share.

    Tijdeman's rule for the chairman assignment problem (1980): of the sources that are entitled to a sample, the one
    whose claim ends first.

    Args:
        counts: samples of each source in the whole, int64.
        taken: how many of each were chosen so far; brought up to date.
        amount: samples to choose.

    Returns:
        int64 [amount], the source of each.
    """
    total, number = counts.sum(), taken.sum()
    active = 0
    for count in counts:
        active += count > 0
    chosen = np.empty(amount, dtype=np.int64)
    width = max(2 * active - 2, 1)
    for index in range(amount):
        number += 1
        best, best_slack = -1, 0.0
        for source in range(len(counts)):
            claim = counts[source] * number - taken[source] * total
            if counts[source] == 0 or (active > 1 and width * claim < total):
                continue
            # Time until the claim has run out, over the share: smaller means more urgent.
            slack = np.float64(width * (total - claim) - total)
            if best < 0 or slack * counts[best] < best_slack * counts[source]:
                best, best_slack = source, slack
        taken[best] += 1
        chosen[index] = best
    return chosen
