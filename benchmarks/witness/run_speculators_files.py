"""Has speculators read drafts, and convert others into its own; Python of its environment only.

    PYTHON=$(python benchmarks/witness_env.py speculators)
    $PYTHON -I benchmarks/witness/run_speculators_files.py JOB

`jobs.py` describes JOB, and `run_speculators.py` the knobs of a case of mode "write" and the
conventions of its outputs. `save_pretrained` writes NAME.checkpoint/.

A case of mode "read" holds `steps`, and `attention` as there. NAME.draft/ is loaded by
`Eagle3DraftModel`, as its `from_pretrained` does it, with these differences: it is asked for its
loading info, it hides no missing key (it would hide the embeddings', d2t, t2d and `input_norm`'s),
and a verifier without a name is left alone, where `from_pretrained` would look for one called
"None" on the hub and end with an error. Where the config names a verifier, its weights are read
too, which fills embeddings and a head that the draft has not. `embed_tokens [V,D]` of the inputs
stands in for embeddings that are still missing after that.

A case of mode "convert" has NAME.draft/ in another framework's style turned into NAME.checkpoint/
by speculators' own converter; `verifier` is a directory with a target's config, and `options` are
the converter's keywords, say `norm_before_residual`.
"""

import os
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from jobs import Case, read_inputs, read_weights, run_job, write_outputs, write_report
from run_speculators import VERIFIER_ONLY, build, load, run
from speculators.convert.entrypoints import convert_model
from speculators.model import SpeculatorModel
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig


def write(job: Path, case: Case) -> None:
    """A draft of speculators' making, its outputs and its files."""
    model = build(case)
    load(model, read_weights(job, case), case["name"])
    write_outputs(job, case, run(model, read_inputs(job, case), case["steps"]))
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
        model.load_verifier_weights()
    inputs = read_inputs(job, case)
    if model.embed_tokens.weight.isnan().any():
        model.embed_tokens.weight.copy_(inputs["embed_tokens"])
    write_outputs(job, case, run(model.float().eval(), inputs, case["steps"]))


def convert(job: Path, case: Case) -> None:
    """A draft of another style, as speculators' own converter writes it."""
    convert_model(
        model=str(job / f"{case['name']}.draft"),
        verifier=case["verifier"],
        algorithm="eagle3",
        output_path=str(job / f"{case['name']}.checkpoint"),
        **case["options"],
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
            "Run speculators on a job directory of files.",
            {"write": write, "read": read, "convert": convert},
        )
    )
