#include "core/plan/pack.h"

#include <algorithm>

#include "base/status.h"

namespace fovea {
namespace {

// The mask of a request's own run. One query token that is the last token sees everything before it: no mask to test.
abi::MaskKind own_mask(const AttentionBatch& batch) { return batch.mask; }

std::uint32_t tail_tokens(const AttentionBatch& batch, std::uint32_t i) {
  const std::int32_t kv_len = batch.kv_lens[i];
  if (batch.mask_tails == nullptr) return static_cast<std::uint32_t>(kv_len);
  return static_cast<std::uint32_t>(std::min(batch.mask_tails[i], kv_len));
}

bool contiguous(const std::uint32_t* indices, std::uint32_t count) {
  for (std::uint32_t i = 1; i < count; ++i) {
    if (indices[i] != indices[0] + i) return false;
  }
  return true;
}

class BatchPacker {
 public:
  BatchPacker(const AttentionBatch& batch, const PackConfig& config, PlanArrays& plan)
      : batch_(batch), config_(config), p_(plan), n_(static_cast<std::uint32_t>(batch.num_requests)) {}

  PackResult pack() {
    fill_rows();
    PackResult result;
    std::uint64_t tail_rows = 0;
    if (batch_.mask == abi::MaskKind::kBits) {
      for (std::uint32_t i = 0; i < n_; ++i) {
        if (has_old_run(i)) tail_rows += 2 * static_cast<std::uint64_t>(p_.q_lens[i]);
      }
    }
    p_.block_rows.clear();
    if (config_.share_prefixes && n_ > 1 && batch_.page_table != nullptr) {
      for (std::uint32_t i = 0; i < n_; ++i) p_.shareable[i] = shareable_tokens(batch_, i) / config_.page_tokens;
      const ForestInput input{n_,
                              batch_.page_table,
                              static_cast<std::size_t>(batch_.page_table_stride),
                              p_.q_lens.data,
                              p_.shareable.data,
                              batch_.list_begins};
      build_forest(input, config_.rule, tail_rows, p_.forest);
      if (p_.forest.nodes.size != 0) {
        result.shared = true;
        result.tokens_saved = add_nodes();
      }
    }
    for (std::uint32_t i = 0; i < n_; ++i) add_request(i, result.shared ? p_.forest.private_begin[i] : 0);
    return result;
  }

 private:
  void fill_rows() {
    std::uint32_t row = 0;
    for (std::uint32_t i = 0; i < n_; ++i) {
      const std::int32_t q_len = batch_.q_lens[i];
      p_.q_lens[i] = q_len;
      p_.kv_lens[i] = batch_.kv_lens[i];
      p_.q_begin[i] = row;
      std::int32_t position = batch_.kv_lens[i] - q_len;
      for (std::int32_t j = 0; j < q_len; ++j, ++row) {
        p_.row_indices[row] = row;
        p_.q_pos[row] = position++;
      }
    }
    p_.q_lens.size = p_.kv_lens.size = p_.q_begin.size = p_.own_block_row.size = n_;
    p_.row_indices.size = p_.q_pos.size = row;
  }

  bool has_old_run(std::uint32_t i) const {
    return batch_.mask == abi::MaskKind::kBits && tail_tokens(batch_, i) < static_cast<std::uint32_t>(p_.kv_lens[i]) &&
           p_.q_lens[i] > 0;
  }

