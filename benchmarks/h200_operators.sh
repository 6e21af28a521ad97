#!/bin/sh
# Every implementation a GPU offers for products, epilogues, norms and attention, forward and backward, in every state of the device, judged.
#   PARTS="candidates states compiled kernels example" sh benchmarks/h200_operators.sh OUT [python]
# Small files go to OUT; dumps stay in a temporary folder. Each part takes one to two minutes on an H200 with 16 cores.
set -u
out=$1
python=${2:-python3}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONPATH="$(cd "$(dirname "$0")/.." && pwd)"
ae="$python -m accuracy_eval"

part() { case " ${PARTS:-candidates states compiled kernels example} " in *" $1 "*) true ;; *) false ;; esac; }

judged() { # judged NAME DUMP-ARGUMENTS…
    name=$1
    shift
    begin=$(date +%s)
    $ae dump "$@" --device cuda -q -o "$work/$name.h5" || echo "exit $? from dump $name"
    middle=$(date +%s)
    $ae compare "$work/$name.h5" -q --workers "$(nproc)" --reference-cache "$work/references" --to json,md -o "$out/$name" ||
        echo "exit $? from compare $name"
    $ae inspect "$work/$name.h5" > "$out/$name.txt"
    $ae coverage "$work/$name.h5" > "$out/$name-coverage.txt"
    echo "time $name dump $((middle - begin)) s, compare $(($(date +%s) - middle)) s"
}

vendor=$($python -c 'import torch; print("amd" if torch.version.hip else "nvidia")')
case $vendor in
    amd) libraries="--candidate default --candidate rocblas --candidate hipblaslt --candidate ck" ;;
    *) libraries="--candidate default --candidate cublas --candidate cublaslt" ;;
esac
products="$libraries --candidate triton --candidate jax --candidate cupy"
kernels="--candidate flash --candidate mem_efficient --candidate math"
[ "$vendor" = amd ] || kernels="$kernels --candidate cudnn"
states="--state graph --state stream --state misaligned --state alone"

if part candidates; then
    judged products operators --op gemm --op batched_gemm $products
    judged attention operators --op attention --candidate default $kernels
    judged others operators --op gemm_epilogue --op layernorm --op rmsnorm --op rope
fi
if part states; then
    judged gemm-states operators --op gemm --lane random --layout nt $libraries --candidate triton $states
    # not misaligned: cuDNN loses the device over gradients of such operands (docs/findings.md), and each costs a new process
    judged attention-states operators --op attention --layout bshd --format bfloat16 --candidate default $kernels --state graph --state stream --state alone
    judged other-states operators --op gemm_epilogue --op layernorm --format bfloat16 $states
fi
if part compiled; then
    judged compiled operators --op gemm --lane random --layout nt --format bfloat16 --direction fwd --candidate inductor
fi
if part kernels; then
    judged kernels operators --op gemm --lane random --layout nt --format bfloat16 --direction fwd $products --kernels
    $ae inspect "$work/kernels.h5" --json | $python -c '
import json, sys
for r in json.load(sys.stdin)["records"]:
    for k in r["notes"].get("kernels", []):
        print(r["id"], r["candidate"], json.dumps(k))
    if "kernels_unknown" in r["notes"]:
        print(r["id"], r["candidate"], "unknown:", r["notes"]["kernels_unknown"])
' > "$out/kernels-by-name.txt"
fi
if part example; then
    $python -m pytest -q -p accuracy_eval.pytest_plugin -p no:cacheprovider "$PYTHONPATH/examples/row_norm" > "$out/example.txt" 2>&1
    tail -3 "$out/example.txt"
fi
