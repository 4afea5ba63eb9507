"""`eagle3-jax eval`: how often a draft is right on stored target states."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from tyro.conf import arg

from eagle3_jax.cli.drafts import ShardOptions
from eagle3_jax.cli.manners import FINE, near, people_console, require_destination, write_result
from eagle3_jax.cli.speeds import costs_of, reckon_speeds
from eagle3_jax.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Eval(ShardOptions):
    """Count how often a draft is right on stored target states."""

    example: ClassVar[str] = "eagle3-jax eval --draft my-draft/ --shards shards/ --json result.json"

    draft: Annotated[Path, arg(metavar="DIR")]
    """The draft: a directory with config.json and weights of any framework."""
    shards: Annotated[tuple[Path, ...], arg(metavar="PATH...")]
    """Shard files of any framework, directories of them or patterns; each is a group."""
    steps: Annotated[int, arg(metavar="K")] = 5
    """Draft steps per round."""
    max_bad: Annotated[float, arg(metavar="SHARE")] = 0.01
    """How many documents may be left out for what is wrong with them; a broken file is one."""
    strict: bool = False
    """Stop at the first bad document or file."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What weights and states are computed in."""
    as_: Annotated[
        Literal["specforge", "speculators", "eagle", "automodel", "specjax", "modelopt"] | None,
        arg(name="as", help_behavior_hint=""),
    ] = None
    """Add the figures that this framework's own evaluation gives, under its names."""
    draft_ms: Annotated[float | None, arg(metavar="MS", help_behavior_hint="")] = None
    """Time of one draft step; with the next two, tokens per second are reckoned."""
    verify_ms: Annotated[float | None, arg(metavar="MS", help_behavior_hint="")] = None
    """Time of one target forward that verifies a chain."""
    baseline_ms: Annotated[float | None, arg(metavar="MS", help_behavior_hint="")] = None
    """Time of one target forward that decodes one token, without a draft."""

    def run(self) -> int:
        """Evaluate, print the table, write the JSON."""
        require_destination(self.json)
        slots = self.chosen_slots()
        if not 0 <= self.max_bad < 1:
            raise InputError(f"--max-bad is {self.max_bad}, expected a share from 0 to below 1")
        max_bad = 0.0 if self.strict else self.max_bad
        costs = costs_of(self.draft_ms, self.verify_ms, self.baseline_ms)
        target = self.open_target()

        from converters.feeding import choose_capture
        from eagle3_jax.cli.compiled import keep_compiled
        from eagle3_jax.cli.conventions import reckon, require_teacher
        from eagle3_jax.cli.inputs import load
        from eagle3_jax.cli.scoring import as_json, score
        from eagle3_jax.cli.tables import print_groups, print_reckoning, print_score, print_speeds

        keep_compiled()
        inputs = load(
            near(self.draft),
            [near(path) for path in self.shards],
            target,
            reading=self.reading(target),
            layout=self.layout,
            last_state=self.last_state,
            strict=max_bad == 0.0,
        )
        if self.as_ is not None:
            require_teacher(self.as_, inputs)
        capture = choose_capture(inputs.draft, inputs.shards, slots)
        result = score(
            inputs,
            capture,
            steps=self.steps,
            quiet=self.quiet,
            max_bad=max_bad,
            precision=self.precision,
        )
        console, found = people_console(self), as_json(inputs, result)
        print_score(console, inputs, result)
        print_groups(console, result)
        if costs is not None:
            found["speed"] = reckon_speeds(result.figures["walked_by_steps"], costs)
            print_speeds(console, found["speed"])
        if self.as_ is not None:
            theirs = reckon(self.as_, inputs, capture, steps=self.steps, quiet=self.quiet)
            print_reckoning(console, theirs)
            found["as"] = theirs
        write_result(self.json, found)
        return FINE
