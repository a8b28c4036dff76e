"""The history of measurements: runs, series and points in a database that can be rebuilt from run folders at any time.

    run folder ──► importing.py: a run and its points ──► database.py: tables and migrations
                                                               │
               series as arrays in time order  ◄── queries.py ◄┘

``report.py`` has the pages, and the export as CSV and JSON.
"""
