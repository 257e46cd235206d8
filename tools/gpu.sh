# Shell functions of `./dev gpu`. Sourced by dev, from the project's root, after tools/lib.sh.

gpu_usage() {
  cat <<'TEXT'
usage: ./dev gpu [--out DIR] [--tiny] [--cutlass DIR] [--prebuilt]

Builds the `cuda` preset (nvcc 13) and runs what needs a GPU. First, beside each other: the tests
named Cuda* of each folder; the small ones and a tiny drill under compute-sanitizer; the drill on
the tiny models, whole and with every fault, which must be RED, and in every published format; the
drill at gpt-oss-20b's shape, likewise. Then the timings, alone: of reloads while requests decode,
of kernels and of whole steps. Prints a table last; logs and JSON go to DIR (default: build/gpu).

CUTLASS, for `--experts cutlass`, is what --cutlass or $HOLDFAST_CUTLASS says (its include
directory), or comes with pip into build/cutlass; without it that backend's sections are left out,
and the table says so. --tiny leaves out what needs 28 GB of disk and 80 GB of memory. Where there
is no GPU the tests say that they were skipped, and so does the table. Ends with 1 when something
failed.
--prebuilt takes build/cuda as it is, built elsewhere (build/cuda/commit says of which commit): time
on a GPU is dearer than on a CPU.
TEXT
}

# gpu_row NAME VERDICT COUNT STARTED
gpu_row() {
  printf '%-34s %-18s %10s %5s s\n' "$1" "$2" "$3" $((SECONDS - $4))
}

# gpu_section NAME SECONDS COMMAND...: a row of the table; output in $gpu_out/NAME.log.
gpu_section() {
  local name=$1 limit=$2 status=0 verdict=passed counts started=$SECONDS
  shift 2
  timeout "$limit" "$@" >"$gpu_out/$name.log" 2>&1 || status=$?
  counts=$(grep -cE '^\[       OK \]' "$gpu_out/$name.log" || true)
  if [ "$status" != 0 ]; then
    verdict="FAILED ($status)"
  elif grep -q '^\[  SKIPPED \]' "$gpu_out/$name.log"; then
    verdict="skipped: no GPU"
  fi
  gpu_row "$name" "$verdict" "$counts ok" "$started"
}

# gpu_drill NAME WANTED SECONDS FLAGS...: a drill that must end with that verdict; "NOT INJECTED" is
# a fault that this device cannot have.
gpu_drill() {
  local name=$1 wanted=$2 limit=$3 status=0 found started=$SECONDS
  shift 3
  timeout "$limit" build/cuda/cli/holdfast drill --device cuda "$@" --json "$gpu_out/$name.json" \
    >"$gpu_out/$name.log" 2>&1 || status=$?
  found=$(grep -oE '^(GREEN|RED|NOT INJECTED)$' "$gpu_out/$name.log" || echo "ended with $status")
  [ "$found" = "$wanted" ] || found="FAILED: $found"
  gpu_row "$name" "$found" '' "$started"
}

# gpu_begin GROUP COMMAND...: sections whose results do not depend on time, beside others; what
# they print (rows) goes to $gpu_out/GROUP.rows. gpu_end waits for all of them.
gpu_begin() {
  local group=$1
  shift
  gpu_groups+=("$group")
  "$@" >"$gpu_out/$group.rows" &
}
gpu_end() {
  wait
  local group
  for group in "${gpu_groups[@]}"; do
    cat "$gpu_out/$group.rows"
  done >>"$gpu_out/table.txt"
  gpu_groups=()
}

gpu_drills_tiny() {
  local from=models/gptoss-tiny-A to=models/gptoss-tiny-B fault wanted strategy
  for strategy in remap copy stream; do
    gpu_drill "drill-tiny-$strategy" GREEN 60 --from $from --to $to --commit $strategy
  done
  for fault in rebind-constants skip-layer drop-sink short-read source-dies garbage nan bad-scale \
    truncated replaced cancelled deadline allocation-fails exchange-fails protect-fails \
    device-lost; do
    gpu_drill "drill-tiny-$fault" RED 60 --from $from --to $to --inject $fault
  done
  gpu_drill drill-tiny-copy-fails RED 60 --from $from --to $to --inject copy-fails --commit copy
  # Nothing is derived of MXFP4 on a GPU, and no launch fails in a staging that launches nothing.
  for fault in stale-derived launch-fails; do
    gpu_drill "drill-tiny-$fault" "NOT INJECTED" 60 --from $from --to $to --inject $fault
  done
}

