#!/usr/bin/env bash
# Whether a clang can build a libFuzzer target.
#   has_libfuzzer.sh CLANG
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' > "$work/a.cpp"
"$1" -fsanitize=fuzzer "$work/a.cpp" -o "$work/a" 2> /dev/null
