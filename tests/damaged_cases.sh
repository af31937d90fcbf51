#!/bin/sh
# damaged_cases.sh - copies of tests/cases, each with one thing wrong, must fail for that reason.
# SPDX-License-Identifier: MIT
#
#     sh tests/damaged_cases.sh BUILD        (RUN from the environment)
#
# The runner of conformance cases is worth something if a wrong attribute, number or byte shows.
set -u
build=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-cases.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
. "tests/expect.sh"
unset ATTN_TEST_SAMPLE # one case at a time

# What is done in the folder of the copy.
line() { sed "$1" case.txt > edited && mv edited case.txt; } # line SED-SCRIPT
cut_short() { head -c "$2" "$1" > edited && mv edited "$1"; } # cut_short FILE BYTES
longer() { printf x >> "$1"; }
bytes() { printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc 2> /dev/null; } # FILE AT BYTES

# copy CASE: into a folder of its own, listed.
copy()
{
    rm -rf "$work/cases" && mkdir "$work/cases" && cp -r "tests/cases/$1" "$work/cases/$1" &&
        echo "$1" > "$work/cases/cases.list"
}

fails() # fails CASE SENTENCE DAMAGE...
{
    name=$1
    sentence=$2
    shift 2
    copy "$name" && (cd "$work/cases/$name" && "$@") || return 1
    ${RUN:-} "$build/test" --cases "$work/cases" > "$work/out" 2>&1
    status=$?
    cat "$work/out"
    [ "$status" -eq 1 ] && grep "^$name  *FAILED " "$work/out" | grep -q -- "$sentence"
}

check() { expect "$1: $3 $4 ${5-} ${6-}" fails "$@"; } # check CASE SENTENCE DAMAGE...

# ---- the format

check gqa_packed_sink_bias "the format is 'attncase 2'" line 's/attncase 1/attncase 2/'
check gqa_packed_sink_bias "does not begin with 'format'" line 1d
check gqa_packed_sink_bias "does not reach its 'end'" line '$d'
check gqa_packed_sink_bias "its name inside is 'other'" line 's/^case .*/case other/'
check gqa_packed_sink_bias "unknown operator 'Attend'" line 's/^op .*/op Attend/'
check gqa_packed_sink_bias "unknown attribute 'softcup'" line 's/softcap/softcup/'
check gqa_packed_sink_bias "unknown input 'head_sunk'" line 's/11 head_sink/11 head_sunk/'
check gqa_packed_sink_bias "unknown output 'past_key'" line 's/1 present_key/1 past_key/'
check gqa_packed_sink_bias "is not a finite number" line 's/softcap float 2.5/softcap float inf/'
check gqa_packed_sink_bias "unknown type 'f8'" line 's/head_sink f32/head_sink f8/'
check gqa_packed_sink_bias "has less than the 16 bytes" cut_short input_11_head_sink.bin 15
check gqa_packed_sink_bias "has more than the 16 bytes" longer input_11_head_sink.bin
check gqa_packed_sink_bias "is missing" rm input_11_head_sink.bin
check gqa_packed_sink_bias "is not an integer of 0..5" line 's/query f32 3/query f32 6/'

# ---- shapes and lengths

check rank3_gqa_causal_past "must be given together" line '/past_value f/d'
check rank3_gqa_causal_past "the past does not fit" \
    line 's/past_key f32 4 2 2 5 8/past_key f32 4 2 5 2 8/'
check rank3_gqa_causal_past "queries, keys and values do not fit" \
    line 's/kv_num_heads int 2/kv_num_heads int 1/'
check rank3_gqa_causal_past "present_key has another shape" \
    line 's/present_key f32 4 2 2 9 8/present_key f32 4 2 9 2 8/'
