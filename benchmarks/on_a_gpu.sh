#!/bin/sh
# Measures the package on a GPU in two short commands; `--small` tries them on a CPU.
#
# COMMAND   sh benchmarks/on_a_gpu.sh equal FOLDER [--small]      at most 6.5 minutes
#           sh benchmarks/on_a_gpu.sh rivals FOLDER [--small]     at most 5 minutes
# EXPECTED  in FOLDER: equal.log (OK for float32 and float64), accelerator.log and accelerator.json;
#           then rivals.log, a line of JSON for each run of PyTorch and of this package
# NEEDS     jax with the GPU's plugin, flax, optax and PyTorch; the package's other dependencies
#           may lie as wheels in the folder .whl, from which they are installed into .site
set -u
part=$1 out=$2 small=${3:-}
if [ -d .whl ]; then
    python3 -m pip install -q --no-index --no-deps --target .site .whl/*.whl
fi
export PYTHONPATH=$PWD/.site:$PWD:$PWD/benchmarks:$PWD/benchmarks/peers
export XLA_PYTHON_CLIENT_PREALLOCATE=false PYTHONUNBUFFERED=1
mkdir -p "$out"
nvidia-smi -L || echo "no GPU"
python3 -c 'import jax; print(jax.__version__, jax.devices())'
case $part in
equal)
    only=${small:+--only virtual}
    # shellcheck disable=SC2086
    for precision in "" --x64; do
        timeout 60 python3 benchmarks/gpu_equals_cpu.py $precision $only
    done 2>&1 | tee "$out/equal.log"
    timeout 270 python3 benchmarks/accelerator.py --minutes 4 --turns 3 $small \
        --out "$out/accelerator.json" 2>&1 | tee "$out/accelerator.log"
    ;;
rivals)
    rounds=6 cohorts="100 1000 10000" works="mlp cnn" device=cuda
    if [ -n "$small" ]; then rounds=2 cohorts=2 works=mlp device=cpu; fi
    for work in $works; do
        for form in "run_torch.py --device $device" "run_torch.py --device $device --mapped 1" \
            run_ours.py; do
            echo "$work, 50 clients: $form"
            # shellcheck disable=SC2086
            timeout 60 python3 benchmarks/peers/$form --work $work --cohort 50 --rounds $rounds
        done
    done 2>&1 | tee "$out/rivals.log"
    for cohort in $cohorts; do
        echo "mlp, $cohort clients: run_ours.py"
        timeout 60 python3 benchmarks/peers/run_ours.py --work mlp --cohort "$cohort" --rounds $rounds
    done 2>&1 | tee -a "$out/rivals.log"
    ;;
esac