  // One block row a node; its rows are a slice of the second copy of the row indices, in the forest's order.
  std::uint64_t add_nodes() {
    const std::uint32_t copy = p_.row_indices.size;
    std::uint32_t* const row_at = p_.forest.moved.data;  // by position in the order: first row of the copy
    std::uint32_t row = copy;
    for (std::uint32_t k = 0; k < n_; ++k) {
      const std::uint32_t request = p_.forest.order[k];
      row_at[k] = row;
      for (std::int32_t j = 0; j < p_.q_lens[request]; ++j, ++row) {
        p_.row_indices[row] = p_.q_begin[request] + static_cast<std::uint32_t>(j);
        p_.q_pos[row] = p_.q_pos[p_.row_indices[row]];
      }
    }
    p_.row_indices.size = p_.q_pos.size = row;
    const std::uint32_t step = config_.rule.tokens_per_tile;
    std::uint64_t saved = 0;
    for (const ForestNode& node : p_.forest.nodes) {
      abi::BlockRow block_row = new_block_row();
      block_row.row_begin = row_at[node.first];
      block_row.row_count = node.rows;
      block_row.list_begin = list_of(node.representative) + node.page_begin;
      block_row.num_tokens = (node.page_end - node.page_begin) * config_.page_tokens;
      block_row.position_base = static_cast<std::int32_t>(node.page_begin * config_.page_tokens);
      block_row.length_slot = abi::kNone;
      block_row.num_requests = node.count;
      if (contiguous(p_.row_indices.data + block_row.row_begin, node.rows)) block_row.flags |= abi::kRowsContiguous;
      p_.block_rows.push(block_row);
      std::uint64_t alone = 0;
      for (std::uint32_t k = node.first; k < node.first + node.count; ++k) {
        alone += (static_cast<std::uint32_t>(p_.q_lens[p_.forest.order[k]]) + step - 1) / step;
      }
      saved += (alone - (node.rows + step - 1) / step) * block_row.num_tokens;
    }
    return saved;
  }

  std::uint32_t list_of(std::uint32_t request) const {
    if (batch_.list_begins != nullptr) return static_cast<std::uint32_t>(batch_.list_begins[request]);
    return request * static_cast<std::uint32_t>(batch_.page_table_stride);
  }

  abi::BlockRow new_block_row() const {
    abi::BlockRow block_row{};
    block_row.positions_begin = abi::kNone;
    block_row.window_left = -1;
    block_row.head_end = static_cast<std::uint16_t>(config_.num_kv_heads);
    block_row.mask = abi::MaskKind::kNone;
    return block_row;
  }

  // A request's own run from page `begin` on, and its tree mask if it has one.
  void add_request(std::uint32_t i, std::uint32_t begin) {
    p_.own_block_row[i] = abi::kNone;
    if (p_.q_lens[i] == 0) return;
    const std::uint32_t kv_len = static_cast<std::uint32_t>(p_.kv_lens[i]);
    abi::BlockRow& block_row = p_.block_rows.push(new_block_row());  // filled in place
    block_row.row_begin = p_.q_begin[i];
    block_row.row_count = static_cast<std::uint32_t>(p_.q_lens[i]);
    block_row.list_begin = list_of(i) + begin;
    block_row.position_base = static_cast<std::int32_t>(begin * config_.page_tokens);
    block_row.num_tokens = kv_len - begin * config_.page_tokens;
    block_row.length_slot = i;
    block_row.mask = own_mask(batch_);
    block_row.window_left = batch_.mask == abi::MaskKind::kWindow ? batch_.window_left : -1;
    block_row.flags = abi::kRowsContiguous | (begin == 0 ? abi::kRowsSolo : 0);
    block_row.num_requests = 1;
    if (batch_.mask == abi::MaskKind::kBits) {
      block_row.mask_offset = batch_.mask_offsets[i];
      block_row.mask_stride = batch_.mask_strides[i];
      if (has_old_run(i)) {
        --p_.block_rows.size;
        add_tail(i, begin, block_row);
        return;
      }
    }
    p_.own_block_row[i] = p_.block_rows.size - 1;
  }

