"""One file of a user as an array or a data frame: what cannot be read, and the line of a bad row, are said in one line."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import lzma
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fedsaddle.errors import BadRow, FedsaddleError, optional_import, short

Array = npt.NDArray[Any]

MAX_DENSE_BYTES = 8 * 2**30  # more is never made of a sparse matrix or of a packed file
SMALL_BYTES = 2**28  # of more than this there must be something to read:
MOST_EMPTY = 1000  # at most so many times the bytes that it is read from
MAX_TWINS = 1000  # columns of one name
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
COMPRESSED = (".gz", ".bz2", ".xz")
Encoding = Literal["utf-8", "cp1250", "cp1251", "cp1252"]  # of text; Excel's own are those of Windows
ENCODINGS: tuple[str, ...] = get_args(Encoding)
FORMATS = {".csv": "csv", ".parquet": "parquet", ".npz": "npz"} | dict.fromkeys(
    (".svm", ".libsvm", ".txt"), "libsvm"
)


def file_format(file: Path) -> str:
    """csv, parquet, npz or libsvm by the file's ending; "" when it is none of them."""
    packed = file.suffix.lower() in COMPRESSED
    inner = Path(file.stem) if packed else file
    return FORMATS.get(inner.suffix.lower(), "libsvm" if packed else "")


def read_frame(file: Path, sep: str = ",", decimal: str = ".", encoding: str = "utf-8") -> Any:
    """A .csv or .parquet file as a DataFrame.

    Args:
        file: may be compressed, if it is .csv.
        sep: one character between the columns of a .csv file.
        decimal: the decimal mark of its numbers, "." or ",".
        encoding: of its text, one of `ENCODINGS`.
    """
    kind = file_format(file)
    if len(sep) != 1:
        raise FedsaddleError(f"sep must be one character, got {sep!r}")
    if decimal not in (".", ","):
        raise FedsaddleError(f"decimal must be '.' or ',', got {decimal!r}")
    if encoding not in ENCODINGS:
        raise FedsaddleError(f"encoding must be one of {short(ENCODINGS)}, got {encoding!r}")
    pandas = optional_import("pandas", f"{kind} files")
    with reading(file, kind):
        frame = _csv(pandas, file, sep, decimal, encoding) if kind == "csv" else pandas.read_parquet(file)
    if len(frame) == 0:
        raise FedsaddleError(f"{file} has no rows: remove it from the federation")
    return frame


def _csv(pandas: Any, file: Path, sep: str, decimal: str, encoding: str) -> Any:
    try:
        head = pandas.read_csv(file, sep=sep, header=None, nrows=1, dtype=str, encoding=encoding)
        names = head.iloc[0].value_counts()
        if len(names) and names.iloc[0] > MAX_TWINS:  # pandas would number them, in quadratic time
            raise ValueError(f"{names.iloc[0]} columns are called {str(names.index[0])[:40]!r}")
        return pandas.read_csv(file, sep=sep, decimal=decimal, encoding=encoding)
    except UnicodeDecodeError as error:
        refuse_utf16(file)
        line, byte = odd_byte(file, encoding) or (1, error.object[error.start])
        remedy = 'set encoding = "cp1252" (Excel\'s own)' if encoding == "utf-8" else "correct encoding"
        what = f"{file} is not {encoding.upper()} (byte 0x{byte:02x} in line {line})"
        raise FedsaddleError(f"{what}: save it as 'CSV UTF-8', or {remedy}") from error


def refuse_utf16(file: Path) -> None:
    """Refuse a .csv file in UTF-16, Excel's "Unicode text"."""
    with _opened(file, "rb") as stream:
        if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise FedsaddleError(f"{file} is UTF-16: save it as 'CSV UTF-8'")


def odd_byte(file: Path, encoding: str) -> tuple[int, int] | None:
    """The line, from 1, and the value of the first byte of a .csv file that is none in an encoding; None: all are."""
    with _opened(file, "rb") as stream:
        for n, line in enumerate(stream, 1):
            try:
                line.decode(encoding)
            except UnicodeDecodeError as error:
                return n, line[error.start]
    return None


def read_npz(file: Path, *names: str) -> list[Array]:
    """Arrays of a .npz file. Nothing is unpickled, and no header is believed that promises more than there is."""
    with zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if any(name not in members for name in names):
            wanted = " and ".join(names)
            raise FedsaddleError(f"{file} must hold arrays {wanted}, it has {short(members)}: save it so")
        size, packed = (
            sum(getattr(members[n], key) for n in names) for key in ("file_size", "compress_size")
        )
        check_bytes(f"{file} takes", size, packed, " when unpacked", "take fewer rows")
        return [_npy(archive, members[name]) for name in names]


