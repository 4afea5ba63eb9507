"""Times speculators' draft on a CPU; Python of its environment only.

    PYTHON -I benchmarks/witness/time_speculators.py REQUEST

with PYTHON of `python benchmarks/witness_env.py speculators`.

What is counted: `Eagle3DraftModel.forward` with sdpa over one text, no gradient: projection, K
steps of the layer, the draft's logits and their argmax, which it makes itself. What is left out,
in its favour: the verifier's logits, the loss and the metrics. Our side also ranks the due token
among the logits, counts, and reads its result back.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from run_speculators import build
from timing import asked, tell

KNOBS = {
    "model_type": "llama",
    "attention": "sdpa",
    "num_aux": 3,
    "num_layers": 1,
    "attention_bias": False,
    "mlp_bias": False,
    "norm_before_residual": False,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
}


def main() -> None:
    """Build, run, tell."""
    wanted = asked("Time speculators' draft.")
    case = wanted.case | KNOBS
    model = build(case).to(wanted.dtype)
    columns = wanted.columns
    aux = torch.randn(1, columns, 3 * case["hidden_size"]).to(wanted.dtype)
    tokens = torch.randint(0, case["vocab_size"], (1, columns))

    def work() -> object:
        return model(
            hidden_states=aux,
            input_ids=tokens,
            document_ids=torch.zeros_like(tokens),
            position_ids=torch.arange(columns)[None],
            ttt_steps=case["steps"],
        )

    tell(wanted, work)


if __name__ == "__main__":
    main()
