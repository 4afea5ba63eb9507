"""Chats as tokens: the string that the template makes, and which tokens are answers."""

import json
import re

import numpy as np
import pytest

from converters.chats import ChatTokenizer
from eagle3_jax.errors import InputError
from tests.capture_samples import CHATML, ID, MARKED, assistant, ids_of, user, write_tokenizer

ASK, ASK_ALL = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", [user("hi")]


def refused(message):
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


def opened(tmp_path, template=CHATML, **config):
    return ChatTokenizer(write_tokenizer(tmp_path, template, **config))


def parts(chat):
    """Runs of tokens, each with whether they are answers."""
    edges = np.flatnonzero(np.diff(chat.answer)) + 1
    runs = zip(np.split(chat.ids, edges), np.split(chat.answer, edges), strict=True)
    return [(ids.tolist(), bool(answer[0])) for ids, answer in runs]


def test_plain_text_gets_what_the_tokenizer_adds_and_a_chat_does_not(tmp_path):
    tokenizer = opened(tmp_path)
    assert tokenizer.text("ab").tolist() == ids_of("<s>ab")
    assert tokenizer.prompt([user("hi")]).tolist() == ids_of(ASK)


def test_answers_reach_from_the_generation_prompt_to_the_end_of_turn(tmp_path):
    messages = [user("hi"), assistant("yes\nme"), user("go"), assistant("no")]
    chat = opened(tmp_path).chat(messages)
    assert parts(chat) == [
        (ids_of(ASK), False),
        (ids_of("yes\nme<|im_end|>"), True),
        (ids_of("\n<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"), False),
        (ids_of("no<|im_end|>"), True),
        (ids_of("\n"), False),
    ]


def test_the_last_answer_alone(tmp_path):
    messages = [user("hi"), assistant("yes"), user("go"), assistant("no")]
    for template, end in ((CHATML, "no<|im_end|>"), (MARKED, "no</s>")):
        tokenizer = opened(tmp_path, template)
        answers = [ids for ids, answer in parts(tokenizer.chat(messages, answers="last")) if answer]
        assert answers == [ids_of(end)]


def test_a_chat_without_an_answer_counts_as_a_whole(tmp_path):
    chat = opened(tmp_path).chat([user("hi")])
    assert chat.ids.tolist() == ids_of("<|im_start|>user\nhi<|im_end|>\n")
    assert chat.answer.all()


def test_a_template_that_marks_its_answers_is_taken_at_its_word(tmp_path):
    chat = opened(tmp_path, MARKED).chat([user("hi"), assistant("yes"), user("go"), assistant("")])
    assert parts(chat) == [
        (ids_of("<s>hi "), False),
        (ids_of("yes</s>"), True),
        (ids_of("go "), False),
        (ids_of("</s>"), True),
    ]


def test_a_turn_without_a_special_token_ends_where_the_template_ends_it(tmp_path):
    template = (
        "{% for m in messages %}{{ m.role[0] + ' ' + m.content + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'a ' }}{% endif %}"
    )
    chat = opened(tmp_path, template).chat([user("hi"), assistant("yes"), user("go")])
    assert parts(chat) == [
        (ids_of("u hi\na "), False),
        (ids_of("yes\n"), True),
        (ids_of("u go\n"), False),
    ]


def test_a_prompt_ends_before_answers_that_stand_there(tmp_path):
    tokenizer = opened(tmp_path)
    assert tokenizer.prompt([user("hi"), assistant("yes")]).tolist() == ids_of(ASK)
    longer = tokenizer.prompt([user("hi"), assistant("yes"), user("go"), assistant("no")])
    assert longer.tolist() == ids_of(
        f"{ASK}yes<|im_end|>\n<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"
    )
    with refused("every message is an assistant's, expected one to answer"):
        tokenizer.prompt([assistant("yes")])


def test_a_token_across_the_edge_of_an_answer_is_refused(tmp_path):
    with refused(
        r"one token reaches across the edge of an answer, near '|>assistant\n\nyes<|im_end', "
        "expected the prompt's tokens to be the first of the whole chat's"
    ):
        opened(tmp_path).chat([user("hi"), assistant("\nyes")])


def test_a_template_that_renders_earlier_turns_otherwise_is_refused_unless_one_answer_counts(
    tmp_path,
):
    # As Qwen3 has it: only the last turn shows its thinking.
    template = CHATML.replace(
        "m.content", "('b' if loop.last and m.role == 'assistant' else '') + m.content"
    )
    tokenizer = opened(tmp_path, template)
    messages = [user("hi"), assistant("yes"), user("go"), assistant("no")]
    where = f"{tmp_path / 'tokenizer_config.json'}: chat_template"
    with refused(
        f"the chat up to answer 1 is not how the whole chat begins in {where}, expected that or "
        "{% generation %} in the template, or the last answer alone marked"
    ):
        tokenizer.chat(messages)
    answers = [ids for ids, answer in parts(tokenizer.chat(messages, answers="last")) if answer]
    assert answers == [ids_of("bno<|im_end|>")]


