# shellcheck shell=bash
# guests: 2
# ci: yes
# limit_s: 280
# tests: onesided-fabric/verbs_setup
# Connections over verbs are made, refused, limited, given up and ended, on one host and between two.
. tools/guests/lib.sh
