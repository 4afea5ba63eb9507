"""The documents of shards, those left out that are bad, and a tally of both."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from converters.shards import LayoutError, check_document, read_documents
from eagle3_jax.cli.inputs import Inputs
from eagle3_jax.errors import InputError
from eagle3_jax.structs import Document

_NAMED = 3  # bad documents in one message


@dataclass
class Tally:
    """What went by on the way to the batches.

    Attributes:
        tokens: of all counted documents.
        answer_tokens: of these, tokens that the loss mask marks.
        files: of each counted document, the number of its file.
        bad: what was wrong with each document or file that was left out.
        lost: how many documents these are; a file that could not be opened is one, since nobody
            knows how many it held.
    """

    tokens: int = 0
    answer_tokens: int = 0
    files: list[int] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    lost: int = 0

    def leave_out(self, told: str, documents: int = 1) -> None:
        """Count what is bad.

        Args:
            told: what, and what is wrong with it.
            documents: how many are lost with it.
        """
        self.bad.append(told)
        self.lost += documents


def tally_of(inputs: Inputs) -> Tally:
    """A tally before the first document: files that could not be opened are in it."""
    tally = Tally()
    for told in inputs.shards.broken:
        tally.leave_out(told)
    return tally


def good_documents(inputs: Inputs, tally: Tally, *, strict: bool) -> Iterator[Document]:
    """Every document, checked and counted; bad ones are left out, or end it where that is asked."""
    vocab_size = inputs.draft.config.vocab_size
    for number, file in enumerate(inputs.shards.files):
        read = 0
        try:
            for document in read_documents(file):
                wrong = check_document(document, vocab_size)
                told = f"{file.path}: document {read} {wrong}"
                read += 1
                if wrong is None:
                    tally.files.append(number)
                    tally.tokens += len(document.ids)
                    tally.answer_tokens += int(document.answer.sum())
                    yield document
                elif strict:
                    raise InputError(told)
                else:
                    tally.leave_out(told)
        except InputError as error:  # with it goes the rest of the file
            if strict or isinstance(error, LayoutError):
                raise
            tally.leave_out(str(error), file.documents - read)


def require_good(tally: Tally, whole: int, max_bad: float) -> None:
    """Refuse more bad documents than the user puts up with.

    Args:
        tally: of what went by so far.
        whole: how many documents there are, those in it that are lost included.
        max_bad: the share of them that may be bad.

    Raises:
        InputError: when more are, or all.
    """
    if tally.lost and (tally.lost > max_bad * whole or tally.lost == whole):
        more = f" and {len(tally.bad) - _NAMED} more" if len(tally.bad) > _NAMED else ""
        raise InputError(
            f"{tally.lost} of {whole} documents are bad, expected at most {max_bad:.1%} "
            f"(--max-bad): {'; '.join(tally.bad[:_NAMED])}{more}"
        )
