"""Text and chats -> tokens, as the target's own tokenizer and chat template have them.

    messages -> template -> one string -> tokenizer -> ids, and which of them are answers

A template that marks its answers ({% generation %}) is taken at its word. Of any other the answer
to `messages[:i]` is what `messages[:i + 1]` renders after `messages[:i]` and its generation
prompt. That is exact or refused: both must be the start of the whole chat, as a string and as
tokens, so that the tokens before an answer are the prompt that a server would read.
"""

import datetime
import json
import secrets
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import numpy as np
from tokenizers import Tokenizer

from converters.files import read_json
from eagle3_jax.errors import InputError

Answers = Literal["all", "last"]
Message = dict[str, Any]
_TOKENIZER, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_TEMPLATE, _SPECIAL = "chat_template.jinja", "special_tokens_map.json"
_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# Around what a template marks as an answer; no text has them by chance.
_BEGIN, _END = (f"<{secrets.token_hex(16)}>" for _ in range(2))
# What a template may raise besides jinja2's own errors, on messages that it was not made for.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class Text(NamedTuple):
    """A text to read, or a prompt to answer.

    Attributes:
        ids: `[T]` int32.
        answer: `[T]` bool, true on the tokens of answers; all false in a prompt.
    """

    ids: np.ndarray
    answer: np.ndarray


class _Marked(jinja2.ext.Extension):
    """`{% generation %}`: what the template says the model wrote."""

    tags = {"generation"}  # noqa: RUF012  # jinja2's way to say it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Wrap the block in a call that puts marks around what it renders."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_mark")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _mark(self, caller: Any) -> str:
        return f"{_BEGIN}{caller()}{_END}"


class ChatTokenizer:
    """A tokenizer and the chat template beside it.

    Args:
        directory: holds tokenizer.json, and what Hugging Face has beside it.
        template: a file with the chat template; by default the directory's own.

    Raises:
        InputError: when there is no tokenizer, or a file is broken.
    """

    def __init__(self, directory: Path, template: Path | None = None) -> None:
        """Read everything; see the class."""
        self.directory = directory
        file = directory / _TOKENIZER
        content = read_json(file)
        try:
            self._tokenizer = Tokenizer.from_str(json.dumps(content))
        except Exception as error:  # noqa: BLE001  # tokenizers raises nothing narrower
            raise InputError(f"{file}: found JSON that is no tokenizer ({error})") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {number for number, token in added.items() if token.special}
        config = _optional(directory / _CONFIG)
        self.tokens = _named_tokens(_optional(directory / _SPECIAL)) | _named_tokens(config)
        self._source, found = _template(directory, config, template)
        self._template = None if found is None else _compiled(found, self._source)

    def text(self, text: str) -> np.ndarray:
        """The tokens of plain text, with those that the tokenizer adds itself (BOS)."""
        return _array(self._tokenizer.encode(text).ids)

    def prompt(self, messages: list[Message], tools: Any = None) -> np.ndarray:
        """The tokens that a server feeds the target for the last message that asks something.

        Answers that already stand at the chat's end are left out.

        Raises:
            InputError: when the template refuses the messages, or all are answers.
        """
        asked = len(messages)
        while asked and messages[asked - 1]["role"] == "assistant":
            asked -= 1
        if not asked:
            raise InputError("every message is an assistant's, expected one to answer")
        return _array(self._encode(self._plain(messages[:asked], tools, opened=True)))

    def chat(self, messages: list[Message], tools: Any = None, answers: Answers = "all") -> Text:
        """The tokens of a chat and which of them are answers, each with its end-of-turn token.

        Args:
            messages: objects with `role` and `content`.
            tools: what the template is told of tools.
            answers: mark every answer, or only the last one.

        Raises:
            InputError: when the template refuses the messages, or where an answer begins or ends
                cannot be told exactly.
        """
        marked = self._render(messages, tools, opened=False)
        text = _unmarked(marked)
        ids = self._encode(text)
        numbers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        answer = np.zeros(len(ids), np.bool_)
        by_marks = answers == "all" and _BEGIN in marked
        if by_marks:
            spans = _marked_spans(marked)
        else:
            wanted = numbers if answers == "all" else numbers[-1:]
            spans = [self._span(messages, tools, text, number) for number in wanted]
        for begin, end in spans:
            first, last = (self._tokens_in(text, ids, place) for place in (begin, end))
            if not by_marks:
                last = self._turn_end(ids, first, last)
            answer[first:last] = True
        return Text(_array(ids), answer if numbers else np.ones_like(answer))

    def _span(self, messages: list[Message], tools: Any, text: str, number: int) -> tuple[int, int]:
        """Where an answer begins and ends in the whole chat's text."""
        prompt = self._plain(messages[:number], tools, opened=True)
        through = self._plain(messages[: number + 1], tools, opened=False)
        for part, what in ((prompt, "the prompt before"), (through, "the chat up to")):
            if not text.startswith(part):
                raise InputError(
                    f"{what} answer {number} is not how the whole chat begins in {self._source}, "
                    "expected that or {% generation %} in the template, or the last answer alone "
                    "marked"
                )
        if len(through) < len(prompt):
            raise InputError(
                f"answer {number} ends before its prompt does in {self._source}, expected a "
                "generation prompt that the answer follows"
            )
        return len(prompt), len(through)

    def _tokens_in(self, text: str, ids: list[int], place: int) -> int:
        """How many tokens the text has up to a place, which must lie between two of them."""
        before = self._encode(text[:place])
        if ids[: len(before)] != before:
            raise InputError(
                f"one token reaches across the edge of an answer, near "
                f"{text[max(place - 12, 0) : place + 12]!r}, expected the prompt's tokens to be "
                "the first of the whole chat's"
            )
        return len(before)

    def _turn_end(self, ids: list[int], first: int, last: int) -> int:
        """Leave out blanks after the end-of-turn token: no server ever lets a target write them."""
        for place in range(last - 1, first - 1, -1):
            if ids[place] in self._special:
                rest = self._tokenizer.decode(ids[place + 1 : last], skip_special_tokens=False)
                return last if rest.strip() else place + 1
        return last

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _plain(self, messages: list[Message], tools: Any, *, opened: bool) -> str:
        return _unmarked(self._render(messages, tools, opened=opened))

    def _render(self, messages: list[Message], tools: Any, *, opened: bool) -> str:
        if self._template is None:
            raise InputError(
                f"{self.directory} has no chat template ({_TEMPLATE}, or chat_template in "
                f"{_CONFIG}), expected one for messages"
            )
        try:
            return self._template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=opened,
                **self.tokens,
            )
        except _TEMPLATE_ERRORS as error:
            raise InputError(
                f"{self._source} does not take these messages ({error or type(error).__name__})"
            ) from None


