#!/usr/bin/env bash
# Makes the README's picture, docs/images/report.png, from a real run.
set -euo pipefail
root=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$root/flatwalk" compare --workload gups:1GiB --large-pages 0,50 \
    --schemes radix4,radix5,fpt-l3l2,fpt,radix4+ptp,fpt+ptp,ideal --report "$work/report.html"
chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --hide-scrollbars --user-data-dir="$work/profile" \
    --window-size=1180,1560 --screenshot="$work/report.png" "file://$work/report.html" 2>/dev/null
mv "$work/report.png" "$root/docs/images/report.png"
echo "docs/images/report.png"
