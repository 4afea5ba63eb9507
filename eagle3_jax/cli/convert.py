"""`eagle3-jax convert`: a draft of one framework, written for another."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tyro.conf import Positional, arg

from eagle3_jax.cli.drafts import ReadingOptions
from eagle3_jax.cli.manners import FINE, near, people_console, require_destination, write_result
from eagle3_jax.errors import InputError
from eagle3_jax.native import CONFIG as NATIVE_CONFIG

_LONGEST = 2048  # what transformers' LlamaConfig takes where a config says nothing


@dataclass(frozen=True, kw_only=True)
class Convert(ReadingOptions):
    """Write a draft for another framework; lose only what you name."""

    example: ClassVar[str] = "eagle3-jax convert specforge-draft/ vllm-draft/ --to vllm"

    source: Positional[Annotated[Path, arg(metavar="SRC")]]
    """The draft: a directory with config.json and weights of any framework."""
    destination: Positional[Annotated[Path, arg(metavar="DST")]]
    """Where to write: a directory that does not exist yet."""
    to: Annotated[str, arg(metavar="DIALECT")]
    """Who is to read it: eagle, specforge, sglang, vllm, speculators, modelopt, native, ..."""
    overwrite: bool = False
    """Replace the destination when it exists."""

    def run(self) -> int:
        """Convert, print what became of every tensor, write the JSON."""
        require_destination(self.json)
        from converters.conversion import fit
        from converters.dialects import dialect_of
        from converters.dialects.native import NATIVE
        from converters.drafts import open_draft
        from converters.writing import fates, write_draft, written_bytes
        from eagle3_jax.cli.conversion_tables import print_conversion
        from eagle3_jax.cli.drafts import write_native
        from eagle3_jax.cli.progress import progress

        source, destination = near(self.source), near(self.destination)
        self._require_room(source, destination)
        reader = dialect_of(self.to)
        target = self.open_target()
        draft = open_draft(source, self.reading(target))
        longest = draft.max_positions
        notes: tuple[str, ...] = ()
        if longest is None and target is not None:
            longest = target.max_positions
        if longest is None:
            longest = _LONGEST
            notes = (f"max_position_embeddings is unknown: written is {longest}, Llama's default",)
        fitted = fit(
            draft,
            reader,
            where=str(destination),
            max_positions=longest,
            allowed=self.allow,
            target=target,
        )
        if self.to == NATIVE.name:
            write_native(destination, fitted, overwrite=self.overwrite)
        else:
            total = written_bytes(fitted)
            with progress("bytes", total, quiet=self.quiet) as tick:
                write_draft(destination, fitted, overwrite=self.overwrite, tick=tick)
        rows = fates(draft, fitted)
        told = (*draft.notes, *fitted.notes, *notes)
        print_conversion(people_console(self), source, destination, draft, fitted, rows, told)
        result: dict[str, Any] = {
            "source": str(source),
            "destination": str(destination),
            "from": draft.dialect.name,
            "evidence": list(draft.evidence),
            "to": self.to,
            "boundaries": fitted.draft.boundaries,
            "tensors": [row._asdict() for row in rows],
            "notes": list(told),
        }
        write_result(self.json, result)
        return FINE

    def _require_room(self, source: Path, destination: Path) -> None:
        """Refuse to replace what the draft is made of, or what is no draft."""
        place = destination.resolve()
        if place in source.resolve().parents:
            raise InputError(f"{destination}: holds the source {source}, expected another place")
        if self.target is not None:
            target = self.target.resolve()
            if place == target or place in target.parents:
                raise InputError(
                    f"{destination}: holds the target {near(self.target)}, expected another place"
                )
        if not self.overwrite or not place.is_dir() or not any(place.iterdir()):
            return
        if not any((place / name).exists() for name in ("config.json", NATIVE_CONFIG)):
            raise InputError(
                f"{destination}: holds neither config.json nor {NATIVE_CONFIG}, expected a draft "
                "to replace"
            )
