"""Who may run where? Levels, disjoint allotments, binding, and evidence that it held."""
