"""The history of measurements: runs, series and points in a database that can be rebuilt from run folders at any time.

    run folder ──► points.py: run and points for the history ──► importing.py ──► database.py
                                                                                      │
                             series as arrays in time order  ◄── queries.py  ◄────────┘

``tables.py`` has the tables and their migrations, ``report.py`` the pages, ``export.py`` CSV and JSON.
"""
