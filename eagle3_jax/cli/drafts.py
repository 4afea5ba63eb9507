"""Drafts, for commands: options that say how one is read, and writing the native form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import UseAppendAction, arg

from eagle3_jax.cli.manners import Options, near
from eagle3_jax.errors import InputError

if TYPE_CHECKING:  # `--help` of every command imports this module
    from converters.conversion import Fitted
    from converters.drafts import Reading
    from converters.targets import OpenTarget

_DIGITS = 10  # that no number of layers or slots has


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(Options):
    """Options of commands that read a draft which may not say everything."""

    from_: Annotated[str | None, arg(name="from", metavar="DIALECT", help_behavior_hint="")] = None
    """Whose draft it is, where its files do not tell, or tell it wrongly."""
    set: Annotated[
        UseAppendAction[tuple[str, ...]], arg(metavar="NAME=VALUE", help_behavior_hint="")
    ] = ()
    """A value that wins over the file, like norm_output=true; once for each."""
    boundaries: Annotated[str | None, arg(metavar="B,B,B", help_behavior_hint="")] = None
    """Which target states feed the draft, as boundaries: 0 the embeddings, L the last."""
    target_layers: Annotated[int | None, arg(metavar="L", help_behavior_hint="")] = None
    """Layers of the target: gives the default capture, and the range of layer ids."""
    vocab_mapping: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """The draft vocabulary: .pt, .npy or .safetensors with d2t or t2d, or JSON with ids."""
    target: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """The target's directory: its depth, and tensors that the draft shares with it."""
    allow: Annotated[
        UseAppendAction[tuple[str, ...]], arg(metavar="NAME", help_behavior_hint="")
    ] = ()
    """Accept a loss that was refused by this name, or pass over an unknown key or tensor."""

    def reading(self, target: OpenTarget | None) -> Reading:
        """How the draft is to be read.

        Raises:
            InputError: when an option is no such thing, or two contradict each other.
        """
        from converters.drafts import Reading
        from converters.ledger import parse_settings
        from converters.vocab_files import read_mapping

        layers = self.target_layers
        if layers is not None and layers < 1:
            raise InputError(f"--target-layers is {layers}, expected a positive number")
        if target is not None:
            if layers not in (None, target.num_layers):
                raise InputError(
                    f"--target-layers is {layers}, but {target.directory} has "
                    f"{target.num_layers}, expected one of the two"
                )
            layers = target.num_layers
        mapping = None if self.vocab_mapping is None else read_mapping(near(self.vocab_mapping))
        return Reading(
            self.from_,
            parse_settings(self.set),
            None if self.boundaries is None else numbers(self.boundaries, "--boundaries"),
            layers,
            mapping,
            frozenset(self.allow),
        )

    def open_target(self) -> OpenTarget | None:
        """The target's parts, where `--target` names one.

        Raises:
            InputError: when there is no target.
        """
        from converters.targets import open_target

        return None if self.target is None else open_target(near(self.target))


@dataclass(frozen=True, kw_only=True)
class ShardOptions(ReadingOptions):
    """Options of commands that run a draft on stored states."""

    slots: Annotated[str | None, arg(metavar="I,J,...", help_behavior_hint="")] = None
    """Which stored states feed the draft, counted from 0: overrides the draft's config."""
    layout: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Whose shards they are, where their keys do not tell: specforge, speculators, modelopt, ..."""
    last_state: Annotated[
        Literal["pre_norm", "post_norm", "absent"] | None, arg(help_behavior_hint="")
    ] = None
    """What the last stored state is, where the shards do not say."""

    def chosen_slots(self) -> tuple[int, ...] | None:
        """The states that `--slots` names.

        Raises:
            InputError: when they are no numbers.
        """
        return None if self.slots is None else numbers(self.slots, "--slots")


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Numbers from 0, separated by commas.

    Raises:
        InputError: when they are something else.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) < _DIGITS for part in parts):
        raise InputError(f"{option} is {text!r}, expected numbers from 0, like 0,1,2")
    return tuple(int(part) for part in parts)


def write_native(directory: Path, fitted: Fitted, *, overwrite: bool) -> None:
    """Write a draft in the native form, whole or not at all.

    Raises:
        InputError: when the directory exists.
    """
    from converters.drafts import read_whole
    from converters.files import whole_directory
    from eagle3_jax.checkpoints import Checkpoint, write_checkpoint

    draft = fitted.draft
    loaded = read_whole(draft)
    with whole_directory(directory, overwrite=overwrite) as building:
        write_checkpoint(
            building,
            Checkpoint(
                loaded.config,
                loaded.params,
                loaded.vocab,
                loaded.embeddings,
                loaded.boundaries,
                draft.max_positions,
                draft.target_name,
            ),
        )
