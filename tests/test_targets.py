"""Targets out of Hugging Face directories: every family, one file or several, and bad ones."""

import json
import re

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from converters.targets import load_target, open_target, read_target_config
from converters.trees import to_tensors
from eagle3_jax.errors import InputError

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 12,
    "vocab_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def refused(message):
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


def tensors_of(dtype=np.float32, *, bias=False, output_bias=False, qk_norm=False, mlp_bias=False):
    """The tensors of a target of `CONFIG` as files name them."""
    rng = np.random.default_rng(0)
    shapes = {"model.embed_tokens.weight": (16, 8), "model.norm.weight": (8,)}
    shapes["lm_head.weight"] = (16, 8)
    for i in range(3):
        layer = f"model.layers.{i}."
        for name, shape, has_bias in (
            ("self_attn.q_proj", (16, 8), bias),
            ("self_attn.k_proj", (8, 8), bias),
            ("self_attn.v_proj", (8, 8), bias),
            ("self_attn.o_proj", (8, 16), output_bias),
            ("mlp.gate_proj", (12, 8), mlp_bias),
            ("mlp.up_proj", (12, 8), mlp_bias),
            ("mlp.down_proj", (8, 12), mlp_bias),
        ):
            shapes[f"{layer}{name}.weight"] = shape
            if has_bias:
                shapes[f"{layer}{name}.bias"] = shape[:1]
        shapes[f"{layer}input_layernorm.weight"] = (8,)
        shapes[f"{layer}post_attention_layernorm.weight"] = (8,)
        if qk_norm:
            shapes |= {f"{layer}self_attn.{x}_norm.weight": (4,) for x in "qk"}
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def write(directory, tensors, **changes):
    directory.mkdir(exist_ok=True)
    config = {key: value for key, value in (CONFIG | changes).items() if value != "absent"}
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")
    return directory


def assert_holds(loaded, tensors):
    """Every tensor came back, to the byte, and nothing else."""
    found = to_tensors(
        {name: leaf for name, leaf in loaded.params.items() if name != "embed_tokens"}
    )
    found["embed_tokens.weight"] = loaded.params["embed_tokens"]
    expected = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert found[name].tobytes() == tensor.tobytes(), name


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_every_tensor_comes_back(tmp_path, dtype):
    tensors = tensors_of(dtype)
    loaded = load_target(write(tmp_path, tensors))
    assert_holds(loaded, tensors)
    kernel = loaded.params["layers_2"]["self_attn"]["q_proj"]["kernel"]
    np.testing.assert_array_equal(kernel.T, tensors["model.layers.2.self_attn.q_proj.weight"])


@pytest.mark.parametrize(
    ("family", "changes", "parts"),
    [
        ("llama", {}, {}),
        ("llama", {"attention_bias": True}, {"bias": True, "output_bias": True}),
        ("llama", {"mlp_bias": True}, {"mlp_bias": True}),
        ("mistral", {"sliding_window": None}, {}),
        ("qwen2", {}, {"bias": True}),
        ("qwen3", {}, {"qk_norm": True}),
        ("qwen3", {"attention_bias": True}, {"bias": True, "output_bias": True, "qk_norm": True}),
    ],
)
def test_every_family(tmp_path, family, changes, parts):
    tensors = tensors_of(**parts)
    loaded = load_target(write(tmp_path, tensors, model_type=family, **changes))
    assert_holds(loaded, tensors)
    attention = loaded.config.attention
    found = (attention.bias, attention.output_bias, attention.qk_norm, loaded.config.mlp_bias)
    assert found == tuple(
        parts.get(x, False) for x in ("bias", "output_bias", "qk_norm", "mlp_bias")
    )


