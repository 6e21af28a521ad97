"""JSON documents read piece by piece: of ten thousand records no more than the one at hand is held as JSON data."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from accuracy_eval.errors import CorruptFile

_SPACE = " \t\n\r"
_AFTER_A_VALUE = frozenset(f":,]}}{_SPACE}")
_DECODER = json.JSONDecoder()


def members(pieces: Iterable[bytes], where: str, apart: Mapping[str, type]) -> Iterator[tuple[str, int | str | None, Any]]:
    """(key, None, value) for each member of the JSON object in `pieces`, in its order.

    apart   key -> list or dict: a value of that kind is taken apart, (key, index or name, value) for each of its own, and then comes empty
    CorruptFile naming `where` for anything but one JSON object whose keys differ.
    """
    text = _Text(pieces)
    try:
        if text.peek() != "{":
            raise CorruptFile(f"{where}: expected a JSON object, found {type(text.value()).__name__}")
        seen: set[str] = set()
        for key in text.names():
            if key in seen:
                raise CorruptFile(f"{where}: key {key!r} occurs twice; the file is damaged or was not written by accuracy-eval")
            seen.add(key)
            if apart.get(key) is list and text.peek() == "[":
                yield from ((key, i, text.value()) for i in text.places())
                yield key, None, []
            elif apart.get(key) is dict and text.peek() == "{":
                yield from ((key, name, text.value()) for name in text.names())
                yield key, None, {}
            else:
                yield key, None, text.value()
        text.end()
    except (ValueError, RecursionError) as e:
        raise CorruptFile(f"{where}: not JSON ({e}); the file is damaged or was not written by accuracy-eval") from None


class _Text:
    """The text of pieces of UTF-8, as far as it was read and is not used yet. ValueError where it is not JSON."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at, self._dropped = "", 0, 0

    def names(self) -> Iterator[str]:
        """The names in an object that begins here; after each, its value is to be taken."""
        for _ in self._commas("{", "}"):
            if self.peek() != '"':
                raise self._wrong("expected a name in double quotes")
            name = self.value()
            self._take(":")
            yield name

    def places(self) -> Iterator[int]:
        """The indices of an array that begins here; after each, its element is to be taken."""
        return self._commas("[", "]")

    def value(self) -> Any:
        """The value that begins here."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as e:
                if self._more():
                    continue
                self._at = e.pos
                raise self._wrong(e.msg) from None
            # a number may go on in the next piece
            if self._text[end : end + 1] in _AFTER_A_VALUE or not self._more():
                self._at = end
                return value

    def peek(self) -> str:
        """The next character that is not white space; "" at the end."""
        while True:
            found = self._text[self._at : self._at + 1]
            if found and found not in _SPACE:
                return found
            if found:
                self._at += 1
            elif not self._more():
                return ""

    def end(self) -> None:
        if self.peek():
            raise self._wrong("Extra data")

    def _commas(self, opening: str, closing: str) -> Iterator[int]:
        self._take(opening)
        if self.peek() == closing:
            self._take(closing)
            return
        number = 0
        while True:
            yield number
            number += 1
            if self._take("," + closing) == closing:
                return

    def _take(self, allowed: str) -> str:
        found = self.peek()
        if not found or found not in allowed:
            raise self._wrong(f"expected {' or '.join(allowed)}")
        self._at += 1
        return found

    def _more(self) -> bool:
        """Read at least as much as is held, so that all attempts at one long value take no more than twice the time of the last."""
        held = len(self._text) - self._at
        parts: list[str] = []
        missing = max(1, held)
        while missing > 0 and (piece := next(self._pieces, None)) is not None:
            parts.append(self._decoder.decode(piece))
            missing -= len(parts[-1])
        if missing > 0:
            parts.append(self._decoder.decode(b"", final=True))
        if not any(parts):
            return False
        self._dropped += self._at
        self._text, self._at = "".join((self._text[self._at :], *parts)), 0
        return True

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"{what}: character {self._dropped + self._at}")
