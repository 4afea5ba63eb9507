"""The disk: drafts, targets and training shards of every framework, read and written with NumPy."""
