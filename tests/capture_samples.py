"""A whole tiny target on disk, with a tokenizer and a chat template."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from converters.trees import to_tensors
from eagle3_jax.config import TargetConfig
from tests.samples import VOCAB, WIDTH
from tests.test_target import target_params, tiny_target

LAYERS = 8
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
# ByteLevel's signs for a line feed and a blank; two line feeds are one token.
TOKENS = (*SPECIAL, "Ċ", "ĊĊ", "Ġ", *"abcdefghijklmnopqrstuvwxy")
ID = {token: number for number, token in enumerate(TOKENS)}
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content }} {% endif %}{% endfor %}"
)


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def ids_of(text: str) -> list[int]:
    """Tokens by hand: special ones by name, two line feeds as one, one for any other letter."""
    found = []
    while text:
        special = next((one for one in SPECIAL if text.startswith(one)), None)
        token = special or ("\n\n" if text.startswith("\n\n") else text[0])
        found.append(ID[token if special else token.replace("\n", "Ċ").replace(" ", "Ġ")])
        text = text[len(token) :]
    return found


def write_tokenizer(directory: Path, template: str | None = CHATML, **config: Any) -> Path:
    """A tokenizer that puts `<s>` before plain text."""
    directory.mkdir(exist_ok=True)
    tokenizer = Tokenizer(models.BPE(dict(ID), [("Ċ", "Ċ")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", ID["<s>"])]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, **config}
    if template is not None:
        config["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def whole_target(layers: int = LAYERS) -> tuple[TargetConfig, Any]:
    config = tiny_target(hidden_size=WIDTH, vocab_size=VOCAB, num_layers=layers)
    return config, target_params(config, seed=4)


def write_whole_target(directory: Path, *, layers: int = LAYERS, **changes: Any) -> Path:
    """All tensors and a config.json that agree with `whole_target`, and a tokenizer."""
    config, params = whole_target(layers)
    write_tokenizer(directory)
    rest = dict(params)
    tensors = {"model.embed_tokens.weight": rest.pop("embed_tokens")}
    for name, tensor in to_tensors(rest).items():
        tensors[name if name.startswith("lm_head") else f"model.{name}"] = tensor
    whole = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(whole, directory / "model.safetensors")
    described = {
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "num_hidden_layers": layers,
        "num_attention_heads": config.attention.num_heads,
        "num_key_value_heads": config.attention.num_kv_heads,
        "head_dim": config.attention.head_dim,
        "rope_theta": config.rope.theta,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "eos_token_id": ID["<|im_end|>"],
    }
    (directory / "config.json").write_text(json.dumps(described | changes))
    return directory
