# shellcheck shell=bash
# `./dev sim`: the simulator (tests/sim). Sourced by ./dev, after tools/lib.sh.

sim_usage() {
  cat <<'TEXT'
usage: ./dev sim SEED [--preset P] [--events N] [--quiet]    replay one simulation, event by event
       ./dev sim --seeds N [--first F] [--preset P] [--jobs J] [--events N] [--at-least COUNT]

A campaign runs N seeds from F (default: 0) and prints a table, fault x outcome. Exit status 1 when
an invariant was violated, or a fault fired less than COUNT times. Presets: dev (default), release,
asan, tsan. With --background reloads stage on a thread of their own, as in a server; what the
threads do when is then no longer the seed's choice.
TEXT
}

dev_sim() {
  local preset=dev seed='' seeds='' quiet=''
  local -a rest=()
  while [ $# -gt 0 ]; do
    case $1 in
      --preset) preset=${2:?--preset needs a name}; shift 2 ;;
      --seeds) seeds=${2:?--seeds needs a number}; shift 2 ;;
      --first | --jobs | --events | --inject | --at-least)
        rest+=("$1" "${2:?$1 needs a value}"); shift 2 ;;
      --quiet) quiet=1; shift ;;
      --background) rest+=("$1"); shift ;;
      -h | --help) sim_usage; return 0 ;;
      *) [[ -z $seed && $1 =~ ^[0-9]+$ ]] || { sim_usage >&2; fail "sim: what is '$1'?"; }
         seed=$1; shift ;;
    esac
  done
  if [ -n "$seed" ] && [ -z "$seeds" ]; then
    rest=(--seed "$seed" "${rest[@]}")
    [ -n "$quiet" ] || rest+=(--verbose)
  elif [ -n "$seeds" ] && [ -z "$seed" ]; then
    rest=(--seeds "$seeds" --table "${rest[@]}")
    [[ " ${rest[*]} " == *' --jobs '* ]] || rest+=(--jobs "$(jobs_count)")
  else
    sim_usage >&2
    fail "sim: give one seed, or --seeds N"
  fi
  known_preset "$preset"
  ensure_packages build test bench
  build_preset "$preset" holdfast_sim -- -DHOLDFAST_TESTS=ON
  run "build/$preset/tests/sim/holdfast_sim" "${rest[@]}"
}
