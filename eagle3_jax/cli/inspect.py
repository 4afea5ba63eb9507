"""`eagle3-jax inspect`: what a draft is, told by its files alone; or what tells two apart."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tyro.conf import Positional, arg

from eagle3_jax.cli.drafts import ReadingOptions
from eagle3_jax.cli.manners import FINE, near, people_console, require_destination, write_result
from eagle3_jax.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Inspect(ReadingOptions):
    """Tell what a draft is: whose, its knobs, capture, vocabulary."""

    example: ClassVar[str] = "eagle3-jax inspect my-draft/ --target-layers 32"

    path: Positional[Annotated[Path, arg(metavar="PATH")]]
    """The draft: a directory with config.json and weights of any framework."""
    other: Positional[Annotated[Path | None, arg(metavar="[PATH2]", help_behavior_hint="")]] = None
    """Another draft: only what tells the two apart is shown."""

    target_class: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """The target's model_type, like llama or deepseek_v3: tells how each engine would read it."""

    def run(self) -> int:
        """Read headers and small tensors, print the tables, write the JSON."""
        require_destination(self.json)
        if self.target_class is not None and self.target_layers is None and self.target is None:
            raise InputError(
                "--target-class asks how engines would read the draft, which depends on the "
                "target's depth, expected --target-layers or --target too"
            )
        if self.target_class is not None and self.other is not None:
            raise InputError(
                "--target-class asks how engines would read one draft, expected no second one"
            )
        from converters.description import differences
        from converters.drafts import open_draft
        from eagle3_jax.cli.conversion_tables import as_json, print_differences, print_draft

        target = self.open_target()
        reading = self.reading(target)
        console = people_console(self)
        path = near(self.path)
        draft = open_draft(path, reading)
        if self.other is None:
            try:
                told = as_json(draft, path, reading.target_layers)
            except ValueError as error:
                raise InputError(f"--target-layers: {error}") from None
            print_draft(console, told)
            if self.target_class is not None or target is not None:
                from eagle3_jax.cli.engines import engine_row, print_engines, served_by_all

                assert reading.target_layers is not None, "required above"
                served = served_by_all(
                    path, draft, reading.target_layers, self.target_class, target
                )
                told["engines"] = [engine_row(one) for one in served]
                print_engines(console, told["engines"])
            write_result(self.json, told)
            return FINE
        other = near(self.other)
        rows = differences(draft, open_draft(other, reading))
        print_differences(console, path, other, rows)
        result: dict[str, Any] = {
            "paths": [str(path), str(other)],
            "same": not rows,
            "differences": [
                {"what": what, "first": first, "second": second} for what, first, second in rows
            ],
        }
        write_result(self.json, result)
        return FINE
