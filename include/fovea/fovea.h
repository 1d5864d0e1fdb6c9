/* C ABI of Fovea's attention: what fovea/attention.h has, for other languages; the Python package `fovea` is built on
 * it. Meanings, shapes and units are those of fovea/attention.h. Every function is safe to call with wrong arguments:
 * it returns a code and fovea_last_error() says what was wrong. Structs grow at their end only; struct_bytes says which
 * version the caller knows. */
#ifndef FOVEA_FOVEA_H_
#define FOVEA_FOVEA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FOVEA_API __attribute__((visibility("default")))
#else
#define FOVEA_API
#endif

typedef enum fovea_status {
  FOVEA_OK = 0,
  FOVEA_INVALID_ARGUMENT = 1,
  FOVEA_NOT_FOUND = 2,
  FOVEA_UNSUPPORTED = 3,
  FOVEA_OUT_OF_RANGE = 4,
  FOVEA_RESOURCE_EXHAUSTED = 5,
  FOVEA_UNAVAILABLE = 6,
  FOVEA_CANCELLED = 7,
  FOVEA_DATA_LOSS = 8,
  FOVEA_INTERNAL = 9
} fovea_status;

/* A tensor as DLPack lays it out (DLTensor): pass one by casting its pointer. Devices 1 (CPU), 3 (pinned), 2 (CUDA) and
 * 13 (managed); strides in elements, NULL for row-major. */
typedef struct fovea_tensor {
  void* data;
  struct {
    int32_t type;
    int32_t id;
  } device;
  int32_t ndim;
  struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
  } dtype;
  const int64_t* shape;
  const int64_t* strides;
  uint64_t byte_offset;
} fovea_tensor;

/* Values of fovea::DType. */
enum { FOVEA_F32 = 0, FOVEA_F16 = 1, FOVEA_BF16 = 2, FOVEA_F8E4M3 = 3, FOVEA_I8 = 4, FOVEA_I4 = 5 };
enum { FOVEA_ROTATED = 256 }; /* of fovea_paged_kv.kv_dtype */
enum { FOVEA_MASK_NONE = 0, FOVEA_MASK_CAUSAL = 1, FOVEA_MASK_WINDOW = 2, FOVEA_MASK_BITS = 3 };
enum { FOVEA_NHD = 0, FOVEA_HND = 1 };
enum {
  FOVEA_DECODE_AUTO = 0,
  FOVEA_DECODE_GENERAL = 1,
  FOVEA_DECODE_WARP_PER_WORKER = 2,
  FOVEA_DECODE_LOW_BATCH = 3,
  FOVEA_DECODE_PREFILL = 4
};

/* A parameter of a variant and its value (fovea/variant.h): a number, or a float32 or int32 tensor. */
enum { FOVEA_PARAM_FLOAT = 0, FOVEA_PARAM_INT = 1, FOVEA_PARAM_FLOAT_TENSOR = 2, FOVEA_PARAM_INT_TENSOR = 3 };
typedef struct fovea_variant_value {
  const char* name;
  int32_t type;
  double number;
  const fovea_tensor* tensor;
} fovea_variant_value;

/* fovea::AttentionOptions. Fill with fovea_attention_options_init(), then change what differs. Tensors may be NULL. */
typedef struct fovea_attention_options {
  size_t struct_bytes;
  const char* device;
  int32_t num_qo_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t q_dtype;
  int32_t kv_dtype;
  int32_t page_tokens;
  float sm_scale;
  float softcap;
  float sigmoid_bias;
  int32_t sigmoid;
  const fovea_tensor* sinks;
  const fovea_tensor* alibi_slopes;
  int32_t max_requests;
  int32_t max_rows;
  int32_t max_pages_per_request;
  int32_t max_cascade_levels;
  int64_t max_page_entries;
  int64_t max_mask_bytes;
  int32_t share_prefixes;
  int32_t batch_invariant;
  int32_t checked;
  int32_t num_threads;
  int32_t num_workers;
  const char* variant_name; /* NULL: none of the caller's own */
  const char* variant_source;
  const fovea_variant_value* variant_values;
  int32_t num_variant_values;
  int32_t device_growth;
  int32_t max_selected;
  int32_t decode_kernel;
  int32_t kv_token_scales;
  int32_t kv_rotated;
  int32_t graphs_by_rows;
  int32_t max_block_rows;
} fovea_attention_options;