def test_a_generation_prompt_that_the_answer_does_not_follow_is_refused(tmp_path):
    template = CHATML.replace("<|im_start|>assistant\n", "<|im_start|>assistant\nthe ")
    with pytest.raises(InputError, match=r"^the prompt before answer 1 is not how the whole chat"):
        opened(tmp_path, template).chat([user("hi"), assistant("yes")])


def test_where_a_template_stands(tmp_path):
    directory = write_tokenizer(tmp_path, "{{ 'a' }}")
    assert ChatTokenizer(directory).prompt(ASK_ALL).tolist() == ids_of("a")
    write_tokenizer(tmp_path, [{"name": "tool_use", "template": "{{ 'b' }}"}])
    with refused(
        f"{tmp_path / 'tokenizer_config.json'}: chat_template has tool_use, expected one called "
        "default"
    ):
        ChatTokenizer(directory)
    write_tokenizer(tmp_path, [{"name": "default", "template": "{{ 'b' }}"}])
    assert ChatTokenizer(directory).prompt(ASK_ALL).tolist() == ids_of("b")
    (directory / "chat_template.jinja").write_text("{{ 'c' }}")
    assert ChatTokenizer(directory).prompt(ASK_ALL).tolist() == ids_of("c")
    (directory / "given").write_text("{{ 'd' }}")
    assert ChatTokenizer(directory, directory / "given").prompt(ASK_ALL).tolist() == ids_of("d")


def test_templates_have_what_transformers_gives_them(tmp_path):
    template = (
        "{{ bos_token + eos_token }}{% for m in messages %}\n"
        "  {% if loop.first %}{% continue %}{% endif %}\n"
        "{{ m | tojson | length }}{{ tools[0] }}{{ strftime_now('x') }}\n"
        "{% endfor %}\n"
    )
    tokenizer = opened(tmp_path, template)
    # Of the figures nothing is left: the tokenizer has none.
    found = tokenizer.prompt([user("hi"), user("hi")], tools=["t"]).tolist()
    assert found == ids_of("<s></s>tx\n")


def test_special_tokens_of_older_directories(tmp_path):
    write_tokenizer(tmp_path, "{{ bos_token }}{{ pad_token }}", bos_token=None)
    beside = {"bos_token": "a", "pad_token": "b", "eos_token": "c"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(beside))
    tokenizer = ChatTokenizer(tmp_path)
    assert tokenizer.prompt(ASK_ALL).tolist() == ids_of("ab")
    assert tokenizer.tokens["eos_token"] == "</s>"


def test_what_a_template_refuses(tmp_path):
    where = f"{tmp_path / 'tokenizer_config.json'}: chat_template"
    for template, said in (
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", 'can only concatenate str (not "int") to str'),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe."),
    ):
        with refused(f"{where} does not take these messages ({said})"):
            opened(tmp_path, template).prompt([user("hi")])
    with pytest.raises(InputError, match=f"^{re.escape(where)}: found no template that jinja2"):
        opened(tmp_path, "{% if %}")
    with refused(f"{where} is a int, expected a string"):
        opened(tmp_path, 3)
    with refused(
        f"{tmp_path} has no chat template (chat_template.jinja, or chat_template in "
        "tokenizer_config.json), expected one for messages"
    ):
        opened(tmp_path, None).prompt([user("hi")])


def test_bad_tokenizers(tmp_path):
    file = tmp_path / "tokenizer.json"
    with refused(f"{file}: no such file, expected a JSON file"):
        ChatTokenizer(tmp_path)
    file.write_text("{}")
    with pytest.raises(InputError, match=f"^{re.escape(str(file))}: found JSON that is no token"):
        ChatTokenizer(tmp_path)


def test_a_length_that_the_tokenizer_cuts_to_is_not_kept(tmp_path):
    write_tokenizer(tmp_path)
    stored = json.loads((tmp_path / "tokenizer.json").read_text())
    stored["truncation"] = {
        **{"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    assert len(ChatTokenizer(tmp_path).text("abcdef")) == 7


def test_the_tokenizer_is_the_one_of_the_samples():
    assert len(ID) == 32
    assert ids_of("a\n\n b</s>") == [7, 5, 6, 8, 1]