  // Old tokens without a mask, then a run of the tail that starts at the page where the tail starts. Bits start at the
  // tail but are addressed from the run's token 0, so the offset steps back (and may wrap: tokens before the tail are
  // never looked up).
  void add_tail(std::uint32_t i, std::uint32_t begin, abi::BlockRow block_row) {
    const std::uint32_t kv_len = static_cast<std::uint32_t>(p_.kv_lens[i]);
    const std::uint32_t tail_start = kv_len - tail_tokens(batch_, i);
    block_row.flags &= static_cast<std::uint8_t>(~abi::kRowsSolo);
    abi::BlockRow old_run = block_row;
    old_run.mask = abi::MaskKind::kNone;
    old_run.mask_offset = 0;
    old_run.mask_stride = 0;
    old_run.length_slot = abi::kNone;
    old_run.num_tokens = tail_start - begin * config_.page_tokens;
    if (old_run.num_tokens > 0) p_.block_rows.push(old_run);
    const std::uint32_t page = tail_start / config_.page_tokens;
    block_row.list_begin = list_of(i) + page;
    block_row.position_base = static_cast<std::int32_t>(page * config_.page_tokens);
    block_row.num_tokens = kv_len - page * config_.page_tokens;
    block_row.first_token = tail_start - page * config_.page_tokens;
    block_row.mask_offset -= block_row.first_token;
    p_.own_block_row[i] = p_.block_rows.size;
    p_.block_rows.push(block_row);
  }

