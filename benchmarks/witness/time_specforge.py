"""Times SpecForge's trainer forward on a CPU; Python of its environment only.

    $(python benchmarks/witness_env.py specforge) -I benchmarks/witness/time_specforge.py REQUEST

What is counted: `OnlineEagle3Model.forward` with sdpa over one text, no gradient: projection,
K steps of the layer, the draft's logits and their argmax. What is left out, in its favour: the
teacher (softmax over the target's logits), the loss, and the counting of right tokens. Our side
also ranks the due token among the logits, counts, and reads its result back.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import json
import tempfile

import torch
from run_specforge import LosslessEagle3Model, describe
from specforge.algorithms.eagle3 import model as trainer
from specforge.modeling.auto import AutoDraftModel, AutoDraftModelConfig
from timing import asked, tell


class ArgmaxEagle3Model(LosslessEagle3Model):
    """The trainer that reads of its logits which is the largest, and no more."""

    def _acc_and_loss(self, *, logits: torch.Tensor, **_: Any) -> tuple[Any, ...]:
        return (logits.argmax(-1),) + (None,) * 6


def no_teacher(
    target: torch.Tensor, t2d: torch.Tensor, loss_mask: torch.Tensor, length: int
) -> tuple[torch.Tensor, ...]:
    """Stands in for the teacher: nothing reads it here."""
    rows, columns = loss_mask.shape[:2]
    empty = torch.zeros(rows, columns + length, 1)
    return empty, empty, empty[..., 0].long(), loss_mask


def main() -> None:
    """Build, run, tell."""
    wanted = asked("Time SpecForge's trainer forward.")
    trainer._compute_target_p_padded = no_teacher
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "config.json"
        config.write_text(json.dumps(describe(wanted.case)))
        draft = AutoDraftModel.from_config(AutoDraftModelConfig.from_file(str(config)))
    draft = draft.eval().to(wanted.dtype)
    vocab, columns = wanted.case["vocab_size"], wanted.columns
    aux = torch.randn(1, columns, 3 * wanted.case["target_hidden_size"]).to(wanted.dtype)
    tokens = torch.randint(0, vocab, (1, columns))
    model = ArgmaxEagle3Model(draft, length=wanted.case["steps"], attention_backend="sdpa")

    def work() -> object:
        return model(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            target=torch.zeros(1),
            loss_mask=torch.ones(1, columns, 1),
            hidden_states=aux,
            position_ids=torch.arange(columns)[None],
        )

    tell(wanted, work)


if __name__ == "__main__":
    main()
