"""`eagle3-jax eval`: how often a draft is right on stored target states."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import arg

from eagle3_jax.cli.manners import (
    FINE,
    Options,
    near,
    people_console,
    require_destination,
    write_result,
)
from eagle3_jax.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Eval(Options):
    """Count how often a draft is right on stored target states, step by step."""

    example: ClassVar[str] = "eagle3-jax eval --draft my-draft/ --shards shards/ --json result.json"

    draft: Annotated[Path, arg(metavar="DIR")]
    """The draft: a directory with config.json and safetensors."""
    shards: Annotated[tuple[Path, ...], arg(metavar="PATH...")]
    """Shard files, or directories of them."""
    target: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """The target's directory, for token embeddings or a head that the draft has not got."""
    steps: Annotated[int, arg(metavar="K")] = 5
    """Draft steps per round."""
    slots: Annotated[str | None, arg(metavar="I,J,...", help_behavior_hint="")] = None
    """Which stored states feed the draft, counted from 0: overrides the draft's config."""

    def run(self) -> int:
        """Evaluate, print the table, write the JSON."""
        require_destination(self.json)
        slots = None if self.slots is None else _slots(self.slots)

        from eagle3_jax.cli.inputs import load
        from eagle3_jax.cli.scoring import as_json, capture_of, score
        from eagle3_jax.cli.tables import print_score

        inputs = load(
            near(self.draft),
            [near(path) for path in self.shards],
            None if self.target is None else near(self.target),
        )
        result = score(inputs, capture_of(inputs, slots), steps=self.steps, quiet=self.quiet)
        print_score(people_console(self), inputs, result)
        write_result(self.json, as_json(inputs, result))
        return FINE


def _slots(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(f"--slots is {text!r}, expected numbers from 0, like 0,1,2")
    return tuple(int(part) for part in parts)
