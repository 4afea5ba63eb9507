"""Names of tensors: who calls what how, and that nothing in a file is read in vain."""

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from converters.detect import MARK
from converters.dialects import DIALECTS, dialect_of
from converters.drafts import LoadedDraft, load_draft
from converters.names import canonical_names, written_name
from converters.writing import save_draft
from eagle3_jax.errors import InputError
from tests.conftest import latent_heads, random_text, tiny_config, unrolled
from tests.samples import TABLE
from tests.test_drafts import MAX_POSITIONS, attention, draft_of, refused

FIRST_LAYER = {
    "midlayer.": "eagle specforge specforge-0.2 sglang angelslim modelopt-2025 specjax sglang-jax "
    "tpu-inference torchspec tensorrt-llm",
    "layers.0.": "vllm speculators speculators-converted modelopt native",
    "model.layers.0.": "automodel",
}
SECOND_NORM = {  # of a draft of two layers, as those who can have one name it
    "layers.1.hidden_norm.weight": "sglang",
    "layers.1.input_layernorm.weight": "vllm speculators modelopt native",
    "midlayer.1.hidden_norm.weight": "tensorrt-llm",
    "midlayer.1.input_layernorm.weight": "modelopt-2025",
}
LATENT_LAYER = {
    "midlayer.": "torchspec",
    "layers.0.": "sglang vllm modelopt native",
    "model.layers.0.": "automodel",
}


def by_dialect(table):
    return [(dialect, name) for name, dialects in table.items() for dialect in dialects.split()]


@pytest.mark.parametrize(("dialect", "prefix"), by_dialect(FIRST_LAYER))
def test_the_first_layer_and_what_stands_beside_it(dialect, prefix):
    reader, config = dialect_of(dialect), tiny_config()
    before = "model." if dialect == "automodel" else ""
    for name in ("self_attn.q_proj.weight", "hidden_norm.weight", "mlp.down_proj.bias"):
        assert written_name(f"layers.0.{name}", reader, config) == prefix + name
    for name in ("fc.weight", "fc_norm.2.weight", "norm.weight", "embed_tokens.weight"):
        assert written_name(name, reader, config) == before + name
    for name in ("lm_head.weight", "d2t", "t2d"):
        assert written_name(name, reader, config) == name


def test_every_dialect_has_a_first_layer():
    writable = {name for name, dialect in DIALECTS.items() if dialect.writable}
    assert {dialect for dialect, _ in by_dialect(FIRST_LAYER)} == writable


@pytest.mark.parametrize(("dialect", "norm"), by_dialect(SECOND_NORM))
def test_the_input_norm_of_the_second_layer(dialect, norm):
    reader, config = dialect_of(dialect), tiny_config(num_layers=2)
    assert written_name("layers.1.input_layernorm.weight", reader, config) == norm
    layer = norm.rsplit(".", 2)[0]
    rest = "self_attn.o_proj.weight"
    assert written_name(f"layers.1.{rest}", reader, config) == f"{layer}.{rest}"
    first = written_name(f"layers.0.{rest}", reader, config)
    numbered = dialect in ("tensorrt-llm", "modelopt-2025")
    alone = written_name(f"layers.0.{rest}", reader, tiny_config())
    assert first == (f"midlayer.0.{rest}" if numbered else alone)


@pytest.mark.parametrize(("dialect", "prefix"), by_dialect(LATENT_LAYER))
def test_the_first_layer_of_latent_attention(dialect, prefix):
    config = tiny_config(attention=latent_heads())
    name = "self_attn.kv_a_proj_with_mqa.weight"
    assert written_name(f"layers.0.{name}", dialect_of(dialect), config) == prefix + name


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("midlayer.0.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("midlayer.2.mlp.up_proj.weight", "layers.2.mlp.up_proj.weight"),
        ("model.midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("model.layers.0.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("draft_model.midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("eagle_module.layers.0.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("draft_model.model.fc.bias", "fc.bias"),
        ("aux_norm_low.weight", "fc_norm.0.weight"),
        ("model.aux_norm_mid.weight", "fc_norm.1.weight"),
        ("aux_norm_high.weight", "fc_norm.2.weight"),
        ("model.lm_head.weight", "lm_head.weight"),
        ("layers.1.hidden_norm.weight", "layers.1.input_layernorm.weight"),
        ("midlayer.1.hidden_norm.weight", "layers.1.input_layernorm.weight"),
        ("d2t", "d2t"),
    ],
)
def test_names_in_the_wild(name, canonical):
    assert canonical_names([name], dialect_of("sglang"), "here").origins == {canonical: name}


@pytest.mark.parametrize(
    ("dialect", "used"), [("sglang", "hidden_norm"), ("vllm", "input_layernorm")]
)
def test_of_two_norms_the_one_is_used_that_the_framework_uses(dialect, used):
    norms = {f"layers.1.{norm}.weight" for norm in ("hidden_norm", "input_layernorm")}
    found = canonical_names(norms, dialect_of(dialect), "here")
    assert found.origins == {"layers.1.input_layernorm.weight": f"layers.1.{used}.weight"}
    told = f"{dialect_of(dialect).title} norms with {used} there"
    assert found.useless == {(norms - set(found.origins.values())).pop(): told}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("midlayer.self_attn.rotary_emb.inv_freq", "computed from the config"),
        ("rotary_emb.inv_freq", "computed from the config"),
        ("verifier_norm.weight", "the target's, which only a loss reads"),
        ("verifier_lm_head.weight", "the target's, which only a loss reads"),
    ],
)
def test_what_only_training_stores_is_told_and_not_read(name, why):
    found = canonical_names(["fc.weight", name], dialect_of("sglang"), "here")
    assert (found.origins, found.useless) == ({"fc.weight": "fc.weight"}, {name: why})