/* fovea::RequestBatch. page_indices_device: a DLPack device type. mask_bits lies on the host. */
typedef struct fovea_batch {
  size_t struct_bytes;
  int32_t num_requests;
  int32_t mask;
  const int32_t* q_lens;
  const int32_t* kv_lens;
  const int32_t* page_indices;
  int32_t page_indices_device;
  int32_t window_left;
  int64_t num_page_indices;
  const int64_t* list_begins;
  int64_t page_stride;
  const uint8_t* mask_bits;
  int64_t mask_bytes;
  const int64_t* mask_offsets;
  const int64_t* list_ends;
} fovea_batch;

/* fovea::CascadeLevel. */
typedef struct fovea_cascade_level {
  int32_t num_groups;
  int32_t page_indices_device;
  const int32_t* row_begins;
  const int32_t* kv_lens;
  const int32_t* page_indices;
  int64_t num_page_indices;
  const int64_t* list_begins;
  int32_t causal;
} fovea_cascade_level;

/* fovea::SelectedBatch. page_indices and list_tokens lie on the attention's device, the others on the host. */
typedef struct fovea_selected_batch {
  size_t struct_bytes;
  int32_t num_requests;
  int32_t budget_tokens;
  const int32_t* kv_lens;
  const int32_t* page_indices;
  int64_t num_page_indices;
  const int64_t* list_begins;
  const int64_t* selected_begins;
  int64_t selected_stride;
  const int32_t* list_tokens;
  int32_t budget_divisor;
} fovea_selected_batch;

/* fovea::RaggedBatch. All arrays lie on the host. */
typedef struct fovea_ragged_batch {
  size_t struct_bytes;
  int32_t num_requests;
  int32_t mask;
  const int32_t* q_lens;
  const int32_t* kv_lens;
  const int32_t* kv_begins;
  const uint8_t* mask_bits;
  int64_t mask_bytes;
  const int64_t* mask_offsets;
  int32_t window_left;
} fovea_ragged_batch;

/* fovea::BlockSparseBatch. All arrays lie on the host. */
typedef struct fovea_block_sparse_batch {
  size_t struct_bytes;
  int32_t num_rows;
  int32_t num_tokens;
  int32_t block_rows;
  int32_t block_tokens;
  const int32_t* indptr;
  const int32_t* indices;
  const uint8_t* mask_bits;
  int64_t mask_bytes;
  int32_t heads_differ;
  int32_t mask;
} fovea_block_sparse_batch;

/* fovea::PagedKv; scales may be NULL for pools that need none. DLPack has no int4 and few producers have fp8, so pools
 * of quantized types come as bytes, uint8 or int8: rows of head_dim bytes for fp8_e4m3 and int8, of head_dim / 2 for
 * int4 (strides in bytes then). What the bytes hold, fovea_attention_run() knows from the attention's kv_dtype and
 * kv_rotated; others take kv_dtype: FOVEA_F8E4M3 (or 0), FOVEA_I8 or FOVEA_I4, and FOVEA_I8 | FOVEA_ROTATED or
 * FOVEA_I4 | FOVEA_ROTATED for rotated pools. fp8_e4m3 has a scale a token and head where scales are of rank 4. */
typedef struct fovea_paged_kv {
  const fovea_tensor* k;
  const fovea_tensor* v;
  const fovea_tensor* k_scale;
  const fovea_tensor* v_scale;
  int32_t layout;
  int32_t kv_dtype;
} fovea_paged_kv;

/* fovea::RunValues. sinks may be NULL. */
typedef struct fovea_run_values {
  size_t struct_bytes;
  float logit_scale;
  const fovea_tensor* sinks;
} fovea_run_values;

/* fovea::AttentionStats. */
typedef struct fovea_attention_stats {
  uint64_t kv_bytes;
  uint64_t kv_bytes_unshared;
  uint64_t partial_bytes;
  uint64_t plan_bytes;
  uint32_t num_workers;
  uint32_t num_items;
  double imbalance;
} fovea_attention_stats;

typedef struct fovea_attention fovea_attention;

/* fovea::KeyCode. */
typedef struct fovea_key_code {
  uint8_t channel[32];
  float mean[32];
  float step[32];
} fovea_key_code;

/* fovea::PageSelectorOptions (fovea/page_selector.h). Fill with fovea_page_selector_options_init(), then change what
 * differs. key_codes: [num_layers * num_kv_heads], copied. */