# Every published format (tests/fixtures; none without numpy), and of one that derives scales each
# kind of fault.
gpu_drills_formats() {
  local from=build/cuda/fixtures to=build/cuda/fixtures_b format fault
  for format in $(cd $from 2>/dev/null && ls); do
    gpu_drill "drill-$format" GREEN 60 --from "$from/$format" --to "$to/$format"
  done
  format=qwen3moe-modelopt-nvfp4
  [ -d "$from/$format" ] || return 0
  for fault in rebind-constants skip-layer stale-derived short-read garbage nan bad-scale; do
    gpu_drill "drill-nvfp4-$fault" RED 60 --from "$from/$format" --to "$to/$format" --inject $fault
  done
}

# Sets gpu_cutlass to CUTLASS's include directory, or to nothing.
gpu_find_cutlass() {
  gpu_cutlass=${gpu_cutlass:-${HOLDFAST_CUTLASS:-}}
  [ -z "$gpu_cutlass" ] || return 0
  local to=build/cutlass
  gpu_cutlass=$PWD/$to/cutlass_library/source/include
  [ ! -e "$gpu_cutlass/cute/tensor.hpp" ] || return 0
  mkdir -p $to
  if ! { python3 -m pip download -q --disable-pip-version-check --no-deps -d $to \
           nvidia-cutlass==4.2.0.0 &&
         python3 -m zipfile -e $to/nvidia_cutlass-4.2.0.0-*.whl $to; } >$to/log 2>&1
  then
    say "No CUTLASS (build/cutlass/log says why): going on without --experts cutlass on CUDA."
    gpu_cutlass=''
  fi
}

# A packed backend: its slots are derived, so that there is something that can be stale.
gpu_drills_cutlass() {
  local from=models/gptoss-tiny-A to=models/gptoss-tiny-B fault strategy
  if [[ $(build/cuda/experts_test --gtest_list_tests) != *CudaCutlassExperts* ]]; then
    gpu_row drill-cutlass 'skipped: no CUTLASS' '' $SECONDS
    return 0
  fi
  for strategy in remap copy stream; do
    gpu_drill "drill-cutlass-$strategy" GREEN 60 --from $from --to $to --experts cutlass \
      --commit $strategy
  done
  for fault in rebind-constants skip-layer stale-derived no-shuffle; do
    gpu_drill "drill-cutlass-$fault" RED 60 --from $from --to $to --experts cutlass --inject $fault
  done
  gpu_section census-cutlass 60 build/cuda/cli/holdfast census --device cuda --model $from \
    --experts cutlass --graphs
}

# A: random weights; B: those after a training step.
gpu_make_large() {
  gpu_section make-checkpoint 300 build/cuda/cli/holdfast make-checkpoint --like gpt-oss-20b \
    --seed 1 "$gpu_large/A" --next "$gpu_large/B"
}

gpu_drills_large() {
  local from=$gpu_large/A to=$gpu_large/B fault
  gpu_make_large
  gpu_drill drill-20b GREEN 240 --from "$from" --to "$to"
  for fault in rebind-constants skip-layer drop-sink; do
    gpu_drill "drill-20b-$fault" RED 120 --from "$from" --to "$to" --inject $fault
  done
}

gpu_tests() {
  local folder
  for folder in "$@"; do
    gpu_section "$folder" 180 "build/cuda/${folder}_test" --gtest_filter='Cuda*'
  done
}

gpu_checked() {
  local folder
  for folder in "$@"; do
    gpu_memcheck "$folder" "build/cuda/${folder}_test" --gtest_filter='Cuda*:-*2880*'
  done
}

