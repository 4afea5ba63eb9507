"""Runs speculators' own EAGLE-3 draft on given weights and inputs; Python of its environment only.

    $(python benchmarks/witness_env.py speculators) benchmarks/witness/run_speculators.py JOB

JOB is a directory. `job.json` is a list of cases, each an object:

    name                     files of the case begin with it
    model_type               "llama", or "qwen3" for q/k norms
    hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size, vocab_size,
    draft_vocab_size, num_aux, num_layers, rms_norm_eps, max_position_embeddings
    rope_parameters          as transformers 5 writes them: rope_theta, rope_type, ...
    attention_bias, mlp_bias, norm_before_residual, norm_before_fc, fc_norm, norm_output
    attention                "eager" or "sdpa"
    steps                    K, TTT steps

`NAME.weights.safetensors` holds the weights under speculators' own names, which are the canonical
ones (`fc.weight`, `input_norm.weight`, `fc_norm.{a}.weight`, `layers.{i}....`, `norm.weight`,
`lm_head.weight`, `embed_tokens.weight`, `d2t`, `t2d`), matrices `[out, in]`. Every tensor must find
its place and every place but the verifier's two must be filled, or the run ends with an error.

`NAME.inputs.safetensors` holds `tokens [1,T]`, `aux [1,T,A*D]` and `positions [1,T]`.
`NAME.out.safetensors` gets, for step k of K, `logits.{k} [1,T,W]` and `state.{k} [1,T,D]`, and
`fc [1,T,D]`. `NAME.checkpoint/` gets the draft as speculators itself saves it.

Conventions of `Eagle3DraftModel.forward` (0.9.0), which the caller lines up with:

- It shifts nothing at step 0: `tokens[t]` is paired with `aux[t]`, and `shift_batch`, which trains
  it, has already dropped the first token. So `tokens[t]` is x[t+1] where `aux[t]` is of x[t].
- At step k it embeds `tokens[t+k]` (teacher forcing; its own argmax is only reported), zero-padded
  on the right: the last k columns embed token 0 and mean nothing. Keys of step 0 are never from
  such columns, so all others are unharmed.
- `positions` are those of step 0, and each step adds one. Where they are absent it counts from 1,
  as `shift_batch` does (`position_ids[1:]`); a server counts the same columns from 0.
- Column t sees step-0 keys of columns <= t of its own document (one document here, no padding) and
  its own column's keys of steps 1..k; the mask repeats the diagonal once a step.
- `state.{k}` is what the first layer reads as its hidden half at step k+1: `norm`'s output with
  `norm_output`, else the last layer's. It is taken at that layer's door in a run of K+1 steps.
- Noise on the features belongs to its data loader, not to the model: there is none here.
- The draft's width is the target's: `fc` is `[D, A*D]`.
- `attention_bias` gives the output projection a bias too (it is transformers' layer).
- A loss is computed only when the verifier's last states are given; they are not.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

VERIFIER_ONLY = {"verifier_norm.weight", "verifier_lm_head.weight"}  # read by the loss alone


def build(case: dict) -> Eagle3DraftModel:
    """The draft that a case describes, its weights not yet loaded."""
    family = {"llama": LlamaConfig, "qwen3": Qwen3Config}[case["model_type"]]
    extra = {"mlp_bias": case["mlp_bias"]} if case["model_type"] == "llama" else {}
    layer = family(
        hidden_size=case["hidden_size"],
        num_attention_heads=case["num_heads"],
        num_key_value_heads=case["num_kv_heads"],
        head_dim=case["head_dim"],
        intermediate_size=case["intermediate_size"],
        vocab_size=case["vocab_size"],
        num_hidden_layers=case["num_layers"],
        rms_norm_eps=case["rms_norm_eps"],
        max_position_embeddings=case["max_position_embeddings"],
        rope_parameters=case["rope_parameters"],
        attention_bias=case["attention_bias"],
        **extra,
    )
    layer._attn_implementation = case["attention"]
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=case["draft_vocab_size"],
        norm_before_residual=case["norm_before_residual"],
        norm_before_fc=case["norm_before_fc"],
        fc_norm=case["fc_norm"],
        norm_output=case["norm_output"],
        eagle_aux_hidden_state_layer_ids=list(range(1, case["num_aux"] + 1)),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=case["steps"])],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=[]),
        ),
    )
    return Eagle3DraftModel(config).eval()


def load(model: Eagle3DraftModel, weights: dict[str, torch.Tensor], where: str) -> None:
    """Put every tensor in its place and leave none empty."""
    report = model.load_state_dict(weights, strict=False)
    missing = set(report.missing_keys) - VERIFIER_ONLY
    if missing or report.unexpected_keys:
        raise SystemExit(
            f"error: {where}: missing {sorted(missing)}, unexpected {report.unexpected_keys}"
        )


@torch.no_grad()
def run(
    model: Eagle3DraftModel, inputs: dict[str, torch.Tensor], steps: int
) -> dict[str, torch.Tensor]:
    """Logits and fed-back states of every step, heard at the modules' doors."""
    width = model.hidden_size
    fused, halves, logits = [], [], []
    ears = [
        model.fc.register_forward_hook(lambda _m, _in, out: fused.append(out)),
        model.layers[0].register_forward_pre_hook(
            lambda _m, given: halves.append(given[0][..., width:])
        ),
        model.lm_head.register_forward_hook(lambda _m, _in, out: logits.append(out)),
    ]
    tokens = inputs["tokens"]
    model(
        hidden_states=inputs["aux"],
        input_ids=tokens,
        document_ids=torch.zeros_like(tokens),
        position_ids=inputs["positions"],
        ttt_steps=steps + 1,
    )
    for ear in ears:
        ear.remove()
    heard = {f"logits.{k}": logits[k] for k in range(steps)}
    heard |= {f"state.{k}": halves[k + 1] for k in range(steps)}
    return {"fc": fused[0], **heard}


def main() -> None:
    """Run every case of a job directory."""
    parser = argparse.ArgumentParser(description="Run speculators' draft on a job directory.")
    parser.add_argument("job", type=Path)
    job = parser.parse_args().job
    torch.set_num_threads(1)
    for case in json.loads((job / "job.json").read_text()):
        name = case["name"]
        model = build(case)
        load(model, load_file(job / f"{name}.weights.safetensors"), name)
        heard = run(model, load_file(job / f"{name}.inputs.safetensors"), case["steps"])
        save_file(
            {key: value.contiguous() for key, value in heard.items()},
            job / f"{name}.out.safetensors",
        )
        model.save_pretrained(job / f"{name}.checkpoint")


if __name__ == "__main__":
    sys.exit(main())
