"""Runs SGLang's own EAGLE-3 draft on a CPU; Python of its environment only.

    $(python benchmarks/witness_env.py sglang) -I benchmarks/witness/run_sglang.py JOB

`jobs.py` describes JOB. SGLang reads drafts and writes none, so both modes load a directory: that
of a case of mode "read" is NAME.draft/, and that of a case of mode "write" is NAME.checkpoint/,
which this script fills with the case's weights under their canonical names and a config that states
the knobs

    hidden_size, target_hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size,
    vocab_size, draft_vocab_size, num_layers, rms_norm_eps, max_position_embeddings
    rope_parameters          as transformers 5 writes them: rope_theta, rope_type, ...
    num_aux, norm_before_fc, fc_norm, norm_output, fc_bias
    also                     further keys of the config; none by default
    dtype                    of the parameters, "float32" by default
    steps                    K, draft steps

Layers after the first have a `hidden_norm` and no `input_layernorm`. A case of mode "read" has,
next to its other inputs, the target's table `embed_tokens [V,D]` and, for a draft without a head,
`lm_head [V,D]`.

SGLang's config resolution, loader, weight loaders, linears, norms, rope, logits processor and model
are its own. Its attention kernels want a GPU: a dense one stands in for them, and stubs stand in
for packages that those kernels come from.

Conventions of `LlamaForCausalLMEagle3.forward` (0.5.23), which the caller lines up with:

- It shifts nothing: the worker has rotated the ids of a prompt one to the left and left its
  positions alone. So `tokens[t]` is x[t+1] where `aux[t]` is of x[t].
- Each column t is here a request of its own, whose prompt is columns 0..t: its keys of step k are
  seen by nobody else, and the prompt's are the same for all. A request's draft step k embeds
  `tokens[t+k]` at position `positions[t] + k`; the last k columns have run out of text, embed token
  0 and mean nothing.
- `state.{k}` is what the model hands to its next step: the last layer's output, or `norm` of it
  with `norm_output`.
- Nothing is padded: the requests of all texts of a batch lie in one row.
- A sliding window is an option of its server, `--speculative-draft-window-size`, and the work of
  the kernels that are not here; no key of the config asks for one.
- The target's embeddings replace the draft's unless the widths differ.
- `fc` is skipped for states as wide as an embedding.
- The loader drops a name that it does not know without a word; such names are `unexpected`, and so
  is `t2d`, which it skips by name. Parts of a fused matrix are reported as NAME[PART].
"""

# ruff: noqa: E402 (what the framework's imports find is settled first)

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent))
warnings.simplefilter("ignore")  # of kernels that a CPU has not

# Before the stubs: transformers would take them for the packages themselves.
import transformers.image_utils  # noqa: F401
from stubs import stand_in_for
from transformers.models.llama import modeling_llama  # noqa: F401

stand_in_for(
    "cuda",
    "flash_attn",
    "flashinfer",
    "mistral_common",
    "sgl_kernel",
    "torch_memory_saver",
    "torchcodec",
    "torchvision",
    "tvm_ffi",
)

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
    write_outputs,
    write_report,
)
from safetensors.torch import save_file
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed.parallel_state import (
    init_distributed_environment,
    initialize_model_parallel,
)
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.model_loader.loader import DefaultModelLoader, _initialize_model
from sglang.srt.model_loader.utils import set_default_torch_dtype
from sglang.srt.model_loader.weight_utils import default_weight_loader
from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput, EagleDraftInput

PARTS = {"qkv_proj": ("q", "k", "v"), "gate_up_proj": (0, 1)}  # of fused matrices


class DenseAttention:
    """Attention of requests that share texts: request t has columns 0..t of its text as prompt.

    In float32, as a kernel adds up, and rounded at the end.
    """

    def __init__(self, texts: torch.Tensor) -> None:
        """Start with an empty cache; `texts` `[T]` numbers each request's text."""
        self.cache: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self.seen = (texts[:, None] == texts).tril()

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: RadixAttention,
        _batch: ForwardBatch,
        _save: bool = True,
    ) -> torch.Tensor:
        """Remember a step's keys; attend to the prompt's and to the request's own."""
        rows, heads, dtype = q.shape[0], layer.tp_k_head_num, q.dtype
        steps = self.cache.setdefault(layer.layer_id, [])
        steps.append((k.view(rows, heads, -1).float(), v.view(rows, heads, -1).float()))
        q = q.view(rows, heads, -1, layer.qk_head_dim).float()
        (keys, values), *own = steps
        scores = torch.einsum("tkgh,skh->tkgs", q, keys)
        scores = scores.masked_fill(~self.seen[:, None, None], float("-inf"))
        mine = [torch.einsum("tkgh,tkh->tkg", q, key)[..., None] for key, _ in own]
        weights = torch.softmax(torch.cat([scores, *mine], -1) * layer.scaling, -1)
        mixed = torch.einsum("tkgs,skh->tkgh", weights[..., :rows], values)
        for slot, (_, value) in enumerate(own, start=rows):
            mixed = mixed + weights[..., slot, None] * value[:, :, None]
        return mixed.reshape(rows, -1).to(dtype)


