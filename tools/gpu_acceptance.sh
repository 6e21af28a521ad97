#!/bin/sh
# Dumps the main suites on the GPU and the CPU of this machine, compares them with the reference, and leaves small files in $1.
#   tools/gpu_acceptance.sh OUT [python]
# Needs torch with a GPU; large dumps stay in a temporary folder.
set -eu
out=$1
python=${2:-python3}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ae="$python -m accuracy_eval"
export PYTHONPATH="$(cd "$(dirname "$0")/.." && pwd)"

seconds() { # seconds NAME COMMAND…
    name=$1
    shift
    start=$(date +%s.%N)
    "$@" || echo "exit $? from: $*"
    echo "time $name $(echo "$(date +%s.%N) - $start" | bc 2>/dev/null || $python -c "import time;print(round(time.time()-$start,2))") s"
}

part() { case " ${PARTS:-demo gemm special edge smoke} " in *" $1 "*) true ;; *) false ;; esac; }

if part demo; then
    seconds demo-dump $ae dump demo -o "$work/demo.h5" --device cuda
    cp "$work/demo.h5" "$out/demo-h200.h5"
    seconds demo-compare $ae compare "$work/demo.h5" --to json -o "$out/demo"
fi
if part gemm; then
    for i in 1 2; do
        rm -f "$work/gemm.h5"
        seconds "turbo-gemm-random-run$i" $ae dump turbo-gemm -o "$work/gemm.h5" --device cuda --lane random
    done
    ls -l "$work/gemm.h5"
    seconds turbo-gemm-all $ae dump turbo-gemm -o "$work/gemm-all.h5" --device cuda
    seconds turbo-gemm-all-again $ae dump turbo-gemm -o "$work/gemm-again.h5" --device cuda
    $ae inspect "$work/gemm-all.h5" | head -2
    $ae inspect "$work/gemm-again.h5" | head -2
    seconds turbo-gemm-cpu $ae dump turbo-gemm -o "$work/gemm-cpu.h5" --device cpu --repeats 1
    seconds turbo-gemm-compare $ae compare "$work/gemm-all.h5" "$work/gemm-cpu.h5" --to json,md -o "$out/turbo-gemm"
fi
if part models; then
    seconds models-gpu $ae dump models --max-m "${MAX_M:-256}" -o "$work/models.h5" --device cuda
    seconds models-compare $ae compare "$work/models.h5" --to json,md -o "$out/models"
fi
if part switches; then
    shapes="--shape 64x64x64 --shape 512x128x256 --shape 256x128x1024 --shape 16x16x4096 --shape 1024x1024x4096"
    formats="--format float32 --format bfloat16 --format float16"
    seconds switches-gpu $ae dump --op gemm $shapes $formats --plugin "$PYTHONPATH/examples/switches.py" -o "$work/switches.h5" --device cuda
    seconds wide-gpu $ae dump --op gemm $shapes --format float64 --format tfloat32 -o "$work/wide.h5" --device cuda
    seconds switches-compare $ae compare "$work/switches.h5" --to json,md -o "$out/switches"
    seconds wide-compare $ae compare "$work/wide.h5" --to json,md -o "$out/wide"
fi
for suite in smoke turbo-special edge; do
    part "${suite#turbo-}" || continue
    seconds "$suite-gpu" $ae dump "$suite" -o "$work/$suite-gpu.h5" --device cuda
    seconds "$suite-cpu" $ae dump "$suite" -o "$work/$suite-cpu.h5" --device cpu
    seconds "$suite-reference" $ae dump "$suite" -o "$work/$suite-ref.h5" --device reference
    seconds "$suite-compare" $ae compare "$work/$suite-gpu.h5" "$work/$suite-cpu.h5" "$work/$suite-ref.h5" --to json,md -o "$out/$suite"
    ls -l "$work/$suite-gpu.h5"
    [ "$(stat -c %s "$work/$suite-gpu.h5")" -lt 15000000 ] && cp "$work/$suite-gpu.h5" "$out/$suite-h200.h5"
done
