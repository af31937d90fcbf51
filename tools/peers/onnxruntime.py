# onnxruntime.py - the attention operators of ONNX Runtime.
# SPDX-License-Identifier: MIT
from .peer import GEMM_SIZE, PeerMissing, Variant


class OnnxRuntime:
    name, title, gemm_rule = "onnxruntime", "ONNX Runtime %s", False
    OPSETS = [("", 23), ("com.microsoft", 1)]

    def __init__(self, machine):
        try:
            import numpy
            import onnx
            import onnxruntime
        except (ImportError, OSError) as error:
            raise PeerMissing("import onnxruntime, onnx, numpy: %s" % error)
        self.numpy, self.onnx, self.runtime = numpy, onnx, onnxruntime
        onnxruntime.set_default_logger_severity(4)
        self.version = onnxruntime.__version__
        self.remarks = "CPUExecutionProvider"

    def session(self, node, inputs, outputs, shared=()):
        """A call of a model of one node; inputs and outputs: name to array; shared: pairs of an
        output and the input in whose memory it lies."""
        helper, types = self.onnx.helper, self.onnx.helper.np_dtype_to_tensor_dtype

        def infos(arrays):
            return [helper.make_tensor_value_info(n, types(a.dtype), a.shape)
                    for n, a in arrays.items()]

        model = helper.make_model(
            helper.make_graph([node], "g", infos(inputs), infos(outputs)), ir_version=10,
            opset_imports=[helper.make_opsetid(*o) for o in self.OPSETS])
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = self.runtime.InferenceSession(model.SerializeToString(), options,
                                                providers=["CPUExecutionProvider"])
        binding, value = session.io_binding(), self.runtime.OrtValue.ortvalue_from_numpy
        given = {n: value(a) for n, a in inputs.items()}
        results = {n: value(a) for n, a in outputs.items() if n not in dict(shared)}
        results.update((out, given[into]) for out, into in shared)
        for n, a in given.items():
            binding.bind_ortvalue_input(n, a)
        for n, a in results.items():
            binding.bind_ortvalue_output(n, a)

        def run(_kept=(inputs, outputs)):  # the binding shares the arrays' memory, owning none
            session.run_with_iobinding(binding)

        return run, results

    def array(self, data, *shape, storage="f32"):
        types = {"f32": self.numpy.float32, "f16": self.numpy.float16}
        return self.numpy.frombuffer(data, dtype=types[storage]).reshape(shape)

    def gemm(self, a, b):
        n = GEMM_SIZE
        node = self.onnx.helper.make_node("MatMul", ["a", "b"], ["c"])
        return self.session(node, {"a": self.array(a, n, n), "b": self.array(b, n, n)},
                            {"c": self.numpy.zeros((n, n), self.numpy.float32)})[0]

    def variants(self, case):
        """numpy has no bf16, onnxruntime no gradients."""
        if case.storage == "bf16" or case.backward:
            return []
        offers = [(self.attention, how, view) for how, view in case.views()]
        if case.decode:
            offers += [(self.multi_head, *case.views()[-1]), (self.cached, "", case.shape)]
        elif not case.visible:  # its bias is of numbers
            offers += [(self.multi_head, "", case.shape)]
        if case.causal:
            offers += [(self.grouped, "", case.shape)]
        return [self.variant(case, how, view, *maker(case, view)) for maker, how, view in offers]

    def variant(self, case, how, view, name, node, inputs, outputs, shared=()):
        run, results = self.session(node, inputs, outputs, shared)
        hq, _, rows, _, d = view

        def output():
            o = results["o"].numpy()
            if o.ndim == 3:
                o = self.numpy.ascontiguousarray(o.reshape(rows, hq, d).transpose(1, 0, 2))
            return case.floats_at(o.ctypes.data)

        return Variant(name + how, run, output)

    def heads(self, case, view):
        hq, hkv, rows, s, d = view
        return [self.array(x, h, n, d, storage=case.storage)
                for x, h, n in ((case.q, hq, rows), (case.k, hkv, s), (case.v, hkv, s))]

    def tokens_first(self, x):
        return self.numpy.ascontiguousarray(x.transpose(1, 0, 2)).reshape(1, x.shape[1], -1)

    def pairs(self, case, name):
        """Of a mask by pairs, as a named input."""
        shape = case.shape.rows, case.shape.seq
        if case.visible:
            return {name: self.numpy.frombuffer(case.visible, self.numpy.bool_).reshape(shape)}
        return {name: self.array(case.bias, *shape)} if case.bias else {}

    def attention(self, case, view):
        pairs = self.pairs(case, "pairs")
        node = self.onnx.helper.make_node("Attention", ["q", "k", "v", *pairs], ["o"],
                                          is_causal=int(case.causal))
        inputs = dict({n: x[None] for n, x in zip("qkv", self.heads(case, view))}, **pairs)
        return "Attention", node, inputs, {"o": self.numpy.zeros_like(inputs["q"])}

    def multi_head(self, case, view):
        """A cache keeps the heads apart: tokens first would be transposed in every call."""
        q, k, v = self.heads(case, view)
        k, v = (self.numpy.repeat(x, view.heads_q // view.heads_kv, 0) for x in (k, v))
        k, v = (x[None] if case.decode else self.tokens_first(x) for x in (k, v))
        inputs = {"q": self.tokens_first(q), "k": k, "v": v}
        inputs.update((n, x[None, None]) for n, x in self.pairs(case, "pairs").items())
        node = self.onnx.helper.make_node(
            "MultiHeadAttention", [*"qkv", *([""] * 2 + ["pairs"] if case.bias else [])], ["o"],
            domain="com.microsoft",
            num_heads=view.heads_q, unidirectional=int(case.causal))
        return "MultiHeadAttention", node, inputs, {"o": self.numpy.zeros_like(inputs["q"])}

    def grouped_node(self, view, past):
        return self.onnx.helper.make_node(
            "GroupQueryAttention", ["q", "k", "v", *past, "last", "total"],
            ["o", "present_k", "present_v"], domain="com.microsoft", num_heads=view.heads_q,
            kv_num_heads=view.heads_kv)

    def grouped_inputs(self, q, k, v, keys):
        inputs = {n: self.tokens_first(x) for n, x in zip("qkv", (q, k, v))}
        inputs["last"] = self.numpy.array([keys - 1], self.numpy.int32)
        inputs["total"] = self.numpy.array(keys, self.numpy.int32)
        return inputs

    def grouped(self, case, view):
        inputs = self.grouped_inputs(*self.heads(case, view), view.seq)
        present = self.numpy.zeros((1, view.heads_kv, view.seq, view.dim), self.numpy.float32)
        return "GroupQueryAttention", self.grouped_node(view, ["", ""]), inputs, {
            "o": self.numpy.zeros_like(inputs["q"]), "present_k": present,
            "present_v": present.copy()}

    def cached(self, case, view):
        """The last key is the new one: put where it is already, in a cache of its own. Past and
        present share their memory, else each call copies the whole cache."""
        q, k, v = self.heads(case, view)
        inputs = self.grouped_inputs(q, k[:, -1:], v[:, -1:], view.seq)
        inputs.update(past_k=k[None].copy(), past_v=v[None].copy())
        outputs = {"o": self.numpy.zeros_like(inputs["q"]), "present_k": inputs["past_k"],
                   "present_v": inputs["past_v"]}
        shared = ("present_k", "past_k"), ("present_v", "past_v")
        node = self.grouped_node(view, ["past_k", "past_v"])
        return "GroupQueryAttention", node, inputs, outputs, shared
