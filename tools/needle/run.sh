#!/bin/bash
# The whole recipe on one GPU machine: check that everything runs, train, evaluate, export. Results land in OUT.
#   OUT=out GENERATOR=build/release/fovea_needle_docs TEXT=notes.md tools/needle/run.sh [SECONDS OF TRAINING] [WEIGHTS TO GO ON FROM]
# TEXT is real text never trained on, for part of the evaluation. About four minutes beside the training itself.
set -eo pipefail
here=$(cd "$(dirname "$0")" && pwd)
seconds=${1:-455}
start=${2:+--start $2}
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
folder=$(mktemp -d)
trial=$(mktemp -d)
cp "${TOKENIZER:-$here/../../models/needle/tokenizer.json}" "$folder/tokenizer.json"
cp "$folder/tokenizer.json" "$trial/tokenizer.json"
cd "$here"
common="--generator $GENERATOR"
if [ -z "$SKIP_TRIAL" ]; then
  python3 train.py $common --tokenizer "$folder/tokenizer.json" --out "$trial" --smoke
  python3 evaluate.py $common --folder "$trial" --text "$TEXT" --out "$trial" --questions 8 --lengths 1024 8192 --cells "few prose" "many text" --workers 4 > "$trial/log"
  python3 export.py $common --folder "$trial" --text "$TEXT" --out "$trial" --few | grep -v ^sample
fi
python3 train.py $common --tokenizer "$folder/tokenizer.json" --out "$OUT" --seconds "$seconds" $start
cp "$OUT/model.safetensors" "$folder/"
python3 export.py $common --folder "$folder" --text "$TEXT" --out "$OUT"
python3 evaluate.py $common --folder "$folder" --text "$TEXT" --out "$OUT" --seconds 80
