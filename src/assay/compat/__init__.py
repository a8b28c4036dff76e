"""The older tools' files and formats, read and written; nothing in the main path imports this."""
