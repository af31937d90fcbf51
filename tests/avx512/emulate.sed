# emulate.sed - makes attn_simd_avx512.c compile for AVX2, beside immintrin.h in this folder.
# SPDX-License-Identifier: MIT
s/"avx512f,avx512dq,avx512bw"/"avx2,fma,f16c"/
s/^#define PIN(x).*/#define PIN(x)/
s/__asm__("vpdpbusd .*/sum = _mm512_dpbusd_epi32(sum, k, q);/
s/__asm__("vcvtne2ps2bf16 .*/both = emulated_cvtne2ps_pbh(b, a);/
s/__asm__("vdpbf16ps .*/sum = emulated_dpbf16_ps(sum, pairs, word);/
/^#define TILE_LOAD/,/"tdpbf16ps /d
s/__asm__ volatile("ldtilecfg .*/(void)all;/
s/__asm__ volatile("tilerelease");//
