# What the scripts share. Sourced, never run; the caller has `set -euo pipefail`.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# The help of a script is the comment at its top.
usage() { sed -n '2,/^[^#]/{/^#/!q;s/^# \{0,1\}//p}' "$0"; }

# Everything the scripts say themselves goes to stderr: stdout belongs to what they run.
say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $1"; say "try: $2"; exit 1; }
