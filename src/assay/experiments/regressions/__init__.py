"""Whether anything in the history has changed: steps in all of its series, with who and what changed at the same time.

courses ──usable──> log values ──stats.changes──> steps ──beside──> what else changed there ──> Found ──page──>
"""
