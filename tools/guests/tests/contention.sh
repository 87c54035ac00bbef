# shellcheck shell=bash
# guests: 1
# ci: no
# mib: 3072
# limit_s: 600
# bins: onesided-server onesided-bench
# benches: onesided-bench/adds
# env: CLIENTS KEYS RECORDS ROUNDS RUN_S CPU_S ADDS_S
# Many clients and few keys over RDMA, as benches/contention.sh does it: updates of one key and of
# Zipf 0.99 by 1, 4 and 16 clients, one-sidedly and by RPC, and one counter, which must be exact.
. tools/guests/lib.sh

# Emulated processors do not come to ten million. With 16 clients on two of them one or another does
# nothing for a second, whichever keys it writes (docs/BENCHMARKS.md): so progress is asked by run.
export BIN BENCHES PER=run ADDS=0 ADDS_S="${ADDS_S:-3}" RECORDS="${RECORDS:-10000}"
export ROUNDS="${ROUNDS:-2}" CPU_S="${CPU_S:-2}"
benches/contention.sh verbs "$HOST_IP" 2>&1 | while read -r line; do say "$line"; done
