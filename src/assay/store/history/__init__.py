"""What was measured before: runs, series and points in a database that run folders can rebuild at any time.

    run folder ──► points.py: what of it belongs into the history ──► importing.py ──► database.py
                                                                                          │
               series.py: arrays in time order, by key ◄── asking.py: which are meant ◄───┘

``place.py`` says where it is, ``migrations.py`` which tables it has, ``faults.py`` what went wrong in one sentence.
"""
