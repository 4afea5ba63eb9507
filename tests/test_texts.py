"""Lines of JSON as texts: every kind, what is marked, and every line that cannot be read."""

import json
import re
from functools import cache

import pytest

from converters.chats import ChatTokenizer
from converters.texts import TextReader
from eagle3_jax.errors import InputError
from tests.capture_samples import assistant, ids_of, user, write_tokenizer


def refused(message):
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


@pytest.fixture
def reader(tmp_path):
    directory = write_tokenizer(tmp_path / "tokenizer")
    return TextReader(cache(lambda: ChatTokenizer(directory)), 32)


@pytest.fixture
def untokenized():
    def none():
        raise AssertionError("ids need no tokenizer")

    return TextReader(none, 32)


def read(tmp_path, reader, *lines):
    file = tmp_path / "texts.jsonl"
    encoded = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines]
    file.write_bytes(b"\n".join(encoded))
    return [(text.ids.tolist(), text.answer.tolist()) for text in reader.read(file)]


CHAT = [user("hi"), assistant("yes"), user("go"), assistant("no")]


def test_every_kind_of_line(tmp_path, reader):
    found = read(
        tmp_path,
        reader,
        {"text": "ab", "id": 7},
        b"",
        {"ids": [3, 4, 5]},
        {"ids": [3, 4, 5], "loss_mask": [0, True, False]},
        {"ids": [3, 4, 5], "prompt_length": 2},
        {"ids": [3, 4, 5], "loss_mask": [0, 0, 0]},
        {"ids": [3, 4, 5], "prompt_length": 3},
        {"messages": CHAT[:2]},
    )
    answer = len(ids_of("yes<|im_end|>"))
    *rest, chat = found
    assert rest == [
        (ids_of("<s>ab"), [True] * 3),
        ([3, 4, 5], [True] * 3),
        ([3, 4, 5], [False, True, False]),
        ([3, 4, 5], [False, False, True]),
        ([3, 4, 5], [True] * 3),
        ([3, 4, 5], [True] * 3),
    ]
    assert chat[0][-answer - 1 :] == ids_of("yes<|im_end|>\n")
    assert chat[1] == [False] * (len(chat[1]) - answer - 1) + [True] * answer + [False]


def test_the_last_answer_alone(tmp_path, reader):
    [(every, marked)] = read(tmp_path, reader, {"messages": CHAT})
    [(ids, last)] = read(tmp_path, reader._replace(answers="last"), {"messages": CHAT})
    assert (ids, sum(marked), sum(last)) == (every, 4 + 3, 3)


def test_prompts_end_where_the_last_answer_begins(tmp_path, reader):
    found = read(
        tmp_path,
        reader._replace(prompts=True),
        {"text": "ab"},
        {"ids": [3, 4, 5, 6]},
        {"ids": [3, 4, 5, 6], "prompt_length": 3},
        {"ids": [3, 4, 5, 6, 7], "loss_mask": [0, 1, 0, 1, 1]},
        {"ids": [3, 4, 5, 6, 7], "loss_mask": [0, 1, 0, 1, 0]},
        {"messages": [user("hi"), assistant("no")]},
    )
    assert [ids for ids, _ in found] == [
        ids_of("<s>ab"),
        [3, 4, 5, 6],
        [3, 4, 5],
        [3, 4, 5],
        [3, 4, 5],
        ids_of("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
    ]
    assert not any(any(answer) for _, answer in found)


def test_ids_need_no_tokenizer(tmp_path, untokenized):
    assert read(tmp_path, untokenized, {"ids": [1]}) == [([1], [True])]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "found text that is not JSON (Expecting property name enclosed in double quotes: "),
        (b'{"text": "\xff"}', "found text that is not JSON ('utf-8' codec can't decode byte 0xff"),
        (b"[" * 100_000, "found JSON nested too deep, expected an object"),
        ([1], "found a list, expected an object"),
        ({}, "found no key, expected one of text, ids, messages"),
        ({"id": 1, "conversations": []}, "found id, conversations, expected one of text, ids, mes"),
        ({"text": "a", "ids": [1]}, "found text, ids, expected one of text, ids, messages"),
        (
            {"text": "a", "loss_mask": [1]},
            "loss_mask stands beside text, expected it beside ids",
        ),
        ({"text": None}, "text is null, expected a string"),
        ({"text": 3}, "text is a number, expected a string"),
        ({"text": "a\ud800"}, "found half a surrogate pair, expected Unicode text"),
        ({"ids": []}, "ids gives no token, expected one or more"),
        ({"ids": [1, -1]}, "ids is no list of integers from 0, expected one"),
        ({"ids": [True]}, "ids is no list of integers from 0, expected one"),
        ({"ids": [2**40]}, "ids is no list of integers from 0, expected one"),
        ({"ids": "12"}, "ids is no list of integers from 0, expected one"),
        ({"ids": [1, 32]}, "token 32 is outside the target, expected 0 to 31"),
        ({"ids": [1], "loss_mask": [1, 0]}, "loss_mask is no list of 1 times 0 or 1, expected one"),
        ({"ids": [1], "loss_mask": [2]}, "loss_mask is no list of 1 times 0 or 1, expected one"),
        ({"ids": [1], "loss_mask": 1}, "loss_mask is no list of 1 times 0 or 1, expected one"),
        ({"ids": [1], "prompt_length": 2}, "prompt_length is 2, expected 0 to 1"),
        ({"ids": [1], "prompt_length": True}, "prompt_length is True, expected 0 to 1"),
        (
            {"ids": [1], "prompt_length": 1, "loss_mask": [1]},
            "loss_mask and prompt_length are both there, expected one of them",
        ),
        ({"messages": []}, "messages is an empty list, expected a list of one or more"),
        ({"messages": {"role": "user"}}, "messages is an object, expected a list of one or more"),
        ({"messages": [user("a"), 1]}, "message 1 has no role, expected an object with role, cont"),
        ({"messages": [{"role": "user"}]}, "message 0 has no content, expected it beside role"),
        ({"messages": [user("\udc00")]}, "found half a surrogate pair, expected Unicode text"),
        ({"messages": [{"role": "user", "content": 3}]}, ""),
    ],
)
def test_bad_lines_are_named(tmp_path, reader, line, message):
    start = re.escape(f"{tmp_path / 'texts.jsonl'}:3: {message}")
    with pytest.raises(InputError, match=f"^{start}"):
        read(tmp_path, reader, {"text": "a"}, b"", line)


def test_a_prompt_without_a_token_is_refused(tmp_path, untokenized):
    with refused(f"{tmp_path / 'texts.jsonl'}:1: ids gives no token, expected one or more"):
        read(tmp_path, untokenized._replace(prompts=True), {"ids": [1, 2], "loss_mask": [1, 0]})


def test_missing_files(tmp_path, reader):
    with refused(f"{tmp_path / 'none'}: no such file, expected JSON lines"):
        list(reader.read(tmp_path / "none"))
    with refused(f"{tmp_path}: found a directory, expected a file of JSON lines"):
        list(reader.read(tmp_path))


def test_a_missing_tokenizer_is_told_with_the_line_that_needs_it(tmp_path):
    reader = TextReader(lambda: ChatTokenizer(tmp_path), 32)
    with refused(
        f"{tmp_path / 'texts.jsonl'}:2: {tmp_path / 'tokenizer.json'}: no such file, expected a "
        "JSON file"
    ):
        read(tmp_path, reader, {"ids": [1]}, {"text": "a"})