# gpu_memcheck NAME COMMAND...: the audit asks the driver about words that are no pointers; those
# errors are its answers.
gpu_memcheck() {
  gpu_section "memcheck-$1" 400 compute-sanitizer --report-api-errors no --error-exitcode 9 "${@:2}"
}

# What is run, from source, or, with an argument, as it lies there.
gpu_build() {
  local -a targets=(holdfast_cli device_test ops_test experts_test engine_test experts_bench
                    engine_bench gpu_reload)
  if [ -z "$1" ]; then
    ensure_packages build test bench
    gpu_find_cutlass
    build_preset cuda "${targets[@]}" quantised_fixtures -- "-DHOLDFAST_CUTLASS=$gpu_cutlass"
    git describe --always --dirty >build/cuda/commit 2>/dev/null || echo unknown >build/cuda/commit
    return
  fi
  local program
  for program in cli/holdfast bench/gpu_reload "${targets[@]:1:6}"; do
    [ -x "build/cuda/$program" ] || fail "gpu: --prebuilt, and there is no build/cuda/$program"
  done
}

dev_gpu() {
  gpu_out=build/gpu
  gpu_cutlass=''
  local tiny='' prebuilt=''
  while [ $# -gt 0 ]; do
    case $1 in
      --out) gpu_out=${2:?./dev gpu: --out needs a directory}; shift ;;
      --tiny) tiny=yes ;;
      --prebuilt) prebuilt=yes ;;
      --cutlass) gpu_cutlass=${2:?./dev gpu: --cutlass needs a directory}; shift ;;
      -h | --help) gpu_usage; return 0 ;;
      *) gpu_usage >&2; fail "gpu: unknown argument '$1'" ;;
    esac
    shift
  done
  mkdir -p "$gpu_out"
  gpu_build "$prebuilt"
  gpu_groups=()
  : >"$gpu_out/table.txt"
  nvidia-smi >/dev/null 2>&1 || tiny=yes
  if [ -z "$tiny" ]; then
    gpu_large=$(mktemp -d)
    trap 'rm -rf "$gpu_large"' EXIT
    gpu_begin large gpu_drills_large
  fi
  gpu_begin tests gpu_tests device ops engine
  gpu_begin experts gpu_tests experts
  if command -v compute-sanitizer >/dev/null; then
    gpu_begin memcheck gpu_checked device ops
    gpu_begin memcheck-experts gpu_checked experts
    gpu_begin memcheck-tiny gpu_memcheck tiny build/cuda/cli/holdfast drill --device cuda \
      --from models/gptoss-tiny-A --to models/gptoss-tiny-B
  fi
  if nvidia-smi >/dev/null 2>&1; then
    gpu_begin tiny gpu_drills_tiny
    gpu_begin formats gpu_drills_formats
    gpu_begin cutlass gpu_drills_cutlass
  fi
  gpu_end
  # Timings have the machine to themselves.
  {
    if [ -z "$tiny" ]; then
      gpu_section reload 200 build/cuda/bench/gpu_reload "$gpu_large/A" "$gpu_large/B" \
        --out "$gpu_out/reload.json"
    fi
    gpu_section kernels 180 build/cuda/experts_bench --benchmark_filter=run_gpu
    gpu_section schemes 180 build/cuda/experts_bench --benchmark_filter=run_schemes
    gpu_section step 180 build/cuda/engine_bench --benchmark_filter=run_step
  } >>"$gpu_out/table.txt"
  local log
  for log in kernels schemes step; do
    grep -E ' rows +[0-9]+ ' "$gpu_out/$log.log" || true
  done
  cat "$gpu_out/reload.log" 2>/dev/null || true
  title "$(date -u +%F), GPU: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader \
    2>/dev/null || echo none), commit $(cat build/cuda/commit 2>/dev/null || echo unknown)"
  cat "$gpu_out/table.txt"
  local failures
  failures=$(grep -c FAILED "$gpu_out/table.txt" || true)
  [ "$failures" = 0 ] || fail "gpu: $failures sections failed; their logs: $gpu_out"
}
