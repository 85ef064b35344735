#!/usr/bin/env bash
# Makes tests/data/operators_base again: the cold start of `quickstart_skills` (a few minutes on a CPU).
set -euo pipefail
cd "$(dirname "$0")/../.."
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
skillttrl sft quickstart_skills --seed 0 --set runtime.threads=1 --set eval.greedy=false -o "$runs/cold"
rm -rf tests/data/operators_base
skillttrl export "$runs/cold" -o tests/data/operators_base
