"""Time calls on a GPU: with stamps in a CUDA graph, stamps in a queue, or the activity trace."""
