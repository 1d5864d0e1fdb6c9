"""Fovea's attention for Python: tensors of any framework in and out through DLPack.

    attention = fovea.Attention(num_qo_heads=32, num_kv_heads=8, head_dim=128, device="cuda")
    attention.plan(q_lens, kv_lens, page_table)
    out = attention.run(q, (k_pages, v_pages))

`fovea.PageSelector` chooses the pages that a decode step reads. `fovea.flashinfer` has attention under FlashInfer's names.
"""

from ._library import Error, InvalidArgument, OutOfRange, ResourceExhausted, Unavailable, Unsupported, library as _c
from .attention import Attention, append_paged_kv, merge_state, merge_state_in_place, merge_states
from .page_selector import PageSelector, learn_key_codes

__version__ = _c.fovea_version().decode()
__all__ = ["Attention", "Error", "InvalidArgument", "OutOfRange", "PageSelector", "ResourceExhausted", "Unavailable",
           "Unsupported", "append_paged_kv", "learn_key_codes", "merge_state", "merge_state_in_place", "merge_states"]
