#!/bin/sh
# What one machine runs in the morning: a page of what changed, and what tonight differs by from the nights before.
#
#   report.sh STORE PAGE.html [DATE]
#
# Ends with status 1 where an op became slower tonight.
set -eu
store=$1 page=$2 tonight=${3:-$(date -u +%F)}
tracemap store trend --store "$store" --html "$page" --force --skip-bad
tracemap store compare --store "$store" --skip-bad --before "date<$tonight" --after "date=$tonight" --format csv > "$page.csv"
cat "$page.csv"
! grep -q ',slower,' "$page.csv"
