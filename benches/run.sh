#!/bin/sh
# Measures everything that docs/BENCHMARKS.md shows, in one run, and prints its tables.
# Redis is measured beside it if redis-server is installed (apt-get install redis-server).
set -eu
cd "$(dirname "$0")/.."
exec cargo bench --quiet -p onesided-bench --bench ratios "$@"
