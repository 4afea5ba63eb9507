"""`eagle3-jax capture`: a target's states at every token of some texts, as shards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from tyro.conf import arg

from eagle3_jax.capture import default_boundaries
from eagle3_jax.cli.drafts import numbers
from eagle3_jax.cli.manners import (
    FINE,
    Options,
    near,
    people_console,
    require_destination,
    write_result,
)
from eagle3_jax.errors import InputError

if TYPE_CHECKING:  # `--help` of every command imports this module
    from converters.chats import Text
    from converters.targets import OpenTarget
    from eagle3_jax.cli.torch_engine import Outline

_LONGEST = 2048  # tokens of a text by default, where the target has that many positions


@dataclass(frozen=True, kw_only=True)
class Capture(Options):
    """Run a target over texts or prompts, and store its states."""

    example: ClassVar[str] = (
        "eagle3-jax capture --target llama/ --text chats.jsonl --output shards/\n"
        "  eagle3-jax capture --target llama/ --text prompts.jsonl --generate 256 --output shards/"
    )

    target: Annotated[Path, arg(metavar="DIR")]
    """The target: a directory with config.json and all weights."""
    text: Annotated[tuple[Path, ...], arg(metavar="FILE...")]
    """JSON lines, each with one of text, ids (and loss_mask or prompt_length), messages."""
    output: Annotated[Path, arg(metavar="DIR")]
    """The directory of the shards: a new one, or that of a run to go on with."""
    generate: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Answer the last prompt of each line greedily, with at most N tokens, and store that."""
    boundaries: Annotated[str | None, arg(metavar="B,B,B", help_behavior_hint="")] = None
    """Which states: 0 the embeddings; by default 2, L//2, L-3. The last state always comes too."""
    engine: Literal["auto", "jax", "transformers"] = "auto"
    """What runs the target; auto is jax for Llama, Qwen2, Qwen3, Mistral, else transformers."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """The type of the stored states."""
    compute: Literal["stored", "bfloat16", "float32"] = "stored"
    """The precision of the target's pass; stored is that of its weights on disk."""
    embeddings: bool = False
    """Store the embedding of each token too, so that nobody needs the target's table."""
    answers: Literal["all", "last"] = "all"
    """Which answers of a chat the loss mask marks."""
    max_length: Annotated[int | None, arg(metavar="T", help_behavior_hint="")] = None
    """Cut texts to T tokens; by default 2048, or as many as the target has positions."""
    documents_per_shard: Annotated[int, arg(metavar="N")] = 128
    """Texts per shard, which is what an interrupted run loses at most."""
    batch_tokens: Annotated[int, arg(metavar="N")] = 4096
    """Tokens that are read together, padding included."""
    rows: Annotated[int, arg(metavar="N")] = 32
    """Prompts that are answered together."""
    tokenizer: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Where tokenizer.json is, if not in the target's directory."""
    chat_template: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """The chat template, if not the one beside the tokenizer."""
    overwrite: bool = False
    """Remove shards in the output directory that other inputs or options made."""

    def run(self) -> int:
        """Read the texts, then the target; write shard after shard; tell what was written."""
        require_destination(self.json)
        self._require_positive()
        engine = self._engine()
        target = self._open_target(engine)
        boundaries = self._boundaries(target.num_layers)
        longest = self._longest(target.max_positions)
        self._require_room()
        texts, counts = self._texts(target.vocab_size, longest)

        from eagle3_jax.cli.capturing import Job, capture, print_capture

        job = Job(
            engine=engine,
            target=near(self.target),
            tokenizer=near(self.tokenizer or self.target),
            output=near(self.output),
            boundaries=boundaries,
            dtype=self.dtype,
            compute=self.compute,
            embeddings=self.embeddings,
            max_new=self.generate,
            longest=longest,
            documents_per_shard=self.documents_per_shard,
            columns=self.batch_tokens,
            rows=self.rows,
        )
        result = capture(job, texts, counts, overwrite=self.overwrite, quiet=self.quiet)
        print_capture(people_console(self), result)
        write_result(self.json, result)
        return FINE

    def _require_positive(self) -> None:
        for name in ("generate", "max_length", "documents_per_shard", "batch_tokens", "rows"):
            value = {**vars(self)}[name]
            if value is not None and value < 1:
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option} is {value}, expected a positive number")
        if not self.text:
            raise InputError("--text names nothing, expected files of JSON lines")

    def _engine(self) -> Literal["jax", "transformers"]:
        """What is to run the target; a missing library is told before all else."""
        from converters.files import read_json, require_directory
        from converters.targets import FAMILIES

        directory = near(self.target)
        require_directory(directory, "a target")
        file = directory / "config.json"
        family = read_json(file).get("model_type")
        if self.engine == "jax" or (self.engine == "auto" and family in FAMILIES):
            return "jax"
        from eagle3_jax.cli.torch_engine import require_extra

        asked = self.engine == "transformers"
        require_extra(
            "--engine is transformers"
            if asked
            else f"{file}: model_type is {family!r}, which runs through transformers"
        )
        return "transformers"

    def _open_target(self, engine: Literal["jax", "transformers"]) -> OpenTarget | Outline:
        """The target by its headers: what cannot be run is refused before all else."""
        from converters.files import read_json
        from converters.targets import open_target, read_target_config

        directory = near(self.target)
        if engine == "transformers":
            from eagle3_jax.cli.torch_engine import read_outline

            return read_outline(directory)
        target = open_target(directory)
        file = directory / "config.json"
        read_target_config(read_json(file), str(file), has_head=True)
        return target

    def _boundaries(self, layers: int) -> tuple[int, ...]:
        if self.boundaries is None:
            try:
                return default_boundaries(layers)
            except ValueError as error:
                raise InputError(f"{error}: --boundaries names them") from None
        from converters.captures import require_boundaries

        found = numbers(self.boundaries, "--boundaries")
        require_boundaries(found, layers)
        if found[-1] == layers:
            raise InputError(
                f"--boundaries ends with {layers}, the last state, which is always stored; "
                f"expected 0 to {layers - 1}"
            )
        return found

    def _longest(self, positions: int | None) -> int:
        if self.max_length is None:
            return min(_LONGEST, positions or _LONGEST)
        if positions is not None and self.max_length > positions:
            raise InputError(
                f"--max-length is {self.max_length}, expected at most {positions}, the positions "
                "of the target"
            )
        return self.max_length

    def _require_room(self) -> None:
        """Refuse to write among the files that are read."""
        place = self.output.resolve()
        if place in (self.target.resolve(), (self.tokenizer or self.target).resolve()):
            raise InputError(f"{near(self.output)}: holds what is read, expected another place")

    def _texts(self, vocab_size: int, longest: int) -> tuple[list[Text], dict[str, int]]:
        """All texts, cut to length, and how many lost something by it.

        They are all read before the target runs: a bad line is told at once, not after hours.
        """
        from functools import cache

        from converters.chats import ChatTokenizer, Text
        from converters.texts import TextReader

        template = None if self.chat_template is None else near(self.chat_template)
        place = near(self.tokenizer or self.target)
        reader = TextReader(
            cache(lambda: ChatTokenizer(place, template)),
            vocab_size,
            self.answers,
            prompts=self.generate is not None,
        )
        texts: list[Text] = []
        counts = {"truncated": 0, "without_answer": 0, "left_out": 0}
        for file in self.text:
            for found in reader.read(near(file)):
                if self.generate is not None and len(found.ids) >= longest:
                    counts["left_out"] += 1  # no room for an answer
                    continue
                counts["truncated"] += len(found.ids) > longest
                kept = Text(found.ids[:longest], found.answer[:longest])
                counts["without_answer"] += self.generate is None and not kept.answer.any()
                texts.append(kept)
        if not texts:
            named = ", ".join(str(near(file)) for file in self.text)
            raise InputError(
                f"{named}: found no text to {'read' if self.generate is None else 'answer'}"
                f"{f' below {longest} tokens' if counts['left_out'] else ''}, expected JSON lines"
            )
        return texts, counts
