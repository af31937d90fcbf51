/* golden.h - hashes of the cases of bits_data.h, numerics version 1: FNV-1a over o, and
 * over LSE, states and logits. Written by `canon --golden`; a change is a major version.
 * SPDX-License-Identifier: MIT
 */
#ifndef GOLDEN_H
#define GOLDEN_H

#include <stdint.h>

typedef struct golden_hash {
    const char *name;
    uint64_t o, rest;
} golden_hash;

static const golden_hash golden[] = {
    { "x1", UINT64_C(0x07d3f11772a223fb), UINT64_C(0xacc11fc461ff1692) },
    { "x4", UINT64_C(0x75cbdb7f14080665), UINT64_C(0x0251eba16c8e8cb0) },
    { "x16", UINT64_C(0xa0b34bf6b98c54e0), UINT64_C(0xfc5b65f84dc51df9) },
    { "x1-long", UINT64_C(0xce9100c0a4f01481), UINT64_C(0x5125fd0fe7b9a448) },
    { "x4-long", UINT64_C(0xa25555a30f0f41d8), UINT64_C(0xb6ae71c8717a6487) },
    { "x16-long", UINT64_C(0x86ffe52b050beca5), UINT64_C(0xefd85317a533ef4d) },
    { "outliers", UINT64_C(0x8d33755add7efa6f), UINT64_C(0xa3b75aeffc268868) },
    { "outliers-long", UINT64_C(0x664c8da2ea433de0), UINT64_C(0x93bddfad6baa9d59) },
    { "outliers-square", UINT64_C(0xaee00cd830060cfe), UINT64_C(0xce1ef7ab3fd1d165) },
    { "kv-1", UINT64_C(0x78b2982784c0216b), UINT64_C(0x56e4064843d9da18) },
    { "kv-15", UINT64_C(0x1a8f6a16bda38082), UINT64_C(0x948eac38f2ae6a09) },
    { "kv-16", UINT64_C(0xccb6213c802b89c1), UINT64_C(0x4add4380e7aed9b7) },
    { "kv-17", UINT64_C(0xae418d5b3c3c0976), UINT64_C(0xa69cd24eb6e54339) },
    { "kv-500", UINT64_C(0xbe750d0786d7ae02), UINT64_C(0xa7bbbcb89691e183) },
    { "kv-1023", UINT64_C(0x847037be22d7e6e4), UINT64_C(0xb8ffcde3122cdfa7) },
    { "kv-1024", UINT64_C(0x7ffa79a70549960f), UINT64_C(0x7f622a9dc3c32624) },
    { "kv-1025", UINT64_C(0x03a64f124137853c), UINT64_C(0xbc5b7bdac487baec) },
    { "kv-2309", UINT64_C(0x6072ff52abc76168), UINT64_C(0x0a83ba8d838b944b) },
    { "kv-6200", UINT64_C(0x48e28f75aa24dae4), UINT64_C(0xb5af6593faba40d9) },
    { "d-1", UINT64_C(0x49ad7a90b7832cc7), UINT64_C(0x06e10a18172ea2ae) },
    { "d-3", UINT64_C(0x8e83c635bb3864c6), UINT64_C(0xedf8ba00459b955e) },
    { "d-16", UINT64_C(0x84756a4236e5ebb2), UINT64_C(0x303f87e6e98cdcae) },
    { "d-80", UINT64_C(0x7baf721d9c211057), UINT64_C(0x2da2ed18eae1cb35) },
    { "d-96", UINT64_C(0x6e76e6a06ee7d0da), UINT64_C(0xf3cc646872941070) },
    { "d-128", UINT64_C(0xb840f47093ce8521), UINT64_C(0x8420ff4db0ed9c04) },
    { "d-256", UINT64_C(0x4eadeb9bd8a93699), UINT64_C(0xae557fe7402f2967) },
    { "d-40-dv-24", UINT64_C(0xf56b74f8963db4ec), UINT64_C(0x82425953e4b877ae) },
    { "d-64-dv-1", UINT64_C(0x983be8af71d8096e), UINT64_C(0x1d933e59d563832a) },
    { "d-16-dv-80", UINT64_C(0x26b128ec4529a04a), UINT64_C(0xaad14315b96b104d) },
    { "base-3", UINT64_C(0x82139e26acbc223b), UINT64_C(0xba301c1face04faf) },
    { "base-1021", UINT64_C(0x3df0c05d7402f53a), UINT64_C(0xceaa19fea172933b) },
    { "base-1021-causal", UINT64_C(0xfa53060d3ccd410a), UINT64_C(0x7111ad2ffb115f30) },
    { "base-far", UINT64_C(0x2f6f151e418479a2), UINT64_C(0x0a9411df7d0be64a) },
    { "base-ragged", UINT64_C(0xff676b63646456d6), UINT64_C(0xd3d52254839fd4e1) },
    { "top-left", UINT64_C(0x0e83b7a0f6615e4b), UINT64_C(0x63412ebe9185f1e1) },
    { "offset", UINT64_C(0x6c5e1ecba2f73cb1), UINT64_C(0xe0d08b495d1c1fa4) },
    { "empty-rows", UINT64_C(0xaf3e1a466a490206), UINT64_C(0x07958465bb2c17ed) },
    { "empty-rows-sink", UINT64_C(0x5552fe68f89d8b4e), UINT64_C(0xd262054e48512a1d) },
    { "ragged", UINT64_C(0xdebc1e5e333e5c02), UINT64_C(0x72c5b8013024e9e0) },
    { "ragged-causal-left", UINT64_C(0xca9749a9e4b58694), UINT64_C(0x0a9c204126201a8f) },
    { "kv-len-0", UINT64_C(0xa2049996b458bc5c), UINT64_C(0x85cb9a2ef2b315a7) },
    { "window", UINT64_C(0xff76eb5b26a311b4), UINT64_C(0xd9f2df1cffe9978d) },
    { "window-both", UINT64_C(0xd6d02d69c6045827), UINT64_C(0xfe1fd51f134e1414) },
    { "window-long", UINT64_C(0x8f02fce7a71f8acf), UINT64_C(0xddec1305e1dfb2eb) },
    { "gqa", UINT64_C(0x3a1b1c8152b86dfa), UINT64_C(0xf711cd8648bef8d1) },
    { "mqa-one-row", UINT64_C(0xb4c71e783fd8adcb), UINT64_C(0xc8b7a40b1326a6d0) },
    { "f16", UINT64_C(0xb724716ff43fd29e), UINT64_C(0x76b3671d4e94a9d3) },
    { "bf16", UINT64_C(0x21351d2318fb02d5), UINT64_C(0x1ef593589b7ed7f4) },
    { "f16-one-row", UINT64_C(0x44ceae81707486bb), UINT64_C(0xdf96de8e58d8a7ca) },
    { "bf16-one-row", UINT64_C(0x51103cfb3fc69fab), UINT64_C(0xd5c7351c9ee930a3) },
    { "softcap", UINT64_C(0x870562f6384ab31b), UINT64_C(0xe5a79f582d833c33) },
    { "softcap-small", UINT64_C(0x65353749c2ead42f), UINT64_C(0x54b531052ec50bb4) },
    { "bias", UINT64_C(0x2c6ef0cd69cb52aa), UINT64_C(0xe9b54e195897cc6b) },
    { "bias-f16", UINT64_C(0x635925765efc886e), UINT64_C(0xdf425211dce1e729) },
    { "bias-bf16", UINT64_C(0x96c52f700888e4c7), UINT64_C(0x61e4bb45866407e5) },
    { "bias-holes", UINT64_C(0x00d55d2168a7c6c0), UINT64_C(0x6aebf9a9b2a47480) },
    { "bias-poison", UINT64_C(0x666e056f95cb61f0), UINT64_C(0x040aec25c241a7a9) },
    { "alibi", UINT64_C(0x7d5fcb0133b0c5d0), UINT64_C(0x26c6173142876a55) },
    { "alibi-long", UINT64_C(0x2cf188dc9d19d512), UINT64_C(0xa9f8d508ea20413d) },
    { "sink", UINT64_C(0xccb7515c8e9dfa8f), UINT64_C(0x1860d7ac62effec9) },
    { "dropout", UINT64_C(0xc3b01ce7ec5a5652), UINT64_C(0xd645650a06853987) },
    { "dropout-half", UINT64_C(0x3e96b65dfbb5ae1d), UINT64_C(0xe02703a760a0898a) },
    { "partial", UINT64_C(0x4647fc7d352593f7), UINT64_C(0x24da72ee058fbe1c) },
    { "partial-empty", UINT64_C(0x08b1826b7c6d9c3b), UINT64_C(0x22c973560b12ef95) },
    { "logits-raw", UINT64_C(0xcc9ec48fbf9714e3), UINT64_C(0x2d6c661bdc675e53) },
    { "logits-softcap", UINT64_C(0xe2433aec2f85e426), UINT64_C(0xa9f3a3cbe9e0c194) },
    { "logits-bias", UINT64_C(0xc05a53a553f1707c), UINT64_C(0x4934c95a1205a8e9) },
    { "logits-softmax", UINT64_C(0x507315cdf3f24a02), UINT64_C(0x1bbd72327004a6ec) },
    { "halfway", UINT64_C(0xb02bf1758488edb5), UINT64_C(0x8bc515bd2f82e3a5) },
    { "all", UINT64_C(0x1d2c126448246dfb), UINT64_C(0x1fdd56113d2eea7b) },
    { "all-f16", UINT64_C(0xa23b8a225ce18f9d), UINT64_C(0x440c23ee5ac87580) },
};

#endif
