"""Runs ModelOpt's own EAGLE-3 draft, trainer and export; Python of its environment only.

    $(python benchmarks/witness_env.py modelopt) -I benchmarks/witness/run_modelopt.py JOB

`jobs.py` describes JOB. ModelOpt has no loader for the drafts that it exports, so there is no mode
"read". A case of mode "write" holds the knobs

    hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size, vocab_size,
    draft_vocab_size, num_layers, rms_norm_eps, max_position_embeddings
    rope_parameters          as transformers 5 writes them: rope_theta, rope_type, ...
    attention_bias, mlp_bias
    aux_layer_ids            as ModelOpt counts them; as many as `fc` reads states
    has_lm_head              false: the draft of a whole vocabulary uses the target's head, and
                             `lm_head.weight` is given to the target
    dtype                    of the draft and of its target
    export_rope_scaling      replaces the YaRN that the export writes for a plain RoPE; `null` keeps
                             ModelOpt's default, {} writes none
    also                     further keys of the draft's config; none by default
    steps                    K, TTT steps

and one of mode "train" all of them but `steps`. Its documents are padded on the right here; their
`last.{n}` is after the final norm, and `norm` is not needed.

A tiny Llama is converted to `HFEagleModel`, which has the weights put in; the export,
`export_speculative_decoding`, writes NAME.checkpoint/.

Conventions of `HFEagleModel.forward` (0.47.0) with `eagle_offline`, which the caller lines up with:

- It is given the text and rolls it one to the left, the first token coming in on the right. It is
  given `tokens` rolled one to the right, so again `tokens[t]`, which is x[t+1], meets `aux[t]`.
- It keeps tokens and positions where they are and rolls the states one to the right at each step:
  row r of step k is column t = r - k. Outputs are rolled back here, so `logits.{k}[t]` is of
  position `positions[t] + k` and token `tokens[t+k]`; the last k columns mean nothing.
- Column t sees step-0 keys of columns <= t and its own column's keys of steps 1..k.
- The hidden half is normed twice, `hidden_norm(input_layernorm(x))`; the residual is the raw x.
- `state.{k}` is the last layer's output before `norm`.
- The draft's width is the target's, and so is its vocabulary; `embed_tokens` and `t2d` belong to
  the target and to no file that is exported.
- Layers after the first are plain Llama layers.
- Rows are padded on the right, as its offline collator does it. Steps after the first do not look
  at the padding, which no column before it sees.
- But for mode "train" its loss is computed from a target's last states of zero, and read by nobody.
"""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent))

import modelopt.torch.speculative as mtsp
import torch
from jobs import (
    Case,
    Tensors,
    read_inputs,
    read_weights,
    require_filled,
    run_job,
    write_gradients,
    write_outputs,
)
from modelopt.torch.export import export_speculative_decoding
from modelopt.torch.speculative.plugins.hf_eagle import HFEagleModel
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM

TARGETS = {"embed_tokens.weight", "t2d"}  # given with a draft, but not the draft's


def build(case: Case) -> HFEagleModel:
    """A tiny Llama with the draft that a case describes, its weights not yet loaded."""
    target = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=case["hidden_size"],
            num_attention_heads=4,
            intermediate_size=case["intermediate_size"],
            vocab_size=case["vocab_size"],
            num_hidden_layers=max(case["aux_layer_ids"]) + 1,
            max_position_embeddings=case["max_position_embeddings"],
            dtype=case["dtype"],
        )
    ).to(getattr(torch, case["dtype"]))
    settings = {
        "eagle_offline": True,
        "eagle_use_torch_compile": False,
        "eagle_architecture_config": {
            "torch_dtype": case["dtype"],
            "num_attention_heads": case["num_heads"],
            "num_key_value_heads": case["num_kv_heads"],
            "head_dim": case["head_dim"],
            "intermediate_size": case["intermediate_size"],
            "draft_vocab_size": case["draft_vocab_size"],
            "num_hidden_layers": case["num_layers"],
            "rms_norm_eps": case["rms_norm_eps"],
            "rope_scaling": case["rope_parameters"],
            "rope_theta": case["rope_parameters"]["rope_theta"],
            "attention_bias": case["attention_bias"],
            "mlp_bias": case["mlp_bias"],
            "eagle_aux_hidden_state_layer_ids": case["aux_layer_ids"],
            "has_lm_head": case["has_lm_head"],
            **case.get("also", {}),
        },
    }
    if case["mode"] != "train":
        settings["eagle_ttt_steps"] = case["steps"]
    if case["export_rope_scaling"] is not None:
        settings["eagle_export_rope_scaling"] = case["export_rope_scaling"]
    return mtsp.convert(target, [("eagle", settings)])


