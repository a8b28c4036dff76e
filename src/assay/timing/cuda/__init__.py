"""Time calls on a GPU: stamps in a CUDA graph, stamps in a queue, or the activity trace."""
