"""Prompts from a published set of human chats, to train and test on; none of it is shipped.

pip install --no-deps chitchat-dataset==0.9.0
"""

import hashlib
import importlib.util
import json
from pathlib import Path

from eagle3_jax.errors import InputError

_HELD_OUT_SHARE = 40  # one prompt in 40, by its hash: the same prompts whatever the order


def chitchat_prompts(*, held_out: bool) -> list[str]:
    """Distinct openings and topics of the chats, three words or more.

    Args:
        held_out: the test split; otherwise the training split. A text is in one of them only.

    Raises:
        InputError: when the package is missing.
    """
    spec = importlib.util.find_spec("chitchat_dataset")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "package chitchat_dataset is not installed, expected: "
            "pip install --no-deps chitchat-dataset==0.9.0"
        )
    file = Path(spec.submodule_search_locations[0]) / "dataset.json"
    chats = json.loads(file.read_text(encoding="utf-8")).values()
    topics = [chat["prompt"] for chat in chats if chat.get("prompt")]
    openings = [chat["messages"][0][0]["text"] for chat in chats]
    texts = dict.fromkeys(text.strip() for text in topics + openings)
    wordy = [text for text in texts if len(text.split()) >= 3]
    return [text for text in wordy if _in_held_out(text) == held_out]


def _in_held_out(text: str) -> bool:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return int.from_bytes(digest[:4]) % _HELD_OUT_SHARE == 0
