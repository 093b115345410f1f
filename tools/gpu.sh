#!/usr/bin/env bash
# Checks and measures specchat on a machine with a GPU that has torch and transformers and perhaps nothing else:
#
#   tools/gpu.sh OUT [PART …] [--weights FILE] [--target FILE --draft FILE] [--again]
#
# Writes OUT/result.json part by part and OUT/report.md; goes on where an earlier run with the same OUT ended.
# PYTHON=… chooses the interpreter. Exits 1 if a text is not the target's, a product is wrong or a test fails, 2 if a
# part broke.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:?"say where results go: tools/gpu.sh OUT [PART …]"}
shift
mkdir -p "$out"

python=
for candidate in ${PYTHON:-} python3 python; do
  if "$candidate" -c 'import sys; from importlib.util import find_spec
sys.exit(sys.version_info < (3, 11) or not all(map(find_spec, ("torch", "transformers"))))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
[[ $python ]] || { echo "no Python 3.11 or newer with torch and transformers was found" >&2; exit 2; }

export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
# Where nothing tells the user's own directories, what is made on the way lasts as long as the run.
if [[ -z ${SPECCHAT_HOME:-} ]] && ! "$python" -c 'import platformdirs' 2>/dev/null; then
  SPECCHAT_HOME=$(mktemp -d)
  export SPECCHAT_HOME
  trap 'rm -rf "$SPECCHAT_HOME"' EXIT
fi

nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used --format=csv,noheader 2>/dev/null ||
  echo "nvidia-smi tells nothing here"

# Only files with such tests are collected: the others import the app.
tested=0
if "$python" -c 'import pytest' 2>/dev/null; then
  mapfile -t files < <(cd "$root" && grep -rlE 'mark\.gpu\b' tests --include='*.py')
  if ((${#files[@]})); then
    (cd "$root" && timeout 240 "$python" -m pytest -q -m gpu -p no:cacheprovider "${files[@]}") || tested=1
  fi
else
  echo "pytest is not here: the tests marked gpu are left out"
fi

"$python" -m tools.gpu --out "$out" "$@" | tee "$out/report.md"
measured=${PIPESTATUS[0]}
((measured)) && exit "$measured"
exit "$tested"
