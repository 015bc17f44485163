#!/usr/bin/env bash
# Makes a site of the documents:  scripts/site.sh [FOLDER]      default: site
#
# A broken link or a missing heading is an error. The site needs no server and no network: open site/index.html.
set -euo pipefail
root=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd)
site=$(realpath -m -- "${1:-$root/site}")
python=${PYTHON:-$root/.venv/bin/python}
if ! "$python" -c 'import flatwalk, sphinx' 2>/dev/null; then
    echo "error: Sphinx or flatwalk is not installed in .venv" >&2
    echo "  remedy: ./flatwalk --version && .venv/bin/pip install --group docs" >&2
    exit 1
fi
# Made where its by-products, of which some lie next to it, are in nobody's way.
made=$root/.flatwalk/site
"$python" -m sphinx --fail-on-warning --keep-going --quiet \
    -c "$root/docs" -d "$made/doctrees" "$root" "$made/html"
mkdir -p "$site"
cp -a "$made/html/." "$site"
echo "$site/index.html"
