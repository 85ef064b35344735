#!/usr/bin/env bash
# Makes tests/data/alfworld_base again: a small policy for generated ALFWorld games, by imitation alone (three minutes of one core).
set -euo pipefail
cd "$(dirname "$0")/../.."
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
skillttrl train quickstart_alfworld --seed 0 -o "$runs/policy" --set runtime.threads=1 --set eval.greedy=false --set sft.steps=2500 \
  --set model.embedded.hidden_size=48 --set model.embedded.layers=2 --set model.embedded.heads=3 --set model.embedded.intermediate_size=96
rm -rf tests/data/alfworld_base
skillttrl export "$runs/policy" -o tests/data/alfworld_base
# Half precision halves the file; it is read back as float32.
python - tests/data/alfworld_base/model.safetensors <<'PY'
import sys

from safetensors.torch import load_file, save_file

save_file({name: value.half() for name, value in load_file(sys.argv[1]).items()}, sys.argv[1], metadata={"format": "pt"})
PY
