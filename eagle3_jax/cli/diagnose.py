"""`eagle3-jax diagnose`: name the fault in how a draft is wired."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import arg

from eagle3_jax.cli.drafts import ShardOptions
from eagle3_jax.cli.manners import (
    FINE,
    SAYS_NO,
    near,
    people_console,
    require_destination,
    write_result,
)
from eagle3_jax.cli.reporting import require_report_directory, write_report
from eagle3_jax.errors import InputError

HEALTHY = "wired as configured"


@dataclass(frozen=True, kw_only=True)
class Diagnose(ShardOptions):
    """Find out how a draft was wired, and which engine reads it so."""

    example: ClassVar[str] = (
        "eagle3-jax diagnose --draft my-draft/ --shards shards/ --target target/ --report report/"
    )

    draft: Annotated[Path, arg(metavar="DIR")]
    """The draft: a directory with config.json and weights of any framework."""
    shards: Annotated[tuple[Path, ...], arg(metavar="PATH...")]
    """Shard files of any framework, directories of them or patterns."""
    steps: Annotated[int, arg(metavar="K")] = 3
    """Draft steps per round."""
    target_class: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """The target's model_type, like llama, qwen3 or deepseek_v3: some engines have rules for it."""
    recompute: bool = False
    """Run the target on a few documents: which boundary is each stored state?"""
    trained_accuracy: Annotated[float | None, arg(metavar="P", help_behavior_hint="")] = None
    """First-token accuracy that the training reported, as a share: 0.747."""
    serving: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")] = None
    """States that a server captured for the same texts: files, a directory or a pattern."""
    report: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Where the report goes: one HTML page, its pictures and the JSON."""

    def run(self) -> int:
        """Diagnose, print what was found, write the JSON and the report.

        Returns:
            0 when the draft is wired as configured, else 1.
        """
        require_destination(self.json)
        require_report_directory(self.report)
        slots = self.chosen_slots()
        if self.steps < 1:
            raise InputError(f"--steps is {self.steps}, expected 1 or more")
        if self.trained_accuracy is not None and not 0 < self.trained_accuracy <= 1:
            raise InputError(
                f"--trained-accuracy is {self.trained_accuracy}, expected a share above 0 and up "
                "to 1, like 0.747"
            )
        if self.recompute and self.target is None:
            raise InputError("--recompute runs the target, expected --target with its directory")
        target = self.open_target()

        from eagle3_jax.cli.compiled import keep_compiled
        from eagle3_jax.cli.diagnosing import diagnose
        from eagle3_jax.cli.diagnosis_tables import print_diagnosis
        from eagle3_jax.cli.inputs import load
        from eagle3_jax.cli.searching import Wanted

        keep_compiled()
        reading = self.reading(target)
        inputs = load(
            near(self.draft),
            [near(path) for path in self.shards],
            target,
            reading=reading,
            layout=self.layout,
            last_state=self.last_state,
            strict=False,
            teacher=False,
        )
        wanted = Wanted(
            slots=slots,
            steps=self.steps,
            target=target,
            target_layers=reading.target_layers,
            target_class=self.target_class,
            recompute=self.recompute,
            trained_accuracy=self.trained_accuracy,
            serving=None if self.serving is None else near(self.serving),
            reading=reading,
        )
        found = diagnose(inputs, wanted, quiet=self.quiet)
        print_diagnosis(people_console(self), found)
        if self.report is not None:
            write_report(near(self.report), found)
        write_result(self.json, found)
        return FINE if found["verdict"]["kind"] == HEALTHY else SAYS_NO