def test_shards_and_names_without_a_prefix(tmp_path):
    tensors = {name.removeprefix("model."): tensor for name, tensor in tensors_of().items()}
    write(tmp_path, {"stale.weight": np.ones(1, np.float32)})
    first = {name: tensors[name] for name in sorted(tensors)[:9]}
    second = {name: tensors[name] for name in sorted(tensors)[9:]}
    save_file(first, tmp_path / "model-00001-of-00002.safetensors")
    save_file(second, tmp_path / "model-00002-of-00002.safetensors")
    weight_map = dict.fromkeys(first, "model-00001-of-00002.safetensors")
    weight_map |= dict.fromkeys(second, "model-00002-of-00002.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert_holds(load_target(tmp_path), tensors)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with refused(f"{index}: names model-00002-of-00002.safetensors, which is not in {tmp_path}"):
        load_target(tmp_path)


@pytest.mark.parametrize("stored", [True, False])
def test_a_tied_head_is_the_embedding_table(tmp_path, stored):
    tensors = tensors_of()
    head = tensors.pop("lm_head.weight")
    on_disk = tensors | ({"lm_head.weight": head} if stored else {})
    loaded = load_target(write(tmp_path, on_disk, tie_word_embeddings=True))
    assert loaded.config.tie_embeddings
    assert_holds(loaded, tensors)


def test_where_the_config_is_silent_the_file_says_whether_the_head_is_tied(tmp_path):
    tensors = tensors_of()
    silent = {"tie_word_embeddings": "absent"}
    assert not load_target(write(tmp_path, tensors, **silent)).config.tie_embeddings
    del tensors["lm_head.weight"]
    assert load_target(write(tmp_path, tensors, **silent)).config.tie_embeddings


def test_tables_that_older_files_store_are_not_weights(tmp_path):
    tensors = tensors_of()
    tables = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": np.ones(2) for i in range(3)}
    assert_holds(load_target(write(tmp_path, tensors | tables)), tensors)


def test_defaults_are_those_of_transformers():
    config = {
        key: CONFIG[key]
        for key in (
            "model_type",
            "hidden_size",
            "intermediate_size",
            "vocab_size",
            "num_hidden_layers",
            "num_attention_heads",
        )
    }
    target = read_target_config(config, "here", has_head=True)
    assert (target.attention.num_kv_heads, target.attention.head_dim) == (4, 2)
    assert target.rms_norm_eps == 1e-6
    assert target.rope.theta == 10000.0
    assert target.windows == (None, None, None)


SLIDING = ["full_attention", "sliding_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("family", "changes", "windows"),
    [
        ("llama", {"sliding_window": 5}, (None, None, None)),
        ("mistral", {"sliding_window": 5}, (5, 5, 5)),
        ("mistral", {"sliding_window": None}, (None, None, None)),
        ("mistral", {}, (4096, 4096, 4096)),
        ("qwen2", {"sliding_window": 5, "max_window_layers": 1}, (None, None, None)),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, (None, 4096, 4096)),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 5}, (None, None, None)),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0},
            (5, 5, 5),
        ),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 5, "layer_types": SLIDING},
            (None, 5, 5),
        ),
        ("qwen3", {"sliding_window": 5, "layer_types": SLIDING}, (None, None, None)),
    ],
)
def test_windows(family, changes, windows):
    config = CONFIG | {"model_type": family} | changes
    assert read_target_config(config, "here", has_head=True).windows == windows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "gemma2"},
            "model_type is 'gemma2', expected one of llama, mistral, qwen2, qwen3",
        ),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "quantization_config marks quantised weights, expected floats",
        ),
        ({"hidden_size": None}, "hidden_size is None, expected a positive integer"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, expected a positive integer"),
        ({"vocab_size": True}, "vocab_size is True, expected a positive integer"),
        ({"attention_bias": 1}, "attention_bias is 1, expected true or false"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5', expected a number"),
        (
            {"num_key_value_heads": 3},
            "num_heads 4 is not a multiple of num_kv_heads 3",
        ),
        (
            {"rope_scaling": {"rope_type": "foo"}},
            "rope type 'foo' is unknown, expected default, mrope, linear, dynamic, llama3, yarn, "
            "longrope",
        ),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "layer_types": ["chunked"] * 3},
            "layer_types is ['chunked', 'chunked', 'chunked'], expected a list of full_attention "
            "and sliding_attention",
        ),
    ],
)
def test_bad_configs(changes, message):
    with refused(f"here: {message}"):
        read_target_config(CONFIG | changes, "here", has_head=True)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "model.embed_tokens.weight",
            None,
            "found no tensor embed_tokens.weight, expected one of [16, 8]",
        ),
        ("lm_head.weight", None, "found no tensor lm_head.weight, expected one of [16, 8]"),
        (
            "model.embed_tokens.weight",
            np.ones((15, 8), np.float32),
            "tensor model.embed_tokens.weight (embed_tokens.weight) has shape [15, 8], expected "
            "[16, 8]",
        ),
        (
            "model.layers.1.self_attn.q_proj.bias",
            np.ones(16, np.float32),
            "tensor model.layers.1.self_attn.q_proj.bias (layers.1.self_attn.q_proj.bias) of [16] "
            "is unknown, expected none of that name",
        ),
        (
            "model.norm.weight",
            np.ones(8, np.int8),
            "tensor model.norm.weight (norm.weight) has type int8, expected bfloat16, float16, "
            "float32 (quantised weights are not read)",
        ),
        (
            "norm.weight",
            np.ones(8, np.float32),
            "model.norm.weight and norm.weight are both norm.weight, expected one",
        ),
    ],
)
def test_tensors_that_do_not_fit(tmp_path, name, tensor, message):
    tensors = tensors_of()
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    with refused(f"{tmp_path}: {message}"):
        load_target(write(tmp_path, tensors))


