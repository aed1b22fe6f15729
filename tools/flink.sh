#!/bin/sh
# Fetches Apache Flink's CEP library and its runtime, with which `make cep-oracle` compares the pattern matcher: the
# jars of the wheel apache-flink-libraries from PyPI (330 MB to fetch, 150 MB kept), in .python/flink. Prints the
# folder. Java 17 with javac must be on the machine (Debian: openjdk-17-jdk-headless).
set -eu
cd -- "$(dirname -- "$0")/.."
version=2.3.0
folder=$PWD/.python/flink
fail() { printf '%s\n' "flink: $*" >&2; exit 1; }
command -v javac >/dev/null 2>&1 || fail "javac is missing; install a JDK (openjdk-17-jdk-headless on Debian)"
if [ ! -e "$folder/done-$version" ]; then
    rm -rf "$folder" && mkdir -p "$folder/wheel"
    printf '%s\n' "flink: fetching apache-flink-libraries $version from PyPI" >&2
    .venv/bin/python -m uv pip install --quiet --no-deps --target "$folder/wheel" "apache-flink-libraries==$version" >&2 ||
        fail "it could not be fetched from PyPI"
    for name in flink-cep flink-dist log4j-api log4j-core log4j-slf4j-impl; do
        find "$folder/wheel" -name "$name-[0-9]*.jar" -exec mv {} "$folder" \;
    done
    rm -rf "$folder/wheel"
    : > "$folder/done-$version"
fi
printf '%s\n' "$folder"
