"""Texts for a target to read, out of JSON lines: one object a line, each one of

    {"text": "..."}
    {"ids": [1, 2, 3]}           with "loss_mask": [0, 1, 1] or "prompt_length": 1, if wanted
    {"messages": [{"role": "user", "content": "..."}, ...]}      with "tools", if wanted

Other keys are left alone. A text without an answer counts as answer as a whole.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from converters.chats import Answers, ChatTokenizer
from eagle3_jax.errors import InputError

_KINDS = ("text", "ids", "messages")
_MASK, _PROMPT = "loss_mask", "prompt_length"


class Text(NamedTuple):
    """A text to read, or a prompt to answer.

    Attributes:
        ids: `[T]` int32.
        answer: `[T]` bool, true on the answer's tokens; all false in a prompt.
    """

    ids: np.ndarray
    answer: np.ndarray


class TextReader(NamedTuple):
    """How lines become tokens.

    Attributes:
        tokenizer: opens the tokenizer, once it is needed: lines of ids need none.
        vocab_size: V; ids from there on are refused.
        answers: which answers of a chat are marked.
        prompts: of each line only what the target is to answer.
    """

    tokenizer: Callable[[], ChatTokenizer]
    vocab_size: int
    answers: Answers = "all"
    prompts: bool = False

    def read(self, file: Path) -> Iterator[Text]:
        """The texts of a file, in order; empty lines are none.

        Raises:
            InputError: when the file is missing, or a line cannot be read, with its number.
        """
        try:
            with file.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        try:
                            yield self._text(_object(line))
                        except InputError as error:
                            raise InputError(f"{file}:{number}: {error}") from None
        except FileNotFoundError:
            raise InputError(f"{file}: no such file, expected JSON lines") from None
        except IsADirectoryError:
            raise InputError(f"{file}: found a directory, expected a file of JSON lines") from None

    def _text(self, line: dict[str, Any]) -> Text:
        kinds = [kind for kind in _KINDS if kind in line]
        if len(kinds) != 1:
            found = ", ".join(line) or "no key"
            raise InputError(f"found {found}, expected one of {', '.join(_KINDS)}")
        stray = [key for key in (_MASK, _PROMPT) if key in line and kinds != ["ids"]]
        if stray:
            raise InputError(f"{stray[0]} stands beside {kinds[0]}, expected it beside ids only")
        found = getattr(self, f"_{kinds[0]}")(line)
        assert isinstance(found, Text)
        if not len(found.ids):
            raise InputError(f"{kinds[0]} gives no token, expected one or more")
        highest = int(found.ids.max())
        if highest >= self.vocab_size:
            raise InputError(
                f"token {highest} is outside the target, expected 0 to {self.vocab_size - 1}"
            )
        return found
