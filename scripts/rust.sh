# shellcheck shell=bash
# Sourced by setup.sh and ../test.

minimum_rust=88 # 1.88, as `rust-version` in Cargo.toml says

# Puts a cargo and rustc of at least the minimum version first on PATH, or fails.
have_rust() {
    local directory version
    for directory in "$(dirname -- "$(command -v cargo || echo /)")" "${CARGO_HOME:-$HOME/.cargo}/bin" /usr/bin; do
        [[ -x $directory/cargo && -x $directory/rustc ]] || continue
        version=$("$directory/rustc" --version 2>/dev/null) || continue
        if [[ $version =~ ^rustc\ ([0-9]+)\.([0-9]+)\. ]] &&
            ((BASH_REMATCH[1] > 1 || BASH_REMATCH[2] >= minimum_rust)); then
            PATH=$directory:$PATH
            return
        fi
    done
    return 1
}
