"""How each kind of figure is drawn; one file a kind, the look in ``theme`` and the sheet in ``sheet``."""
