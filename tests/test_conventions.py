"""How each framework counts: by hand, and column by column against what their sources say."""

import json
from typing import get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.batches import batches
from eagle3_jax.cli import progress
from eagle3_jax.cli.eval import Eval
from eagle3_jax.cli.main import main
from eagle3_jax.conventions import CONVENTIONS, measure, tally
from eagle3_jax.heads import TargetHead
from eagle3_jax.structs import Document
from eagle3_jax.vocab import VocabMap
from tests import reference
from tests.conftest import random_params, tiny_config
from tests.samples import TABLE as TABLE_OF_SAMPLES
from tests.samples import texts, tiny_draft, write_draft, write_target, write_texts


def marked(text: str) -> np.ndarray:
    """`..##` -> false, false, true, true."""
    return np.array([mark == "#" for mark in text])


def counted(name, answer, *hits, covered=None, shared=None):
    """Figures of one text of which all is said: `hits` is a row for each step."""
    right = np.stack([marked(row) for row in hits])[:, None]
    said = np.ones_like(right) if covered is None else np.stack([*map(marked, covered)])[:, None]
    mass = np.zeros(right.shape, np.float32) if shared is None else np.float32(shared)[:, None]
    marks = marked(answer)[None]
    arrays = map(jnp.asarray, (marks, np.ones_like(marks), right & said, said, mass))
    return CONVENTIONS[name].figures(tally(CONVENTIONS[name], *arrays))


def columns_of(name, answer, steps=3):
    """The columns that a convention counts at each step, found by one right column at a time."""
    marks = jnp.asarray(marked(answer)[None])
    size = marks.shape[1]
    said = jnp.ones((steps, 1, size), bool)

    def right(hits):
        every = (marks, jnp.ones_like(marks), hits, said, jnp.zeros(said.shape))
        return tally(CONVENTIONS[name], *every).right

    one = jnp.broadcast_to(jnp.eye(size, dtype=bool)[:, None, None], (size, *said.shape))
    return ["".join(".#"[int(n)] for n in row) for row in jax.vmap(right)(one).T]


# An answer of tokens 4 to 8 in a text of ten: SpecForge#885. Due are tokens t+2+k.
SPAN = "....#####."
# An answer that ends with the text.
END = "......####"


@pytest.mark.parametrize("name", ["specforge", "eagle"])
def test_a_mask_that_does_not_move_with_the_ids_is_reproduced(name):
    assert columns_of(name, SPAN) == ["....#####.", "...#####..", "..#####..."]


@pytest.mark.parametrize("name", ["automodel", "modelopt", "speculators"])
def test_a_mask_that_moves_with_the_ids(name):
    hits = ["...#####..", "..#####...", ".#####...."]
    assert columns_of(name, SPAN) == hits
    if name == "speculators":
        figures = counted(name, SPAN, *hits)
        assert [figures[f"full_acc_{k}"] for k in range(3)] == [1.0, 0.8, 0.6]
        assert [figures[f"cond_acc_{k}"] for k in range(3)] == [1.0, 0.8, 0.75]


def test_only_eagle_counts_the_last_token_of_a_text():
    assert columns_of("eagle", END) == ["......####", ".....####.", "....####.."]
    assert columns_of("specforge", END) == ["......###.", ".....###..", "....###..."]
    assert columns_of("automodel", END) == [".....####.", "....####..", "...####..."]


def test_specjax_counts_every_pair_of_tokens_at_every_step():
    assert columns_of("specjax", SPAN) == ["#########.", "########..", "#######..."]
    figures = counted("specjax", SPAN, "#########.", "########..")
    assert figures == {"acc_0": 1.0, "acc_1": 8 / 9}


def test_specforge_by_hand():
    figures = counted(
        "specforge",
        SPAN,
        ".##.##.###",  # of columns 4 to 8 are right 4, 5, 7, 8; 5 cannot be said
        "...##.....",  # of columns 3 to 7 are right 3, 4
        covered=["#####.####", "##########"],
        shared=np.stack([np.arange(10) / 10, np.full(10, 0.5)]),
    )
    expected = {
        "acc_0": 3 / 5,
        "acc_1": 2 / 5,
        "acceptance_rate_0": (0.4 + 0.6 + 0.7 + 0.8) / 4,
        "acceptance_rate_1": 0.5,
        "simulated_acc_len": 3 / 5 + 3 / 5 * 2 / 5,
    }
    assert figures == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["eagle", "modelopt"])
def test_right_columns_of_the_loss_mask_by_hand(name):
    figures = counted(name, SPAN, "...##..#..", "..#...#...", covered=["#######.##", "#" * 10])
    shares = {"eagle": (1 / 5, 1 / 5), "modelopt": (2 / 5, 2 / 5)}[name]
    if name == "eagle":  # columns 4..8, then 3..7
        assert figures == {"acc_0": shares[0], "acc_1": shares[1]}
    else:  # columns 3..7, then 2..6
        assert figures == {"train_acc[0]": shares[0], "train_acc[1]": shares[1]}


