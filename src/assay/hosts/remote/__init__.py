"""Work on a machine that shares no files with this one: ship, run, bring back, over whatever line there is."""