def test_two_names_for_one_tensor():
    names = ["midlayer.hidden_norm.weight", "model.layers.0.hidden_norm.weight"]
    with refused(
        f"here: {names[0]} and {names[1]} are both layers.0.hidden_norm.weight, expected one"
    ):
        canonical_names(names, dialect_of("sglang"), "here")


SMALL = {"attention": attention(head_dim=2)}
EVERY_BIAS = {"attention": attention(bias=True, output_bias=True), "mlp_bias": True}
# Between them the drafts hold every tensor that there is, each for those who have a place for it.
DRAFTS = {
    "plain": (
        {**SMALL, "embeddings": True},
        "eagle specforge angelslim tpu-inference automodel torchspec speculators-converted",
    ),
    "without embeddings": (SMALL, "modelopt-2025 specjax sglang-jax specforge-0.2"),
    "fc_norm": (
        {"fc_norm": True, "norm_output": True, "embeddings": True},
        "sglang vllm tensorrt-llm specforge",
    ),
    "two layers": (
        {"norm_before_fc": True, "num_layers": 2, "embeddings": True},
        "sglang vllm tensorrt-llm",
    ),
    "biases": (
        {**EVERY_BIAS, "num_aux": 2, "embeddings": True},
        "speculators tensorrt-llm",
    ),
    "bias of fc": (
        {"fc_bias": True, "attention": attention(output_bias=True), "num_aux": 4},
        "sglang",
    ),
    "q/k norms": (
        {
            "attention": attention(qk_norm=True, bias=True),
            "norm_before_residual": True,
            "norm_before_fc": True,
        },
        "vllm",
    ),
    "norm_before_residual": (
        {"norm_before_residual": True, "embeddings": True},
        "speculators tpu-inference",
    ),
    "normed twice": ({**EVERY_BIAS, "num_layers": 2, "double_norm": True}, "modelopt"),
    "latent": (
        {"attention": latent_heads(), "fc_norm": True, "embeddings": True},
        "sglang automodel torchspec",
    ),
    "latent, direct queries": (
        {"attention": latent_heads(q_lora_rank=None), "embeddings": True},
        "vllm",
    ),
    "latent, normed twice": ({"attention": latent_heads(), "double_norm": True}, "modelopt"),
    "last state alone": (
        {"num_aux": 0},
        "sglang",
    ),
}


def test_every_dialect_is_tried():
    tried = {dialect for _, dialects in DRAFTS.values() for dialect in dialects.split()}
    assert tried == {dialect for dialect, _ in by_dialect(FIRST_LAYER)} - {"native"}


def logits(draft: LoadedDraft) -> np.ndarray:
    """Three steps of a draft on a text, with the target's embeddings where it has none."""
    table = TABLE if draft.embeddings is None else draft.embeddings
    aux, _ = random_text(draft.config)
    embeddings = jnp.asarray(table)[jnp.asarray([[3, 1, 4, 1, 5]])]
    _, reads = unrolled(draft.config, draft.params, aux, embeddings, steps=3, whole=True)
    return np.asarray(reads) @ draft.params["lm_head"]["kernel"]


def altered(name: str, tensor: np.ndarray) -> np.ndarray:
    """Another id in a vocabulary; half of each row doubled, since a norm forgets a whole factor."""
    changed = tensor.copy()
    if name == "d2t":
        changed[2] -= 1  # 2 instead of 3
    elif name == "t2d":
        changed[2] = True
    else:
        changed[..., : tensor.shape[-1] // 2] *= 2
    return changed


@pytest.mark.parametrize(
    ("what", "dialect"), [(w, d) for w, (_, dialects) in DRAFTS.items() for d in dialects.split()]
)
def test_no_tensor_is_read_in_vain(tmp_path, monkeypatch, what, dialect):
    monkeypatch.setattr("os.fsync", lambda _: None)
    place = tmp_path / "draft"
    draft = draft_of(**DRAFTS[what][0])
    save_draft(place, draft, max_positions=MAX_POSITIONS, dialect=dialect)
    file = place / "model.safetensors"
    written, loaded = load_file(file), load_draft(place)
    before, ids = logits(loaded), loaded.vocab.target_ids
    for name, tensor in written.items():
        changed = altered(name, tensor)
        save_file(written | {name: changed}, file, {MARK: dialect})
        if name not in ("d2t", "t2d"):
            moved = np.abs(logits(load_draft(place)) - before)
            assert moved.max() > 1e-3, name
        elif "t2d" in written:
            with pytest.raises(InputError, match=r"that are not the \d+ that t2d marks"):
                load_draft(place)
        else:
            assert load_draft(place).vocab.target_ids.tolist() != ids.tolist()
