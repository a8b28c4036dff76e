"""The process that measures one role of one trial."""
