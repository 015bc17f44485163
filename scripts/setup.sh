#!/usr/bin/env bash
# Makes this repository ready to run: virtual environment, engine, recorder plugin, QEMU.
#
#   scripts/setup.sh          what `./flatwalk` needs
#   scripts/setup.sh --dev    and what `./test` needs
#
# Safe to interrupt and to call twice at once. Everything goes to standard error and to
# .flatwalk/setup.log; standard output stays the command's own.
set -euo pipefail
root=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd)
cd "$root"
source scripts/rust.sh
venv=$root/.venv
state=$root/.flatwalk
log=$state/setup.log
target=${CARGO_TARGET_DIR:-$root/target}
developer=false
[[ ${1-} == --dev ]] && developer=true

say() { printf '%s\n' "$*" >&2; }

# fail WHAT REMEDY
fail() {
    say "error: $1"
    [[ -s $log ]] && say "  where:  $log"
    say "  remedy: $2"
    [[ ${fetching-} ]] && kill "$fetching" 2>/dev/null
    exit 1
}

trap 'kill $(jobs -p) 2>/dev/null; say ""; say "Set-up interrupted; the next call goes on from here."; exit 130' INT TERM

# step TITLE REMEDY COMMAND… : runs COMMAND with its output in the log, showing TITLE and the time it took.
# COMMAND runs in the foreground, so that Ctrl-C reaches it; the clock runs meanwhile.
step() {
    local title=$1 remedy=$2 start=$SECONDS status=0 clock=
    shift 2
    printf '%s\n' "=== $title: $*" >>"$log"
    if [[ -t 2 ]]; then
        while sleep 0.2; do
            printf '\r  %s … %d s ' "$title" $((SECONDS - start)) >&2
        done 9>&- &
        clock=$!
    else
        say "  $title …"
    fi
    "$@" >>"$log" 2>&1 </dev/null 9>&- || status=$?
    if [[ $clock ]]; then
        kill "$clock" && wait "$clock" 2>/dev/null || true
        printf '\r\033[K' >&2
    fi
    if ((status)); then
        tail -n 25 "$log" >&2
        fail "$title failed (exit status $status)" "$remedy"
    fi
    say "  $title: done ($((SECONDS - start)) s)"
}

# The command prefix that lets us install Debian packages, or failure where we may not.
apt_prefix() {
    command -v apt-get >/dev/null || return 1
    if ((EUID == 0)); then
        echo env
    elif sudo -n true 2>/dev/null; then
        echo sudo -n env
    else
        return 1
    fi
}

apt_lists_fresh=false
apt_install() {
    local prefix
    prefix=$(apt_prefix) || return 1
    local -a apt
    read -ra apt <<<"$prefix DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300"
    if ! $apt_lists_fresh; then
        step "Debian package lists" "check the network, then call again" "${apt[@]}" update
        apt_lists_fresh=true
    fi
    step "Debian packages ($*)" "run: apt-get install $*" "${apt[@]}" install -y --no-install-recommends "$@"
}

# need TEST PACKAGES… : installs PACKAGES unless TEST succeeds, or says what to install.
need() {
    local check=$1
    shift
    "$check" && return
    apt_install "$@" || fail "missing: $*" "as root: apt-get install $*   (then call again)"
    "$check" || fail "$* installed, but still not usable (${check//_/ })" "install a newer version by hand, then call again"
}

# `python` is the newest usable interpreter: 3.11 or later, able to make virtual environments.
python=
have_python() {
    local candidate
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
        python=$(command -v "$candidate") || continue
        "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
    done
    return 1
}

have_c_compiler() { command -v cc >/dev/null; }

have_qemu() { command -v qemu-x86_64 >/dev/null; }
have_chromium() { command -v chromium >/dev/null; }
# Its daemons lie where only root's PATH leads.
have_slurm() { PATH=$PATH:/usr/sbin type -P slurmctld slurmd >/dev/null; }
have_spin() { command -v spin >/dev/null; }
have_valgrind() { command -v valgrind >/dev/null; }
have_rust_tools() { cargo clippy --version >/dev/null 2>&1 && cargo fmt --version >/dev/null 2>&1; }

# What a processor of the level x86-64-v3 (2013 and later) has beyond the first, as /proc/cpuinfo names it.
v3_flags=(avx2 bmi1 bmi2 f16c fma abm movbe)
have_v3() {
    local flags flag
    flags=$(grep -m 1 '^flags' /proc/cpuinfo) || return 1
    for flag in "${v3_flags[@]}"; do
        [[ " $flags " == *" $flag "* ]] || return 1
    done
}

mkdir -p "$state"
exec 9>"$state/lock"
if ! flock -n 9; then
    say "Another set-up of this copy is running; waiting for it …"
    flock 9
