"""`eagle3-jax trace`: every named stage of a draft's steps over a shard, in one file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from tyro.conf import arg

from eagle3_jax.cli.drafts import ShardOptions
from eagle3_jax.cli.manners import FINE, near, people_console, require_destination, write_result
from eagle3_jax.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Trace(ShardOptions):
    """Write down what each part of a draft says at every step."""

    example: ClassVar[str] = (
        "eagle3-jax trace --draft my-draft/ --shards shards/ --out ours.safetensors"
    )

    draft: Annotated[Path, arg(metavar="DIR")]
    """The draft: a directory with config.json and weights of any framework."""
    shards: Annotated[tuple[Path, ...], arg(metavar="PATH...")]
    """Shard files of any framework, directories of them or patterns."""
    out: Annotated[Path, arg(metavar="FILE")]
    """The trace, safetensors; what stood there is replaced."""
    steps: Annotated[int, arg(metavar="K")] = 3
    """Draft steps."""
    documents: Annotated[int, arg(metavar="N")] = 1
    """How many documents, from the first on."""
    columns: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Most columns to keep of each document, evenly spread; all, where it is not given."""
    tokens: Literal["text", "own"] = "text"
    """What steps after 0 read: the text, as a trainer does, or the draft's own, as a server."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What weights and states are computed in."""

    def run(self) -> int:
        """Trace, write the file, say what is in it."""
        for path in (self.out, self.json):
            require_destination(path)
        if self.out.suffix != ".safetensors":
            raise InputError(f"--out is {self.out}, expected a name that ends in .safetensors")
        for name in ("steps", "documents", "columns"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name} is {value}, expected 1 or more")
        slots = self.chosen_slots()
        target = self.open_target()

        from converters.feeding import choose_capture
        from converters.traces import write_trace
        from eagle3_jax.cli.compiled import keep_compiled
        from eagle3_jax.cli.inputs import load
        from eagle3_jax.cli.lines import print_lines
        from eagle3_jax.cli.tracing import trace_documents
        from eagle3_jax.stages import layers_of, stage_names

        keep_compiled()
        inputs = load(
            near(self.draft),
            [near(path) for path in self.shards],
            target,
            reading=self.reading(target),
            layout=self.layout,
            last_state=self.last_state,
        )
        found = trace_documents(
            inputs,
            choose_capture(inputs.draft, inputs.shards, slots),
            steps=self.steps,
            documents=self.documents,
            columns=self.columns,
            own=self.tokens == "own",
            precision=self.precision,
            quiet=self.quiet,
        )
        write_trace(self.out, found)
        held = found.steps[0].stages
        every = stage_names(layers_of(set(held)))
        absent = [name for name in every if name not in held]
        columns = [len(step.rows) for step in found.steps]
        lines = {
            "trace": str(near(self.out)),
            "columns": f"{', '.join(map(str, columns))} at steps 0 to {self.steps - 1}",
            "stages": str(len(held)),
            "absent": ", ".join(absent) or "none",
            "draft": found.metadata["draft"],
        }
        print_lines(people_console(self), lines, inputs.draft.notes)
        write_result(
            self.json,
            {
                "trace": str(near(self.out)),
                "columns": columns,
                "stages": [name for name in every if name in held],
                "absent": absent,
                **found.metadata,
            },
        )
        return FINE
