// ModelHarness: runs a Model over paged KV pools for tests, with pages in random order and NaN wherever nothing was
// written, on any device. Slow and simple: the engine's scheduler and pools have tests of their own.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/pause_test_util.h"
#include "base/status.h"
#include "engine/model/model.h"

namespace fovea {

class ModelHarness {
 public:
  static constexpr std::int32_t kPageTokens = 16;
  static constexpr std::int32_t kMaxPages = 16;  // a request
  static constexpr std::int32_t kMaxRequests = 64;

  struct Piece {
    int request;
    std::span<const std::int32_t> tokens;  // that follow what the request already holds
  };
  enum class Logits { kAll, kLast };

  static Result<std::unique_ptr<ModelHarness>> create(const std::string& folder, DType kv_dtype,
                                                      const DeviceOptions& device_options,
                                                      const ModelLoadOptions& load_options = {},
                                                      const std::string& device_name = "cpu") {
    std::unique_ptr<ModelHarness> runner(new ModelHarness);
    FOVEA_ASSIGN_OR_RETURN(runner->device_, create_device(device_name, device_options));
    FOVEA_ASSIGN_OR_RETURN(runner->model_, load_model(folder, *runner->device_, load_options));
    const Model& model = *runner->model_;
    for (std::size_t g = 0; g < model.attention_groups().size(); ++g) {
      AttentionConfig config{model.attention_options(g), {}, {}};
      config.options.q_dtype = runner->device_->activation_dtype();
      config.options.kv_dtype = kv_dtype;
      config.options.page_tokens = kPageTokens;
      config.options.batch_invariant = device_options.batch_invariant;
      config.options.max_requests = kMaxRequests;
      config.options.max_rows = load_options.max_forward_tokens;
      config.options.max_pages_per_request = kMaxPages;
      config.options.device_growth = false;
      for (auto* ops : {&runner->attention_, &runner->other_attention_}) {
        FOVEA_ASSIGN_OR_RETURN(auto op, runner->device_->create_attention(config));
        ops->push_back(std::move(op));
      }
    }
    FOVEA_RETURN_IF_ERROR(runner->make_pools(kv_dtype));
    return runner;
  }

  Model& model() { return *model_; }

  // An empty request; its pages are the next of a random permutation.
  int add_request() {
    Request request;
    for (int i = 0; i < kMaxPages; ++i) {
      request.pages.push_back(free_pages_.back());
      free_pages_.pop_back();
    }
    requests_.push_back(std::move(request));
    return static_cast<int>(requests_.size()) - 1;
  }

  // From now on forwards are left each time that they have asked so often, and others run in between; 0: never.
  void set_asks_a_part(int asks) { asks_a_part_ = asks; }
  int parts() const { return parts_; }

  // One forward over all pieces; logits [rows, vocab] of every token or of the last of each piece.
  Result<std::vector<float>> forward(std::span<const Piece> pieces, Logits wanted = Logits::kAll) {
    std::vector<std::int32_t> tokens, positions, slots, logit_rows, q_lens, kv_lens, table;
    for (const Piece& piece : pieces) {
      Request& request = requests_[static_cast<std::size_t>(piece.request)];
      for (std::size_t i = 0; i < piece.tokens.size(); ++i) {
        const std::int32_t position = request.length++;
        tokens.push_back(piece.tokens[i]);
        positions.push_back(position);
        slots.push_back(request.pages[static_cast<std::size_t>(position / kPageTokens)] * kPageTokens +
                        position % kPageTokens);
        if (wanted == Logits::kAll || i + 1 == piece.tokens.size()) {
          logit_rows.push_back(static_cast<std::int32_t>(tokens.size()) - 1);
        }
      }
      q_lens.push_back(static_cast<std::int32_t>(piece.tokens.size()));
      kv_lens.push_back(request.length);
      table.insert(table.end(), request.pages.begin(), request.pages.end());
    }
    ForwardBatch batch;
    batch.tokens = tokens;
    batch.positions = positions;
    batch.logit_rows = logit_rows;
    batch.layer_kv = pools_;
    const auto plan_attention = [&](std::size_t g) {
      RequestBatch plan;
      plan.num_requests = static_cast<std::int32_t>(pieces.size());
      plan.q_lens = q_lens.data();
      plan.kv_lens = kv_lens.data();
      plan.page_indices = table.data();
      plan.page_stride = kMaxPages;
      const std::size_t kv_group = model_->attention_groups()[g].ranges[0].kv_group;
      const std::int32_t window = model_->kv_groups()[kv_group].window_tokens;
      plan.mask = window > 0 ? AttentionMask::kWindow : AttentionMask::kCausal;
      plan.window_left = window > 0 ? window - 1 : -1;
      return attention_[g]->plan(plan, device_->stream());
    };
    for (std::size_t g = 0; g < attention_.size(); ++g) {
      FOVEA_RETURN_IF_ERROR(plan_attention(g));
      batch.slots.push_back(slots);
      batch.attention.push_back(attention_[g].get());
    }
    const auto vocab = static_cast<std::size_t>(model_->config().vocab_size);
    const std::size_t count = logit_rows.size() * vocab;
    FOVEA_ASSIGN_OR_RETURN(const std::shared_ptr<void> memory, device_->allocate(count * sizeof(float)));
    const TensorView logits = device_->tensor(memory.get(), DType::kF32, logit_rows.size(), vocab);
    for (bool done = false, goes_on = false; asks_a_part_ > 0 && !done; goes_on = true) {
      if (goes_on) FOVEA_RETURN_IF_ERROR(disturb());
      const PauseAfter pause(asks_a_part_);
      FOVEA_ASSIGN_OR_RETURN(done, model_->forward_part(batch, logits, pause, goes_on));
      ++parts_;
    }
    if (asks_a_part_ == 0) FOVEA_RETURN_IF_ERROR(model_->forward(batch, logits));
    FOVEA_ASSIGN_OR_RETURN(const void* const read, device_->read(logits));
    const float* const first = static_cast<const float*>(read);
    return std::vector<float>(first, first + count);
  }

