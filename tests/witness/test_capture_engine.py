"""`eagle3-jax capture` by way of transformers: the same shards, and families foreign to JAX."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks.witness_env import python_of
from converters.shards import open_shards, read_documents
from eagle3_jax.cli.main import main
from tests.conftest import close
from tests.witness.frameworks import run_script

pytestmark = pytest.mark.witness

LAYERS, BOUNDARIES, NEW, VOCAB, END, EPSILON = 4, (0, 1, 3), 6, 32, 1, 1e-5
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": END,
}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": EPSILON}
FAMILIES = {
    "llama": GROUPED,
    "gpt_neox": SIZES | {"layer_norm_eps": EPSILON},
    "gemma2": GROUPED | {"query_pre_attn_scalar": 8, "sliding_window": 8},
}
RNG = np.random.default_rng(3)
TEXTS = [RNG.integers(2, VOCAB, size).tolist() for size in (12, 30, 5, 9)]
PROMPTS = (7, 28, 2, 3)  # tokens of each
CAPTURE = (
    "capture",
    "--text",
    "texts.jsonl",
    "--dtype",
    "float32",
    "--boundaries",
    "0,1,3",
    "--json",
    "out.json",
)
SMALL = ("--batch-tokens", "40", "--embeddings", "--quiet")
ROOT = Path(__file__).resolve().parents[2]
# Everything from here but torch and transformers, which the witness has.
WITH_TORCH = """
import site, sys
site.addsitedir(sys.argv.pop(1))
from eagle3_jax.cli.main import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """Models of several families, and texts."""
    folder = tmp_path_factory.mktemp("targets")
    job = [
        {"name": name, "family": name, "config": sizes}
        | {"ids": TEXTS[0], "prompt_length": PROMPTS[0], "new_tokens": NEW}
        for name, sizes in FAMILIES.items()
    ]
    run_script("speculators", "run_targets.py", folder, job)
    lines = [
        json.dumps({"ids": ids, "prompt_length": size})
        for ids, size in zip(TEXTS, PROMPTS, strict=True)
    ]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    return folder


def run_with_torch(code, folder, *arguments):
    """Run code in a process of its own: in this one nothing else is to see torch."""
    packages = python_of("speculators").parent.parent / "lib" / "python3.11" / "site-packages"
    return subprocess.run(
        [sys.executable, "-c", code, str(packages), *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def captured(shelf, *options):
    """The documents that a capture with torch at hand writes, and its result."""
    done = run_with_torch(WITH_TORCH, shelf, *CAPTURE, *SMALL, *options)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads((shelf / "out.json").read_text())
    shards = open_shards([shelf / result["output"]])
    assert shards.info.boundaries == (*BOUNDARIES, LAYERS)
    assert shards.info.last_state == "pre_norm"
    return list(read_documents(shelf / result["output"] / "00000.safetensors")), result


@pytest.mark.parametrize("options", [(), ("--generate", str(NEW), "--max-length", "33")])
def test_both_engines_write_the_same_shards(shelf, options, monkeypatch):
    monkeypatch.chdir(shelf)
    where = "-".join(["llama", *options])
    arguments = ("--target", "llama", *options)
    theirs, result = captured(
        shelf, *arguments, "--engine", "transformers", "--output", f"{where}.torch"
    )
    assert result["engine"] == "transformers"
    assert main([*CAPTURE, *SMALL, *arguments, "--output", f"{where}.jax"]) == 0
    ours = list(read_documents(shelf / f"{where}.jax" / "00000.safetensors"))
    assert len(ours) == len(theirs) == len(TEXTS)
    for mine, their in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine.ids, their.ids)
        np.testing.assert_array_equal(mine.answer, their.answer)
        np.testing.assert_array_equal(mine.embeddings, their.embeddings)
        close(mine.states, their.states)


def head_of(family, folder, state):
    """The final norm and the head of a family by hand, in float64."""
    tensors = {name: np.float64(x) for name, x in load_file(folder / "model.safetensors").items()}
    if family == "gpt_neox":
        centred = state - state.mean(axis=-1, keepdims=True)
        normed = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + EPSILON)
        scaled = tensors["gpt_neox.final_layer_norm.weight"] * normed
        read = scaled + tensors["gpt_neox.final_layer_norm.bias"]
        return read @ tensors["embed_out.weight"].T
    normed = state / np.sqrt(np.mean(state**2, axis=-1, keepdims=True) + EPSILON)
    scores = ((1 + tensors["model.norm.weight"]) * normed) @ tensors["lm_head.weight"].T
    return 30 * np.tanh(scores / 30)  # final_logit_softcapping


