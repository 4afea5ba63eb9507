"""Runs transformers' own multi-head latent attention; Python of a witness only.

    $(python benchmarks/witness_env.py speculators) benchmarks/witness/run_deepseek.py JOB

JOB is a directory; `job.json` is a list of `{name, config}`, the config's keys being those of a
`DeepseekV3Config`. `NAME.inputs.safetensors` holds `x [B,T,hidden_size]`, `positions [B,T]` and the
weights of one `DeepseekV3Attention` under their own names; `NAME.out.safetensors` gets its output
`y [B,T,hidden_size]`, and `scale`, what it multiplies scores by.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3RotaryEmbedding,
)


def run_attention(
    config: DeepseekV3Config, tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """One causal attention on given inputs."""
    x, positions = tensors.pop("x"), tensors.pop("positions")
    attention = DeepseekV3Attention(config, layer_idx=0).eval()
    attention.load_state_dict(tensors, strict=True)
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    mask = torch.zeros(later.shape).masked_fill(later, torch.finfo(x.dtype).min)
    turn = DeepseekV3RotaryEmbedding(config)(x, positions)
    y, _ = attention(x, position_embeddings=turn, attention_mask=mask[None, None])
    return {"y": y.contiguous(), "scale": torch.tensor(attention.scaling)}


@torch.no_grad()
def main() -> None:
    """Run every case of a job directory."""
    parser = argparse.ArgumentParser(description="Run DeepseekV3Attention on a job directory.")
    parser.add_argument("job", type=Path)
    folder = parser.parse_args().job
    torch.set_num_threads(1)
    for case in json.loads((folder / "job.json").read_text()):
        config = DeepseekV3Config(**case["config"])
        config._attn_implementation = "eager"
        tensors = load_file(folder / f"{case['name']}.inputs.safetensors")
        save_file(run_attention(config, tensors), folder / f"{case['name']}.out.safetensors")


if __name__ == "__main__":
    sys.exit(main())
