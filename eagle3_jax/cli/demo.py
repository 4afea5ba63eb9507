"""`eagle3-jax demo`: a real draft, wired as it was trained and wired wrongly."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import arg

from eagle3_jax.cli.manners import (
    FINE,
    SAYS_NO,
    Options,
    near,
    people_console,
    require_destination,
    write_result,
)
from eagle3_jax.errors import InputError

SHIPPED = Path(__file__).resolve().parents[1] / "demo"
_TITLE = "One draft, the same stored states, two ways to read them"
# Accepted draft tokens per round, right over wrong: less would be no lesson.
_CLEARLY_BETTER = 1.25


@dataclass(frozen=True, kw_only=True)
class Demo(Options):
    """Evaluate the shipped draft, and the same states read wrongly."""

    example: ClassVar[str] = "eagle3-jax demo --json demo.json --picture demo.png"

    picture: Annotated[Path, arg(metavar="FILE")] = Path("eagle3-jax-demo.png")
    """Where the picture goes, a PNG."""
    steps: Annotated[int, arg(metavar="K")] = 5
    """Draft steps per round."""

    def run(self, directory: Path = SHIPPED) -> int:
        """Evaluate both readings, print them, write picture and JSON.

        Args:
            directory: holds `draft/`, `shards/` and `card.json`.

        Returns:
            0 when the right reading is clearly better, else 1.
        """
        require_destination(self.json)
        require_destination(self.picture)
        for name in ("draft", "shards", "card.json"):
            if not (directory / name).exists():
                raise InputError(
                    f"{near(directory / name)}: not there, expected it in the package: the "
                    "demo's draft, shards and card ship with eagle3-jax"
                )

        from converters.feeding import Capture, choose_capture
        from converters.files import read_json
        from converters.listing import listed
        from eagle3_jax.cli.compiled import keep_compiled
        from eagle3_jax.cli.inputs import load
        from eagle3_jax.cli.scoring import as_json, score
        from eagle3_jax.cli.tables import described, print_comparison, read
        from eagle3_jax.report import draw_readings, save_picture

        keep_compiled()
        card = read_json(directory / "card.json")
        inputs = load(near(directory / "draft"), [near(directory / "shards")])
        wired = choose_capture(inputs.draft, inputs.shards)
        stored = inputs.shards.info.boundaries
        if stored is None or wired.boundaries is None:
            raise InputError(f"{near(directory)}: says no boundaries, expected them in the package")
        last = tuple(range(len(stored) - len(wired.slots), len(stored)))
        shifted = Capture(
            last, tuple(stored[slot] for slot in last), "taking the last stored states"
        )

        right = score(inputs, wired, steps=self.steps, quiet=self.quiet, what="right reading")
        wrong = score(inputs, shifted, steps=self.steps, quiet=self.quiet, what="wrong reading")
        accepted = [one.figures["accepted_per_round"] for one in (right, wrong)]
        clear = accepted[0] > 0 and accepted[0] >= _CLEARLY_BETTER * accepted[1]

        lengths = [one.figures["tokens_per_round"] for one in (right, wrong)]
        fed = listed(tuple(stored[slot] for slot in last))
        trained = listed(wired.boundaries)
        story = (
            f"Fed target states {fed} where it was trained on {trained}, the draft still gets the "
            "shapes that it expects: nothing crashed, nothing warned, and tokens per round went "
            f"from {lengths[0]:.2f} to {lengths[1]:.2f}."
        )
        lines = {
            "right": described(inputs, wired),
            "wrong": described(inputs, shifted),
            "embeddings": inputs.embeddings,
            "documents": read(inputs, right),
            "picture": str(near(self.picture)),
        }
        console = people_console(self)
        print_comparison(console, right, wrong, lines, inputs.draft.notes)
        console.print(f"\n{story}", soft_wrap=True)
        readings = {"wired right": right.figures, "wired wrong": wrong.figures}
        save_picture(draw_readings(readings, title=_TITLE, story=story), self.picture)
        result = {
            "right": as_json(inputs, right),
            "wrong": as_json(inputs, wrong),
            "clearly_better": clear,
            "picture": str(near(self.picture)),
            "card": card,
        }
        write_result(self.json, result)
        return FINE if clear else SAYS_NO
