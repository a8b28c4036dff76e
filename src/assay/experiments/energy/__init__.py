"""What does a token cost in joules? One model or server, cell by cell: prefill, decode, whole requests."""
