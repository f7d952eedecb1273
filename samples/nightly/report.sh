#!/bin/sh
# The morning job of one machine: a page of changes, and a comparison of tonight with the previous nights.
#
#   report.sh STORE PAGE.html [DATE]
#
# Ends with status 1 if an op became slower tonight. On the first night there is nothing to compare; the script says so
# and ends with 0.
set -eu
store=$1 page=$2 tonight=${3:-$(date -u +%F)}
tracemap store trend --store "$store" --html "$page" --force --skip-bad
runs=$(tracemap store list --store "$store" --skip-bad --format json)
first=$(printf '%s\n' "$runs" | sed -n 's/^   "date": "\(.*\)",$/\1/p' | sort | head -n 1)
# Dates sort as texts.
if [ "$first" = "$(printf '%s\n%s\n' "$first" "$tonight" | sort | tail -n 1)" ]; then
  echo "no run is from before $tonight: nothing to compare with yet"
  exit 0
fi
tracemap store compare --store "$store" --skip-bad --before "date<$tonight" --after "date=$tonight" --format csv > "$page.csv"
cat "$page.csv"
! grep -q ',slower,' "$page.csv"
