"""Texts for a target to read, out of JSON lines: an object a line, of one of three kinds.

    {"text": "..."}
    {"ids": [1, 2, 3]}           with "loss_mask": [0, 1, 1] or "prompt_length": 1, if wanted
    {"messages": [{"role": "user", "content": "..."}, ...]}      with "tools", if wanted

Other keys are left alone. A text without an answer counts as answer as a whole.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from converters.chats import Answers, ChatTokenizer, Text
from eagle3_jax.errors import InputError

_KINDS = ("text", "ids", "messages")
_MASK, _PROMPT = "loss_mask", "prompt_length"
_BITS = frozenset({"0", "1", "True", "False"})  # by `repr`: 1.0 equals 1, but is no bit


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
        with _opened(file) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    try:
                        yield self._text(_object(line))
                    except InputError as error:
                        raise InputError(f"{file}:{number}: {error}") from None

    def _text(self, line: dict[str, Any]) -> Text:
        kinds = [kind for kind in _KINDS if kind in line]
        if len(kinds) != 1:
            keys = ", ".join(line) or "no key"
            raise InputError(f"found {keys}, expected one of {', '.join(_KINDS)}")
        stray = [key for key in (_MASK, _PROMPT) if key in line and kinds != ["ids"]]
        if stray:
            raise InputError(f"{stray[0]} stands beside {kinds[0]}, expected it beside ids only")
        match kinds[0]:
            case "text":
                found = self._plain(line["text"])
            case "ids":
                found = self._tokens(line)
            case _:
                found = self._chat(line["messages"], line.get("tools"))
        if not len(found.ids):
            raise InputError(f"{kinds[0]} gives no token, expected one or more")
        highest = int(found.ids.max())
        if highest >= self.vocab_size:
            raise InputError(
                f"token {highest} is outside the target, expected 0 to {self.vocab_size - 1}"
            )
        return found

    def _plain(self, text: Any) -> Text:
        if not isinstance(text, str):
            raise InputError(f"text is {_kind(text)}, expected a string")
        _require_unicode(text)
        ids = self.tokenizer().text(text)
        return Text(ids, np.full(len(ids), not self.prompts))

    def _chat(self, messages: Any, tools: Any) -> Text:
        _require_messages(messages)
        _require_unicode(messages, tools)
        tokenizer = self.tokenizer()
        if self.prompts:
            ids = tokenizer.prompt(messages, tools)
            return Text(ids, np.zeros(len(ids), np.bool_))
        return tokenizer.chat(messages, tools, self.answers)

    def _tokens(self, line: dict[str, Any]) -> Text:
        ids, mask, prompt = line["ids"], line.get(_MASK), line.get(_PROMPT)
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 2**31 for i in ids):
            raise InputError("ids is no list of integers from 0, expected one")
        if mask is not None and prompt is not None:
            raise InputError(f"{_MASK} and {_PROMPT} are both there, expected one of them")
        answer = np.ones(len(ids), np.bool_)
        if mask is not None:
            bits = isinstance(mask, list) and {*map(repr, mask)} <= _BITS
            if not bits or len(mask) != len(ids):
                raise InputError(f"{_MASK} is no list of {len(ids)} times 0 or 1, expected one")
            answer = np.asarray(mask, np.bool_)
        if prompt is not None:
            if type(prompt) is not int or not 0 <= prompt <= len(ids):
                raise InputError(f"{_PROMPT} is {prompt!r}, expected 0 to {len(ids)}")
            answer = np.arange(len(ids)) >= prompt
        whole = np.asarray(ids, np.int32)
        if not self.prompts:
            return Text(whole, answer if answer.any() else np.ones_like(answer))
        asked = len(ids) if answer.all() else _last_answer(answer)
        return Text(whole[:asked], np.zeros(asked, np.bool_))


def _opened(file: Path) -> BinaryIO:
    try:
        return file.open("rb")
    except FileNotFoundError:
        raise InputError(f"{file}: no such file, expected JSON lines") from None
    except IsADirectoryError:
        raise InputError(f"{file}: found a directory, expected a file of JSON lines") from None


def _last_answer(answer: np.ndarray) -> int:
    """Where the last run of marked tokens begins; the end where none is marked."""
    marked = np.flatnonzero(answer)
    if not len(marked):
        return len(answer)
    before = np.flatnonzero(~answer[: marked[-1]])
    return int(before[-1]) + 1 if len(before) else 0


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except RecursionError:
        raise InputError("found JSON nested too deep, expected an object") from None
    except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
        raise InputError(f"found text that is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"found {_kind(value)}, expected an object")
    return value


def _require_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise InputError(f"messages is {_kind(messages)}, expected a list of one or more")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InputError(f"message {index} has no role, expected an object with role, content")
        if "content" not in message and "tool_calls" not in message:
            raise InputError(f"message {index} has no content, expected it beside role")


def _require_unicode(*values: Any) -> None:
    """JSON can say half a surrogate pair, which no tokenizer takes."""
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError("found half a surrogate pair, expected Unicode text") from None


def _kind(value: Any) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, list) and not value:
        return "an empty list"
    names = {bool: "true or false", dict: "an object", list: "a list", str: "a string"}
    return names.get(type(value), "a number")
