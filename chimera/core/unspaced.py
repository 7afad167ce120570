"""Scripts that are written without spaces between words: Chinese, Japanese, Thai, Lao, Khmer and Burmese.

Their words cannot be told apart without a dictionary, so texts are searched by pairs of neighbouring characters. Texts
in other scripts are never changed here.
"""

import re
import unicodedata

CHARACTERS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
"""The letters of these scripts, for a regular expression's character class."""
_RUN = re.compile(f"[{CHARACTERS}]+")
_LAST_LATIN = "\u024f"
_PER_WORD = 2
"""Characters that count as one word."""


def pairs(text: str, *, singles: bool = False) -> str:
    """`text` with every run of these scripts as its pairs of characters, between spaces.

    Args:
        singles: Write single characters, too, so that an index of the text finds words of one character.
    """

    def of_run(match: re.Match[str]) -> str:
        # SQLite's tokenizer ends a word at a vowel sign or a tone mark.
        run = "".join(letter for letter in match[0] if not unicodedata.category(letter).startswith("M"))
        parts = [run[place : place + 2] for place in range(len(run) - 1)]
        return f" {' '.join([*run, *parts] if singles or not parts else parts)} "

    return text if text.isascii() else _RUN.sub(of_run, text)


def count_words(text: str) -> int:
    """The number of words of `text`; in these scripts two characters count as one word."""
    letters = 0 if text.isascii() else sum(map(len, _RUN.findall(text)))
    return len(_RUN.sub(" ", text).split()) + letters // _PER_WORD if letters else len(text.split())


def starts_run(text: str) -> bool:
    """True if `text` begins with a letter of these scripts."""
    return bool(_RUN.match(text))


def is_other_script(text: str) -> bool:
    """True if most letters of `text` are not Latin."""
    letters = [letter for letter in text if letter.isalpha()]
    return 2 * sum(letter > _LAST_LATIN for letter in letters) > len(letters)
