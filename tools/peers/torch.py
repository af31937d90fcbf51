# torch.py - PyTorch's scaled_dot_product_attention and its backward pass.
# SPDX-License-Identifier: MIT
from .peer import GEMM_SIZE, PeerMissing, Variant


class Torch:
    name, title, gemm_rule = "torch", "PyTorch %s", True

    def __init__(self, machine):
        try:
            import torch
        except (ImportError, OSError) as error:
            raise PeerMissing("import torch: %s" % error)
        self.torch = torch
        torch.set_num_threads(1)
        self.version = torch.__version__
        parts = [line.strip(" -") for line in torch.__config__.show().splitlines()]
        self.remarks = "; ".join(
            [p.split(" for ")[0] for p in parts if "Math Kernel" in p or "MKL-DNN" in p]
            + ["capability " + torch.backends.cpu.get_cpu_capability(),
               "mkldnn %s" % torch.backends.mkldnn.is_available()])

    def tensor(self, data, *shape, storage="f32"):
        types = {"f32": self.torch.float32, "f16": self.torch.float16, "bf16": self.torch.bfloat16}
        return self.torch.frombuffer(data, dtype=types[storage]).reshape(shape)

    def pairs(self, case):
        """What sdpa takes as attn_mask."""
        data = case.visible or case.bias
        if not data:
            return None
        of = self.torch.bool if case.visible else self.torch.float32
        return self.torch.frombuffer(data, dtype=of).reshape(case.shape.rows, case.shape.seq)

    def gemm(self, a, b):
        n = GEMM_SIZE
        x, y, out = self.tensor(a, n, n), self.tensor(b, n, n), self.torch.empty(n, n)
        return lambda: self.torch.mm(x, y, out=out)

    def variants(self, case):
        from torch.nn.attention import SDPBackend
        ways = {}
        for how, (hq, hkv, rows, s, d) in case.views():
            q = self.tensor(case.q, 1, hq, rows, d, storage=case.storage)
            k, v = (self.tensor(x, 1, hkv, s, d, storage=case.storage) for x in (case.k, case.v))
            ways[how] = (q, k, v, hq != hkv)
            if hq != hkv:
                ways[how + ", K and V expanded"] = (q,) + tuple(
                    x.repeat_interleave(hq // hkv, 1) for x in (k, v)) + (False,)
        backends = (("default", None), ("flash", SDPBackend.FLASH_ATTENTION),
                    ("math", SDPBackend.MATH))
        make = self.backward if case.backward else self.variant
        return [make(case, name + how, backend, *tensors)
                for name, backend in backends for how, tensors in ways.items()]

    def backward(self, case, name, backend, q, k, v, gqa):
        """The backward pass alone, of a forward pass that is kept. Heads that were expanded are
        added up again by the graph, where there is one: k and v are leaves of its own else."""
        from torch.nn.attention import sdpa_kernel
        sdpa = self.torch.nn.functional.scaled_dot_product_attention
        hq, hkv, rows, s, d = case.shape
        leaves = [self.tensor(x, 1, h, n, d, storage=case.storage).clone().requires_grad_()
                  for x, h, n in ((case.q, hq, rows), (case.k, hkv, s), (case.v, hkv, s))]
        dout = self.tensor(case.dout, 1, hq, rows, d, storage=case.storage)
        expand = hq != hkv and not gqa
        wide = [x.repeat_interleave(hq // hkv, 1) if expand else x for x in leaves[1:]]
        last = []

        def forward():
            return sdpa(leaves[0], *wide, is_causal=bool(case.causal), enable_gqa=gqa)

        if backend:
            with sdpa_kernel(backend):
                o = forward()
        else:
            o = forward()

        def call():
            last[:] = self.torch.autograd.grad(o, leaves, dout, retain_graph=True)

        def output():
            kept = [x.contiguous() for x in last]
            return case.joined([x.data_ptr() for x in kept], [x.numel() for x in kept])

        return Variant(name, call, output)

    def variant(self, case, name, backend, q, k, v, gqa):
        from torch.nn.attention import sdpa_kernel
        sdpa = self.torch.nn.functional.scaled_dot_product_attention
        last, pairs = [], self.pairs(case)

        def call():
            with self.torch.inference_mode():
                last[:] = [sdpa(q, k, v, attn_mask=pairs, is_causal=bool(case.causal),
                                enable_gqa=gqa)]

        def run_backend():
            with sdpa_kernel(backend):
                call()

        def output():
            o = last[0].contiguous()  # a name of its own: the address must outlive the copying
            return case.floats_at(o.data_ptr())

        return Variant(name, run_backend if backend else call, output)