@pytest.mark.parametrize("family", ["gpt_neox", "gemma2"])
def test_another_family_goes_through_transformers_by_itself(shelf, family):
    documents, result = captured(shelf, "--target", family, "--output", f"{family}.read")
    assert result["engine"] == "transformers"
    assert [one.ids.tolist() for one in documents] == TEXTS
    assert [int(np.argmax(one.answer)) for one in documents] == list(PROMPTS)
    theirs = load_file(shelf / f"{family}.out.safetensors")
    close(
        head_of(family, shelf / family, np.float64(documents[0].states[:, -1])), theirs["logits"][0]
    )
    scale = 4.0 if family == "gemma2" else 1.0  # the root of its width, at boundary 0 only
    close(documents[0].states[:, 0], scale * documents[0].embeddings)


@pytest.mark.parametrize("family", ["gpt_neox", "gemma2"])
def test_answers_of_another_family_are_its_own_greedy_ones(shelf, family):
    options = ("--target", family, "--output", f"{family}.said", "--generate", str(NEW))
    documents, _ = captured(shelf, *options)
    said = load_file(shelf / f"{family}.out.safetensors")["generated"][0].tolist()
    said = said[: said.index(END) + 1] if END in said else said
    assert documents[0].ids.tolist() == TEXTS[0][: PROMPTS[0]] + said
    assert documents[0].ids[documents[0].answer].tolist() == said


REFUSALS = """
import json, shutil, site, sys
from pathlib import Path
site.addsitedir(sys.argv.pop(1))
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaModel
from eagle3_jax.cli import torch_engine
from eagle3_jax.errors import InputError

def tell(work):
    try:
        work()
    except InputError as error:
        print(" ".join(str(error).split()))

def changed(name, config=None, tensors=None):
    shutil.copytree("llama", name)
    file = Path(name, "config.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | (config or {})))
    file = Path(name, "model.safetensors")
    save_file({k: v for k, v in load_file(file).items() if k != tensors}, file, {"format": "pt"})
    return Path(name)

tell(lambda: torch_engine.read_outline(changed("foreign", {"model_type": "nobodys"})))
tell(lambda: torch_engine.load(changed("wide", {"vocab_size": 33}), "stored"))
tell(lambda: torch_engine.load(changed("poor", tensors="model.norm.weight"), "stored"))
target = torch_engine.load(Path("llama"), "stored")._replace(num_layers=5)
read = {"boundaries": (1,), "dtype": "float32", "columns": 9}
tell(lambda: list(torch_engine.read_texts(target, [[1, 2]], **read)))
init = LlamaModel.__init__
def with_more(self, config):
    init(self, config)
    self.more = torch.nn.ModuleList([torch.nn.Identity()] * 4)
LlamaModel.__init__ = with_more
tell(lambda: torch_engine.load(Path("llama"), "stored"))
"""


def test_what_it_refuses(shelf):
    done = run_with_torch(REFUSALS, shelf)
    told = done.stdout.splitlines()
    unread = "transformers reads no causal language model there: "
    starts = [
        f"foreign: {unread}The checkpoint you are trying to load has model type `nobodys`",
        f"wide: {unread}",
        "poor: found no tensors model.norm.weight, expected all of LlamaForCausalLM",
        "llama: LlamaForCausalLM gives 5 hidden states and calls its last layer 1 times, expected "
        "6 and 1",
        "llama: LlamaForCausalLM has 2 lists of 4 modules, expected one, its layers",
    ]
    assert len(told) == len(starts), done.stderr
    for line, start in zip(told, starts, strict=True):
        assert line.startswith(start)