class Ledger:
    """What SGLang's loader took from the files and what it filled."""

    def __init__(self, model: LlamaForCausalLMEagle3) -> None:
        """Listen at every parameter's door."""
        self.given: list[str] = []
        self.taken: set[str] = set()
        self.empty: set[str] = set()
        for name, parameter in model.named_parameters():
            parts = PARTS.get(name.split(".")[-2])
            self.empty |= {f"{name}[{part}]" for part in parts} if parts else {name}
            self._listen(name, parameter)

    def _listen(self, name: str, parameter: torch.nn.Parameter) -> None:
        load = getattr(parameter, "weight_loader", default_weight_loader)

        def heard(into: torch.Tensor, tensor: torch.Tensor, *part: Any) -> None:
            load(into, tensor, *part)
            self.taken.add(self.given[-1])
            self.empty.discard(f"{name}[{part[0]}]" if part else name)

        parameter.weight_loader = heard

    def hand_over(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[Any]:
        """The files' tensors, one after the other, each noted."""
        for name, tensor in weights:
            self.given.append(name)
            yield name, tensor

    def unused(self, model: LlamaForCausalLMEagle3) -> set[str]:
        """Names in the files that the loader passed over."""
        mapped = {"d2t"} if model.hot_token_id is not None else set()
        return set(self.given) - self.taken - mapped


def start_engine() -> None:
    """The globals that SGLang's layers read, for one process."""
    logging.disable(logging.WARNING)
    publish(
        ServerArgs(model_path="dummy", device="cpu"),
        role="scheduler",
        ranks=SpawnRanks(world_rank=0),
    )
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    init_distributed_environment(world_size=1, rank=0, local_rank=0, backend="gloo")
    initialize_model_parallel("gloo")


def load(draft: Path, dtype: str = "float32") -> tuple[LlamaForCausalLMEagle3, Ledger]:
    """A draft directory as SGLang's server would load it with `--dtype`."""
    config = ModelConfig(str(draft), is_draft_model=True, dtype=dtype)
    settings = LoadConfig()
    with set_default_torch_dtype(config.dtype):
        model = _initialize_model(config, settings)
    ledger = Ledger(model)
    loader = DefaultModelLoader(settings)
    weights = ledger.hand_over(loader._get_all_weights(config, model))
    loader.load_weights_and_postprocess(model, weights, torch.device("cpu"))
    return model.eval(), ledger


def bind_target(model: LlamaForCausalLMEagle3, inputs: Tensors) -> None:
    """The target's table, and its head where the draft has none, as the worker hands them over."""
    dtype = model.model.fc.weight.dtype
    table = torch.nn.Parameter(inputs["embed_tokens"].to(dtype))
    if model.load_lm_head_from_target:
        model.set_embed_and_head(table, torch.nn.Parameter(inputs["lm_head"].to(dtype)))
    else:
        model.set_embed(table)


def run(model: LlamaForCausalLMEagle3, inputs: Tensors, steps: int) -> Tensors:
    """Logits and handed-on states of every step."""
    valid = inputs.get("valid", torch.ones_like(inputs["tokens"])).bool()
    tokens, positions = inputs["tokens"][valid], inputs["positions"][valid]
    columns, texts = tokens.shape[0], valid.nonzero()[:, 0]
    state, fused, heard = inputs["aux"][valid].to(model.model.fc.weight.dtype), [], {}
    ear = model.model.fc.register_forward_hook(lambda _m, _in, out: fused.append(out))
    with forward_context(ForwardContext(DenseAttention(texts))):
        for k in range(steps):
            # Every column's logits are wanted, so the prompt goes the way of an extension.
            mode = ForwardMode.DECODE if k else ForwardMode.DRAFT_EXTEND_V2
            fed = EagleDraftInput if k else EagleDraftExtendInput
            batch = ForwardBatch(
                forward_mode=mode,
                batch_size=columns,
                input_ids=torch.cat([tokens[k:], tokens.new_zeros(k)]),
                req_pool_indices=torch.arange(columns),
                seq_lens=torch.arange(1, columns + 1) + k,
                out_cache_loc=torch.arange(columns),
                seq_lens_sum=columns,
                positions=positions + k,
                spec_info=fed(hidden_states=state),
                capture_hidden_mode=CaptureHiddenMode.FULL,
            )
            said = model.forward(batch.input_ids, batch.positions, batch)
            state = said.hidden_states
            heard[f"logits.{k}"], heard[f"state.{k}"] = said.next_token_logits[None], state[None]
    ear.remove()
    return unpack(heard | {"fc": fused[0][None]}, valid)


def describe(case: Case) -> dict[str, Any]:
    """The config.json that SGLang reads the case's knobs from."""
    return {
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
        "num_hidden_layers": case["num_layers"],
        "rms_norm_eps": case["rms_norm_eps"],
        "max_position_embeddings": case["max_position_embeddings"],
        "rope_parameters": case["rope_parameters"],
        "tie_word_embeddings": False,
        "num_aux_hidden_states": case["num_aux"],
        "norm_before_fc": case["norm_before_fc"],
        "fc_norm": case["fc_norm"],
        "norm_output": case["norm_output"],
        "bias": case["fc_bias"],
        **case.get("also", {}),
    }


def write(job: Path, case: Case) -> None:
    """A draft of the case's knobs, as SGLang reads it, and its outputs."""
    weights, draft = read_weights(job, case), job / f"{case['name']}.checkpoint"
    draft.mkdir()
    (draft / "config.json").write_text(json.dumps(describe(case)))
    save_file(weights, draft / "model.safetensors")
    model, ledger = load(draft, case.get("dtype", "float32"))
    # Every layer has an input norm though only the first reads it, and `bias` makes one for the
    # attention's output too, of zeros.
    unread = {
        name
        for name in ledger.empty
        if name.endswith("o_proj.bias")
        or (name.endswith("input_layernorm.weight") and ".layers.0." not in name)
    }
    require_filled(case, ledger.empty - unread, ledger.unused(model) - {"t2d"})
    inputs = read_inputs(job, case)
    bind_target(model, {"embed_tokens": weights["embed_tokens.weight"]})
    with recorded(job, case, model, "sglang"):
        said = run(model, inputs, case["steps"])
    write_outputs(job, case, said)


def read(job: Path, case: Case) -> None:
    """A draft of ours, as SGLang's own loader reads it."""
    model, ledger = load(job / f"{case['name']}.draft")
    write_report(job, case, ledger.empty, ledger.unused(model), knobs(model))
    inputs = read_inputs(job, case)
    bind_target(model, inputs)
    write_outputs(job, case, run(model, inputs, case["steps"]))


def knobs(model: LlamaForCausalLMEagle3) -> dict[str, Any]:
    """What the model that was read is, not what its config says."""
    body, config = model.model, model.config
    attention = body.layers[0].self_attn
    head = "target" if model.load_lm_head_from_target else "own"
    if model.lm_head is body.embed_tokens:
        head = "tied"
    return {
        "hidden_size": config.hidden_size,
        "target_hidden_size": body.hidden_size_in,
        "num_heads": attention.total_num_heads,
        "num_kv_heads": attention.total_num_kv_heads,
        "head_dim": attention.head_dim,
        "intermediate_size": config.intermediate_size,
        "vocab_size": body.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "num_layers": len(body.layers),
        "num_aux": body.num_aux_hidden_states,
        "rms_norm_eps": body.norm.variance_epsilon,
        "max_position_embeddings": attention.max_position_embeddings,
        "rope_theta": attention.rope_theta,
        "rope_parameters": config.rope_parameters,
        "rope_class": type(attention.rotary_emb).__name__,
        "rotary_dim": attention.rotary_dim,
        "norm_before_fc": body.norm_before_fc,
        "fc_norm": body.fc_norm is not None,
        "norm_output": body.norm_output,
        "fc_bias": body.fc.bias is not None,
        "attention_bias": attention.qkv_proj.bias is not None,
        "output_bias": attention.o_proj.bias is not None,
        "head": head,
        "target_ids": None if model.hot_token_id is None else model.hot_token_id.tolist(),
        "eagle_config": getattr(config, "eagle_config", None),
    }


if __name__ == "__main__":
    start_engine()
    modes = {"write": write, "run": write, "read": read}
    sys.exit(run_job("Run SGLang's draft on a job directory.", modes))