check gqa_ragged_rotary_window "seqlens_k\[0\] is 9, of 9 keys" bytes input_5_seqlens_k.bin 0 '\011'
check gqa_ragged_rotary_window "total_sequence_length must" line '/total_sequence_length/d'
check gqa_both_ways_positions "position" bytes input_9_position_ids.bin 0 '\012'
check gqa_packed_sink_bias "attention_bias must be" line 's/bias f32 4 1 1 3 8/bias f32 4 1 1 8 3/'
check gqa_packed_sink_bias "head_sink has another shape" line 's/sink f32 1 4/sink f32 2 2 2/'
check gqa_packed_sink_bias "qk_output is 0" line 's/qk_output int 2/qk_output int 0/'
check mha_past_padding_bias "key_padding_mask of rank 2" line 's/mask i32 2 2 9/mask i32 2 9 2/'
check mha_past_padding_bias "bias has another shape" line 's/bias f32 1 44/bias f32 2 22 2/'
check mha_packed_kv_mask_rank3 "must be packed" line 's/2 6 2 2 8/2 6 1 4 8/'
check rotary_half_partial_rank3 "position" bytes input_3_position_ids.bin 0 '\011'
check rotary_half_partial_rank3 "cos_cache has another shape" \
    line 's/rotary_embedding_dim int 6/rotary_embedding_dim int 4/'
check scatter_linear_axis2 "capacity (6)" bytes input_2_write_indices.bin 8 '\005'
check scatter_linear_axis2 "write_indices\[1\] is 7" bytes input_2_write_indices.bin 8 '\007'
check scatter_linear_axis2 "unknown mode 'ring'" line 's/mode string linear/mode string ring/'
check scatter_linear_axis2 "update does not fit" line 's/axis int 2/axis int 3/'
check scatter_linear_axis2 "axis 0 of past_cache" line 's/axis int 2/axis int 0/'

check sdpa_grad_softcap_bias_heads "dY has another shape" line 's/dY f32 4 2 3 4/dY f32 4 3 2 4/'
check sdpa_grad_softcap_bias_heads "dY has another shape" \
    line 's/dY f32 4 2 3 4 8/dY f32 4 2 3 8 4/'
check sdpa_grad_softcap_bias_heads "no output to compare" line '/^output/d'
check sdpa_grad_softcap_bias_heads "dK has another shape" line 's/dK f64 4 2 1 7/dK f64 4 1 2 7/'
check sdpa_grad_softcap_bias_heads "dMask has another shape" \
    line 's/dMask f64 3 3 1 7/dMask f64 2 3 7/'
check sdpa_grad_softcap_bias_heads "dQ without dY" line 's/ dY f32/ dX f32/'
check sdpa_grad_softcap_bias_heads "unknown output 'dBias'" line 's/ dMask f64/ dBias f64/'
check sdpa_grad_half_bool_mask "unknown input 'past_key'" line 's/3 attn_mask/3 past_key/'
check sdpa_grad_empty_rows_bias_keys "dMask without a mask of numbers" \
    line 's/attn_mask f32 1 6/attn_mask bool 1 24/'
check sdpa_grad_empty_rows_bias_keys "attn_mask has 3 columns" \
    line 's/attn_mask f32 1 6/attn_mask f32 2 2 3/;s/dMask f64 1 6/dMask f64 2 2 3/'
check sdpa_grad_empty_rows_bias_keys "dQ_zero_rows has another shape" \
    line 's/dQ_zero_rows f64 4 1 4 5 4/dQ_zero_rows f64 4 1 5 4 4/'
check sdpa_grad_empty_rows_bias_keys "unknown output 'dQ_zero_rows'" line '/output 2 dQ /d'

# ---- an attribute or a number that is wrong changes the result

check rank3_gqa_causal_past "present_key\[0\] is" bytes output_1_present_key.bin 0 '\0\0\0\0'
check rank3_gqa_causal_past "Y\[" bytes input_4_past_key.bin 0 '\0\0\0\0'
check rank3_gqa_causal_past "Y\[" bytes input_5_past_value.bin 0 '\0\0\0\0'
check rank3_gqa_causal_past "Y\[" line 's/is_causal int 1/is_causal int 0/'
check window_past_short_mask_logits "Y\[" line 's/left_window_size int 4/left_window_size int 3/'
check window_past_short_mask_logits "Y\[" line 's/right_window_size int 1/right_window_size int 0/'
check window_past_short_mask_logits "qk_matmul_output\[" \
    line 's/output_mode int 0/output_mode int 3/'
