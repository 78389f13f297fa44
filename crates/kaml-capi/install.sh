#!/bin/sh
# Builds libkaml for C and installs it:  install.sh PREFIX
#
#   PREFIX/include/kaml.h
#   PREFIX/lib/libkaml.so -> libkaml.so.MAJOR -> libkaml.so.VERSION, libkaml.a, pkgconfig/kaml.pc
#
# The libraries are stripped where `strip` is installed.
#
# Environment:
#   DESTDIR       put before every path that is written, for packagers; not part of the paths in kaml.pc
#   KAML_LIBDIR   directory of libraries below PREFIX, `lib` if not set
#   KAML_PROFILE  the cargo profile, `release` if not set
#   KAML_BUILT    directory of a libkaml.so and libkaml.a that are built already; cargo is not called
#   CARGO         the cargo to call, `cargo` if not set
set -eu

if [ $# -ne 1 ] || [ -z "$1" ]; then
    echo "usage: $0 PREFIX" >&2
    exit 2
fi
case $1 in
/*) prefix=$1 ;;
*) prefix=$PWD/$1 ;; # kaml.pc is read from anywhere
esac
here=$(cd "$(dirname "$0")" && pwd)
cargo=${CARGO:-cargo}
profile=${KAML_PROFILE:-release}
to=${DESTDIR:-}$prefix

# The compiler reports which system libraries a static program needs.
if [ -n "${KAML_BUILT:-}" ]; then
    scratch=$(mktemp -d)
    # No crate links a library of its own, so they are those of any static library.
    notes=$(echo | rustc --crate-type staticlib --crate-name none --print native-static-libs --out-dir "$scratch" - 2>&1)
    rm -r "$scratch"
else
    notes=$(cd "$here" && "$cargo" rustc --locked -p kaml-capi --lib --profile "$profile" -- --print native-static-libs 2>&1) || {
        printf '%s\n' "$notes" >&2
        exit 1
    }
fi
private=$(printf '%s\n' "$notes" | sed -n 's/.*native-static-libs: //p' | tail -n 1)
# The C compiler adds its own runtime, shared or static as it links; naming the shared one breaks -static.
private=$(printf '%s\n' "$private" | sed -e 's/-lgcc_s *//g')

metadata() { # key of `cargo metadata` that is a string
    (cd "$here" && "$cargo" metadata --locked --no-deps --format-version 1) |
        sed -n "s/.*\"$1\":\"\\([^\"]*\\)\".*/\\1/p" | head -n 1
}
version=$(sed -n 's/^#define KAML_VERSION "\(.*\)"/\1/p' "$here/include/kaml.h")
major=${version%%.*}
if [ -n "${KAML_BUILT:-}" ]; then
    built=$KAML_BUILT
else
    target=$(metadata target_directory)
    case $profile in
    dev) built=$target/debug ;;
    *) built=$target/$profile ;;
    esac
fi
libdir=${KAML_LIBDIR:-lib}
lib=$to/$libdir

mkdir -p "$to/include" "$lib/pkgconfig"
install -m 644 "$here/include/kaml.h" "$to/include/kaml.h"
install -m 644 "$built/libkaml.a" "$lib/libkaml.a"
install -m 755 "$built/libkaml.so" "$lib/libkaml.so.$version"
if command -v strip >/dev/null 2>&1; then
    strip --strip-unneeded "$lib/libkaml.so.$version"
    strip --strip-debug "$lib/libkaml.a"
fi
ln -sf "libkaml.so.$version" "$lib/libkaml.so.$major"
ln -sf "libkaml.so.$major" "$lib/libkaml.so"
url=$(sed -n 's/^repository = "\(.*\)"/\1/p' "$here/../../Cargo.toml")
sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|$libdir|" -e "s|@VERSION@|$version|" -e "s|@URL@|$url|" -e "s|@PRIVATE@|$private|" \
    "$here/kaml.pc.in" >"$lib/pkgconfig/kaml.pc"
echo "installed libkaml $version in $to"
# Programs find it where the loader looks, which a new library has to be shown.
if [ -z "${DESTDIR:-}" ]; then
    if [ "$(id -u)" = 0 ] && command -v ldconfig >/dev/null 2>&1; then
        ldconfig
    fi
    case $(ldconfig -p 2>/dev/null) in
    *"=> $prefix/$libdir/libkaml.so.$major"*) ;;
    *) echo "the loader does not look there: set LD_LIBRARY_PATH=$prefix/$libdir where programs run" ;;
    esac
fi
