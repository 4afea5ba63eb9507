"""Faults that people met with shards and figures in public, each under its thread's name."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from safetensors.numpy import load_file, save_file

from converters.shards import LayoutError, open_shards, read_documents
from eagle3_jax.cli import progress
from eagle3_jax.cli.main import main
from eagle3_jax.evaluate import _counted
from eagle3_jax.heads import TargetHead, rank
from eagle3_jax.metrics import count, figures
from eagle3_jax.model import Drafter
from eagle3_jax.structs import Features
from tests.conftest import tiny_config
from tests.samples import TABLE, text_of, texts, tiny_draft, write_draft, write_texts
from tests.shard_samples import (
    documents,
    write_angelslim,
    write_nemo,
    write_speculators,
)


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 3600.0)


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    return write_draft(tmp_path_factory.mktemp("draft") / "draft", tiny_draft(embeddings=True))


def outcome(capsys, draft, *arguments):
    """Exit code, JSON or `None`, and what was said."""
    code = main(["eval", "--draft", str(draft), "--steps", "2", "--json", "-", *arguments])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else None, err


def write_apart(root, good):
    """Each text in a shard of its own."""
    root.mkdir()
    return [write_texts(root / f"{n}.safetensors", [text]) for n, text in enumerate(good)]


# Shards


def test_the_mask_moves_with_the_ids():
    """SpecForge#885: of ten tokens 4 to 8 are the answer."""
    answer = (jnp.arange(10) >= 4) & (jnp.arange(10) <= 8)

    def columns(step):
        """The columns that count at a step: those whose miss is one right answer fewer."""
        right = jnp.zeros((3, 10, 10), jnp.int32).at[step].set(jnp.eye(10, dtype=jnp.int32))
        found = count(right, right >= 0, jnp.broadcast_to(answer, (10, 10)))
        return np.flatnonzero(found.right[:, step] < found.total[:, step]).tolist()

    # Column t is due token t+2+k. Masks that stay give 4 to 8, 3 to 7, 2 to 6: `--as specforge`.
    assert [columns(step) for step in range(3)] == [
        [2, 3, 4, 5, 6],
        [1, 2, 3, 4, 5],
        [0, 1, 2, 3, 4],
    ]


def test_a_zero_mask_in_one_shard_and_in_all(tmp_path, capsys, draft):
    """liquid-finetune PR#37: such a shard is skipped and counted, nothing but such an error."""
    good = texts()
    silent = [text._replace(answer=np.zeros_like(text.answer)) for text in good]
    one = write_apart(tmp_path / "one", [good[0], silent[1], good[2]])
    code, found, _ = outcome(capsys, draft, "--shards", str(one[0].parent), "--max-bad", "0.34")
    line = f"{one[1]}: document 0 holds no answer token, expected the loss mask to mark some"
    assert (code, found["documents"], found["bad"], found["bad_documents"]) == (0, 2, [line], 1)
    clean = write_apart(tmp_path / "clean", [good[0], good[2]])
    _, expected, _ = outcome(capsys, draft, "--shards", str(clean[0].parent))
    assert found["steps"] == expected["steps"]
    every = write_apart(tmp_path / "every", silent[:3])
    code, found, err = outcome(capsys, draft, "--shards", str(every[0].parent), "--max-bad", "0.9")
    assert (code, found) == (2, None)
    assert err.startswith("error: 3 of 3 documents are bad, expected at most 90.0% (--max-bad): ")


def test_nan_in_slot_1_of_one_shard_of_ten(tmp_path, capsys, draft):
    """speculators PR#966: file, slot and count are told; skipped up to a share, or strict."""
    good = [texts()[n % 3] for n in range(10)]
    states = good[6].states.copy()
    states[2:5, 1, 3] = np.nan
    shards = write_apart(
        tmp_path / "shards", [*good[:6], good[6]._replace(states=states), *good[7:]]
    )
    line = f"{shards[6]}: document 0 holds NaN or infinity, 3 in slot 1, expected finite values"
    arguments = ("--shards", str(tmp_path / "shards"))
    code, found, err = outcome(capsys, draft, *arguments, "--max-bad", "0.1")
    assert (code, found["documents"], found["bad"]) == (0, 9, [line])
    assert f"left out: {line}" in err
    code, _, err = outcome(capsys, draft, *arguments)
    assert (code, err) == (
        2,
        f"error: 1 of 10 documents are bad, expected at most 1.0% (--max-bad): {line}\n",
    )
    assert outcome(capsys, draft, *arguments, "--strict") == (2, None, f"error: {line}\n")


