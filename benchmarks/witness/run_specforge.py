"""Runs SpecForge's own EAGLE-3 draft, trainer and exports; Python of its environment only.

    $(python benchmarks/witness_env.py specforge) -I benchmarks/witness/run_specforge.py JOB

`jobs.py` describes JOB. A case of mode "write" holds the knobs

    hidden_size, target_hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size,
    vocab_size, draft_vocab_size, rms_norm_eps, max_position_embeddings
    rope_parameters          as transformers 5 writes them: rope_theta, rope_type, ...
    fc_norm, norm_output     `null` leaves the key out of the config
    aux_layer_ids            as SpecForge counts them, for its `eagle_config`; `null` for none
    also                     further keys of the config, which a user may write; none by default
    dtype                    of the draft, "float32" by default
    steps                    K, TTT steps

and leaves three directories, each written by SpecForge's own code: NAME.checkpoint/ by
`save_pretrained`, NAME.sglang/ by `export_to_sglang` and NAME.hf/ by `export_to_hf`, the last two
from the `training_state.pt` that its checkpoint manager wrote (in NAME.training/). Those exports
build the draft in bfloat16. A case of mode "read" is loaded as a training run that starts from it
would: its config by `load_draft_config_source`, its weights by `warm_start_draft_model`. That ends
with an error when a tensor other than the embeddings is missing, d2t and t2d too. The model that
`AutoDraftModel.from_pretrained` returns is no use for numbers: transformers 5 leaves its RoPE
tables, which are in no file, empty.

Conventions of `OnlineEagle3Model.forward` (0.2.0), which the caller lines up with:

- It shifts nothing at step 0: `tokens[t]` is paired with `aux[t]`, and its data side has already
  moved the tokens one to the left. So `tokens[t]` is x[t+1] where `aux[t]` is of x[t].
- At step k it embeds `tokens[t+k]` (teacher forcing), zero-padded on the right: the last k columns
  embed token 0 and mean nothing.
- `positions` are those of step 0; attention adds k at step k. It takes from its table of angles
  as many as the row has columns (and k more), so none can lie further on; where one does here, it
  is made to take the whole table, which goes on to `max_position_embeddings`.
- Rows are padded on the right, as its collator does it.
- Column t sees step-0 keys of columns <= t and its own column's keys of steps 1..k.
- `state.{k}` is the layer's raw output, whatever `norm_output` says. `norm_output` (true where the
  key is absent) is whether the head reads that output through `norm` or as it is.
- `fc` reads exactly three states; there is no bias anywhere and no `norm_before_residual`.
- Its loss is a kernel for a GPU; where one is wanted, its own reference of that kernel is in its
  place.

A case of mode "score" has the knobs of mode "write" and `documents`, N. Its inputs are, for each
document n, `ids.{n} [T]`, `loss_mask.{n} [T]`, `aux.{n} [T,A*Dt]` and `last.{n} [T,Dt]`, the
target's last states after its final norm; and `head [V,Dt]`, the target's. They go SpecForge's own
way, from its normaliser of stored samples over its training strategy to its evaluator, each
document in a batch of its own. NAME.figures.json gets what it logs: {"documents": [of each, as its
training logs it], "together": what its evaluator makes of all}.

A case of mode "train" has the knobs of mode "write". Its documents go the same way, all in one
batch that its collator pads; `last.{n}` is after the final norm, and `norm` is not needed.
"""

# ruff: noqa: E402 (what the framework's imports find is settled first)

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # it compiles its norms, rope and loss
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent))

from stubs import stand_in_for

stand_in_for("triton")  # in which its loss is written

