"""Runs speculators' own EAGLE-3 draft, loader and converter; Python of its environment only.

    $(python benchmarks/witness_env.py speculators) -I benchmarks/witness/run_speculators.py JOB

`jobs.py` describes JOB. A case of mode "write" holds the knobs

    model_type               "llama", or "qwen3" for q/k norms
    hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size, vocab_size,
    draft_vocab_size, num_aux, num_layers, rms_norm_eps, max_position_embeddings
    rope_parameters          as transformers 5 writes them: rope_theta, rope_type, ...
    attention_bias, mlp_bias, norm_before_residual, norm_before_fc, fc_norm, norm_output
    attention                "eager" or "sdpa"
    sliding_window           of every layer; none by default
    dtype                    of the parameters, "float32" by default; the RoPE's frequencies stay
                             float32, as they do under its trainer's mixed precision
    steps                    K, TTT steps

Its weights' names are speculators' own; the two places that are the verifier's stay empty.
`save_pretrained` writes NAME.checkpoint/.

A case of mode "read" holds `steps`, and `attention` as above. NAME.draft/ is loaded by
`Eagle3DraftModel`, as its `from_pretrained` does it, with these differences: it is asked for its
loading info, it hides no missing key (it would hide the embeddings', d2t, t2d and `input_norm`'s),
and a verifier without a name is left alone, where `from_pretrained` would look for one called
"None" on the hub and end with an error. Where the config names a verifier, its weights are read
too, which fills embeddings and a head that the draft has not, and the model is the same as that of
`from_pretrained`, or the run ends with an error. `embed_tokens [V,D]` of the inputs stands in for
embeddings that are still missing after that.

A case of mode "convert" has the draft of another framework at `draft` (a directory) turned into
NAME.checkpoint/ by speculators' own converter; `verifier` is a directory with a target's config,
and `options` are the converter's keywords, say `norm_before_residual`.

A case of mode "score" has the knobs of mode "write" and `documents`, N. Its inputs are, for each
document n, `ids.{n} [T]`, `loss_mask.{n} [T]`, `aux.{n} [T,A*D]` and `last.{n} [T,D]`, the target's
last states before its final norm; and the target's `norm [D]` and `head [V,D]`. Each document goes
through `shift_batch` and the model, alone and unpadded. NAME.figures.json gets what its trainer
logs: {"documents": [of each], "together": of all, their sums and totals added}.

A case of mode "train" has the knobs of mode "write" and `max_len`, the length of the row in which
its collator packs the documents, padding behind them.

Conventions of `Eagle3DraftModel.forward` (0.9.0), which the caller lines up with:

- It shifts nothing at step 0: `tokens[t]` is paired with `aux[t]`, and `shift_batch`, which trains
  it, has already dropped the first token. So `tokens[t]` is x[t+1] where `aux[t]` is of x[t].
- At step k it embeds `tokens[t+k]` (teacher forcing; its own argmax is only reported), zero-padded
  on the right: the last k columns embed token 0 and mean nothing. Keys of step 0 are never from
  such columns, so all others are unharmed.
- `positions` are those of step 0, and each step adds one. Where they are absent it counts from 1,
  as `shift_batch` does (`position_ids[1:]`); a server counts the same columns from 0.
- Column t sees step-0 keys of columns <= t of its own document and its own column's keys of steps
  1..k; the mask repeats the diagonal once a step. A window does not move on with the steps: it
  counts from column t, and the column's own keys are not of it.
- There is no batch: its collator packs the texts of one in a row, here with a padding of 3.
- `state.{k}` is what the first layer reads as its hidden half at step k+1: `norm`'s output with
  `norm_output`, else the last layer's. It is taken at that layer's door in a run of K+1 steps.
- Noise on the features belongs to its data loader, not to the model: there is none here.
- The draft's width is the target's: `fc` is `[D, A*D]`.
- `attention_bias` gives the output projection a bias too (it is transformers' layer).
- A loss is computed only when the verifier's last states are given; they are not.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from jobs import (
    Case,
    Tensors,
    read_inputs,
    read_weights,
    recorded,
    require_filled,
    run_job,
    unpack,
    write_gradients,
    write_outputs,
    write_report,
)
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.convert.entrypoints import convert_model
from speculators.losses import eager
from speculators.model import SpeculatorModel
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.eagle3.data import shift_batch
from speculators.proposals.greedy import GreedyTokenProposalConfig
from speculators.train.data import CollateFn
from speculators.train.utils import normalize_counted_metrics
from transformers import LlamaConfig, Qwen3Config

LOSS = {"kl_div": (eager.kl_div_loss, 1.0)}  # the default's kernel needs a GPU
VERIFIER_ONLY = {"verifier_norm.weight", "verifier_lm_head.weight"}  # read by the loss alone


def build(case: Case) -> Eagle3DraftModel:
    """The draft that a case describes, its weights not yet loaded."""
    family = {"llama": LlamaConfig, "qwen3": Qwen3Config}[case["model_type"]]
    extra = {"mlp_bias": case["mlp_bias"]} if case["model_type"] == "llama" else {}
    if case.get("sliding_window") is not None:  # as its trainer writes it
        extra |= {
            "sliding_window": case["sliding_window"],
            "use_sliding_window": True,
            "layer_types": ["sliding_attention"] * case["num_layers"],
        }
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
    model = Eagle3DraftModel(config).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, case.get("dtype", "float32")))
    return model


def run(model: Eagle3DraftModel, inputs: Tensors, steps: int) -> Tensors:
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
    model(**lay_out(inputs, model), ttt_steps=steps + 1)
    for ear in ears:
        ear.remove()
    heard = {f"logits.{k}": logits[k] for k in range(steps)}
    heard |= {f"state.{k}": halves[k + 1] for k in range(steps)}
    heard["fc"] = fused[0]
    return unpack(heard, inputs["valid"]) if "valid" in inputs else heard


def lay_out(inputs: Tensors, model: Eagle3DraftModel) -> Tensors:
    """The inputs in one row, texts behind each other as its collator packs them."""
    given = {
        "hidden_states": inputs["aux"].to(model.fc.weight.dtype),
        "input_ids": inputs["tokens"],
        "position_ids": inputs["positions"],
    }
    if "valid" not in inputs:
        return given | {"document_ids": torch.zeros_like(inputs["tokens"])}
    texts = [
        {name: tensor[row, seen] for name, tensor in given.items()}
        | {"lengths": seen.sum(0, keepdim=True)}
        for row, seen in enumerate(inputs["valid"])
    ]
    room = int(inputs["valid"].sum()) + 3
    packed = CollateFn(room, model.hidden_size, dtype=model.fc.weight.dtype)(texts)
    return {name: packed[name] for name in (*given, "document_ids")}


def build_with_weights(job: Path, case: Case) -> Eagle3DraftModel:
    """The draft that a case describes, with its weights."""
    model = build(case)
    found = model.load_state_dict(read_weights(job, case), strict=False)
    require_filled(case, set(found.missing_keys) - VERIFIER_ONLY, set(found.unexpected_keys))
    return model


def only_run(job: Path, case: Case) -> None:
    """A draft of speculators' making and its outputs."""
    model = build_with_weights(job, case)
    write_outputs(job, case, run(model, read_inputs(job, case), case["steps"]))


