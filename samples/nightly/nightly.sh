#!/bin/sh
# The nightly job of each machine: record MODEL and add the runs to the team's store.
#
#   nightly.sh MODEL.mlir STORE [TAG=VALUE …]
#
# MODEL.flags next to the model, if it exists, has its inputs. The bundle is built every night, with that night's
# compiler. STORE is a folder that all machines see; files are only added to it.
set -eu
model=$1 store=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bundle=$folder/$(basename "$model" .mlir).tracemap
flags=${model%.mlir}.flags
tracemap build "$model" -o "$bundle"
if [ -f "$flags" ]; then
  (cd "$(dirname "$model")" && tracemap record "$bundle" --repeat 3 --flagfile "$(basename "$flags")")
else
  tracemap record "$bundle" --repeat 3
fi
for tag; do
  shift
  set -- "$@" --tag "$tag"
done
tracemap store add "$bundle"/runs/*.parquet --map "$bundle" --store "$store" "$@"
