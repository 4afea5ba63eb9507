"""Small random causal models of any family, saved by transformers; Python of a witness only.

    $(python benchmarks/witness_env.py speculators) benchmarks/witness/run_targets.py JOB

JOB is a directory; `job.json` is a list of cases `{name, family, config, ids, prompt_length,
new_tokens}`, `family` as transformers' `AutoConfig` knows it. `NAME/` gets the model, its norm
weights and biases random too; `NAME.out.safetensors` gets its `logits [1,T,V]` on `ids`, and its
greedy answer to the first `prompt_length` of them, `generated [1,new_tokens]`.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM


def draw(model: torch.nn.Module, seed: int) -> None:
    """Random weights that keep activations of order 1, norms and biases included."""
    source = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=source)
        weight.data.copy_(noise / weight.shape[1] ** 0.5 if weight.ndim == 2 else 0.3 * noise)
        if weight.ndim == 1:
            weight.data.add_(0.5)


@torch.no_grad()
def main() -> None:
    """Make every model of a job directory."""
    parser = argparse.ArgumentParser(description="Save small random models of several families.")
    parser.add_argument("job", type=Path)
    folder = parser.parse_args().job
    torch.set_num_threads(1)
    for seed, case in enumerate(json.loads((folder / "job.json").read_text())):
        config = AutoConfig.for_model(case["family"], **case["config"])
        model = AutoModelForCausalLM.from_config(config).eval()
        draw(model, seed)
        model.save_pretrained(folder / case["name"])
        ids = torch.tensor([case["ids"]])
        prompt = ids[:, : case["prompt_length"]]
        grown = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=case["new_tokens"],
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        said = {"logits": model(ids).logits, "generated": grown[:, prompt.shape[1] :]}
        whole = {name: tensor.contiguous() for name, tensor in said.items()}
        save_file(whole, folder / f"{case['name']}.out.safetensors")


if __name__ == "__main__":
    sys.exit(main())