check rotary_half_partial_rank3 "Y\[" line 's/interleaved int 0/interleaved int 1/'
check rotary_interleaved_rank3_tables "Y\[" line 's/interleaved int 1/interleaved int 0/'
check rotary_half_partial_rank3 "Y\[" bytes input_3_position_ids.bin 0 '\007'
check scatter_linear_axis2 "present_cache\[" bytes output_0_present_cache.bin 140 '\0'
check scatter_linear_axis2 "present_cache\[" bytes input_2_write_indices.bin 8 '\003'
check scatter_circular_rank3 "present_cache\[" bytes input_2_write_indices.bin 16 '\014'
check gqa_ragged_rotary_window "output\[" line 's/local_window_size int 3/local_window_size int 2/'
check gqa_ragged_rotary_window "output\[" line 's/do_rotary int 1/do_rotary int 0/'
check gqa_ragged_rotary_window "output\[" line 's/interleaved int 1/interleaved int 0/'
check gqa_ragged_rotary_window "output\[" bytes input_5_seqlens_k.bin 4 '\004'
check gqa_packed_sink_bias "output\[" line 's/softcap float 2.5/softcap float 2.6/'
check gqa_packed_sink_bias "output\[" line 's/scale float 0.5/scale float 0.51/'
check gqa_packed_sink_bias "output\[" line 's/causal int 1/causal int 0/'
check gqa_packed_sink_bias "output\[" line '/head_sink/d'
check gqa_packed_sink_bias "output_qk\[" line 's/qk_output int 2/qk_output int 1/'
check gqa_padded_prompt_smooth "output\[" line 's/smooth_softmax int 1/smooth_softmax int 0/'
check gqa_both_ways_positions "output\[" line 's/causal int 0/causal int 1/'
check gqa_both_ways_positions "output\[" line '/position_ids/d'
check mha_past_padding_bias "output\[" line 's/filter_value float -3/filter_value float -4/'
check mha_past_padding_bias "output\[" line '/input 3 bias/d'
check mha_packed_qkv_unidirectional "output\[" line 's/unidirectional int 1/unidirectional int 0/'
check mha_rank4_keys_starts "output\[" bytes input_4_key_padding_mask.bin 0 '\003'
check sdpa_grad_gqa_offset_dims "tiled: Y\[" line 's/causal_offset int 3/causal_offset int 2/'
check sdpa_grad_softcap_bias_heads "tiled: Y\[" line 's/softcap float 1.5/softcap float 1.6/'
check sdpa_grad_softcap_bias_heads "tiled: lse\[0\] is" bytes output_1_lse.bin 7 '\300'
check sdpa_grad_softcap_bias_heads "tiled: dQ\[0\] is" bytes output_2_dQ.bin 7 '\300'
check sdpa_grad_softcap_bias_heads "tiled: dK\[0\] is" bytes output_3_dK.bin 7 '\300'
check sdpa_grad_softcap_bias_heads "tiled: dV\[0\] is" bytes output_4_dV.bin 7 '\300'
check sdpa_grad_softcap_bias_heads "tiled: dMask\[0\] is" bytes output_5_dMask.bin 7 '\300'
check sdpa_grad_softcap_bias_heads "tiled: dQ\[" bytes input_4_dY.bin 3 '\300'
check sdpa_grad_half_bool_mask "tiled: dQ\[0\] is" bytes output_2_dQ.bin 1 '\300'
check sdpa_grad_half_bool_mask "tiled: dK\[0\] is" bytes output_3_dK.bin 1 '\300'
check sdpa_grad_half_bool_mask "tiled: dV\[0\] is" bytes output_4_dV.bin 1 '\300'
check sdpa_grad_empty_rows_bias_keys "dQ\[0\] is 0, stored is -*nan" line '/dQ_zero_rows/d'
check sdpa_grad_empty_rows_bias_keys "dQ_zero_rows\[0\] is 0" \
    bytes output_7_dQ_zero_rows.bin 7 '\300'
check sdpa_grad_empty_rows_bias_keys "Y\[6\] is" bytes output_0_Y.bin 55 '\100'

summary "damaged cases"
