"""What runs on the other machine, before and beside the Assay there: the standard library is all it needs.

BASE/                 ~/.cache/assay
  env/KEY/            an environment: this very version unpacked (site/), and what it needs if that was missing (venv/)
  orders/ID/          one order
    job.json  env     what is to be run, and by which interpreter
    work/             the folder it starts in, with the files that went along
    keeper.json       who watches over it
    heard             touched as long as somebody listens
    ranks/  run       what the Assay there leaves (hosts/traces.py)
    gone  ended       nothing of it runs any more, and how it ended
"""
