#!/bin/sh
# Every implementation a GPU offers for products, epilogues and attention, forward and backward, in every state of the device, judged.
#   sh benchmarks/h200_operators.sh OUT [python]
# Small files go to OUT; dumps stay in a temporary folder. About two minutes on an H200 with 16 cores.
set -u
out=$1
python=${2:-python3}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONPATH="$(cd "$(dirname "$0")/.." && pwd)"
ae="$python -m accuracy_eval"

part() { # part NAME DUMP-ARGUMENTS…
    name=$1
    shift
    begin=$(date +%s)
    $ae dump "$@" --device cuda -o "$work/$name.h5" || echo "exit $? from dump $name"
    middle=$(date +%s)
    $ae compare "$work/$name.h5" --workers "$(nproc)" --reference-cache "$work/references" --to json,md -o "$out/$name" || echo "exit $? from compare $name"
    echo "time $name dump $((middle - begin)) s, compare $(($(date +%s) - middle)) s"
}

libraries="--candidate default --candidate cublas --candidate cublaslt --candidate rocblas --candidate hipblaslt --candidate ck"
products="$libraries --candidate triton --candidate jax --candidate cupy"
kernels="--candidate flash --candidate mem_efficient --candidate math --candidate cudnn"
states="--state graph --state stream --state misaligned --state alone"

part candidates operators $products $kernels
part gemm-states operators --op gemm --lane random --layout nt $libraries --candidate triton $states
part attention-states operators --op attention --layout bshd --format bfloat16 --candidate default $kernels $states
part epilogue-states operators --op gemm_epilogue --format bfloat16 $states
part compiled operators --op gemm --lane random --layout nt --format bfloat16 --direction fwd --candidate inductor
part kernels operators --op gemm --lane random --layout nt --format bfloat16 --direction fwd $products --kernels
$ae inspect "$work/kernels.h5" --json | $python -c '
import json, sys
for r in json.load(sys.stdin)["records"]:
    for k in r["notes"].get("kernels", []):
        print(r["id"], r["candidate"], json.dumps(k))
    if "kernels_unknown" in r["notes"]:
        print(r["id"], r["candidate"], "unknown:", r["notes"]["kernels_unknown"])
' > "$out/kernels.txt"
for name in candidates gemm-states attention-states epilogue-states; do
    $ae inspect "$work/$name.h5" > "$out/$name.txt"
done
$python -m pytest -q -p accuracy_eval.pytest_plugin -p no:cacheprovider "$PYTHONPATH/examples/row_norm" > "$out/example.txt" 2>&1
tail -3 "$out/example.txt"
