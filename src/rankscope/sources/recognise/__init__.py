"""From the operations of a block to a tree of parts that shares its weights."""