import torch
from jobs import (
    Case,
    Tensors,
    read_inputs,
    read_weights,
    recorded,
    require_filled,
    run_job,
    write_gradients,
    write_outputs,
    write_report,
)
from specforge.algorithms.eagle3 import model as trainer_module
from specforge.algorithms.eagle3.data import build_offline_collator, normalize_offline_sample
from specforge.algorithms.eagle3.model import OnlineEagle3Model
from specforge.core import loss as kernels
from specforge.eval.evaluator import Evaluator
from specforge.export.to_hf import export_to_hf
from specforge.export.to_sglang import export_to_sglang
from specforge.modeling.auto import AutoDraftModel, AutoDraftModelConfig
from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3, get_rope_config
from specforge.modeling.target.target_head import TargetHead
from specforge.runtime.contracts import TrainBatch
from specforge.training.checkpoint import CheckpointManager
from specforge.training.model_loading import load_draft_config_source, warm_start_draft_model
from specforge.training.strategies.base import Eagle3TrainStrategy

OPTIONAL = ("fc_norm", "norm_output")


class LosslessEagle3Model(OnlineEagle3Model):
    """SpecForge's trainer without the loss."""

    def _acc_and_loss(self, **_: Any) -> tuple[None, ...]:
        return (None,) * 7


class ReferenceLoss:
    """In the place of its loss, which needs a GPU: its own reference implementation of it."""

    @staticmethod
    def apply(
        logits: torch.Tensor, target: torch.Tensor, position_mask: torch.Tensor
    ) -> torch.Tensor:
        """A step's loss."""
        return kernels._compute_loss(logits, target, position_mask)


class LoadedHead(TargetHead):
    """SpecForge's head of a target, its weight at hand and not in a file."""

    def __init__(self, weight: torch.Tensor) -> None:
        """Hold the weight."""
        torch.nn.Module.__init__(self)
        self.fc = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.fc.weight.copy_(weight)


def describe(case: Case) -> dict[str, Any]:
    """The draft config that a user of SpecForge writes by hand."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": case["hidden_size"],
        "target_hidden_size": case["target_hidden_size"],
        "num_attention_heads": case["num_heads"],
        "num_key_value_heads": case["num_kv_heads"],
        "head_dim": case["head_dim"],
        "intermediate_size": case["intermediate_size"],
        "vocab_size": case["vocab_size"],
        "draft_vocab_size": case["draft_vocab_size"],
        "num_hidden_layers": 1,
        "rms_norm_eps": case["rms_norm_eps"],
        "max_position_embeddings": case["max_position_embeddings"],
        "rope_parameters": case["rope_parameters"],
        "tie_word_embeddings": False,
    }
    config |= {name: case[name] for name in OPTIONAL if case[name] is not None}
    config |= case.get("also", {})
    if case["aux_layer_ids"] is not None:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": case["aux_layer_ids"]}
    return config


def run(model: LlamaForCausalLMEagle3, inputs: Tensors, steps: int) -> Tensors:
    """Logits and fed-back states of every step, heard at the modules' doors."""
    fused, fed, logits = [], [], []
    ears = [
        model.fc.register_forward_hook(lambda _m, _in, out: fused.append(out)),
        model.midlayer.register_forward_pre_hook(
            lambda _m, _in, given: fed.append(given["hidden_states"]), with_kwargs=True
        ),
        model.lm_head.register_forward_hook(lambda _m, _in, out: logits.append(out)),
    ]
    tokens = inputs["tokens"]
    with far_angles(model, inputs["positions"]):
        LosslessEagle3Model(model, length=steps + 1, attention_backend="sdpa")(
            input_ids=tokens,
            attention_mask=inputs.get("valid", torch.ones_like(tokens)).long(),
            target=torch.zeros(*tokens.shape, model.vocab_size),
            loss_mask=torch.ones(*tokens.shape, 1),
            hidden_states=inputs["aux"].to(model.fc.weight.dtype),
            position_ids=inputs["positions"],
        )
    for ear in ears:
        ear.remove()
    heard = {f"logits.{k}": logits[k] for k in range(steps)}
    heard |= {f"state.{k}": fed[k + 1] for k in range(steps)}
    return {"fc": fused[0], **heard}


