"""Records, numbers and functions of the C ABI for ctypes, made of include/fovea/fovea.h by tools/check_abi.py --fix.

Used by _library.py. Pointers are addresses (c_void_p) but for texts and for records that callers make here.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

OK = 0
INVALID_ARGUMENT = 1
NOT_FOUND = 2
UNSUPPORTED = 3
OUT_OF_RANGE = 4
RESOURCE_EXHAUSTED = 5
UNAVAILABLE = 6
CANCELLED = 7
DATA_LOSS = 8
INTERNAL = 9


class TensorDevice(Structure):
    _fields_ = [
        ("type", c_int32),
        ("id", c_int32),
    ]


class TensorDtype(Structure):
    _fields_ = [
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
    ]


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", TensorDevice),
        ("ndim", c_int32),
        ("dtype", TensorDtype),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("byte_offset", c_uint64),
    ]

F32 = 0
F16 = 1
BF16 = 2
F8E4M3 = 3
I8 = 4
I4 = 5

ROTATED = 256

MASK_NONE = 0
MASK_CAUSAL = 1
MASK_WINDOW = 2
MASK_BITS = 3

NHD = 0
HND = 1

DECODE_AUTO = 0
DECODE_GENERAL = 1
DECODE_WARP_PER_WORKER = 2
DECODE_LOW_BATCH = 3
DECODE_PREFILL = 4

PARAM_FLOAT = 0
PARAM_INT = 1
PARAM_FLOAT_TENSOR = 2
PARAM_INT_TENSOR = 3


class VariantValue(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("type", c_int32),
        ("number", c_double),
        ("tensor", c_void_p),
    ]


class AttentionOptions(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("device", c_char_p),
        ("num_qo_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("q_dtype", c_int32),
        ("kv_dtype", c_int32),
        ("page_tokens", c_int32),
        ("sm_scale", c_float),
        ("softcap", c_float),
        ("sigmoid_bias", c_float),
        ("sigmoid", c_int32),
        ("sinks", c_void_p),
        ("alibi_slopes", c_void_p),
        ("max_requests", c_int32),
        ("max_rows", c_int32),
        ("max_pages_per_request", c_int32),
        ("max_cascade_levels", c_int32),
        ("max_page_entries", c_int64),
        ("max_mask_bytes", c_int64),
        ("share_prefixes", c_int32),
        ("batch_invariant", c_int32),
        ("checked", c_int32),
        ("num_threads", c_int32),
        ("num_workers", c_int32),
        ("variant_name", c_char_p),
        ("variant_source", c_char_p),
        ("variant_values", POINTER(VariantValue)),
        ("num_variant_values", c_int32),
        ("device_growth", c_int32),
        ("max_selected", c_int32),
        ("decode_kernel", c_int32),
        ("kv_token_scales", c_int32),
        ("kv_rotated", c_int32),
        ("graphs_by_rows", c_int32),
        ("max_block_rows", c_int32),
    ]


class Batch(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("num_requests", c_int32),
        ("mask", c_int32),
        ("q_lens", c_void_p),
        ("kv_lens", c_void_p),
        ("page_indices", c_void_p),
        ("page_indices_device", c_int32),
        ("window_left", c_int32),
        ("num_page_indices", c_int64),
        ("list_begins", c_void_p),
        ("page_stride", c_int64),
        ("mask_bits", c_void_p),
        ("mask_bytes", c_int64),
        ("mask_offsets", c_void_p),
        ("list_ends", c_void_p),
    ]


class CascadeLevel(Structure):
    _fields_ = [
        ("num_groups", c_int32),
        ("page_indices_device", c_int32),
        ("row_begins", c_void_p),
        ("kv_lens", c_void_p),
        ("page_indices", c_void_p),
        ("num_page_indices", c_int64),
        ("list_begins", c_void_p),
        ("causal", c_int32),
    ]


class SelectedBatch(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("num_requests", c_int32),
        ("budget_tokens", c_int32),
        ("kv_lens", c_void_p),
        ("page_indices", c_void_p),
        ("num_page_indices", c_int64),
        ("list_begins", c_void_p),
        ("selected_begins", c_void_p),
        ("selected_stride", c_int64),
        ("list_tokens", c_void_p),
        ("budget_divisor", c_int32),
    ]


class RaggedBatch(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("num_requests", c_int32),
        ("mask", c_int32),
        ("q_lens", c_void_p),
        ("kv_lens", c_void_p),
        ("kv_begins", c_void_p),
        ("mask_bits", c_void_p),
        ("mask_bytes", c_int64),
        ("mask_offsets", c_void_p),
        ("window_left", c_int32),
    ]


class BlockSparseBatch(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("num_rows", c_int32),
        ("num_tokens", c_int32),
        ("block_rows", c_int32),
        ("block_tokens", c_int32),
        ("indptr", c_void_p),
        ("indices", c_void_p),
        ("mask_bits", c_void_p),
        ("mask_bytes", c_int64),
        ("heads_differ", c_int32),
        ("mask", c_int32),
    ]


class PagedKv(Structure):
    _fields_ = [
        ("k", c_void_p),
        ("v", c_void_p),
        ("k_scale", c_void_p),
        ("v_scale", c_void_p),
        ("layout", c_int32),
        ("kv_dtype", c_int32),
    ]


class RunValues(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("logit_scale", c_float),
        ("sinks", c_void_p),
    ]


class AttentionStats(Structure):
    _fields_ = [
        ("kv_bytes", c_uint64),
        ("kv_bytes_unshared", c_uint64),
        ("partial_bytes", c_uint64),
        ("plan_bytes", c_uint64),
        ("num_workers", c_uint32),
        ("num_items", c_uint32),
        ("imbalance", c_double),
    ]


class KeyCode(Structure):
    _fields_ = [
        ("channel", c_uint8 * 32),
        ("mean", c_float * 32),
        ("step", c_float * 32),
    ]


class PageSelectorOptions(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("device", c_char_p),
        ("policy", c_char_p),
        ("key_codes", POINTER(KeyCode)),
        ("num_key_codes", c_int32),
        ("num_qo_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("q_dtype", c_int32),
        ("sm_scale", c_float),
        ("rotary_dim", c_int32),
        ("budget_tokens", c_int32),
        ("budget_divisor", c_int32),
        ("sink_tokens", c_int32),
        ("recent_tokens", c_int32),
        ("interval", c_int32),
        ("candidate_factor", c_int32),
        ("num_layers", c_int32),
        ("num_pages", c_int32),
        ("max_requests", c_int32),
        ("max_pages_per_request", c_int32),
        ("num_threads", c_int32),
    ]


class SelectStep(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("kv_lens", c_void_p),
        ("page_table", c_void_p),
        ("lists", c_void_p),
        ("list_tokens", c_void_p),
        ("phases", c_void_p),
    ]


class Lender(Structure):
    _fields_ = [
        ("lend", c_void_p),
        ("stream", c_void_p),
        ("tuple_size", c_void_p),
        ("tuple_item", c_void_p),
        ("type_of", c_void_p),
        ("drop", c_void_p),
        ("type", c_void_p),
        ("none", c_void_p),
    ]


class Lending(Structure):
    _fields_ = [
        ("lender", POINTER(Lender)),
        ("next", c_void_p),
        ("end", c_void_p),
        ("addresses", POINTER(c_void_p)),
    ]


FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "fovea_version": (c_char_p, []),
    "fovea_last_error": (c_char_p, []),
    "fovea_attention_options_init": (None, [POINTER(AttentionOptions)]),
    "fovea_attention_create": (c_int32, [POINTER(AttentionOptions), POINTER(c_void_p)]),
    "fovea_attention_destroy": (None, [c_void_p]),
    "fovea_attention_plan": (c_int32, [c_void_p, POINTER(Batch), c_void_p]),
    "fovea_attention_plan_cascade": (c_int32, [c_void_p, c_int32, POINTER(CascadeLevel), c_int32, c_void_p]),
    "fovea_attention_plan_selected": (c_int32, [c_void_p, POINTER(SelectedBatch), c_void_p]),
    "fovea_attention_plan_ragged": (c_int32, [c_void_p, POINTER(RaggedBatch), c_void_p]),
    "fovea_attention_plan_blocks": (c_int32, [c_void_p, POINTER(BlockSparseBatch), c_void_p]),
    "fovea_attention_grow": (c_int32, [c_void_p, c_void_p, c_int32, c_void_p]),
    "fovea_attention_grow_on_device": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "fovea_attention_growth_status": (c_int32, [c_void_p, c_void_p]),
    "fovea_attention_run": (c_int32, [c_void_p, c_void_p, POINTER(PagedKv), c_void_p, c_void_p, c_void_p]),
    "fovea_attention_run_values": (c_int32, [c_void_p, c_void_p, POINTER(PagedKv), c_void_p, c_void_p, POINTER(RunValues), c_void_p]),
    "fovea_attention_captured": (c_int32, [c_void_p]),
    "fovea_attention_workspace_bytes": (c_size_t, [c_void_p]),
    "fovea_attention_get_stats": (None, [c_void_p, POINTER(AttentionStats)]),
    "fovea_attention_explain": (c_size_t, [c_void_p, c_char_p, c_size_t]),
    "fovea_append_paged_kv": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, POINTER(PagedKv), c_void_p]),
    "fovea_merge_states": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "fovea_merge_state": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "fovea_lend": (c_int32, [POINTER(Lending), c_void_p]),
    "fovea_learn_key_codes": (c_int32, [c_void_p, c_void_p, POINTER(KeyCode), c_int32]),
    "fovea_page_selector_options_init": (None, [POINTER(PageSelectorOptions)]),
    "fovea_page_selector_create": (c_int32, [POINTER(PageSelectorOptions), POINTER(c_void_p)]),
    "fovea_page_selector_destroy": (None, [c_void_p]),
    "fovea_page_selector_append": (c_int32, [c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, POINTER(PagedKv), c_void_p]),
    "fovea_page_selector_select": (c_int32, [c_void_p, c_int32, c_void_p, POINTER(SelectStep), c_void_p]),
    "fovea_page_selector_plan": (c_int32, [c_void_p, c_void_p, c_void_p, c_int32, POINTER(SelectStep), c_void_p]),
    "fovea_page_selector_forget": (c_int32, [c_void_p, c_int32, c_int32, c_void_p]),
    "fovea_page_selector_copy_page": (c_int32, [c_void_p, c_int32, c_int32, c_void_p]),
    "fovea_page_selector_statistics": (c_int32, [c_void_p, c_int32, POINTER(c_void_p)]),
    "fovea_page_selector_bytes_per_page": (c_size_t, [c_void_p]),
    "fovea_page_selector_workspace_bytes": (c_size_t, [c_void_p]),
}
