"""Files and formats of older tools, read and written; nothing in the main path imports this."""
