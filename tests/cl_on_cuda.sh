#!/bin/sh
# cl_on_cuda.sh - tools/cl_on_cuda.c without a GPU: on a driver that is none (tests/fake_cuda.c),
# whose kernels do nothing. Its functions, the devices that the bench lists, a whole call, which
# must be refused; and the PTX of every kernel, where clang and libclc are installed.
# SPDX-License-Identifier: MIT
#
#     COMPILE='cc -std=c99' sh tests/cl_on_cuda.sh build
set -u
build=${1:?"usage: cl_on_cuda.sh BUILD"}
work=$build/cl_on_cuda_check
failed=0
rm -rf "$work"
mkdir -p "$work/lib" "$work/ptx"
cp "$build/cl_on_cuda/libOpenCL.so.1" "$work/lib" || exit 1
# shellcheck disable=SC2086 # words
$COMPILE -fPIC -shared tests/fake_cuda.c -o "$work/lib/libcuda.so.1" || exit 1
# shellcheck disable=SC2086 # words
$COMPILE tests/cl_on_cuda.c -o "$work/program" -ldl || exit 1
cat > "$work/compiler" <<'END'
#!/bin/sh
case $(cat "$1.cl") in
'does not compile') exit 1 ;;
'is no PTX') echo nothing > "$1.ptx" ;;
*) echo .version > "$1.ptx" ;;
esac
END
chmod +x "$work/compiler"
export LD_LIBRARY_PATH="$PWD/$work/lib" CL_ON_CUDA_DIR="$PWD/$work/ptx"
export CL_ON_CUDA_COMPILER="$PWD/$work/compiler"

check() { # check NAME WHAT-IS-SAID COMMAND...
    name=$1
    said=$2
    shift 2
    "$@" > "$work/log" 2>&1
    if grep -q -- "$said" "$work/log"; then
        echo "cl_on_cuda: $name: $(grep -m 1 -- "$said" "$work/log")"
    else
        failed=1
        echo "FAILED cl_on_cuda: $name"
        tail -n 20 "$work/log" | sed 's/^/    | /'
    fi
}

check "functions" ' passed, 0 failed' "$work/program" "$PWD/$work/lib/libOpenCL.so.1"
check "devices" 'a device that is none, .*: usable' "$build/bench" info
for impl in opencl opencl_resident opencl_naive; do
    check "$impl: kernels that do nothing are refused" 'failed .* first check on this device' \
        "$build/bench" --shape 1,2,2,40,300,32 --impl $impl --iters 1
done
check "exact: so is the device's arithmetic" "no OpenCL device (the device's arithmetic" \
    "$build/bench" --shape 1,2,2,40,300,32 --impl opencl_exact --iters 1
rm -f "$work"/ptx/*
if sh tools/cl_to_ptx "$work/none" 2>&1 | grep -q needs; then
    echo "cl_on_cuda: skipped PTX: no clang from 16 on, or no libclc"
else
    export CL_ON_CUDA_COMPILER=tools/cl_to_ptx
    for impl in opencl opencl_naive; do
        check "$impl: PTX" 'failed .* first check on this device' \
            "$build/bench" --shape 1,2,2,40,300,32 --impl $impl --iters 1
    done
    check "PTX" entry grep -h 'entry' "$work"/ptx/*.ptx
fi
exit "$failed"
