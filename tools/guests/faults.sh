# shellcheck shell=bash disable=SC2034 # scripts use what is set here
# For guest tests of faults, after lib.sh: a server, and loads that check every answer
# (client/tests/faults.rs). Binaries: onesided-server, and the test onesided/faults.

server_log=/tmp/server.log
declare -A load_pids

now_ms() { echo $(($(date +%s%N) / 1000000)); }

_is_listening() { (exec 3<>/dev/tcp/"$1"/7411) 2>/dev/null; }

# What the server is started by: nothing, or a function that runs its arguments.
serve_as="env"
# serve [OPTION...]: starts the server, or starts it again; $server is its process.
serve() {
    $serve_as "$BIN/onesided-server" --listen 0.0.0.0:7411 --memory 256MiB --fabric verbs,tcp "$@" \
        >>$server_log 2>&1 &
    server=$!
    within 60 _is_listening 127.0.0.1
}

# stop_server: ends it, and it must end well.
stop_server() {
    kill "$server"
    wait "$server" || { tail -n 20 $server_log; fail "the server ended with $?"; }
}

# What loads are started by: nothing, or a function that runs its arguments.
load_as="env"
# begin_load NAME [VARIABLE=VALUE...]: starts a load on the server of host 1.
begin_load() {
    local name=$1
    shift
    rm -f "/tmp/load.$name".*
    $load_as env FAULT_LOAD="$name" FAULT_UNTIL="/tmp/load.$name.over" ONESIDED_TEST_SERVER=10.77.0.1:7411 \
        "$@" "$TESTS/onesided/faults" --exact load_of_the_environment --nocapture \
        >"/tmp/load.$name.out" 2>"/tmp/load.$name.err" &
    load_pids[$name]=$!
}

# load NAME [VARIABLE=VALUE...]: as begin_load; returns when it works.
load() {
    begin_load "$@"
    local name=$1
    within 60 _has_said "$name" ready
    say "$name: ready over $(of_load "$name" ready fabric)"
    grep 'a better fabric cannot be used' "/tmp/load.$name.err" | cut -c -400 || true
}

# Whether a load has said this word; fails if it has ended without.
_has_said() {
    grep -q "<$2>" "/tmp/load.$1.out" && return
    kill -0 "${load_pids[$1]}" 2>/dev/null || grep -q "<$2>" "/tmp/load.$1.out" ||
        { cat "/tmp/load.$1.out" "/tmp/load.$1.err"; fail "load $1 ended before it was $2"; }
    false
}

# of_load NAME ready|done FIELD: what it reported then.
of_load() {
    sed -n "s/.*<$2>.*\"$3\":\"\?\([^,}\"]*\).*/\1/p" "/tmp/load.$1.out" | head -n 1
}

# gaps NAME: how many pauses between good answers it has had so far.
gaps() { grep -c '<gap>' "/tmp/load.$1.out" || true; }

# after_gap NAME COUNT [SECONDS]: waits until it has recovered from one more gap than COUNT.
after_gap() {
    within "${3:-60}" _more_gaps "$1" "$2"
    say "$1: $(grep '<gap>' "/tmp/load.$1.out" | tail -n 1 | sed 's/.*<gap>/a gap of /')"
}
_more_gaps() {
    kill -0 "${load_pids[$1]}" 2>/dev/null ||
        { cat "/tmp/load.$1.out" "/tmp/load.$1.err"; fail "load $1 has ended"; }
    [ "$(gaps "$1")" -gt "$2" ]
}

# comes_to NAME FABRIC [SECONDS]: waits until a load uses this fabric.
comes_to() {
    local from
    from=$(now_ms)
    within "${3:-60}" _uses "$1" "$2"
    say "$1: over $2 after $(($(now_ms) - from)) ms"
}
_uses() { [ "$(sed -n 's/.*<uses>//p' "/tmp/load.$1.out" | tail -n 1)" = "$2" ]; }

# end_load NAME: lets it check all its keys and end; it must have been right.
end_load() {
    touch "/tmp/load.$1.over"
    wait "${load_pids[$1]}" ||
        { cat "/tmp/load.$1.out" "/tmp/load.$1.err"; fail "load $1 was wrong"; }
    say "$1: $(of_load "$1" 'done' gets) GETs, $(of_load "$1" 'done' puts) PUTs, all right;" \
        "$(of_load "$1" 'done' errors) errors, longest gap $(of_load "$1" 'done' longest_gap_ms) ms," \
        "$(of_load "$1" 'done' reconnects) reconnects, at the end over $(of_load "$1" 'done' fabric)"
    sed -n 's/.*<gap>/    gap: /p' "/tmp/load.$1.out" | sort -k 2 -rn | head -n 4
}

# kill_load NAME: kill -9.
kill_load() {
    kill -9 "${load_pids[$1]}"
    wait "${load_pids[$1]}" 2>/dev/null || true
}

objects() { echo "$(rdma_count qp) queue pairs, $(rdma_count mr) regions"; }
_are() { [ "$(objects)" = "$1" ]; }

# objects_become "N queue pairs, M regions" [SECONDS]
objects_become() {
    local from
    from=$(now_ms)
    within "${2:-30}" _are "$1"
    say "$1 after $(($(now_ms) - from)) ms"
}

none_left() {
    local object
    for object in qp mr pd cq cm_id srq; do
        within 15 _none "$object"
    done
}
_none() { [ "$(rdma_count "$1")" = 0 ]; }
