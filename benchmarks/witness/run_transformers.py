"""Runs transformers' own RoPE, layer and small causal models; Python of a witness only.

    $(python benchmarks/witness_env.py speculators) benchmarks/witness/run_transformers.py JOB

JOB is a directory; `job.json` is an object of four lists.

`ropes`: `{name, rotary, head_dim, max_position_embeddings, rope_parameters, positions}`. `rotary`
is llama, or phi, whose plain form rotates a part of each head (Llama's ignores
`partial_rotary_factor` there). `positions` is a list of lists, each one call of a fresh module:
dynamic and longrope depend on the longest position of a call, and dynamic remembers it.
`NAME.out.safetensors` gets `cos.{i}` and `sin.{i}` `[1,T,2R]`, R half the rotated dimensions, both
halves alike.

`models`: `{name, family, config, new_tokens}` with `family` llama, qwen2, qwen3 or mistral. Weights
are drawn here, norm weights and biases too, since a fresh model has ones and zeros there, which
would hide a wrong one. `NAME/` and `NAME.sharded/` get the same model by `save_pretrained`, in one
file and in several. `NAME.inputs.safetensors` holds `ids [B,T]`; `NAME.out.safetensors` gets
`logits [B,T,V]`, `boundary.{b} [B,T,D]` for b = 0..L (L before the final norm, caught at its door,
because `hidden_states[-1]` is after it), `post_norm [B,T,D]` and `generated [B,new_tokens]`.

`layers`: `{name, config}`. `NAME.inputs.safetensors` holds `x [B,T,D]`, `positions [B,T]` and the
layer's weights under their own names; `NAME.out.safetensors` gets `y`, one `LlamaDecoderLayer`.

`norms`: `{name, eps}`. `NAME.inputs.safetensors` holds `x` and `weight`, any dtype;
`NAME.out.safetensors` gets `y`, one `LlamaRMSNorm`.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PhiConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.masking_utils import create_causal_mask
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.phi.modeling_phi import PhiRotaryEmbedding

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
}
ROTARIES = {
    "llama": (LlamaConfig, LlamaRotaryEmbedding),
    "phi": (PhiConfig, PhiRotaryEmbedding),
}
SHARD = "24KB"  # small enough that the smallest model here makes several files


def draw(model: torch.nn.Module, seed: int) -> None:
    """Random weights that keep activations of order 1, norms and biases included."""
    source = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=source)
        if weight.ndim == 2 and "embed_tokens" not in name:
            noise = noise / weight.shape[1] ** 0.5
        elif weight.ndim == 1:
            noise = 0.3 * noise + (0.0 if name.endswith("bias") else 1.0)
        weight.data.copy_(noise)


def run_rope(case: dict) -> dict[str, torch.Tensor]:
    """Cosines and sines, a fresh module for each row of positions."""
    out = {}
    for index, positions in enumerate(case["positions"]):
        make_config, rotary = ROTARIES[case["rotary"]]
        config = make_config(
            hidden_size=2 * case["head_dim"],
            num_attention_heads=2,
            max_position_embeddings=case["max_position_embeddings"],
            rope_parameters=dict(case["rope_parameters"]),
        )
        turn = rotary(config)
        cos, sin = turn(torch.zeros(1), torch.tensor([positions]))
        out |= {f"cos.{index}": cos, f"sin.{index}": sin}
    return out


def run_model(
    model: PreTrainedModel, ids: torch.Tensor, new_tokens: int
) -> dict[str, torch.Tensor]:
    """Logits, the state at every boundary, and a greedy continuation."""
    last = []
    ear = model.model.norm.register_forward_pre_hook(lambda _m, given: last.append(given[0]))
    seen = model(ids, output_hidden_states=True)
    ear.remove()
    states = (*seen.hidden_states[:-1], last[0])
    grown = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return {
        "logits": seen.logits,
        "post_norm": seen.hidden_states[-1],
        "generated": grown[:, ids.shape[1] :],
        **{f"boundary.{b}": state for b, state in enumerate(states)},
    }


def run_layer(config: LlamaConfig, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """One decoder layer on given states."""
    x, positions = tensors.pop("x"), tensors.pop("positions")
    layer = LlamaDecoderLayer(config, layer_idx=0).eval()
    layer.load_state_dict(tensors, strict=True)
    mask = create_causal_mask(
        config=config,
        inputs_embeds=x,
        attention_mask=None,
        past_key_values=None,
        # The mask reads packed documents out of jumps in the positions: it gets none.
        position_ids=torch.arange(x.shape[1])[None],
    )
    turn = LlamaRotaryEmbedding(config)(x, positions)
    return layer(x, attention_mask=mask, position_ids=positions, position_embeddings=turn)


@torch.no_grad()
def main() -> None:
    """Run everything in a job directory."""
    parser = argparse.ArgumentParser(description="Run transformers' modules on a job directory.")
    parser.add_argument("job", type=Path)
    folder = parser.parse_args().job
    torch.set_num_threads(1)
    job = json.loads((folder / "job.json").read_text())

    def save(name: str, tensors: dict[str, torch.Tensor]) -> None:
        whole = {key: value.clone().contiguous() for key, value in tensors.items()}
        save_file(whole, folder / f"{name}.out.safetensors")

    for case in job["ropes"]:
        save(case["name"], run_rope(case))
    for seed, case in enumerate(job["models"]):
        name = case["name"]
        make_config, make_model = FAMILIES[case["family"]]
        config = make_config(**case["config"])
        config._attn_implementation = "eager"
        model = make_model(config).eval()
        draw(model, seed)
        model.save_pretrained(folder / name)
        model.save_pretrained(folder / f"{name}.sharded", max_shard_size=SHARD)
        ids = load_file(folder / f"{name}.inputs.safetensors")["ids"]
        save(name, run_model(model, ids, case["new_tokens"]))
    for case in job["layers"]:
        config = LlamaConfig(**case["config"])
        config._attn_implementation = "eager"
        tensors = load_file(folder / f"{case['name']}.inputs.safetensors")
        save(case["name"], {"y": run_layer(config, tensors)})
    for case in job["norms"]:
        tensors = load_file(folder / f"{case['name']}.inputs.safetensors")
        norm = LlamaRMSNorm(tensors["weight"].shape[0], eps=case["eps"])
        norm.weight.data = tensors["weight"]
        save(case["name"], {"y": norm(tensors["x"])})


if __name__ == "__main__":
    sys.exit(main())