def load(model: HFEagleModel, weights: Tensors, case: Case) -> None:
    """Put every tensor in its place and leave none empty."""
    model.get_input_embeddings().weight.copy_(weights["embed_tokens.weight"])
    own = {name: tensor for name, tensor in weights.items() if name not in TARGETS}
    if not case["has_lm_head"]:
        model.get_output_embeddings().weight.copy_(own.pop("lm_head.weight"))
    found = model.eagle_module.load_state_dict(own, strict=False)
    require_filled(case, set(found.missing_keys), set(found.unexpected_keys))


def run(model: HFEagleModel, inputs: Tensors, steps: int) -> Tensors:
    """Logits and fed-back states of every step, heard at the modules' doors."""
    draft = model.eagle_module
    head = draft.lm_head if hasattr(draft, "lm_head") else model.get_output_embeddings()
    fused, states, logits = [], [], []
    ears = [
        draft.fc.register_forward_hook(lambda _m, _in, out: fused.append(out)),
        draft.register_forward_hook(lambda _m, _in, out: states.append(out[1])),
        head.register_forward_hook(lambda _m, _in, out: logits.append(out)),
    ]
    width = model.config.hidden_size
    model.train()(  # only in training does it take more than one step
        input_ids=inputs["tokens"].roll(1, 1),
        attention_mask=inputs.get("valid"),
        position_ids=inputs["positions"],
        base_model_outputs={
            "aux_hidden_states": inputs["aux"].to(model.dtype),
            "base_model_hidden_states": torch.zeros(
                *inputs["tokens"].shape, width, dtype=model.dtype
            ),
        },
    )
    for ear in ears:
        ear.remove()
    logits = logits[-steps:]  # the target's own come first where the draft has no head
    heard = {f"logits.{k}": logits[k].roll(-k, 1) for k in range(steps)}
    heard |= {f"state.{k}": states[k].roll(-k, 1) for k in range(steps)}
    return {"fc": fused[0], **heard}


def only_run(job: Path, case: Case) -> HFEagleModel:
    """A draft of ModelOpt's making and its outputs."""
    model = build(case)
    load(model, read_weights(job, case), case)
    write_outputs(job, case, run(model, read_inputs(job, case), case["steps"]))
    return model


def write(job: Path, case: Case) -> None:
    """The same and its files."""
    model = only_run(job, case)
    export_speculative_decoding(model, export_dir=job / f"{case['name']}.checkpoint")


def train(job: Path, case: Case) -> None:
    """Loss and gradients of documents in one padded batch."""
    model, inputs = build(case), read_inputs(job, case)
    load(model, read_weights(job, case), case)
    model.get_output_embeddings().weight.copy_(inputs["head"])

    def padded(kind: str) -> torch.Tensor:
        parts = [inputs[f"{kind}.{n}"] for n in range(case["documents"])]
        return pad_sequence(parts, batch_first=True)

    sizes = [len(inputs[f"ids.{n}"]) for n in range(case["documents"])]
    with torch.enable_grad():
        loss = model.train()(
            input_ids=padded("ids"),
            attention_mask=pad_sequence([torch.ones(size) for size in sizes], batch_first=True),
            loss_mask=padded("loss_mask"),
            base_model_outputs={
                "aux_hidden_states": padded("aux"),
                "base_model_hidden_states": padded("last"),
            },
        ).loss
        write_gradients(job, case, loss, model.eagle_module.named_parameters())


if __name__ == "__main__":
    sys.exit(
        run_job(
            "Run ModelOpt's draft on a job directory.",
            {"write": write, "run": only_run, "train": train},
        )
    )