def write(job: Path, case: Case) -> None:
    """A draft of speculators' making, its outputs and its files."""
    model = build_with_weights(job, case)
    with recorded(job, case, model, "speculators"):
        said = run(model, read_inputs(job, case), case["steps"])
    write_outputs(job, case, said)
    model.save_pretrained(job / f"{case['name']}.checkpoint")


def read(job: Path, case: Case) -> None:
    """A draft of ours, as speculators' own loader reads it."""
    Eagle3DraftModel._keys_to_ignore_on_load_missing = []
    draft = job / f"{case['name']}.draft"
    config = Eagle3SpeculatorConfig.from_pretrained(draft)
    config.transformer_layer_config._attn_implementation = case["attention"]
    load_as = SpeculatorModel.from_pretrained.__func__
    model, found = load_as(Eagle3DraftModel, draft, config=config, output_loading_info=True)
    missing = set(found["missing_keys"]) | set(found["mismatched_keys"])
    write_report(
        job, case, missing - VERIFIER_ONLY, set(found["unexpected_keys"]), knobs(model, missing)
    )
    if model.config.speculators_config.verifier.name_or_path is not None:
        require_same(model, Eagle3DraftModel.from_pretrained(draft))
        model.load_verifier_weights()
    inputs = read_inputs(job, case)
    if model.embed_tokens.weight.isnan().any():
        model.embed_tokens.weight.copy_(inputs["embed_tokens"])
    write_outputs(job, case, run(model.float().eval(), inputs, case["steps"]))


def require_same(model: Eagle3DraftModel, plain: Eagle3DraftModel) -> None:
    """End the run when a model is another than the one that users get."""
    mine, theirs = model.state_dict(), plain.state_dict()
    for name in mine.keys() | theirs.keys():
        same = torch.equal(mine[name].nan_to_num(), theirs[name].nan_to_num())
        if name not in VERIFIER_ONLY and not same:
            raise SystemExit(f"error: from_pretrained reads another {name}")