def _npy(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in readers:
            raise ValueError(f"{member.filename} is of version {version} of the .npy format")
        shape, columnwise, dtype = readers[version](stream)
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds Python objects, which are never unpickled")
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or size > member.file_size:
            raise ValueError(
                f"{member.filename} says that it has shape {shape}, and is {member.file_size} bytes long"
            )
        array = np.frombuffer(stream.read(size), dtype).copy()
        return array.reshape(shape, order="F" if columnwise else "C")


def read_images(folder: Path) -> tuple[Array, Array]:
    """Images [n, channels, height, width] (uint8) and the names of the sub-folders that they lie in.

    One channel where all are grey, else three.
    """
    images = optional_import("PIL.Image", f"{folder}, a folder of images,", package="pillow")
    files = sorted(
        file
        for sub in folder.iterdir()
        if sub.is_dir()
        for file in sub.iterdir()
        if file.suffix.lower() in IMAGES
    )
    if not files:
        raise FedsaddleError(
            f"{folder} has no images in sub-folders: give each class a sub-folder ({', '.join(IMAGES)})"
        )
    from rich.console import Console
    from rich.progress import track

    console, pixels = Console(stderr=True), []
    for file in track(
        files, "reading images", console=console, disable=not console.is_terminal, transient=True
    ):
        with reading(file, "an image"), images.open(file) as image:
            pixels.append(np.asarray(image.convert("L" if image.mode in ("1", "L") else "RGB")))
        got, want = pixels[-1].shape[:2], pixels[0].shape[:2]
        if got != want:
            size, first = "x".join(map(str, got)), "x".join(map(str, want))
            raise FedsaddleError(
                f"{file} has {size} pixels, {files[0].name} has {first}: give all the same size"
            )
    if any(image.ndim == 3 for image in pixels):
        pixels = [image if image.ndim == 3 else np.stack([image] * 3, axis=-1) for image in pixels]
        return np.stack(pixels).transpose(0, 3, 1, 2), np.array([file.parent.name for file in files])
    return np.stack(pixels)[:, None], np.array([file.parent.name for file in files])


@contextmanager
def reading(file: Path, kind: str) -> Iterator[None]:
    """Whatever a reader raises becomes one line that names the file."""
    if not kind:
        raise FedsaddleError(
            f"{file} is none of .csv, .parquet, .npz, .svm, .libsvm, .txt, .bz2: convert it to one"
        )
    try:
        yield
    except FedsaddleError:
        raise
    except ImportError as error:
        raise FedsaddleError(f"{file}: reading parquet needs pyarrow: pip install pyarrow") from error
    except Exception as error:  # each reader has its own zoo of exceptions
        reason = " ".join(str(error).split())[:200]
        raise FedsaddleError(f"{file} cannot be read as {kind}: {reason}") from error


@contextmanager
def located(file: Path, sep: str = ",") -> Iterator[None]:
    """A row that is refused is named with its file, and with its line if that is .csv."""
    try:
        yield
    except BadRow as error:
        line = f", line {line_of(file, error.row, sep)} of the file" if file_format(file) == "csv" else ""
        raise BadRow(f"{file.name}: {error.what}{line}", error.row, error.remedy) from None


def line_of(file: Path, row: int, sep: str = ",") -> int:
    """The line of a .csv file, from 1, where its row begins; blank lines are none, a quoted field may have several."""
    left, line = row + 1, 1  # the header is a row as well
    usual = csv.field_size_limit(2**31 - 1)  # Windows takes no more; pandas has read fields of any length
    try:
        with _opened(
            file, "rt", encoding="utf-8", errors="replace", newline=""
        ) as text:  # lines end alike in all
            records = csv.reader(text, delimiter=sep)
            for record in records:
                blank = not any(field.strip() for field in record) and len(record) <= 1
                if not blank and left == 0:
                    break
                left, line = left - (not blank), records.line_num + 1
    finally:
        csv.field_size_limit(usual)
    return line


def _opened(file: Path, mode: str, **options: Any) -> IO[Any]:
    """A file that may be compressed."""
    readers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    opened: IO[Any] = readers.get(file.suffix.lower(), open)(file, mode, **options)
    return opened


def check_bytes(what: str, wanted: int, there: int, more: str, remedy: str) -> None:
    """Refuse what takes too much memory, or far more than the bytes that it is read from: a wrong number, or a trap."""
    rule = f"more than {MAX_DENSE_BYTES / 2**30:.0f} GiB"
    if wanted <= MAX_DENSE_BYTES:
        if wanted <= max(SMALL_BYTES, MOST_EMPTY * there):
            return
        rule = f"more than {MOST_EMPTY} times the {there} bytes that it is read from"
    raise FedsaddleError(f"{what} {wanted / 2**30:.1f} GiB{more}, {rule}: {remedy}")
