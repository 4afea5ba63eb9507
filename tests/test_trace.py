"""A trace is of the forward pass itself: `unroll`'s numbers, each stage made of those before."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converters.traces import read_trace
from eagle3_jax.cli import progress
from eagle3_jax.cli.main import main
from eagle3_jax.config import AttentionConfig
from eagle3_jax.model import head_kernel
from eagle3_jax.ops import project
from eagle3_jax.rollout import Own, greedy_ids, unroll
from eagle3_jax.stages import LOGITS, logit_ids, stage_names
from eagle3_jax.trace import trace
from tests.conftest import close, latent_heads, random_params, random_text, tiny_config
from tests.samples import TABLE, texts, tiny_draft, write_draft, write_texts

COLUMNS, STEPS = 6, 3
HEADS = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=4)
CASES = {
    "plain": {},
    "fc_norm": {"fc_norm": True, "norm_output": True, "double_norm": True},
    "before_fc": {
        "norm_before_fc": True,
        "norm_before_residual": True,
        "attention": replace(HEADS, sliding_window=2),
    },
    "two_layers": {"num_layers": 2, "attention": replace(HEADS, qk_norm=True)},
    "latent": {"attention": latent_heads()},
    "last_state_only": {"num_aux": 0, "final_norm": False},
}
BETWEEN = {"q", "k", "q_normed", "k_normed", "q_rotated", "scores_max", "scores_lse"}


def both(config, params, kernel, aux, embeddings, steps, own=None):
    """A trace, and what `unroll` says to whoever asks it alone."""
    columns = jnp.arange(aux.shape[1])
    traced = trace(config, params, kernel, aux, embeddings, steps=steps, columns=columns, own=own)
    plain = unroll(
        config,
        params,
        aux,
        embeddings,
        steps=steps,
        read=lambda _, step: (step.state, step.head_input),
        own=own,
    )
    return traced, plain


@cache
def traced_of(name):
    config = tiny_config(**CASES[name])
    params, text = random_params(config), random_text(config, columns=COLUMNS, rows=2)
    kernel = head_kernel(config, params)
    # Operation by operation: configurations of the same shapes share what is compiled.
    with jax.default_matmul_precision("highest"), jax.disable_jit():
        return config, params, *both(config, params, kernel, *text, STEPS)


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request):
    return traced_of(request.param)


def test_it_is_the_same_forward_pass(case):
    _, _, traced, (states, head_inputs) = case
    np.testing.assert_array_equal(traced.steps["state"], states)
    np.testing.assert_array_equal(traced.steps["head_input"], head_inputs)


def test_it_is_the_same_forward_pass_compiled():
    config, params, _, _ = traced_of("plain")
    text = random_text(config, columns=COLUMNS, rows=2)
    compiled = jax.jit(both, static_argnums=(0, 5))
    traced, (states, _) = compiled(config, params, head_kernel(config, params), *text, STEPS)
    np.testing.assert_array_equal(traced.steps["state"], states)


def test_every_stage_that_the_draft_has(case):
    config, _, traced, _ = case
    known = stage_names(config.num_layers)
    absent = set(known) - set(traced.once) - set(traced.steps) - {"token"}
    lacking = {name.rpartition(".")[2] for name in absent}
    heads = config.attention
    grouped = isinstance(heads, AttentionConfig)
    expected = set() if config.num_aux else {"fc_input", "fc"}
    if not grouped:
        expected |= BETWEEN
    elif not heads.qk_norm:
        expected |= {"q_normed", "k_normed"}
    assert lacking == expected
    assert not (set(traced.once) | set(traced.steps)) - set(known)
    for stage in traced.steps.values():
        assert stage.shape[:3] == (STEPS, 2, COLUMNS)


def normed(x, weight, eps=1e-5):
    return x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + eps) * weight


def test_stages_follow_from_one_another(case):
    """In NumPy, stage after stage, each from those before it."""
    config, params, traced, _ = case
    t = {name: np.asarray(stage, np.float64) for name, stage in traced.steps.items()}
    params = jax.tree.map(np.asarray, params)
    if config.num_aux:
        once = traced.once
        close(once["fc"], np.asarray(once["fc_input"]) @ params["fc"]["kernel"])
        close(t["hidden"][0], once["fc"])
        normed_before = config.fc_norm or config.norm_before_fc
        assert np.array_equal(once["aux"], once["fc_input"]) != normed_before
    close(t["hidden"][1:], t["state"][:-1])
    for index in range(config.num_layers):
        layer = params[f"layers_{index}"]
        at = {
            name.removeprefix(f"layers.{index}."): stage
            for name, stage in t.items()
            if name.startswith(f"layers.{index}.")
        }
        if index == 0:
            norm, twice = layer["input_layernorm"]["scale"], layer["hidden_norm"]["scale"]
            hidden = normed(t["hidden"], norm) if config.double_norm else t["hidden"]
            close(at["embedding_normed"], normed(t["embedding"], norm))
            close(at["hidden_normed"], normed(hidden, twice))
            read = np.concatenate([at["embedding_normed"], at["hidden_normed"]], axis=-1)
            carried = at["hidden_normed"] if config.norm_before_residual else t["hidden"]
        else:
            carried = t["layers.0.residual"] + t["layers.0.mlp"]
            close(at["input_normed"], normed(carried, layer["input_layernorm"]["scale"]))
            read = at["input_normed"]
        attention = layer["self_attn"]
        for name in ("q", "k", "v") if "q" in at else ():
            close(at[name], read @ attention[f"{name}_proj"]["kernel"])
        close(at["attention_out"], at["attention"] @ attention["o_proj"]["kernel"])
        close(at["residual"], carried + at["attention_out"])
        weight = layer["post_attention_layernorm"]["scale"]
        close(at["residual_normed"], normed(at["residual"], weight))
        for name in ("gate", "up"):
            close(at[name], at["residual_normed"] @ layer["mlp"][f"{name}_proj"]["kernel"])
        mixed = at["gate"] / (1 + np.exp(-at["gate"])) * at["up"]
        close(at["mlp"], mixed @ layer["mlp"]["down_proj"]["kernel"])
    close(t["output"], at["residual"] + at["mlp"])
    head_input = normed(t["output"], params["norm"]["scale"]) if config.final_norm else t["output"]
    close(t["head_input"], head_input)
    close(t["logits"], head_input @ params["lm_head"]["kernel"])
    close(t["logits_lse"][..., 0], np.log(np.exp(t["logits"]).sum(axis=-1)))
    best = np.argsort(-t["logits"], axis=-1)[..., :8]
    np.testing.assert_array_equal(t["top_ids"], best)
    close(t["top_logits"], np.take_along_axis(t["logits"], best, axis=-1))


@pytest.mark.parametrize("name", [name for name in CASES if name != "latent"])
def test_scores_and_what_they_mix(name):
    """From the stages after RoPE alone, one column after the other."""
    config, _, traced, _ = traced_of(name)
    heads = config.attention
    window = heads.sliding_window or 99
    t = {name: np.asarray(stage, np.float64) for name, stage in traced.steps.items()}
    for index in range(config.num_layers):

        def apart(name, count, index=index):
            return t[f"layers.{index}.{name}"].reshape(STEPS, 2, COLUMNS, count, heads.head_dim)

        query = apart("q_rotated", heads.num_heads)
        key, value = (apart(name, heads.num_kv_heads) for name in ("k_rotated", "v"))
        for k, row, column, head in np.ndindex(STEPS, 2, COLUMNS, heads.num_heads):
            seen = [(0, s) for s in range(column + 1) if column + k - s < window]
            seen += [(j, column) for j in range(1, k + 1) if k - j < window]
            group = head // (heads.num_heads // heads.num_kv_heads)
            keys = np.stack([key[j, row, s, group] for j, s in seen])
            scores = keys @ query[k, row, column, head] / heads.head_dim**0.5
            place = (k, row, column, head)
            close(t[f"layers.{index}.scores_max"][place], scores.max())
            close(t[f"layers.{index}.scores_lse"][place], np.log(np.exp(scores).sum()))
            mixed = np.exp(scores - scores.max())
            mixed = mixed / mixed.sum() @ np.stack([value[j, row, s, group] for j, s in seen])
            found = t[f"layers.{index}.attention"][k, row, column].reshape(heads.num_heads, -1)
            close(found[head], mixed)


def test_own_tokens():
    config = tiny_config()
    params, text = random_params(config), random_text(config, columns=COLUMNS)
    kernel = head_kernel(config, params)
    ids = jnp.asarray(3 + 2 * np.arange(12))
    table = jnp.asarray(TABLE)
    with jax.disable_jit():
        traced, (states, _) = both(config, params, kernel, *text, STEPS, Own(table, kernel, ids))
    np.testing.assert_array_equal(traced.steps["state"], states)
    said = np.asarray(ids)[traced.steps["top_ids"][:-1, ..., 0]]
    np.testing.assert_array_equal(traced.steps["embedding"][1:], TABLE[said])
    greedy = greedy_ids(traced.steps["head_input"][:-1], kernel, ids)
    np.testing.assert_array_equal(said, greedy)


def test_chosen_columns_alone_are_kept():
    config, params, whole, _ = traced_of("plain")
    text = random_text(config, columns=COLUMNS, rows=2)
    kept = jnp.asarray([0, 3, 5])
    kernel = head_kernel(config, params)
    with jax.disable_jit():
        some = trace(config, params, kernel, *text, steps=STEPS, columns=kept)
    for name, stage in some.steps.items():
        close(stage, whole.steps[name][:, :, kept])
    for name, stage in some.once.items():
        close(stage, whole.once[name][:, kept])


def test_a_large_vocabulary_is_summed_up():
    size = LOGITS + 476
    config = tiny_config(vocab_size=size, draft_vocab_size=size)
    params, text = random_params(config), random_text(config, columns=COLUMNS)
    kernel = head_kernel(config, params)
    with jax.disable_jit():
        traced, (_, head_inputs) = both(config, params, kernel, *text, 1)
    logits = np.asarray(project(head_inputs, kernel))
    ids = logit_ids(size)
    assert len(np.unique(ids)) == LOGITS
    assert (ids[0], ids[1], ids[-1]) == (0, 1, size * (LOGITS - 1) // LOGITS)
    close(traced.steps["logits"], logits[..., ids])
    close(traced.steps["logits_lse"][..., 0], np.log(np.exp(np.float64(logits)).sum(axis=-1)))
    close(traced.steps["top_logits"][..., 0], logits.max(axis=-1))
    assert np.array_equal(logit_ids(12), np.arange(12))


# The command


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "_PATIENCE", 3600.0)
    write_texts(tmp_path / "shard.safetensors", texts())


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    directory = tmp_path_factory.mktemp("draft") / "draft"
    return write_draft(directory, tiny_draft(embeddings=True))


TRACE = ("--shards", "shard.safetensors", "--out", "out.safetensors")


def traced_file(capsys, draft, *arguments):
    assert main(["trace", "--draft", str(draft), *TRACE, "--json", "-", *arguments]) == 0
    return json.loads(capsys.readouterr().out), read_trace(Path("out.safetensors"))


def test_the_file_is_what_unroll_says(capsys, draft):
    told, found = traced_file(capsys, draft, "--documents", "2", "--steps", "3")
    assert told["columns"] == [len(step.rows) for step in found.steps] == [38, 36, 34]
    loaded = tiny_draft()
    params = jax.tree.map(jnp.asarray, loaded.params)
    for row, text in enumerate(texts()[:2]):
        length = len(text.ids)
        aux = jnp.asarray(text.states[:, :3].reshape(1, length, -1))
        states = unroll(
            loaded.config,
            params,
            aux,
            jnp.asarray(TABLE[text.ids])[None],
            steps=3,
            read=lambda _, step: step.state,
        )
        for k, step in enumerate(found.steps):
            mine = step.rows == row
            there = length - 1 - k
            np.testing.assert_array_equal(step.columns[mine], np.arange(there))
            close(step.stages["state"][mine], states[k, 0, :there])
            np.testing.assert_array_equal(step.stages["token"][mine][:, 0], text.ids[k + 1 :])
            np.testing.assert_array_equal(step.stages["embedding"][mine], TABLE[text.ids[k + 1 :]])
    assert set(told["absent"]) == {"layers.0.q_normed", "layers.0.k_normed"}
    assert found.metadata["tokens"] == "text"
    assert found.metadata["head_dim"] == "4"
    assert found.metadata["writer"] == "eagle3-jax"


def test_own_tokens_in_the_file(capsys, draft):
    _, found = traced_file(capsys, draft, "--tokens", "own", "--steps", "3")
    assert [len(step.rows) for step in found.steps] == [19, 19, 19]
    ids = tiny_draft().vocab.target_ids
    np.testing.assert_array_equal(found.steps[0].stages["token"][:, 0], texts()[0].ids[1:])
    for before, after in zip(found.steps, found.steps[1:], strict=False):
        said = ids[before.stages["top_ids"][:, 0]]
        np.testing.assert_array_equal(after.stages["token"][:, 0], said)
        np.testing.assert_array_equal(after.stages["embedding"], TABLE[said])
    assert found.metadata["tokens"] == "own"


def test_columns_are_spread(capsys, draft):
    _, found = traced_file(capsys, draft, "--columns", "4", "--steps", "2")
    np.testing.assert_array_equal(found.steps[0].columns, [0, 6, 13])  # 19 reads no token


def test_bfloat16(capsys, draft):
    _, found = traced_file(capsys, draft, "--precision", "bfloat16", "--steps", "2")
    kinds = {name: stage.dtype.name for name, stage in found.steps[1].stages.items()}
    assert kinds["hidden"] == kinds["layers.0.q_rotated"] == kinds["state"] == "bfloat16"
    assert kinds["logits"] == kinds["layers.0.scores_lse"] == "float32"


def test_the_digest_tells_drafts_apart(capsys, draft, tmp_path):
    first, _ = traced_file(capsys, draft, "--steps", "1")
    other, _ = traced_file(capsys, draft, "--steps", "1", "--set", "norm_output=true")
    other_weights = tiny_draft(embeddings=True)
    other_weights.params["norm"]["scale"] = other_weights.params["norm"]["scale"] * 2
    copy = write_draft(tmp_path / "copy", other_weights)
    third, _ = traced_file(capsys, copy, "--steps", "1")
    digests = [told["draft"] for told in (first, other, third)]
    assert len(set(digests)) == 3


def test_what_is_printed(capsys, draft):
    assert main(["trace", "--draft", str(draft), *TRACE, "--steps", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "trace    out.safetensors",
        "columns  19, 18 at steps 0 to 1",
        "stages   29",
        "absent   layers.0.q_normed, layers.0.k_normed",
    ]


BAD = {
    ("--steps", "0"): "--steps is 0, expected 1 or more",
    ("--documents", "0"): "--documents is 0, expected 1 or more",
    ("--columns", "-1"): "--columns is -1, expected 1 or more",
    ("--out", "a.pt"): "--out is a.pt, expected a name that ends in .safetensors",
    ("--out", "no/a.safetensors"): (
        "no: no such directory, expected one to write a.safetensors in"
    ),
    ("--steps", "20"): (
        "shard.safetensors: document 0 has 20 tokens, expected 21 or more for 20 steps"
    ),
}


def refused(capsys, *arguments):
    assert main(["trace", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input(capsys, draft, arguments):
    assert refused(capsys, "--draft", draft, *TRACE, *arguments) == BAD[arguments]


def test_own_tokens_need_a_table(capsys, tmp_path):
    directory = write_draft(tmp_path / "draft")
    error = refused(capsys, "--draft", directory, *TRACE, "--tokens", "own")
    assert error == (
        "draft: holds no token embeddings, expected --target with the target's directory to go on "
        "with the draft's own tokens"
    )
