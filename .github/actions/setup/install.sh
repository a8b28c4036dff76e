#!/usr/bin/env bash
# Installs the Assay that this file is part of into an environment of its own, and puts `assay` where the path leads.
set -euo pipefail
extras="${1:-}"
if [[ ! "$extras" =~ ^([a-z]+(,[a-z]+)*)?$ ]]; then
  echo "extras are names with commas between them, such as modal,torch" >&2
  exit 2
fi
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)"
bin="$RUNNER_TEMP/assay-bin" # only the one command: the environment's python shall not stand before the job's own
python -m venv "$RUNNER_TEMP/assay"
"$RUNNER_TEMP/assay/bin/python" -m pip install --quiet "$root${extras:+[$extras]}"
mkdir -p "$bin"
ln -sf "$RUNNER_TEMP/assay/bin/assay" "$bin/assay"
echo "$bin" >>"$GITHUB_PATH"
"$bin/assay" --version