def test_speculators_by_hand():
    # Two answers: columns 1, 2 and 5, 6, 7 count at step 0; 0, 1 and 4, 5, 6 at step 1.
    answer = "..##..###."
    figures = counted("speculators", answer, "###.#.##..", ".##.#.#...")
    # Step 1: chains are 1, 2, 6 and 7; right and counted at both steps are 1 and 6.
    assert figures == {
        "full_acc_0": 4 / 5,
        "full_acc_1": 2 / 5,
        "cond_acc_0": 4 / 5,
        "cond_acc_1": 2 / 4,
    }


def test_a_chain_across_a_gap_of_the_loss_mask():
    # Columns 1, 2, 4, 5, 6, 7 count at step 0; 0, 1, 3, 4, 5, 6 at 1; 0, 2, 3, 4, 5 at 2.
    answer, right = "..##.####.", ["#" * 10] * 3
    # Column 2 does not count at step 1: to speculators its chain lives on, to AutoModel it is none.
    figures = counted("speculators", answer, *right)
    assert figures["full_acc_2"] == 3 / 5  # 2, 4, 5
    assert figures["cond_acc_2"] == 3 / 5  # of 1, 2, 4, 5, 6
    broken = ["#" * 10, "####.#####", "#" * 10]  # of 4, 5 that count at each step 4 breaks
    figures = counted("automodel", answer, *broken)
    assert figures["simulated_accept_length"] == 1 + 1 + 3 / 4 + 1 / 2


def test_speculators_forgets_chains_that_run_out_of_text():
    figures = counted("speculators", END, "..########", "..########")
    # Of the chains 5, 6, 7, 8 the last reads nothing at step 1.
    assert figures["cond_acc_1"] == 3 / 3
    assert figures["full_acc_1"] == 3 / 4


def test_automodel_by_hand():
    # Columns 1, 2 and 5, 6, 7 count at step 0; 0, 1 and 4, 5, 6 at step 1.
    answer = "..##..###."
    figures = counted(
        "automodel", answer, "###.#.##..", ".##.#.#...", covered=["##.#######", "#" * 10]
    )
    # Right are 1, 6, 7 of 1, 5, 6, 7, which can be said; then 1, 4, 6 of five. Of the chains
    # 1, 5, 6 that count at both steps, 1 and 6 are right at both.
    assert figures == pytest.approx(
        {"accuracy": 6 / 9, "simulated_accept_length": 1 + 3 / 5 + 2 / 3}, rel=1e-12
    )


@pytest.mark.parametrize("name", CONVENTIONS)
def test_nothing_to_divide_by_is_no_figure(name):
    figures = counted(name, "." * 6, "." * 6, "." * 6)
    if name == "specjax":
        assert set(figures.values()) == {0.0}
    else:
        lengths = {"simulated_acc_len": 0.0, "simulated_accept_length": 1.0}
        assert figures == {key: lengths.get(key) for key in figures}


# Through the draft and the target's head.

STEPS = 3
CONFIG = tiny_config(vocab_size=5, draft_vocab_size=3)
PARAMS = random_params(CONFIG)
KERNEL = PARAMS["lm_head"]["kernel"]
VOCAB = VocabMap.from_ids(np.array([0, 2, 4]), 5)
RNG = np.random.default_rng(3)
TABLE = RNG.normal(size=(5, 8)).astype(np.float32)
SCALE = RNG.normal(size=8).astype(np.float32)
TEACHING = RNG.normal(size=(8, 5)).astype(np.float32)


def document(length, seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 5, length).astype(np.int32)
    states = rng.normal(size=(length, 4, 8)).astype(np.float32)
    answer = rng.random(length) < 0.7
    answer[-1] = True
    return Document(ids, answer, states, TABLE[ids])


TEXTS = [document(length, seed) for seed, length in enumerate((12, 7, 16, 16, 15))]


def naive(name):
    """What is counted, column by column, of all texts."""
    convention = CONVENTIONS[name]
    pruned = convention.teacher == "say"
    sums = {part: np.zeros(STEPS) for part in ("total", "covered", "right", "shared")}
    for text in TEXTS:
        size = len(text.ids)
        aux = np.float64(text.states[:, :3].reshape(size, -1))
        aux = np.concatenate([aux, np.zeros((1, 24))])  # token 0 behind the text
        embedded = np.float64(np.concatenate([text.embeddings, TABLE[:1]]))
        reads = reference.unroll(CONFIG, PARAMS, aux, embedded, STEPS)[1]
        for k in range(STEPS):
            sums["total"][k] += (size - 1) * (convention.total == "pairs")
            for t in range(size):
                place, read = t + convention.offset + k, t + 1 + k
                if place >= size or not (text.answer[place] or convention.mask == "text"):
                    continue
                if place == size - 1 and not convention.last:
                    continue
                logits = np.zeros(5)  # of a target behind the text
                if read < size:
                    state = np.float64(text.states[read, 3])
                    logits = (SCALE * state / np.sqrt(np.mean(state**2) + 1e-5)) @ TEACHING
                due = int(np.argmax(logits))
                if pruned:
                    due = int(VOCAB.target_ids[np.argmax(logits[VOCAB.target_ids])])
                scores = reads[k, t] @ np.float64(KERNEL)
                q, p = np.exp(scores) / np.exp(scores).sum(), np.exp(logits) / np.exp(logits).sum()
                sums["total"][k] += convention.total == "mask"
                sums["covered"][k] += VOCAB.in_draft[due]
                sums["right"][k] += VOCAB.target_ids[np.argmax(scores)] == due
                if VOCAB.in_draft[due]:
                    sums["shared"][k] += np.minimum(q, p[VOCAB.target_ids]).sum()
    return sums


