"""What a draft amounts to in tokens per second, by the times that its user has measured.

    a round of k steps   k draft steps, one target forward that verifies them: k * draft + verify
    no draft             one target forward a token: baseline

The tokens of a round are those of a walk with k steps (`metrics`), for whoever drafts fewer steps
has more rounds. Verifying is taken to be as long for every k.
"""

from typing import Any, NamedTuple

from eagle3_jax.errors import InputError

# A nanosecond and eleven days: what lies beyond was measured in another unit.
_SHORTEST, _LONGEST = 1e-6, 1e9


class Costs(NamedTuple):
    """Times in milliseconds.

    Attributes:
        draft: of one draft step.
        verify: of one target forward that verifies a chain.
        baseline: of one target forward that decodes one token.
    """

    draft: float
    verify: float
    baseline: float


def costs_of(draft: float | None, verify: float | None, baseline: float | None) -> Costs | None:
    """The times that a user gave; `None` where none was given.

    Raises:
        InputError: when one is missing, or no time.
    """
    given = {"--draft-ms": draft, "--verify-ms": verify, "--baseline-ms": baseline}
    missing = [option for option, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if draft is None or verify is None or baseline is None:
        raise InputError(
            f"{' and '.join(missing)} missing, expected all three or none of {', '.join(given)}"
        )
    for option, value in given.items():
        if value is None or not _SHORTEST <= value <= _LONGEST:
            raise InputError(
                f"{option} is {value}, expected milliseconds from {_SHORTEST:g} to {_LONGEST:g}"
            )
    return Costs(draft, verify, baseline)


def reckon_speeds(walks: list[dict[str, Any]], costs: Costs) -> dict[str, Any]:
    """Tokens per second for each number of draft steps.

    Args:
        walks: `walked_by_steps` of `metrics.figures`.
        costs: the times of its parts.

    Returns:
        `draft_ms`, `verify_ms`, `baseline_ms`; `by_steps`: for each number of `steps`
        `tokens_per_round`, `round_ms`, `tokens_per_second` and `speedup`, from 0 on, which is the
        baseline; `best_steps`: the lowest number with the highest speed, 0 where no draft at all
        is as fast as any. What no round tells is `None`.
    """
    rounds = [(0, 1.0, costs.baseline)]
    for walk in walks:
        steps = walk["steps"]
        rounds.append((steps, walk["tokens_per_round"], steps * costs.draft + costs.verify))
    by_steps = [
        {
            "steps": steps,
            "tokens_per_round": tokens,
            "round_ms": ms,
            "tokens_per_second": None if tokens is None else 1000.0 * tokens / ms,
            "speedup": None if tokens is None else tokens * costs.baseline / ms,
        }
        for steps, tokens, ms in rounds
    ]
    known = [step for step in by_steps if step["speedup"] is not None]
    best = max(known, key=lambda step: step["speedup"])
    return {
        "draft_ms": costs.draft,
        "verify_ms": costs.verify,
        "baseline_ms": costs.baseline,
        "by_steps": by_steps,
        "best_steps": best["steps"] if len(known) > 1 else None,
    }