typedef struct fovea_page_selector_options {
  size_t struct_bytes;
  const char* device;
  const char* policy;
  const fovea_key_code* key_codes;
  int32_t num_key_codes;
  int32_t num_qo_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t q_dtype;
  float sm_scale;
  int32_t rotary_dim;
  int32_t budget_tokens;
  int32_t budget_divisor;
  int32_t sink_tokens;
  int32_t recent_tokens;
  int32_t interval;
  int32_t candidate_factor;
  int32_t num_layers;
  int32_t num_pages;
  int32_t max_requests;
  int32_t max_pages_per_request;
  int32_t num_threads;
} fovea_page_selector_options;

/* fovea::SelectStep. phases may be NULL. */
typedef struct fovea_select_step {
  size_t struct_bytes;
  const fovea_tensor* kv_lens;
  const fovea_tensor* page_table;
  const fovea_tensor* lists;
  const fovea_tensor* list_tokens;
  const fovea_tensor* phases;
} fovea_select_step;

typedef struct fovea_page_selector fovea_page_selector;

FOVEA_API const char* fovea_version(void);
/* What the last failed call of this thread said; "" before any. Valid until the thread's next call. */
FOVEA_API const char* fovea_last_error(void);

FOVEA_API void fovea_attention_options_init(fovea_attention_options* options);
FOVEA_API fovea_status fovea_attention_create(const fovea_attention_options* options, fovea_attention** attention);
/* NULL is allowed. On a CUDA device nothing may be using the object any more. */
FOVEA_API void fovea_attention_destroy(fovea_attention* attention);

FOVEA_API fovea_status fovea_attention_plan(fovea_attention* attention, const fovea_batch* batch, void* stream);
FOVEA_API fovea_status fovea_attention_plan_cascade(fovea_attention* attention, int32_t num_rows,
                                                    const fovea_cascade_level* levels, int32_t num_levels,
                                                    void* stream);
FOVEA_API fovea_status fovea_attention_plan_selected(fovea_attention* attention, const fovea_selected_batch* batch,
                                                     void* stream);
FOVEA_API fovea_status fovea_attention_plan_ragged(fovea_attention* attention, const fovea_ragged_batch* batch,
                                                   void* stream);
FOVEA_API fovea_status fovea_attention_plan_blocks(fovea_attention* attention, const fovea_block_sparse_batch* batch,
                                                   void* stream);
FOVEA_API fovea_status fovea_attention_grow(fovea_attention* attention, const int32_t* kv_lens, int32_t num_requests,
                                            void* stream);
FOVEA_API fovea_status fovea_attention_grow_on_device(fovea_attention* attention, const fovea_tensor* kv_lens,
                                                      void* stream);
FOVEA_API fovea_status fovea_attention_growth_status(const fovea_attention* attention, void* stream);
/* lse may be NULL. */
FOVEA_API fovea_status fovea_attention_run(fovea_attention* attention, const fovea_tensor* q, const fovea_paged_kv* kv,
                                           const fovea_tensor* out, const fovea_tensor* lse, void* stream);
FOVEA_API fovea_status fovea_attention_run_values(fovea_attention* attention, const fovea_tensor* q,
                                                  const fovea_paged_kv* kv, const fovea_tensor* out,
                                                  const fovea_tensor* lse, const fovea_run_values* values,
                                                  void* stream);
/* 1: a graph captured a run, and the object must outlive the graph. */
FOVEA_API int32_t fovea_attention_captured(const fovea_attention* attention);
FOVEA_API size_t fovea_attention_workspace_bytes(const fovea_attention* attention);
FOVEA_API void fovea_attention_get_stats(const fovea_attention* attention, fovea_attention_stats* stats);
/* The last plan in words, cut to `bytes`, ended by a zero; returns the bytes that all of it takes. */
FOVEA_API size_t fovea_attention_explain(const fovea_attention* attention, char* text, size_t bytes);

/* slots, or the other four; those not used are NULL. */
FOVEA_API fovea_status fovea_append_paged_kv(const fovea_tensor* k, const fovea_tensor* v, const fovea_tensor* slots,
                                             const fovea_tensor* batch_indices, const fovea_tensor* positions,
                                             const fovea_tensor* page_indices, const fovea_tensor* page_indptr,
                                             const fovea_paged_kv* kv, void* stream);