def convert(job: Path, case: Case) -> None:
    """A draft of another style, as speculators' own converter writes it."""
    convert_model(
        model=case["draft"],
        verifier=case["verifier"],
        algorithm="eagle3",
        output_path=str(job / f"{case['name']}.checkpoint"),
        **case["options"],
    )


def build_with_verifier(job: Path, case: Case, inputs: Tensors) -> Eagle3DraftModel:
    """The draft that a case describes, with its weights and those that the loss reads."""
    model, weights = build(case), read_weights(job, case)
    head = inputs["head"][weights["t2d"]] if "t2d" in weights else inputs["head"]
    weights |= {"verifier_norm.weight": inputs["norm"], "verifier_lm_head.weight": head}
    found = model.load_state_dict(weights, strict=False)
    require_filled(case, set(found.missing_keys), set(found.unexpected_keys))
    return model


def sample(inputs: Tensors, n: int) -> Tensors:
    """A document as its data set gives it."""
    ids = inputs[f"ids.{n}"]
    return {
        "input_ids": ids,
        "hidden_states": inputs[f"aux.{n}"],
        "verifier_last_hidden_states": inputs[f"last.{n}"],
        "loss_mask": inputs[f"loss_mask.{n}"],
        "lengths": torch.tensor([len(ids)]),
        "position_ids": torch.arange(len(ids)),
    }


def train(job: Path, case: Case) -> None:
    """Loss and gradients of documents in one row, as its collator packs them."""
    inputs = read_inputs(job, case)
    model = build_with_verifier(job, case, inputs)
    pack = CollateFn(
        case["max_len"], model.hidden_size, dtype=torch.float32, preprocess=shift_batch
    )
    row = pack([sample(inputs, n) for n in range(case["documents"])])
    given = {name: tensor for name, tensor in row.items() if isinstance(tensor, torch.Tensor)}
    with torch.enable_grad():
        _, loss, _ = model.train()(**given, loss_config=LOSS)
        write_gradients(job, case, loss, model.named_parameters())


def score(job: Path, case: Case) -> None:
    """What speculators' own metrics say of a draft, by document and together."""
    inputs = read_inputs(job, case)
    model = build_with_verifier(job, case, inputs)
    said, together = [], {}
    for n in range(case["documents"]):
        shifted = shift_batch(sample(inputs, n))
        batch = {name: tensor[None] for name, tensor in shifted.items() if name != "lengths"}
        documents = torch.zeros_like(batch["input_ids"])
        _, _, metrics = model(
            **batch,
            document_ids=documents,
            ttt_steps=case["steps"],
            loss_config=LOSS,
        )
        counted = {name: float(value) for name, value in metrics.items()}
        for name, value in counted.items():
            together[name] = together.get(name, 0.0) + value
        said.append(normalize_counted_metrics(counted))
    (job / f"{case['name']}.figures.json").write_text(
        json.dumps({"documents": said, "together": normalize_counted_metrics(together)})
    )


def knobs(model: Eagle3DraftModel, missing: set[str]) -> dict[str, Any]:
    """What the model that was read is, not what its config says."""
    config, layer = model.config, model.config.transformer_layer_config
    attention = model.layers[0].self_attn
    mapped = model.use_draft_vocab and "d2t" not in missing
    return {
        "model_type": layer.model_type,
        "hidden_size": model.hidden_size,
        "num_heads": layer.num_attention_heads,
        "num_kv_heads": layer.num_key_value_heads,
        "head_dim": attention.head_dim,
        "intermediate_size": layer.intermediate_size,
        "vocab_size": model.verifier_vocab_size,
        "draft_vocab_size": model.draft_vocab_size,
        "num_layers": len(model.layers),
        "num_aux": model.fc.in_features // model.hidden_size,
        "aux_layer_ids": config.eagle_aux_hidden_state_layer_ids,
        "rms_norm_eps": model.norm.variance_epsilon,
        "max_position_embeddings": layer.max_position_embeddings,
        "rope_parameters": layer.rope_parameters,
        "sliding_window": model.sliding_window if model.uses_sliding_window_attn else None,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": model.input_norm is not None,
        "fc_norm": model.fc_norm is not None,
        "norm_output": config.norm_output,
        "attention_bias": attention.q_proj.bias is not None,
        "mlp_bias": model.layers[0].mlp.gate_proj.bias is not None,
        "target_ids": (torch.arange(len(model.d2t)) + model.d2t).tolist() if mapped else None,
        "dtype": str(model.fc.weight.dtype).removeprefix("torch."),
    }


if __name__ == "__main__":
    sys.exit(
        run_job(
            "Run speculators' draft on a job directory.",
            {
                "write": write,
                "run": only_run,
                "read": read,
                "convert": convert,
                "score": score,
                "train": train,
            },
        )
    )
