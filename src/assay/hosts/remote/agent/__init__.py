"""What runs on the other machine, before and beside Assay; it needs only the standard library.

BASE/                 ~/.cache/assay
  env/KEY/            an environment: this very version unpacked (site/), and its missing dependencies (venv/)
  orders/ID/          one job
    job.json  env     the command, and the interpreter that runs it
    work/             the working folder, with the uploaded files
    keeper.json       the supervisor process
    heard             touched as long as a client listens
    ranks/  run       what Assay leaves (hosts/run_job.py)
    gone  ended       all processes have exited, and the exit code
"""