def _array(ids: list[int]) -> np.ndarray:
    return np.asarray(ids, np.int32)


def _optional(file: Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}


def _named_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The special tokens that a template may name: `bos_token` and the like."""
    tokens = {}
    for name in _TOKENS:
        token = config.get(f"{name}_token")
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            tokens[f"{name}_token"] = token
    return tokens


def _template(
    directory: Path, config: dict[str, Any], given: Path | None
) -> tuple[str, str | None]:
    """Where a chat template is from, and its text where there is one."""
    file = directory / _TEMPLATE if given is None else given
    if given is not None or file.exists():
        try:
            return str(file), file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise InputError(f"{file}: no such file, expected a chat template") from None
        except IsADirectoryError:
            raise InputError(f"{file}: found a directory, expected a chat template") from None
        except UnicodeDecodeError as error:
            raise InputError(
                f"{file}: found no UTF-8 ({error}), expected a chat template"
            ) from None
    where = f"{directory / _CONFIG}: chat_template"
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        if "default" not in named:
            raise InputError(
                f"{where} has {', '.join(map(str, named))}, expected one called default"
            )
        template = named["default"]
    if template is not None and not isinstance(template, str):
        raise InputError(f"{where} is a {type(template).__name__}, expected a string")
    return where, template


def _compiled(source: str, where: str) -> jinja2.Template:
    """A template as transformers compiles it."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Marked, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise InputError(f"{where}: found no template that jinja2 reads ({error})") from None


def _unmarked(text: str) -> str:
    return text.replace(_BEGIN, "").replace(_END, "")


def _marked_spans(text: str) -> list[tuple[int, int]]:
    """Where marked answers lie once the marks are gone."""
    spans, length = [], 0
    outside, *marked = text.split(_BEGIN)
    length += len(outside)
    for part in marked:
        inside, after = part.split(_END)
        spans.append((length, length + len(inside)))
        length += len(inside) + len(after)
    return spans
