"""The words that flatwalk uses, and what they mean."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache

from markupsafe import Markup, escape

from flatwalk.definitions.settings import DATA


@dataclass(frozen=True)
class Word:
    """A word, its meaning, and the forms in which texts have it."""

    word: str
    meaning: str
    forms: tuple[str, ...]

    @property
    def key(self) -> str:
        """What a page calls the place of its meaning."""
        return "word-" + re.sub(r"[^a-z0-9]+", "-", self.word.lower()).strip("-")


@cache
def words() -> tuple[Word, ...]:
    """All words, in the order of the glossary."""
    table = tomllib.loads((DATA / "glossary.toml").read_text(encoding="utf-8"))
    return tuple(
        Word(row["word"], row["meaning"], tuple(row.get("forms", [row["word"]]))) for row in table["word"]
    )


@cache
def _pattern() -> re.Pattern[str]:
    forms = sorted((form for word in words() for form in word.forms), key=len, reverse=True)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, forms))})(?![\w-])")


@cache
def _by_form() -> dict[str, Word]:
    return {form: word for word in words() for form in word.forms}


class Links:
    """Links words in the texts of a page to their meanings, and knows which ones it linked."""

    def __init__(self) -> None:
        self._used: set[Word] = set()

    def __call__(self, text: str) -> Markup:
        """A text as HTML, with a link where a word first occurs in it."""
        parts, end, here = [], 0, set()
        for found in _pattern().finditer(text):
            word = _by_form()[found[0]]
            if word in here:
                continue
            here.add(word)
            self._used.add(word)
            parts += [escape(text[end : found.start()]), _link(word, found[0])]
            end = found.end()
        return Markup("").join([*parts, escape(text[end:])])

    def used(self) -> list[Word]:
        """The words that were linked, in the order of the glossary."""
        return [word for word in words() if word in self._used]


def _link(word: Word, text: str) -> Markup:
    return Markup('<a class="term" href="#{}" title="{}">{}</a>').format(word.key, word.meaning, text)
