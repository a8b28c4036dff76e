"""A fleet: the same words on many nodes, one run folder a node, and a book of who has answered."""
