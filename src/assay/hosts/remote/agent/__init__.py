"""Programs for the other machine, before and beside Assay; they need only the standard library.

BASE/                 ~/.cache/assay
  env/KEY/            an environment: exactly this version, unpacked (site/), and its missing dependencies (venv/)
  jobs/ID/            one job
    job.json  env     the command, and the interpreter that runs it
    work/             the working folder, with the uploaded files
    supervisor.json   the supervisor process
    heartbeat         touched as long as a client listens
    ranks/  run       files that Assay writes (hosts/run_job.py)
    gone  ended       all processes have exited, and the exit code
"""