@contextmanager
def far_angles(model: LlamaForCausalLMEagle3, positions: torch.Tensor) -> Iterator[None]:
    """Let attention take its whole table of angles where a position lies beyond the row."""
    rope = model.midlayer.self_attn.rotary_emb
    take = rope.forward
    if positions.max() >= positions.shape[1]:
        rope.forward = lambda x, seq_len: take(x, seq_len=rope.max_seq_len_cached)
    yield
    rope.forward = take


def export(model: LlamaForCausalLMEagle3, config: Path, job: Path, name: str) -> None:
    """Write the draft in each of SpecForge's ways."""
    model.save_pretrained(job / f"{name}.checkpoint")
    trainer = OnlineEagle3Model(model)
    model.freeze_embedding()  # as its trainer does: the checkpoint then leaves it out
    kept = Eagle3TrainStrategy(trainer).checkpoint_state_filter(trainer.state_dict())
    training = str(job / f"{name}.training")
    CheckpointManager(training, run_id="run").save(
        {"strategy": "eagle3", "draft_state_dict": kept}, step=1
    )
    export_to_sglang(training, str(config), str(job / f"{name}.sglang"))
    export_to_hf(
        training,
        str(config),
        str(job / f"{name}.hf"),
        embedding_source=str(job / f"{name}.checkpoint"),
        embedding_key="embed_tokens.weight",
    )


def build(job: Path, case: Case) -> tuple[LlamaForCausalLMEagle3, Path]:
    """The draft that a case describes, and its config's file."""
    config = job / f"{case['name']}.draft_config.json"
    config.write_text(json.dumps(describe(case)))
    model = AutoDraftModel.from_config(
        AutoDraftModelConfig.from_file(str(config)),
        torch_dtype=getattr(torch, case.get("dtype", "float32")),
    ).eval()
    weights = {
        key.replace("layers.0.", "midlayer."): tensor
        for key, tensor in read_weights(job, case).items()
    }
    found = model.load_state_dict(weights, strict=False)
    vocabulary = {"d2t", "t2d"} if case["draft_vocab_size"] == case["vocab_size"] else set()
    require_filled(case, set(found.missing_keys) - vocabulary, set(found.unexpected_keys))
    return model, config


def only_run(job: Path, case: Case) -> None:
    """A draft of SpecForge's making and its outputs."""
    model, _ = build(job, case)
    write_outputs(job, case, run(model, read_inputs(job, case), case["steps"]))


def write(job: Path, case: Case) -> None:
    """A draft of SpecForge's making, its outputs and its files."""
    name = case["name"]
    model, config = build(job, case)
    with recorded(job, case, model, "specforge"):
        said = run(model, read_inputs(job, case), case["steps"])
    write_outputs(job, case, said)
    export(model, config, job, name)


def read(job: Path, case: Case) -> None:
    """A draft of ours, as SpecForge's own warm start reads it."""
    source = str(job / f"{case['name']}.draft")
    config = load_draft_config_source(source)
    model = AutoDraftModel.from_config(config)
    # As the warm start reads files; its report leaves out what they hold in vain.
    _, found = AutoDraftModel.from_pretrained(source, config=config, output_loading_info=True)
    missing = set(found["missing_keys"]) | set(found["mismatched_keys"])
    warm_start_draft_model(
        model, source, draft_config=config, strategy="eagle3", allow_missing_embedding=True
    )
    write_report(job, case, missing, set(found["unexpected_keys"]), knobs(model))
    inputs = read_inputs(job, case)
    if "embed_tokens.weight" in missing:
        model.embed_tokens.weight.copy_(inputs["embed_tokens"])
    write_outputs(job, case, run(model.eval(), inputs, case["steps"]))


