#!/bin/sh
# Measures everything in the tables of docs/BENCHMARKS.md in one run, and puts them there.
# Redis is measured beside it if redis-server is installed (apt-get install redis-server).
# On a machine that does nothing else it takes about five minutes.
set -eu
cd "$(dirname "$0")/.."
tables=$(mktemp)
document=$(mktemp)
trap 'rm -f "$tables" "$document"' EXIT
cargo bench --quiet -p onesided-bench --bench ratios >"$tables"
cat "$tables"
awk -v tables="$tables" '
    /<!-- end of the tables -->/ { inside = 0 }
    !inside { print }
    /<!-- tables by benches\/run.sh -->/ {
        inside = 1
        print ""
        while ((getline line < tables) > 0) print line
        print ""
    }
' docs/BENCHMARKS.md >"$document"
cat "$document" >docs/BENCHMARKS.md
