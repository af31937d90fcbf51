# from_pytorch.py - the calls of docs/from_pytorch.md, run and compared with PyTorch.
# SPDX-License-Identifier: MIT
"""python3 tests/from_pytorch.py DOCUMENT CC LIBRARY FOLDER

Each section of DOCUMENT with a block of Python and a block of C is a test. The Python block runs with
random q, k and v, and must define o (and lse, dq, dk, dv). The C block sets fields of attn_params p
and attn_gradients g. Both see every tensor of the Python block by its name. CC compiles one C program
for all sections and links LIBRARY; FOLDER takes the program and its arrays.

FlashAttention needs a GPU: two functions below do by PyTorch what its documentation says.
"""
import math
import pathlib
import re
import subprocess
import sys

import torch
import torch.nn.functional as F

BATCH, HEADS, ROWS, KEYS, DIM = 2, 4, 5, 9, 16
RESULTS = ("o", "lse", "stats", "dq", "dk", "dv")
TOLERANCE = 2e-5
C_TYPES = {torch.float32: "float", torch.int32: "int32_t", torch.bool: "uint8_t"}


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None):
    """FlashAttention 2 on [batch, seq, head, dim]; masks are aligned at the bottom right."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    rows, keys = q.shape[2], k.shape[2]
    s = q @ k.transpose(-1, -2) * (softmax_scale or 1 / math.sqrt(q.shape[3]))
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    i, j = torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)
    if alibi_slopes is not None:
        s = s - alibi_slopes[..., None, None] * (i - j).abs()
    left, right = window_size[0], 0 if causal else window_size[1]
    hidden = ((j < i - left) & (left >= 0)) | ((j > i + right) & (right >= 0))
    return (s.masked_fill(hidden, -math.inf).softmax(-1) @ v).transpose(1, 2)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, _max_q, _max_k, **options):
    """Its sequences one by one."""
    borders = zip(cu_seqlens_q[:-1], cu_seqlens_q[1:], cu_seqlens_k[:-1], cu_seqlens_k[1:])
    return torch.cat([flash_attn_func(q[None, a:b], k[None, c:d], v[None, c:d], **options)[0]
                      for a, b, c, d in borders])


def sections(text):
    """Yields (title, Python, C) of every section that has both."""
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        blocks = [re.search(rf"^```{language}\n(.*?)^```", part, re.M | re.S)
                  for language in ("python", "c")]
        if all(blocks):
            yield part.splitlines()[0], blocks[0].group(1), blocks[1].group(1)


def run_python(code):
    """The tensors that a block leaves behind."""
    flash = "flash_attn_func(" in code
    kv_heads = 2 if "2 heads" in code or flash else HEADS
    shape = (lambda h, n: (BATCH, n, h, DIM)) if flash else (lambda h, n: (BATCH, h, n, DIM))
    names = {"torch": torch, "F": F, "flash_attn_func": flash_attn_func,
             "flash_attn_varlen_func": flash_attn_varlen_func, "q": torch.randn(shape(HEADS, ROWS)),
             "k": torch.randn(shape(kv_heads, KEYS)), "v": torch.randn(shape(kv_heads, KEYS))}
    exec(code, names)
    return {n: x.detach().contiguous() for n, x in names.items() if isinstance(x, torch.Tensor)}


def c_function(number, code, tensors, folder):
    """A C function that reads the inputs from files, runs the block, and writes the results."""
    lines = [f"static void section{number}(void)", "{", "attn_params p = {0};",
             "attn_gradients g = {0};"]
    used = {n: x for n, x in tensors.items() if n in "qkv" or re.search(rf"\b{n}\b", code)}
    for name, x in used.items():
        if name in RESULTS:
            continue
        (folder / f"{number}.{name}").write_bytes(x.numpy().tobytes())
        kind = C_TYPES[x.dtype]
        lines.append(f'{kind} *{name} = take("{folder}/{number}.{name}");')
    sizes = {n: tensors[n].numel() for n in RESULTS if n in tensors}
    sizes["stats"] = 2 * BATCH * HEADS * ROWS
    lines += [f"float *{n} = space({size});" for n, size in sizes.items()]
    lines += [f"p.batch = {BATCH}; p.num_heads_q = {HEADS}; p.num_heads_kv = {HEADS};",
              f"p.seq_len_q = {ROWS}; p.seq_len_kv = {KEYS}; p.head_dim = {DIM};",
              "p.q.data = q; p.k.data = k; p.v.data = v; p.o.data = o;", code,
              "(void)stats; run(&p, &g);"]
    lines += [f'give("{folder}/{number}.{n}.out", {n}, {size});' for n, size in sizes.items()]
    return "\n".join(lines + ["}"])


PRELUDE = r"""
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "attn.h"
static void stop(const char *why)
{
    puts(why);
    exit(1);
}
static void *take(const char *name)
{
    FILE *file = fopen(name, "rb");
    void *data = malloc(1 << 20);
    if (file == NULL || data == NULL || fread(data, 1, 1 << 20, file) == 0)
        stop(name);
    fclose(file);
    return data;
}
static float *space(size_t count)
{
    float *x = malloc(count * sizeof *x);
    for (size_t n = 0; x != NULL && n < count; n++)
        x[n] = NAN;
    return x;
}
static void give(const char *name, const float *x, size_t count)
{
    FILE *file = fopen(name, "wb");
    if (file == NULL || fwrite(x, sizeof *x, count, file) != count || fclose(file) != 0)
        stop(name);
}
static void run(const attn_params *p, const attn_gradients *g)
{
    char text[300];
    size_t need = 0, back = 0;
    void *ws = attn_workspace_size(p, &need) == ATTN_OK ? malloc(need) : NULL;
    if (attn_forward(p, ws, need) != ATTN_OK)
        stop(attn_check(p, ws, need, text, sizeof text));
    if (g->dout.data == NULL)
        return;
    ws = attn_backward_workspace_size(p, g, &back) == ATTN_OK ? malloc(back) : NULL;
    if (attn_backward(p, g, ws, back) != ATTN_OK)
        stop(attn_backward_check(p, g, ws, back, text, sizeof text));
}
"""


def worst_error(tensors, number, folder):
    """The largest error of all results of a section; NaN where something was not written."""
    worst = 0.0
    for name in RESULTS:
        if name not in tensors:
            continue
        got = torch.frombuffer(bytearray((folder / f"{number}.{name}.out").read_bytes()),
                               dtype=torch.float32)
        error = (got - tensors[name].flatten()).abs().max().item()
        worst = error if math.isnan(error) else max(worst, error)
    return worst


def main(document, compiler, library, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    tests = [(title, code, run_python(python))
             for title, python, code in sections(pathlib.Path(document).read_text())]
    if len(tests) < 18:
        sys.exit(f"{document} has {len(tests)} sections with two calls: at least 18 are expected")
    program = [PRELUDE] + [c_function(n, code, tensors, folder)
                           for n, (_, code, tensors) in enumerate(tests)]
    program.append("int main(void)\n{" + "".join(f"section{n}();" for n in range(len(tests))) + "}")
    source = folder / "from_pytorch.c"
    source.write_text("\n".join(program))
    subprocess.run([*compiler.split(), "-std=c99", "-O1", "-w", "-I.", "-o", folder / "program",
                    source, *library.split()], check=True)
    subprocess.run([folder / "program"], check=True)
    failed = 0
    for n, (title, _, tensors) in enumerate(tests):
        error = worst_error(tensors, n, folder)
        failed += not error <= TOLERANCE
        print(f"{'ok    ' if error <= TOLERANCE else 'FAILED'} {error:.1e}  {title}")
    print(f"from_pytorch: {len(tests) - failed} passed, {failed} failed "
          f"(PyTorch {torch.__version__})")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
