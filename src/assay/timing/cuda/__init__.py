"""How long did it take on a GPU? Stamps in a graph, stamps in a queue, or the activity trace."""