def sample(inputs: Tensors, n: int) -> Tensors:
    """A document as its data set gives it."""
    raw = {
        "input_ids": inputs[f"ids.{n}"],
        "loss_mask": inputs[f"loss_mask.{n}"],
        "hidden_state": inputs[f"last.{n}"][None],
        "aux_hidden_state": inputs[f"aux.{n}"][None],
    }
    return normalize_offline_sample(raw, max_len=10**6)


def batch_of(names: list[str], tensors: Tensors) -> TrainBatch:
    """What its training strategy is given."""
    return TrainBatch(names, "eagle3", tensors, {"target_repr": "hidden_state"})


def train(job: Path, case: Case) -> None:
    """Loss and gradients of documents in one padded batch."""
    trainer_module.LogSoftmaxLoss = ReferenceLoss
    model, _ = build(job, case)
    model.freeze_embedding()
    inputs, numbers = read_inputs(job, case), range(case["documents"])
    strategy = Eagle3TrainStrategy(
        OnlineEagle3Model(model, attention_backend="sdpa"), target_head=LoadedHead(inputs["head"])
    )
    tensors = build_offline_collator()([sample(inputs, n) for n in numbers])
    trained = (
        (name.replace("midlayer.", "layers.0."), place) for name, place in model.named_parameters()
    )
    with torch.enable_grad():
        loss = strategy.forward_loss(batch_of(list(map(str, numbers)), tensors)).loss
        write_gradients(job, case, loss, trained)


def score(job: Path, case: Case) -> None:
    """What SpecForge's own metrics say of a draft, by document and together."""
    trainer_module.LogSoftmaxLoss = ReferenceLoss
    model, _ = build(job, case)
    inputs = read_inputs(job, case)
    strategy = Eagle3TrainStrategy(
        OnlineEagle3Model(model, length=case["steps"], attention_backend="sdpa"),
        target_head=LoadedHead(inputs["head"]),
    )
    given = []
    for n in range(case["documents"]):
        given.append(batch_of([str(n)], sample(inputs, n)))
    said = []
    for batch in given:
        metrics = strategy.forward_loss(batch).metrics
        said.append(
            {f"acc_{k}": float(a) for k, a in enumerate(metrics["acces"])}
            | {f"acceptance_rate_{k}": float(a) for k, a in enumerate(metrics["acceptance_rates"])}
        )
    for batch, figures in zip(given, said, strict=True):
        alone = Evaluator().run(strategy.forward_loss, [batch])
        figures["simulated_acc_len"] = alone["eval/simulated_acc_len"]
    together = Evaluator().run(strategy.forward_loss, given)
    (job / f"{case['name']}.figures.json").write_text(
        json.dumps({"documents": said, "together": together})
    )


def knobs(model: LlamaForCausalLMEagle3) -> dict[str, Any]:
    """What the model that was read is, not what its config says."""
    attention, config = model.midlayer.self_attn, model.config
    theta, rope = get_rope_config(config)
    return {
        "hidden_size": config.hidden_size,
        "target_hidden_size": model.target_hidden_size,
        "num_heads": attention.num_heads,
        "num_kv_heads": attention.num_key_value_heads,
        "head_dim": attention.head_dim,
        "intermediate_size": config.intermediate_size,
        "vocab_size": model.vocab_size,
        "draft_vocab_size": model.draft_vocab_size,
        "rms_norm_eps": model.norm.variance_epsilon,
        "max_position_embeddings": attention.max_position_embeddings,
        "rope_theta": theta,
        "rope_parameters": rope,
        "fc_norm": model.fc_norm is not None,
        "norm_output": model.norm_output,
        "eagle_config": getattr(config, "eagle_config", None),
        "target_ids": (torch.arange(len(model.d2t)) + model.d2t).tolist(),
    }


if __name__ == "__main__":
    sys.exit(
        run_job(
            "Run SpecForge's draft on a job directory.",
            {"write": write, "run": only_run, "read": read, "score": score, "train": train},
        )
    )