def test_memory_of_a_long_text_is_bounded_by_chunks():
    """SpecForge#580: at T=32768, V=151936 dense logits of one step would be 18.5 GiB.

    That chunks give what whole logits give, ties included, is in tests/test_heads.py.
    """
    columns, vocab, said = 32768, 151936, 32000
    config = tiny_config(vocab_size=vocab, draft_vocab_size=said)
    small = jnp.zeros((1, 2, 8)), jnp.zeros((1, 2, 24)), jnp.zeros((1, 2), jnp.int32)
    params = jax.eval_shape(Drafter(config).init, jax.random.key(0), *small)["params"]

    def empty(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(shape, dtype)

    head = TargetHead(empty(8, vocab), empty(8), 1e-5)
    shared = params, empty(8, said), empty(vocab, dtype=jnp.int32), head, empty(8, said)
    row = (1, columns)
    features = Features(
        ids=empty(*row, dtype=jnp.int32),
        aux=empty(*row, 24),
        embeddings=empty(*row, 8),
        answer=empty(*row, dtype=jnp.bool_),
        valid=empty(*row, dtype=jnp.bool_),
        document=empty(1, dtype=jnp.int32),
        last=empty(*row, 8),
    )
    mesh = Mesh(np.array(jax.local_devices()[:1]), ("rows",))
    compiled = _counted.lower(mesh, config, 2, shared, features).compile()
    dense = 4 * columns * vocab
    assert dense > 18.5 * 2**30
    assert compiled.memory_analysis().temp_size_in_bytes < dense / 64


def test_documents_laid_end_to_end_count_as_they_do_apart(tmp_path, capsys, draft):
    """Automodel PR#3002: our own shards hold documents end to end, and keep them apart."""
    packed = write_texts(tmp_path / "packed.safetensors", texts())
    apart = write_apart(tmp_path / "apart", texts())
    one, other = (
        outcome(capsys, draft, "--shards", str(path))[1] for path in (packed, apart[0].parent)
    )
    for name in ("steps", "walked_by_steps", "intervals", "documents", "tokens"):
        assert one[name] == other[name], name
    joined = [np.concatenate(parts) for parts in zip(*texts(), strict=True)]
    lost = write_texts(tmp_path / "lost.safetensors", [texts()[0]._make(joined)])
    assert outcome(capsys, draft, "--shards", str(lost))[1]["steps"] != one["steps"]


PACKED = "which packed documents have, expected each document by itself"


@pytest.mark.parametrize("sign", ["seq_lens", "doc_remaining", "document_ids", "position_ids"])
def test_packed_documents_are_refused_by_name(tmp_path, capsys, draft, sign):
    """Automodel PR#3002: what comes with packed rows, of which the others are no excuse."""
    write_nemo(tmp_path, documents(lengths=(5, 7, 4, 6)))
    shard = tmp_path / "shard-000001.safetensors"
    save_file(load_file(shard) | {sign: np.zeros((2, 8), np.int64)}, shard)
    code, _, err = outcome(capsys, draft, "--shards", str(tmp_path), "--max-bad", "0.9")
    assert (code, err) == (2, f"error: {shard}: found {sign}, {PACKED}\n")
    code, _, err = outcome(capsys, draft, "--shards", str(tmp_path), "--layout", "nemo")
    assert (code, err) == (2, f"error: {shard}: found {sign}, {PACKED}\n")
    # Rows of another length than their states are not what is wrong with it.
    tensors = load_file(shard) | {sign: np.zeros((2, 8), np.int64), "loss_mask": np.zeros(3)}
    save_file(tensors, shard)
    for layout in (None, "nemo"):
        with pytest.raises(LayoutError, match=f"^{re.escape(str(shard))}: found {sign}, {PACKED}$"):
            open_shards([tmp_path], layout=layout, strict=False)


def test_packed_rows_of_a_data_set_are_refused_by_name(tmp_path, capsys, draft, monkeypatch):
    """Automodel PR#3002 in speculators' data set, whose columns are read with the documents."""
    import pyarrow as pa

    real = pa.table
    monkeypatch.setattr(
        pa, "table", lambda columns: real(columns | {"document_ids": columns["input_ids"]})
    )
    write_speculators(tmp_path, documents())
    code, _, err = outcome(capsys, draft, "--shards", str(tmp_path), "--max-bad", "0.9")
    assert (code, err) == (2, f"error: {tmp_path}/data-00000.arrow: found document_ids, {PACKED}\n")


def test_positions_of_pictures_are_no_packing(tmp_path):
    """AngelSlim stores `position_ids` of targets that see pictures, one document a file."""
    written = write_angelslim(tmp_path, documents())
    (first, *_) = open_shards([written.path]).files
    assert len(list(read_documents(first))) == 1


# Figures


def test_joint_and_accepted_and_tokens_are_printed_by_name(tmp_path, capsys, draft):
    """EAGLE#191 and EAGLE#132: conditional or joint, with the target's own token or without."""
    shard = write_texts(tmp_path / "a.safetensors", texts())
    _, found, err = outcome(capsys, draft, "--shards", str(shard))
    joint = [step["joint"] for step in found["steps"]]
    assert joint[1] < found["steps"][1]["conditional"]
    assert found["accepted_per_round"] == pytest.approx(sum(joint))
    assert found["tokens_per_round"] == pytest.approx(1 + sum(joint))
    assert re.search(r"teacher- +condi-", err)
    assert re.search(r"coverage +forced +joint +tional", err)
    assert f"accepted per round  {sum(joint):.3f} draft tokens" in err
    assert f"tokens per round    {1 + sum(joint):.3f} (accepted + 1)" in err


def test_every_figure_has_a_name_of_its_own(tmp_path, capsys, draft):
    """SpecForge#128: a number called "Acc" may be anybody's."""
    shard = write_texts(tmp_path / "a.safetensors", texts())
    times = ("--draft-ms", "1", "--verify-ms", "9", "--baseline-ms", "8")
    _, found, err = outcome(capsys, draft, "--shards", str(shard), str(shard.parent), *times)
    words = {word.lower() for word in re.findall(r"[A-Za-z]+", err)}
    assert {"joint", "accepted", "walked", "second"} <= words
    assert not {"acc", "accuracy"} & words

    def names(value):
        if isinstance(value, dict):
            return set(value).union(*map(names, value.values()))
        return set().union(*map(names, value)) if isinstance(value, list) else set()

    assert not [name for name in names(found) if re.search(r"(^|_)acc(uracy)?(_|$)", name)]


def test_targets_outside_the_draft_vocabulary_are_misses():
    """Automodel PR#2959: 30% of what is due cannot be said; a draft that is else right has 70%."""
    answer = jnp.ones((1, 12), bool)
    covered = jnp.asarray(np.arange(12) % 10 >= 3)[None, None]
    found = figures(count(jnp.zeros((1, 1, 12), jnp.int32), covered, answer))
    (step,) = found["steps"]
    assert (step["total"], step["coverage"]) == (10, 0.7)
    for name in ("teacher_forced", "joint", "conditional", "top_4", "top_8"):
        assert step[name] == 0.7, name
    # Rounds from columns 0, 1, 2 give the target's token; from 3, 5, 7 two; from 9 the last one.
    assert found["walked"] == {"rounds": 7, "tokens": 10, "tokens_per_round": 10 / 7}


def test_coverage_is_in_the_table(tmp_path, capsys):
    """Automodel PR#2959, from the shard on: the tiny draft says 12 of 32 tokens."""
    loaded = tiny_draft(embeddings=True)
    draft = write_draft(tmp_path / "draft", loaded)
    ids = text_of(loaded, 24, 5).ids
    text = text_of(loaded, 24, 5)._replace(answer=np.ones(24, bool), embeddings=TABLE[ids])
    shard = write_texts(tmp_path / "a.safetensors", [text])
    _, found, err = outcome(capsys, draft, "--shards", str(shard))
    said = np.isin(ids[2:], loaded.vocab.target_ids).mean()
    assert 0 < said < 1
    assert found["steps"][0]["coverage"] == pytest.approx(said)
    assert found["steps"][0]["teacher_forced"] <= said
    assert f"{said:.1%}" in err


def test_ranks_of_logits_of_50_in_bfloat16():
    """vllm-rbln PR#741: 50 and 50.0625 are one number in bfloat16; equals go by their id."""
    state = jnp.array([[[50.0, 0.0625]]], jnp.bfloat16)
    # Logits 50, 50.0625, 50, 50.0625, 49.9375
    kernel = jnp.array([[1, 1, 1, 1, 1], [0, 1, 0, 1, -1]], jnp.bfloat16)
    found = [int(rank(state, kernel, jnp.array([[due]]))[0, 0]) for due in range(5)]
    assert found == [2, 0, 3, 1, 4]
