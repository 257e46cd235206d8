# Shell functions of `./dev gpu`. Sourced by dev, from the project's root, after tools/lib.sh.

gpu_usage() {
  cat <<'TEXT'
usage: ./dev gpu [--out DIR]

Builds the `cuda` preset (nvcc 13) and runs what needs a GPU: the tests named Cuda* of each folder,
first plain, then the small ones under compute-sanitizer, and then the kernels' benchmark. Prints a
table last; logs go to DIR (default: build/gpu). Where there is no GPU the tests say that they were
skipped, and so does the table. Ends with 1 when a test failed.
TEXT
}

# gpu_section NAME SECONDS COMMAND...: a row of the table; output in $gpu_out/NAME.log.
gpu_section() {
  local name=$1 limit=$2 status=0 verdict counts started=$SECONDS
  shift 2
  timeout "$limit" "$@" >"$gpu_out/$name.log" 2>&1 || status=$?
  counts=$(grep -cE '^\[       OK \]' "$gpu_out/$name.log" || true)
  verdict=passed
  if [ "$status" != 0 ]; then
    verdict="FAILED ($status)"
    gpu_failures=$((gpu_failures + 1))
  elif grep -q '^\[  SKIPPED \]' "$gpu_out/$name.log"; then
    verdict="skipped: no GPU"
  fi
  gpu_rows+=("$(printf '%-22s %-16s %4s ok %6s s' "$name" "$verdict" "$counts" \
                       $((SECONDS - started)))")
}

dev_gpu() {
  gpu_out=build/gpu
  if [ $# -gt 0 ]; then
    case $1 in
      --out) gpu_out=${2:?./dev gpu: --out needs a directory} ;;
      -h | --help) gpu_usage; return 0 ;;
      *) gpu_usage >&2; fail "gpu: unknown argument '$1'" ;;
    esac
  fi
  ensure_packages build test bench
  mkdir -p "$gpu_out"
  local folder
  build_preset cuda device_test ops_test experts_test engine_test experts_bench
  gpu_rows=()
  gpu_failures=0
  for folder in device ops experts engine; do
    gpu_section "$folder" 180 "build/cuda/${folder}_test" --gtest_filter='Cuda*'
  done
  if command -v compute-sanitizer >/dev/null; then
    # The audit asks the driver about words that are no pointers: those errors are its answers.
    for folder in device ops experts; do
      gpu_section "memcheck-$folder" 180 compute-sanitizer --report-api-errors no \
        --error-exitcode 9 "build/cuda/${folder}_test" --gtest_filter='Cuda*:-*2880*'
    done
  fi
  gpu_section kernels 180 build/cuda/experts_bench --benchmark_filter=run_gpu
  grep -E ' rows +[0-9]+ ' "$gpu_out/kernels.log" || true
  title "GPU: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null ||
                echo none), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  printf '%s\n' "${gpu_rows[@]}"
  [ "$gpu_failures" = 0 ] || fail "gpu: $gpu_failures sections failed; logs in $gpu_out"
}