def test_directories_that_hold_no_target(tmp_path):
    with refused(f"{tmp_path / 'a'}: no such directory, expected a target (config.json, weights)"):
        load_target(tmp_path / "a")
    with refused(f"{tmp_path / 'config.json'}: no such file, expected a JSON file"):
        load_target(tmp_path)
    write(tmp_path, tensors_of())
    with refused(f"{tmp_path / 'config.json'}: found a file, expected the directory of a target"):
        load_target(tmp_path / "config.json")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="found 0 bytes that are not whole safetensors"):
        load_target(tmp_path)


PARTS = {
    "embed_tokens.weight": np.random.default_rng(5).normal(size=(16, 8)).astype(np.float32),
    "norm.weight": np.random.default_rng(6).normal(size=8).astype(np.float32),
    "lm_head.weight": np.random.default_rng(7).normal(size=(16, 8)).astype(np.float32),
}
TEXT = {
    "model_type": "of no family here",
    "num_hidden_layers": 5,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}


def write_parts(directory, config, *, model="model.", head="", shards=False, **others):
    """Embeddings, final norm and head behind prefixes; `None` takes a tensor away."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = {
        f"{model}embed_tokens.weight": PARTS["embed_tokens.weight"],
        f"{model}norm.weight": PARTS["norm.weight"],
        f"{head}lm_head.weight": PARTS["lm_head.weight"],
        f"{model}layers.0.self_attn.q_norm.weight": np.ones(3, np.float32),
        **others,
    }
    held = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if not shards:
        save_file(held, directory / "model.safetensors")
        return directory
    files = {name: f"model-{i}.safetensors" for i, name in enumerate(held)}
    for name, file in files.items():
        save_file({name: held[name]}, directory / file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return directory


@pytest.mark.parametrize(
    ("config", "model", "head", "others"),
    [
        (TEXT, "model.", "", {}),
        (TEXT, "", "", {}),
        (TEXT, "model.", "", {"model.layers.5.embed_tokens.weight": (16, 8),
                              "model.layers.5.shared_head.norm.weight": (8,)}),
        ({"text_config": TEXT}, "model.language_model.", "", {"model.visual.norm.weight": (3,)}),
        ({"text_config": TEXT}, "language_model.model.", "language_model.",
         {"vision_tower.vision_model.embed_tokens.weight": (3, 3),
          "multi_modal_projector.norm.weight": (3,)}),
        ({"llm_config": TEXT, "vision_config": {"num_hidden_layers": 9}}, "language_model.model.",
         "language_model.", {"mlp1.norm.weight": (3,)}),
        ({"language_config": TEXT}, "language.model.", "language.", {}),
        ({"thinker_config": {"text_config": TEXT}}, "thinker.model.", "thinker.",
         {"talker.model.embed_tokens.weight": (5, 8), "talker.model.norm.weight": (8,),
          "thinker.audio_tower.layers.0.norm.weight": (3,)}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shards", [False, True])
def test_parts_are_found_wherever_they_are_nested(tmp_path, config, model, head, others, shards):
    extra = {name: np.zeros(shape, np.float32) for name, shape in others.items()}
    target = open_target(
        write_parts(tmp_path, config, model=model, head=head, shards=shards, **extra)
    )
    assert target[1:5] == (16, 8, 5, 128)
    for part, name in ((target.embeddings, "embed_tokens"), (target.norm, "norm")):
        np.testing.assert_array_equal(part.read(), PARTS[f"{name}.weight"])
    np.testing.assert_array_equal(target.head.read(), PARTS["lm_head.weight"])


@pytest.mark.parametrize(
    ("config", "stored"),
    [
        (TEXT | {"tie_word_embeddings": True}, False),
        (TEXT | {"tie_word_embeddings": True}, True),  # as transformers, which overwrites it
        (TEXT | {"tie_word_embeddings": None}, False),
        ({"text_config": TEXT | {"tie_word_embeddings": None}, "tie_word_embeddings": True}, True),
        ({"text_config": TEXT | {"tie_word_embeddings": True}}, True),
    ],
)
def test_the_head_of_a_tied_target_is_its_table(tmp_path, config, stored):
    others = {} if stored else {"lm_head.weight": None}
    target = open_target(write_parts(tmp_path, config, **others))
    np.testing.assert_array_equal(target.head.read(), PARTS["embed_tokens.weight"])


TABLE_NAME = "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("config", "others", "message"),
    [
        (TEXT, {TABLE_NAME: None},
         "found no tensor embed_tokens.weight, expected one of that name"),
        (TEXT, {"draft.embed_tokens.weight": np.ones((16, 8), np.float32)},
         f"draft.embed_tokens.weight and {TABLE_NAME} are both embed_tokens.weight, expected one"),
        (TEXT, {TABLE_NAME: np.ones((), np.float32)},
         f"tensor {TABLE_NAME} has shape [], expected rows and columns"),
        (TEXT, {TABLE_NAME: np.ones((0, 8), np.float32)},
         f"tensor {TABLE_NAME} has shape [0, 8], expected rows and columns"),
        (TEXT, {"model.norm.weight": None},
         "found no tensor model.norm.weight, expected the final norm there"),
        (TEXT, {"model.norm.weight": np.ones(7, np.float32)},
         "tensor model.norm.weight has shape [7], expected [8]"),
        (TEXT, {"lm_head.weight": np.ones((15, 8), np.float32)},
         "tensor lm_head.weight has shape [15, 8], expected [16, 8]"),
        (TEXT, {"lm_head.weight": None},
         "found no lm_head.weight, expected one: its embeddings are not tied"),
        ({"text_config": TEXT}, {"lm_head.weight": None},
         "found no lm_head.weight, expected one: its embeddings are not tied"),
    ],
)  # fmt: skip
def test_targets_without_the_parts_that_a_draft_shares(tmp_path, config, others, message):
    with refused(f"{tmp_path}: {message}"):
        open_target(write_parts(tmp_path, config, **others))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is None, expected a positive integer"),
        ({"num_hidden_layers": "5"}, "num_hidden_layers is '5', expected a positive integer"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, expected true or false"),
        ({"max_position_embeddings": 0},
         "max_position_embeddings is 0, expected a positive integer"),
        ({"text_config": [1]}, "text_config is [1], expected an object or null"),
    ],
)  # fmt: skip
def test_target_configs_that_say_nothing(tmp_path, changes, message):
    with refused(f"{tmp_path / 'config.json'}: {message}"):
        open_target(write_parts(tmp_path, TEXT | changes))