fi
: >"$log"
say "Setting up flatwalk in $root (first call, or its sources changed):"

need have_c_compiler gcc libc6-dev
need have_rust cargo-web rustc-web
need have_python python3 python3-venv

# A half-made environment, or one whose interpreter went away, is made anew.
made=$venv/flatwalk-made
if [[ ! -f $made || ! -x $venv/bin/python || $(<"$made") != "$root" ]]; then
    step "Python environment" "free some disk space, or set another python3 first on PATH" \
        "$python" -m venv --clear "$venv"
    printf '%s\n' "$root" >"$made"
fi

started=$(mktemp "$state/stamp.XXXXXX")
printf '%s\n' "$root" >"$started"

network="check the network connection to the Python and Rust package registries, then call again"
export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH

# Python's packages are fetched while the compiler works.
packages=$venv/flatwalk-packages
fetching=
if [[ ! -f $packages || pyproject.toml -nt $packages ]]; then
    python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
        >"$state/requirements.txt"
    pip install --disable-pip-version-check --requirement "$state/requirements.txt" >>"$log" 2>&1 </dev/null 9>&- &
    fetching=$!
fi
# The engine is built for this processor, which makes it a tenth faster, and the recorder with it, by one call of
# cargo: for each alone it compiles the crates that they share in another way. On another processor both say so
# (processor.py).
mkdir -p python/flatwalk/libexec
if have_v3; then
    engine_flags="${RUSTFLAGS-} -C target-cpu=x86-64-v3"
    printf '%s\n' "${v3_flags[*]}" >python/flatwalk/libexec/processor
else
    engine_flags=${RUSTFLAGS-}
    : >python/flatwalk/libexec/processor
fi
step "Simulation engine and recorder (release build, 1 of 2)" "see the compiler's message above; $network" \
    env RUSTFLAGS="$engine_flags" PYO3_PYTHON="$venv/bin/python" cargo build --release --target-dir "$target/engine" \
    --package flatwalk-bindings --package flatwalk-recorder
# What measures the machine is the same on every processor, so that results can be compared.
step "Host kernels (release build, 2 of 2)" "see the compiler's message above; $network" \
    cargo build --release --target-dir "$target" --package flatwalk-host
if [[ $fetching ]]; then
    step "Python packages, fetched meanwhile" "$network" wait "$fetching"
    fetching=
    touch -r "$started" "$packages"
fi
# put BUILT PLACE : by copying and renaming, because a program that is being recorded has the old one open.
put() {
    cp "$1" "${2%/*}/.${2##*/}.new"
    mv "${2%/*}/.${2##*/}.new" "$2"
}
put "$target/engine/release/lib_engine.so" python/flatwalk/_engine.abi3.so
for built in "$target"/engine/release/{libflatwalk_recorder.so,flatwalk-collect} "$target/release/flatwalk-host"; do
    put "$built" "python/flatwalk/libexec/${built##*/}"
done
# `import flatwalk`, and the command, for those who activate the environment.
printf '%s\n' "$root/python" >"$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/flatwalk.pth"
ln -sf "$root/flatwalk" "$venv/bin/flatwalk"
cp recorder/flatwalk.h python/flatwalk/libexec/

if ! have_qemu; then
    if apt_prefix >/dev/null; then
        apt_install qemu-user
    else
        say "  QEMU is missing: recording programs needs it. As root: apt-get install qemu-user"
    fi
fi

if $developer; then
    need have_chromium chromium
    need have_valgrind valgrind
    need have_slurm slurm-wlm
    need have_spin spin
    # What `flatwalk vm build` needs; it knows itself.
    vm_packages=$(PYTHONPATH=python "$venv/bin/python" -c \
        'from flatwalk.vm import build; print(*build.missing_packages())')
    if [[ $vm_packages ]]; then
        read -ra vm_packages <<<"$vm_packages"
        apt_install "${vm_packages[@]}" ||
            fail "missing: ${vm_packages[*]}" "as root: apt-get install ${vm_packages[*]}   (then call again)"
    fi
    if [[ $(command -v cargo) == /usr/bin/cargo ]]; then
        need have_rust_tools rust-web-clippy rustfmt-web
    else
        have_rust_tools || fail "clippy or rustfmt is missing" "run: rustup component add clippy rustfmt"
    fi
    # Older ones do not know groups.
    step "pip" "$network" pip install --disable-pip-version-check --upgrade "pip>=25.1"
    step "Test tools" "$network" pip install --disable-pip-version-check --group dev
fi

# The stamp carries the time of the beginning: what changed during the build is built next time.
mv "$started" "$venv/flatwalk-built"
say "Ready."
