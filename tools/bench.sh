#!/usr/bin/env bash
# `make bench`: all suites of `fovea bench` with their JSON in build/bench, or the one that the arguments name.
# PEERS_PYTHON=/path/to/python with torch, transformers (and llama-cpp-python, gguf) adds the peers, timed in the same run.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -gt 0 ]; then
  exec build/release/fovea bench "$@"
fi
mkdir -p build/bench
attention_peers=() model_peers=()
if [ -n "${PEERS_PYTHON:-}" ]; then
  "$PEERS_PYTHON" bench/peers/attention_cpu.py --json build/bench/peers_attention.json
  attention_peers=(--peers build/bench/peers_attention.json)
  "$PEERS_PYTHON" bench/peers/needle_cpu.py models/needle --json build/bench/peers_model.json
  model_peers=(--peers build/bench/peers_model.json)
fi
build/release/fovea bench attention --json build/bench/attention.json "${attention_peers[@]}"
build/release/fovea bench model --json build/bench/model.json "${model_peers[@]}"
for suite in ops plan serve; do
  build/release/fovea bench "$suite" --json "build/bench/$suite.json"
done