 private:
  struct Request {
    std::vector<std::int32_t> pages;
    std::int32_t length = 0;
  };

  ModelHarness() = default;

  // A forward of something else at once, some of whose rows' logits are not wanted, with attention of its own.
  Status disturb() {
    const int asks = std::exchange(asks_a_part_, 0);
    std::swap(attention_, other_attention_);
    if (disturber_ < 0) disturber_ = add_request();
    requests_[static_cast<std::size_t>(disturber_)].length = 0;
    const std::vector<std::int32_t> tokens = {1, 2, 3};
    const Piece piece{disturber_, tokens};
    const Status status = forward({&piece, 1}, Logits::kLast).status();
    std::swap(attention_, other_attention_);
    asks_a_part_ = asks;
    return status;
  }

  Status make_pools(DType kv_dtype) {
    const ModelConfig& config = model_->config();
    const std::int64_t pages = std::int64_t{kMaxPages} * kMaxRequests;
    const std::int64_t token = std::int64_t{model_->kv_groups()[0].num_kv_heads} * config.head_dim;
    const std::size_t element = static_cast<std::size_t>(dtype_bits(kv_dtype) / 8);
    const std::size_t bytes = static_cast<std::size_t>(pages * kPageTokens * token) * element;
    // All ones is NaN in fp32, fp16 and bf16.
    const std::vector<std::byte> nans(bytes, std::byte{0xff});
    for (std::int32_t layer = 0; layer < config.num_layers; ++layer) {
      abi::KvPoolView pool{};
      for (void** side : {&pool.k, &pool.v}) {
        FOVEA_ASSIGN_OR_RETURN(std::shared_ptr<void> memory, device_->allocate(bytes));
        *side = memory.get();
        memory_.push_back(std::move(memory));
        // As halves, which a device that computes in them takes as they are.
        FOVEA_ASSIGN_OR_RETURN(const TensorView held,
                               device_->hold(cpu_tensor(nans.data(), DType::kBF16, bytes / 4, 2)));
        FOVEA_RETURN_IF_ERROR(device_->copy(*side, held.data, bytes));
      }
      pool.page_stride = kPageTokens * token;
      pool.token_stride = token;
      pool.head_stride = config.head_dim;
      pool.num_pages = static_cast<std::int32_t>(pages);
      pool.page_tokens = kPageTokens;
      pool.entry_tokens = kPageTokens;
      pool.entries_per_page = 1;
      pool.dtype = static_cast<abi::KvDType>(kv_dtype);
      pools_.push_back({pool});
    }
    for (std::int32_t page = 0; page < pages; ++page) free_pages_.push_back(page);
    std::shuffle(free_pages_.begin(), free_pages_.end(), std::mt19937(1));
    return ok_status();
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Model> model_;
  std::vector<std::unique_ptr<PagedAttention>> attention_;
  std::vector<std::shared_ptr<void>> memory_;
  std::vector<std::vector<abi::KvPoolView>> pools_;
  std::vector<Request> requests_;
  std::vector<std::int32_t> free_pages_;
  std::vector<std::unique_ptr<PagedAttention>> other_attention_;
  int asks_a_part_ = 0;
  int parts_ = 0;
  int disturber_ = -1;
};

}  // namespace fovea
