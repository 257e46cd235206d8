# Shell functions of ./demo, ./test, ./dev and .ci/run. Sourced from the project's root.

say() { printf '%s\n' "$*"; }
title() { printf '\n== %s\n' "$*"; }
fail() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# Prints a command as a reader would type it; `run` then runs it.
show_command() {
  local word line=''
  for word in "$@"; do
    case $word in
      '' | *[!A-Za-z0-9_./=:,+-]*) line+=" '${word//\'/\'\\\'\'}'" ;;
      *) line+=" $word" ;;
    esac
  done
  printf '\n$%s\n' "$line"
}
run() {
  show_command "$@"
  "$@"
}

jobs_count() { nproc 2>/dev/null || getconf _NPROCESSORS_ONLN; }

# packages_of GROUP...: the packages of these groups, or of all of them.
packages_of() {
  local groups=" $* "
  local group package rest
  while read -r group package rest; do
    case $group in '' | '#'*) continue ;; esac
    if [ $# = 0 ] || [[ $groups == *" $group "* ]]; then printf '%s\n' "$package"; fi
  done <tools/packages.txt | sort -u
}

package_groups() { sed -nE 's/^([a-z]+) .*/\1/p' tools/packages.txt | sort -u; }

# missing_packages GROUP...: those of the groups' packages that are not installed.
missing_packages() {
  local package state
  for package in $(packages_of "$@"); do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || state=''
    [ "$state" = installed ] || printf '%s\n' "$package"
  done
}

# ensure_packages GROUP...: installs what is missing, as root or with sudo. Where that cannot be, it
# names the packages and the command, and ends the script.
ensure_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "This system has no apt: going on with the tools and libraries that are here."
    say "What is needed, by Debian's names: $(packages_of "$@" | xargs)"
    return 0
  fi
  local missing
  missing=$(missing_packages "$@" | xargs)
  [ -n "$missing" ] || return 0
  local -a as_root=()
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null || { [ ! -t 0 ] && ! sudo -n true 2>/dev/null; }; then
      fail "these packages are missing, and installing them needs root: $missing
Have them installed, then start again:
  apt-get update && apt-get install --no-install-recommends $missing"
    fi
    as_root=(sudo)
  fi
  mkdir -p build
  say "Installing Debian packages (a minute or two): $missing"
  local -a apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q
                -o DPkg::Lock::Timeout=300)
  # shellcheck disable=SC2086  # the names are to be split
  if ! { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends $missing; } \
         >build/packages.log 2>&1 </dev/null
  then
    tail -n 20 build/packages.log >&2
    fail "apt-get failed (all of its output: build/packages.log). It was to install: $missing"
  fi
}

# build_preset PRESET [TARGET...] [-- CMAKE_OPTION...]: configures build/PRESET, builds the targets.
build_preset() {
  local preset=$1
  shift
  local -a targets=() options=()
  while [ $# -gt 0 ]; do
    if [ "$1" = -- ]; then
      shift
      options=("$@")
      break
    fi
    targets+=(--target "$1")
    shift
  done
  mkdir -p build
  show_command cmake --preset "$preset" "${options[@]}"
  cmake --preset "$preset" "${options[@]}" >build/configure.log 2>&1 ||
    { cat build/configure.log >&2; fail "configuring the preset $preset failed"; }
  local -a build=(cmake --build "build/$preset" -j "$(jobs_count)" "${targets[@]}")
  if [ -t 1 ]; then
    run "${build[@]}"
  else
    run "${build[@]}" | thin_progress
  fi
}

# Of ninja's "[n/total] ..." lines every tenth part; everything else as it is.
thin_progress() {
  awk '/^\[[0-9]+\/[0-9]+\] / {
         split(substr($1, 2), count, /[\/\]]/)
         tenth = int(count[1] * 10 / count[2])
         if (tenth == last) next
         last = tenth
       }
       { print; fflush() }'
}

known_preset() {
  case $1 in
    dev | release | asan | tsan) ;;
    *) fail "unknown preset '$1': dev, release, asan or tsan" ;;
  esac
}

elapsed() { # elapsed SECONDS_AT_START
  local seconds=$((SECONDS - $1))
  printf '%d min %02d s' $((seconds / 60)) $((seconds % 60))
}