def measured(name, documents=TEXTS):
    return measure(
        CONVENTIONS[name],
        CONFIG,
        PARAMS,
        KERNEL,
        VOCAB,
        batches(documents, slots=(0, 1, 2), last=3, columns=32, bucket=8),
        steps=STEPS,
        head=TargetHead(jnp.asarray(TEACHING), jnp.asarray(SCALE), 1e-5),
        behind=jnp.asarray(TABLE[0]),
    )


@pytest.mark.parametrize("name", CONVENTIONS)
def test_figures_agree_with_counting_column_by_column(name):
    figures, sums = measured(name), naive(name)
    assert 0 < sums["right"].sum() < sums["total"].sum()
    rows = {
        "acc_{}": ("right", "total"),
        "train_acc[{}]": ("right", "total"),
        "acceptance_rate_{}": ("shared", "covered"),
    }
    if name == "automodel":
        assert figures["accuracy"] == sums["right"].sum() / sums["covered"].sum()
    elif name == "speculators":
        assert figures["full_acc_0"] == sums["right"][0] / sums["total"][0]
    for form, (part, whole) in rows.items():
        for k in range(STEPS):
            if form.format(k) in figures:
                expected = pytest.approx(sums[part][k] / sums[whole][k], rel=1e-5)
                assert figures[form.format(k)] == expected, form


def test_a_convention_needs_documents_and_their_last_states():
    with pytest.raises(ValueError, match="found no document, expected at least one"):
        measured("eagle", [])
    [features] = batches(TEXTS[:1], slots=(0, 1, 2), columns=16, bucket=16)
    with pytest.raises(ValueError, match="the features hold no last state of the target"):
        measure(
            CONVENTIONS["eagle"],
            CONFIG,
            PARAMS,
            KERNEL,
            VOCAB,
            [features],
            steps=STEPS,
            head=TargetHead(jnp.asarray(TEACHING), None, 1e-5),
            behind=jnp.asarray(TABLE[0]),
        )


# From the command line.


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 3600.0)


def test_the_option_names_every_convention():
    assert set(CONVENTIONS) == set(get_args(get_args(get_type_hints(Eval)["as_"])[0]))


def test_the_figures_are_printed_and_written(tmp_path, capsys):
    draft, target = write_draft(tmp_path / "draft"), write_target(tmp_path / "target", layers=8)
    good = texts()
    spoilt = good[1]._replace(answer=np.zeros_like(good[1].answer), embeddings=None)
    plain = [text._replace(embeddings=None) for text in good]
    shard = write_texts(tmp_path / "a.safetensors", [*plain, spoilt])
    file = tmp_path / "result.json"
    arguments = ["eval", "--draft", str(draft), "--shards", str(shard), "--target", str(target)]
    arguments += ["--steps", "2", "--as", "specforge", "--max-bad", "0.5", "--json", str(file)]
    assert main(arguments) == 0
    found = json.loads(file.read_text())["as"]
    assert found["framework"] == "specforge"
    assert found["source"].startswith("SpecForge 0.2.0: ")
    printed = capsys.readouterr().out
    for name, figure in found["figures"].items():
        assert f"{name} " in printed
        assert f"{figure:.6f}" in printed
    loaded = tiny_draft()
    params = {key: value for key, value in loaded.params.items()}
    expected = measure(
        CONVENTIONS["specforge"],
        loaded.config,
        params,
        jnp.asarray(params["lm_head"]["kernel"]),
        loaded.vocab,
        batches(good, slots=(0, 1, 2), last=3),
        steps=2,
        head=target_head(target),
        behind=jnp.asarray(TABLE_OF_SAMPLES[0]),
    )
    assert found["figures"] == pytest.approx(expected, rel=1e-6)


def target_head(directory):
    from safetensors.numpy import load_file

    tensors = load_file(directory / "model.safetensors")
    norm = jnp.asarray(tensors["model.norm.weight"])
    return TargetHead(jnp.asarray(tensors["lm_head.weight"]).T, norm, 1e-5)


def test_a_framework_counts_against_a_target_only(tmp_path, capsys):
    draft = write_draft(tmp_path / "draft", tiny_draft(embeddings=True))
    shard = write_texts(tmp_path / "a.safetensors", texts())
    arguments = ["eval", "--draft", str(draft), "--shards", str(shard), "--as", "eagle"]
    assert main(arguments) == 2
    assert capsys.readouterr().err == (
        "error: --as eagle: what is due would be the text's own tokens, expected --target with "
        "the target's directory and shards with its last state, which is the teacher of every "
        "framework\n"
    )