FOVEA_API fovea_status fovea_merge_states(const fovea_tensor* v, const fovea_tensor* lse, const fovea_tensor* out,
                                          const fovea_tensor* lse_out, void* stream);
FOVEA_API fovea_status fovea_merge_state(const fovea_tensor* v_a, const fovea_tensor* lse_a, const fovea_tensor* v_b,
                                         const fovea_tensor* lse_b, const fovea_tensor* out,
                                         const fovea_tensor* lse_out, const fovea_tensor* mask, void* stream);

/* What a Python binding knows of a type of tensors, for fovea_lend(): functions of DLPack's C exchange API of that type
 * and of CPython's stable ABI, so that this library links neither. */
typedef struct fovea_lender {
  void* lend;       /* DLPackExchangeAPI.dltensor_from_py_object_no_sync */
  void* stream;     /* DLPackExchangeAPI.current_work_stream */
  void* tuple_size; /* PyTuple_Size */
  void* tuple_item; /* PyTuple_GetItem */
  void* type_of;    /* PyObject_Type */
  void* drop;       /* Py_DecRef */
  void* type;       /* of the tensors */
  void* none;       /* Py_None */
} fovea_lender;
/* Records that tensors are lent in, up to end; what fovea_lend() took lies below next. */
typedef struct fovea_lending {
  const fovea_lender* lender; /* NULL: of no type yet */
  fovea_tensor* next;
  const fovea_tensor* end;
  void** addresses;
} fovea_lending;
/* addresses[i] becomes that of the record of object i of a Python tuple, NULL for None; the one behind them, the
 * current stream of the device of object 0, NULL on a CPU. The caller holds the GIL. 0: done; 1: an object is of
 * another type; 2: there are too few records; -1: a Python exception is set. */
FOVEA_API int32_t fovea_lend(fovea_lending* lending, void* tuple);

/* fovea::learn_key_codes: writes num_kv_heads codes, which is what keys has. queries may be NULL. */
FOVEA_API fovea_status fovea_learn_key_codes(const fovea_tensor* keys, const fovea_tensor* queries,
                                             fovea_key_code* codes, int32_t num_kv_heads);

FOVEA_API void fovea_page_selector_options_init(fovea_page_selector_options* options);
FOVEA_API fovea_status fovea_page_selector_create(const fovea_page_selector_options* options,
                                                  fovea_page_selector** selector);
/* NULL is allowed. On a CUDA device nothing may be using the object any more. */
FOVEA_API void fovea_page_selector_destroy(fovea_page_selector* selector);
/* Places as in fovea_append_paged_kv(). kv may be NULL for policy "fovea". */
FOVEA_API fovea_status fovea_page_selector_append(fovea_page_selector* selector, int32_t layer, const fovea_tensor* k,
                                                  const fovea_tensor* slots, const fovea_tensor* batch_indices,
                                                  const fovea_tensor* positions, const fovea_tensor* page_indices,
                                                  const fovea_tensor* page_indptr, const fovea_paged_kv* kv,
                                                  void* stream);
FOVEA_API fovea_status fovea_page_selector_select(fovea_page_selector* selector, int32_t layer, const fovea_tensor* q,
                                                  const fovea_select_step* step, void* stream);
/* kv_lens: host, [num_requests]. step->kv_lens and step->phases may be NULL. */
FOVEA_API fovea_status fovea_page_selector_plan(fovea_page_selector* selector, fovea_attention* attention,
                                                const int32_t* kv_lens, int32_t num_requests,
                                                const fovea_select_step* step, void* stream);
FOVEA_API fovea_status fovea_page_selector_forget(fovea_page_selector* selector, int32_t begin, int32_t end,
                                                  void* stream);
FOVEA_API fovea_status fovea_page_selector_copy_page(fovea_page_selector* selector, int32_t from, int32_t to,
                                                     void* stream);
/* The statistics of a layer on the device: num_pages * fovea_page_selector_bytes_per_page() bytes. */
FOVEA_API fovea_status fovea_page_selector_statistics(const fovea_page_selector* selector, int32_t layer, void** data);
FOVEA_API size_t fovea_page_selector_bytes_per_page(const fovea_page_selector* selector);
FOVEA_API size_t fovea_page_selector_workspace_bytes(const fovea_page_selector* selector);

#ifdef __cplusplus
}
#endif

#endif /* FOVEA_FOVEA_H_ */
