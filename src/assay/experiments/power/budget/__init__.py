"""Which caps give the most work under so many watts, from measured sweeps; nothing is ever set here."""