  const AttentionBatch& batch_;
  const PackConfig& config_;
  PlanArrays& p_;
  std::uint32_t n_;
};

Status check_lengths(const AttentionBatch& batch, const PlannerOptions& options) {
  const PlanLimits& limits = options.limits;
  std::int64_t rows = 0;
  std::int64_t tail_rows = 0;
  const std::int64_t most_tokens = most_tokens_per_request(batch, options);
  for (std::int32_t i = 0; i < batch.num_requests; ++i) {
    const std::int32_t q_len = batch.q_lens[i];
    const std::int32_t kv_len = batch.kv_lens[i];
    if (q_len < 0 || kv_len < 0) {
      return invalid_argument("request {} has q_len {} and kv_len {}, expected 0 or more", i, q_len, kv_len);
    }
    rows += q_len;
    if (kv_len > most_tokens) {
      return make_status(StatusCode::kOutOfRange,
                         "request {} has {} tokens; its page table row of {} entries and the limit of {} pages of {} "
                         "tokens allow {}",
                         i, kv_len,
                         batch.list_begins != nullptr ? limits.max_pages_per_request : batch.page_table_stride,
                         limits.max_pages_per_request, options.page_tokens, most_tokens);
    }
    if (batch.mask == abi::MaskKind::kBits && batch.mask_tails != nullptr) {
      if (batch.mask_tails[i] < 0) {
        return invalid_argument("request {} has a mask tail of {} tokens, expected 0 or more", i, batch.mask_tails[i]);
      }
      if (batch.mask_tails[i] < kv_len) tail_rows += q_len;
    }
  }
  if (rows > limits.max_rows) {
    return make_status(StatusCode::kOutOfRange, "{} query tokens, the planner was made for {}; raise limits.max_rows",
                       rows, limits.max_rows);
  }
  FOVEA_ASSIGN_OR_RETURN(const PlanCapacity capacity, plan_capacity(options));
  if (2 * tail_rows > static_cast<std::int64_t>(capacity.shared_rows)) {
    return make_status(StatusCode::kOutOfRange,
                       "{} query tokens under tree masks need {} shared rows, the planner has {}; raise "
                       "limits.max_shared_rows",
                       tail_rows, 2 * tail_rows, capacity.shared_rows);
  }
  return ok_status();
}

}  // namespace

PackRule pack_rule(const PlannerOptions& options, std::uint64_t max_shared_rows) {
  const auto group = static_cast<std::uint32_t>(options.num_qo_heads / options.num_kv_heads);
  const abi::CostModel cost = cost_model(options);
  PackRule rule;
  rule.tokens_per_tile = static_cast<std::uint32_t>(options.tile_rows) / group;
  rule.page_tokens = static_cast<std::uint32_t>(options.page_tokens);
  rule.pages_multiple =
      options.batch_invariant ? static_cast<std::uint32_t>(options.invariant_chunk / options.page_tokens) : 1;
  rule.partial_row_bytes = std::uint64_t{group} * cost.partial_row;
  rule.kv_token_bytes = cost.token;
  rule.max_shared_rows = max_shared_rows;
  return rule;
}

Status check_batch(const AttentionBatch& batch, const PlannerOptions& options) {
  const PlanLimits& limits = options.limits;
  if (batch.num_requests < 0 || batch.num_requests > limits.max_requests) {
    return make_status(StatusCode::kOutOfRange, "{} requests, the planner was made for 0..{}", batch.num_requests,
                       limits.max_requests);
  }
  if (batch.num_requests == 0) return ok_status();
  if (batch.q_lens == nullptr || batch.kv_lens == nullptr) {
    return invalid_argument("a batch of {} requests needs q_lens and kv_lens", batch.num_requests);
  }
  for (std::int32_t i = 0; batch.list_begins != nullptr && i < batch.num_requests; ++i) {
    if (batch.list_begins[i] < 0 || batch.list_begins[i] > (std::int64_t{1} << 32) - (1 << 30)) {
      return invalid_argument("the page list of request {} starts at entry {}, expected 0 or more and below 2^32", i,
                              batch.list_begins[i]);
    }
  }
  if (batch.page_table_stride < 0 || std::int64_t{batch.page_table_stride} * batch.num_requests >= (1ll << 31)) {
    return invalid_argument(
        "page_table_stride is {} for {} requests, expected 0 or more and a table below 2^31 entries",
        batch.page_table_stride, batch.num_requests);
  }
  switch (batch.mask) {
    case abi::MaskKind::kNone:
    case abi::MaskKind::kCausal: break;
    case abi::MaskKind::kWindow:
      if (batch.window_left < 0) {
        return invalid_argument("a window mask with window_left {}, expected 0 or more", batch.window_left);
      }
      break;
    case abi::MaskKind::kBits:
      if (batch.mask_offsets == nullptr || batch.mask_strides == nullptr || batch.mask_bits == nullptr) {
        return invalid_argument("a bit mask needs mask_offsets, mask_strides and mask_bits");
      }
      break;
    default: return invalid_argument("mask kind {} is not one of 0..3", static_cast<int>(batch.mask));
  }
  return check_lengths(batch, options);
}

std::int64_t most_tokens_per_request(const AttentionBatch& batch, const PlannerOptions& options) {
  const std::int32_t limit = options.limits.max_pages_per_request;
  const std::int32_t pages = batch.list_begins != nullptr ? limit : std::min(batch.page_table_stride, limit);
  return std::int64_t{pages} * options.page_tokens;
}

std::uint32_t shareable_tokens(const AttentionBatch& batch, std::uint32_t i) {
  const std::int64_t kv_len = batch.kv_lens[i];
  // At least one token stays private, so that every request has a run of its own that grows with it.
  const std::int64_t old = std::max<std::int64_t>(kv_len - std::max(batch.q_lens[i], 1), 0);
  switch (batch.mask) {
    case abi::MaskKind::kNone: return static_cast<std::uint32_t>(std::max<std::int64_t>(kv_len - 1, 0));
    case abi::MaskKind::kCausal: return static_cast<std::uint32_t>(old);
    case abi::MaskKind::kWindow:
      // Only while every row's window still reaches token 0; grow() packs again when that ends.
      return static_cast<std::uint32_t>(kv_len - 1 <= batch.window_left ? old : 0);
    case abi::MaskKind::kBits: return static_cast<std::uint32_t>(kv_len) - tail_tokens(batch, i);
  }
  return 0;
}

PackResult pack_batch(const AttentionBatch& batch, const PackConfig& config, PlanArrays& plan) {
  return BatchPacker(batch, config, plan).pack();
}

void grow_request(PlanArrays& plan, std::uint32_t request, std::int32_t kv_len) {
  plan.kv_lens[request] = kv_len;
  const std::uint32_t own = plan.own_block_row[request];
  if (own == abi::kNone) return;
  abi::BlockRow& block_row = plan.block_rows[own];
  block_row.num_tokens = static_cast<std::uint32_t>(kv_len - block_row.position_base);
  const std::int32_t first = kv_len - plan.q_lens[request];
  std::int32_t* q_pos = plan.q_pos.data + plan.q_begin[request];
  for (std::int32_t j = 0; j < plan.q_lens[request]; ++j) q_pos[j] = first + j;
}

}  // namespace fovea
