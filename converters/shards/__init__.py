"""Training shards of every framework: documents of tokens with the target's states at each.

paths -> `open_shards` (headers alone) -> `read_documents` (one at a time) -> `check_document`
"""

from converters.shards.base import LastState, LayoutError, ShardFile, ShardInfo, ShardSet
from converters.shards.checking import check_document
from converters.shards.native import write_shard
from converters.shards.opening import open_shards, read_documents, read_info, shard_files
from converters.shards.registry import LAYOUTS

__all__ = [
    "LAYOUTS",
    "LastState",
    "LayoutError",
    "ShardFile",
    "ShardInfo",
    "ShardSet",
    "check_document",
    "open_shards",
    "read_documents",
    "read_info",
    "shard_files",
    "write_shard",
]
