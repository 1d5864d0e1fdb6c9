// Checks what operators are given, and enqueues them.
#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "attention/cuda_attention.h"
#include "attention/cuda_kernels.h"
#include "base/status.h"
#include "device/cuda/cuda_copies.h"
#include "device/cuda/cuda_linear.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/cuda_ranks.h"
#include "device/cuda/cuda_replays.h"
#include "device/cuda/cuda_time_marks.h"

namespace fovea {
namespace {

bool is_weight_type(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32; }

std::size_t bytes_of(std::int64_t elements, DType dtype) {
  return static_cast<std::size_t>(elements * dtype_bits(dtype) / 8);
}

class CudaDevice final : public Device {
 public:
  CudaDevice(cuda::Device device, cuda::Stream stream, cuda::Matmul matmul, DType dtype, bool batch_invariant,
             std::unique_ptr<CudaRanks> ranks)
      : device_(std::move(device)),
        stream_(std::move(stream)),
        matmul_(std::move(matmul)),
        dtype_(dtype),
        batch_invariant_(batch_invariant),
        ranks_(std::move(ranks)),
        name_(fmt::format("cuda:{}", device_.index())),
        ops_(device_, stream_.handle()),
        arrays_(device_, stream_.handle()),
        replays_(device_, stream_.handle()),
        marks_(device_, stream_.handle()) {}

  ~CudaDevice() override {
    const cuda::ScopedContext context(device_);
    (void)stream_.synchronize();  // nothing may still run over memory that goes
  }

  std::string_view name() const override { return name_; }
  std::string description() const override {
    const cuda::DeviceInfo& info = device_.info();
    return fmt::format("{}, {} ({}), {} GiB{}", name_, info.name, info.arch(), info.memory_bytes >> 30,
                       ranks_ == nullptr ? "" : ", " + ranks_->description());
  }
  DType activation_dtype() const override { return dtype_; }
  DevicePlace place() const override { return {DeviceKind::kCuda, device_.index()}; }
  Stream stream() const override { return {stream_.handle()}; }

  Result<std::shared_ptr<void>> allocate(std::size_t bytes) override {
    FOVEA_ASSIGN_OR_RETURN(cuda::DeviceBuffer made,
                           cuda::DeviceBuffer::create(device_, std::max<std::size_t>(bytes, 1), true));
    auto buffer = std::make_shared<cuda::DeviceBuffer>(std::move(made));
    return std::shared_ptr<void>(buffer, buffer->data());
  }
  std::size_t memory_available() const override {
    const Result<std::size_t> available = device_.memory_available();
    return available.ok() ? *available : 0;
  }
  // The rest is for the workspaces of attention, graphs, and whoever else uses the device.
  std::size_t memory_for_kv() const override {
    const std::size_t available = memory_available();
    return available - std::min(available, std::max(available / 10, kLeastReserve));
  }
  bool reads_host_memory() const override { return false; }
  bool verifies_trees() const override { return true; }
  // Plans of block rows, and kernels that test bits: needle quoting a document 14,600 tokens/s by chains, 12,600 by
  // trees, a sixth. Acceptance probabilities of branches are low beside what is accepted, so half of that is asked.
  double tree_cost() const override { return 0.1; }
  Status move_tokens(const abi::MoveTokensArgs& args) override {
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    return ops_.move_tokens(args);
  }

  Status reserve_upload(std::size_t bytes) override {
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    quantized_from_ = {};  // the model is loaded
    return arrays_.reserve(bytes);
  }
  Status copy(void* to, const void* from, std::size_t bytes) override {
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    return cuda::copy_on_device(device_, to, from, bytes, stream_.handle());
  }
  Result<std::shared_ptr<void>> allocate_host(std::size_t bytes) override {
    FOVEA_ASSIGN_OR_RETURN(cuda::PinnedBuffer made,
                           cuda::PinnedBuffer::create(device_, std::max<std::size_t>(bytes, 1)));
    auto buffer = std::make_shared<cuda::PinnedBuffer>(std::move(made));
    return std::shared_ptr<void>(buffer, buffer->data());
  }
  Status copy_to_host(void* to, const void* from, std::size_t bytes) override {
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    return cuda::copy_to_host(device_, to, from, bytes, stream_.handle());
  }
  Status copy_from_host(void* to, const void* from, std::size_t bytes) override {
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    return cuda::copy_to_device(device_, to, from, bytes, stream_.handle());
  }
  Status wait() override {
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    return stream_.synchronize();
  }
  // What a kernel did to the context is said by every call from then on.
  Status status() const override { return device_.synchronize(); }
  Result<TensorView> hold(const TensorView& host) override;
  Status upload(std::span<const std::span<const std::int32_t>> arrays,
                std::vector<const std::int32_t*>& places) override {
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    return arrays_.copy(arrays, places);
  }
  Result<const void*> read(const TensorView& tensor) override;
  Status begin_read(const TensorView& tensor) override;
  Result<const void*> end_read() override;
  Status mark_time(std::size_t mark) override {
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    return marks_.mark(mark);
  }
  std::optional<double> marked_time(std::size_t mark) const override {
    const cuda::ScopedContext context(device_);
    return context.status().ok() ? marks_.seconds(mark) : std::nullopt;
  }

  Result<std::unique_ptr<PagedAttention>> create_attention(const AttentionConfig& config) override {
    return create_cuda_paged_attention(config, place());
  }
  Result<std::unique_ptr<Linear>> create_linear(const LinearWeights& weights) override;
  Status fuse(Linear& linear, const LinearFusion& fusion) override;

  Status rope_append(const QkvHeads& heads, std::span<const KvTarget> targets) override;
  Result<std::unique_ptr<PageLists>> create_page_lists(const PageListsOptions& options) override {
    return create_cuda_page_lists(options, place(), stream());
  }
  Status embed(const TensorView& table, const std::int32_t* ids, float scale, const TensorView& out) override;
  Status rms_norm(const TensorView& x, const TensorView& weight, float weight_offset, float eps,
                  const TensorView& residual, const TensorView& out) override;
  Status gated_activation(Activation activation, const TensorView& gate_up, const TensorView& out) override;
  Status add(const TensorView& x, const TensorView& y) override;
  Status softcap(const TensorView& x, float cap) override;
  Status argmax(const TensorView& logits, const TensorView& best) override;
  Status draw(const TensorView& logits, const abi::DrawRow* draws, const TensorView& best) override;
  ProcessGroup* group() const override { return ranks_ == nullptr ? nullptr : &ranks_->group(); }
  Status all_reduce(const TensorView& x) override {
    if (ranks_ == nullptr) return ok_status();
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    FOVEA_RETURN_IF_ERROR(check("x", x, 2));
    if (x.strides[0] != x.shape[1]) return invalid_argument("x is {}, expected contiguous rows", describe(x));
    return ranks_->all_reduce(x.data, x.num_elements());
  }
  Status all_gather(const TensorView& rows, std::int64_t step) override {
    if (ranks_ == nullptr) return ok_status();
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    FOVEA_RETURN_IF_ERROR(check("rows", rows, 2, DType::kF32));
    return ranks_->all_gather(static_cast<float*>(rows.data), rows.shape[0], rows.strides[0], rows.shape[1], step);
  }
  Status replay(const ReplayKey& key, const std::function<Status()>& enqueue) override {
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    return replays_.run(key, enqueue);
  }
  DeviceGraphs graphs() const override { return replays_.graphs(); }

 private:
  static constexpr std::size_t kLeastReserve = std::size_t{1} << 30;
  static constexpr std::size_t kLeastReadBytes = 4096;
  static constexpr std::size_t kLeastArgmaxBytes = 256 * sizeof(abi::ArgmaxRow);

  // Of that rank and type here, elements of a row side by side.
  Status check(std::string_view name, const TensorView& view, int rank, DType dtype) const {
    if (view.rank == rank && view.dtype == dtype && view.device == DeviceKind::kCuda &&
        view.device_index == device_.index() && view.strides[rank - 1] == 1) {
      return ok_status();
    }
    return invalid_argument("{} is {}, expected {} of rank {} on {} with contiguous rows", name, describe(view),
                            dtype_name(dtype), rank, name_);
  }
  Status check(std::string_view name, const TensorView& view, int rank) const {
    return check(name, view, rank, dtype_);
  }
  // A contiguous tensor of the host in device memory, as `dtype`.
  Result<cuda::DeviceBuffer> copy_of(std::span<const TensorView> parts, DType dtype);
  // Matrices as e4m3, one after the other, and their rows' scales.
  Result<cuda::DeviceBuffer> fp8_copy_of(std::span<const TensorView> parts, cuda::DeviceBuffer* scales);
  Result<WeightCopies*> weight_copies();
  Result<const float*> frequencies(const RopeConfig& config);

  cuda::Device device_;
  cuda::Stream stream_;
  cuda::Matmul matmul_;
  DType dtype_;  // of activations
  bool batch_invariant_;
  std::unique_ptr<CudaRanks> ranks_;  // or null; outlives the graphs that record it
  std::string name_;
  CudaOps ops_;
  ArrayCopies arrays_;
  CudaReplays replays_;
  CudaTimeMarks marks_;
  cuda::DeviceBuffer argmax_rows_;
  std::optional<WeightCopies> weight_copies_;
  cuda::DeviceBuffer quantized_from_;  // a matrix before it becomes e4m3
  Fp8Scratch fp8_;
  cuda::PinnedBuffer read_;
  cuda::CopySlot reads_[2];  // begun in turn
  std::size_t begun_ = 0, ended_ = 0;
  std::vector<std::shared_ptr<const cuda::DeviceBuffer>> held_;
  // Matrices by where they lay on the host: an embedding that is also the output matrix is copied once.
  std::map<const void*, std::shared_ptr<const cuda::DeviceBuffer>> matrices_;
  struct Frequencies {
    RopeConfig config;
    cuda::DeviceBuffer memory;
  };
  std::vector<std::unique_ptr<Frequencies>> frequencies_;
};

Result<cuda::DeviceBuffer> CudaDevice::copy_of(std::span<const TensorView> parts, DType dtype) {
  std::int64_t elements = 0;
  for (const TensorView& part : parts) elements += part.num_elements();
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_ASSIGN_OR_RETURN(cuda::DeviceBuffer made, cuda::DeviceBuffer::create(device_, bytes_of(elements, dtype)));
  FOVEA_ASSIGN_OR_RETURN(WeightCopies* const copies, weight_copies());
  auto* to = made.as<std::byte>();
  for (const TensorView& part : parts) {
    FOVEA_RETURN_IF_ERROR(copies->copy(to, dtype, part.data, part.dtype, part.num_elements()));
    to += bytes_of(part.num_elements(), dtype);
  }
  return made;
}

Result<WeightCopies*> CudaDevice::weight_copies() {
  if (!weight_copies_.has_value()) {
    FOVEA_ASSIGN_OR_RETURN(weight_copies_, WeightCopies::create(device_, stream_.handle(), default_num_threads()));
  }
  return &*weight_copies_;
}

Result<cuda::DeviceBuffer> CudaDevice::fp8_copy_of(std::span<const TensorView> parts, cuda::DeviceBuffer* scales) {
  std::int64_t rows = 0, most = 0;
  for (const TensorView& part : parts) {
    rows += part.shape[0];
    most = std::max(most, part.num_elements());
  }
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  const std::int64_t width = parts[0].shape[1];
  FOVEA_ASSIGN_OR_RETURN(cuda::DeviceBuffer made,
                         cuda::DeviceBuffer::create(device_, bytes_of(rows * width, DType::kF8E4M3)));
  FOVEA_ASSIGN_OR_RETURN(*scales, cuda::DeviceBuffer::create(device_, bytes_of(rows, DType::kF32)));
  if (bytes_of(most, dtype_) > quantized_from_.size_bytes()) {
    FOVEA_ASSIGN_OR_RETURN(quantized_from_, cuda::DeviceBuffer::create(device_, bytes_of(most, dtype_)));
  }
  FOVEA_ASSIGN_OR_RETURN(WeightCopies* const copies, weight_copies());
  abi::Fp8RowsArgs args{};
  args.from = quantized_from_.data();
  args.codes = made.as<std::uint8_t>();
  args.scales = scales->as<float>();
  args.stride = width;
  args.width = static_cast<std::uint32_t>(width);
  for (const TensorView& part : parts) {
    FOVEA_RETURN_IF_ERROR(copies->copy(quantized_from_.data(), dtype_, part.data, part.dtype, part.num_elements()));
    args.rows = static_cast<std::uint32_t>(part.shape[0]);
    FOVEA_RETURN_IF_ERROR(ops_.fp8_rows(args, dtype_));
    args.codes += part.num_elements();
    args.scales += part.shape[0];
  }
  return made;
}

// Vectors become f32, matrices the activations' type.
Result<TensorView> CudaDevice::hold(const TensorView& host) {
  if (!is_weight_type(host.dtype) || host.device != DeviceKind::kCpu) {
    return invalid_argument("a tensor to hold is {}, expected bf16, f16 or f32 on the host", describe(host));
  }
  const DType dtype = host.rank == 1 ? DType::kF32 : dtype_;
  TensorView view = host;
  view.dtype = dtype;
  view.device = DeviceKind::kCuda;
  view.device_index = device_.index();
  const auto known = matrices_.find(host.data);
  if (known != matrices_.end() && known->second->size_bytes() == bytes_of(host.num_elements(), dtype)) {
    held_.push_back(known->second);
  } else {
    FOVEA_ASSIGN_OR_RETURN(cuda::DeviceBuffer made, copy_of({&host, 1}, dtype));
    held_.push_back(std::make_shared<const cuda::DeviceBuffer>(std::move(made)));
  }
  view.data = held_.back()->data();
  return view;
}

Result<std::unique_ptr<Linear>> CudaDevice::create_linear(const LinearWeights& weights) {
  FOVEA_RETURN_IF_ERROR(check_linear(weights));
  const TensorView& first = weights.parts[0];
  const std::int64_t in = first.shape[1];
  std::int64_t out = 0;
  for (const TensorView& part : weights.parts) {
    if (part.strides[0] != in) return invalid_argument("weight is {}, expected it contiguous", describe(part));
    out += part.shape[0];
  }
  cuda::DeviceBuffer made, scales, bias;
  if (first.dtype == DType::kF8E4M3) {
    FOVEA_ASSIGN_OR_RETURN(made, copy_of(weights.parts, DType::kF8E4M3));
    FOVEA_ASSIGN_OR_RETURN(scales, copy_of(weights.scales, DType::kF32));
  } else if (weights.to_fp8) {
    FOVEA_ASSIGN_OR_RETURN(made, fp8_copy_of(weights.parts, &scales));
  } else {
    FOVEA_ASSIGN_OR_RETURN(made, copy_of(weights.parts, dtype_));
  }
  auto weight = std::make_shared<const cuda::DeviceBuffer>(std::move(made));
  if (weights.parts.size() == 1 && scales.data() == nullptr) matrices_[first.data] = weight;
  if (!weights.biases.empty()) {
    FOVEA_ASSIGN_OR_RETURN(bias, copy_of(weights.biases, dtype_));
  }
  const CudaLinearContext context = {device_, matmul_, ops_, fp8_, stream_.handle(), batch_invariant_};
  auto linear =
      std::make_unique<CudaLinear>(std::move(weight), std::move(scales), std::move(bias), in, out, dtype_, context);
  FOVEA_RETURN_IF_ERROR(linear->prepare());
  return std::unique_ptr<Linear>(std::move(linear));
}

Status CudaDevice::fuse(Linear& linear, const LinearFusion& fusion) {
  cuda::DeviceBuffer norm;
  if (fusion.norm.data != nullptr) {
    if (fusion.norm.rank != 1 || fusion.norm.shape[0] != linear.in_features() || !is_weight_type(fusion.norm.dtype)) {
      return invalid_argument("the weight of a norm is {}, expected [{}] of bf16, f16 or f32", describe(fusion.norm),
                              linear.in_features());
    }
    FOVEA_ASSIGN_OR_RETURN(norm, copy_of({&fusion.norm, 1}, dtype_));
  }
  return static_cast<CudaLinear&>(linear).fuse(fusion, std::move(norm));  // a Linear of this device
}

Result<const void*> CudaDevice::read(const TensorView& tensor) {
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  const std::size_t bytes = bytes_of(tensor.num_elements(), tensor.dtype);
  if (bytes > read_.size_bytes()) {
    FOVEA_ASSIGN_OR_RETURN(read_, cuda::PinnedBuffer::create(device_, bytes));
  }
  FOVEA_RETURN_IF_ERROR(cuda::copy_to_host(device_, read_.data(), tensor.data, bytes, stream_.handle()));
  FOVEA_RETURN_IF_ERROR(stream_.synchronize());
  return static_cast<const void*>(read_.data());
}

Status CudaDevice::begin_read(const TensorView& tensor) {
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  if (begun_ - ended_ == std::size(reads_)) return internal_error("{} reads are open, at most", std::size(reads_));
  cuda::CopySlot& slot = reads_[begun_ % std::size(reads_)];
  const std::size_t bytes = bytes_of(tensor.num_elements(), tensor.dtype);
  if (bytes > slot.memory.size_bytes() || slot.memory.size_bytes() == 0) {
    FOVEA_ASSIGN_OR_RETURN(slot, cuda::CopySlot::create(device_, std::max(bytes, kLeastReadBytes)));
  }
  if (bytes > 0) {
    FOVEA_RETURN_IF_ERROR(cuda::copy_to_host(device_, slot.memory.data(), tensor.data, bytes, stream_.handle()));
  }
  FOVEA_RETURN_IF_ERROR(slot.copied.record(stream_.handle()));
  ++begun_;
  return ok_status();
}

Result<const void*> CudaDevice::end_read() {
  if (begun_ == ended_) return internal_error("no read is open");
  // It ends, whatever fails: the next one is another's.
  const cuda::CopySlot& slot = reads_[ended_++ % std::size(reads_)];
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_RETURN_IF_ERROR(slot.copied.synchronize());
  return static_cast<const void*>(slot.memory.data());
}

Result<const float*> CudaDevice::frequencies(const RopeConfig& config) {
  for (const auto& known : frequencies_) {
    if (known->config == config) return known->memory.as<float>();
  }
  const std::vector<float> values = rope_frequencies(config);
  const TensorView host = cpu_tensor(values.data(), DType::kF32, values.size());
  FOVEA_ASSIGN_OR_RETURN(cuda::DeviceBuffer memory, copy_of({&host, 1}, DType::kF32));
  frequencies_.push_back(std::make_unique<Frequencies>(Frequencies{config, std::move(memory)}));
  return frequencies_.back()->memory.as<float>();
}

Status CudaDevice::rope_append(const QkvHeads& heads, std::span<const KvTarget> targets) {
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  const std::int32_t num_qo = heads.num_qo_heads, num_kv = heads.num_kv_heads;
  FOVEA_RETURN_IF_ERROR(check("qkv", heads.qkv, 3));
  if (num_qo < 1 || num_kv < 1 || heads.qkv.shape[1] != num_qo + 2 * num_kv) {
    return invalid_argument("qkv is {}, expected {} query heads and 2 x {} KV heads", describe(heads.qkv), num_qo,
                            num_kv);
  }
  const std::int64_t head_dim = heads.qkv.shape[2];
  abi::RopeAppendArgs args{};
  args.qkv = heads.qkv.data;
  args.row_stride = heads.qkv.strides[0];
  args.head_stride = heads.qkv.strides[1];
  for (const auto& [norm, count, to] :
       {std::tuple{&heads.q_norm, num_qo, &args.q_norm}, {&heads.k_norm, num_kv, &args.k_norm}}) {
    if (norm->data == nullptr) continue;
    FOVEA_RETURN_IF_ERROR(check("the weight of a norm of heads", *norm, 1, DType::kF32));
    const bool whole = norm->shape[0] != head_dim;
    if (whole && norm->shape[0] != head_dim * count) {
      return invalid_argument("the weight of a norm of heads is {}, expected [{}] or [{}]", describe(*norm), head_dim,
                              head_dim * count);
    }
    *to = static_cast<const float*>(norm->data);
    if (whole) args.norms_are_whole = 1;
  }
  if (args.norms_are_whole != 0 && ((args.q_norm != nullptr && heads.q_norm.shape[0] == head_dim && num_qo > 1) ||
                                    (args.k_norm != nullptr && heads.k_norm.shape[0] == head_dim && num_kv > 1))) {
    return unsupported("norms of q and k of which one is of each head and the other of all heads");
  }
  args.norm_offset = heads.norm_offset;
  args.norm_eps = heads.norm_eps;
  args.positions = heads.positions;
  args.attention_factor = 1.0f;
  if (heads.rope->kind != RopeKind::kNone) {
    const RopeConfig& rope = *heads.rope;
    if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > head_dim) {
      return invalid_argument("rotary_dim is {}, expected an even number up to head_dim {}", rope.rotary_dim, head_dim);
    }
    if (rope.kind == RopeKind::kLongRope &&
        rope.frequency_divisors.size() != static_cast<std::size_t>(rope.rotary_dim / 2)) {
      return invalid_argument("{} frequency divisors for rotary_dim {}, expected half as many",
                              rope.frequency_divisors.size(), rope.rotary_dim);
    }
    FOVEA_ASSIGN_OR_RETURN(args.inv_freq, frequencies(rope));
    args.attention_factor = rope_attention_factor(rope);
    args.rotary_dim = static_cast<std::uint32_t>(rope.rotary_dim);
  }
  args.rows = static_cast<std::uint32_t>(heads.qkv.shape[0]);
  args.num_qo_heads = static_cast<std::uint32_t>(num_qo);
  args.num_kv_heads = static_cast<std::uint32_t>(num_kv);
  std::vector<abi::RopeTarget> to;
  for (const KvTarget& target : targets) {
    if (target.head_begin < 0 || target.head_end <= target.head_begin || target.head_end > num_kv) {
      return invalid_argument("KV heads [{}, {}) of {}", target.head_begin, target.head_end, num_kv);
    }
    const abi::KvPoolView& pool = target.pool;
    const bool scaled = pool.granularity == abi::ScaleGranularity::kTokenHead;
    const bool plain =
        pool.dtype == abi::KvDType::kF32 || pool.dtype == abi::KvDType::kF16 || pool.dtype == abi::KvDType::kBF16;
    if (scaled == plain || pool.entries_per_page != 1) {
      return unsupported("a KV pool of {} {} a scale for each token and head; quantized pools have one, others none",
                         dtype_name(static_cast<DType>(pool.dtype)), scaled ? "with" : "without");
    }
    if (target.stats.data != nullptr && target.stats.kind != abi::StatKind::kCodes) {
      return unsupported("statistics of pages that are no key codes on {}", name_);
    }
    to.push_back({target.slots, pool, target.head_begin, target.head_end, target.stats});
  }
  return ops_.rope_append(args, dtype_, static_cast<int>(head_dim), to);
}

Status CudaDevice::embed(const TensorView& table, const std::int32_t* ids, float scale, const TensorView& out) {
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_RETURN_IF_ERROR(check("table", table, 2));
  FOVEA_RETURN_IF_ERROR(check("out", out, 2));
  if (table.shape[1] != out.shape[1]) {
    return invalid_argument("table is {}, expected [., {}]", describe(table), out.shape[1]);
  }
  abi::EmbedArgs args{};
  args.table = table.data;
  args.ids = ids;
  args.out = out.data;
  args.table_stride = table.strides[0];
  args.out_stride = out.strides[0];
  args.rows = static_cast<std::uint32_t>(out.shape[0]);
  args.width = static_cast<std::uint32_t>(out.shape[1]);
  args.table_rows = static_cast<std::uint32_t>(table.shape[0]);
  args.scale = scale;
  return ops_.embed(args, dtype_);
}

Status CudaDevice::rms_norm(const TensorView& x, const TensorView& weight, float weight_offset, float eps,
                            const TensorView& residual, const TensorView& out) {
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  const int rank = x.rank == 3 ? 3 : 2;
  FOVEA_RETURN_IF_ERROR(check("x", x, rank));
  FOVEA_RETURN_IF_ERROR(check("out", out, rank));
  FOVEA_RETURN_IF_ERROR(check("weight", weight, 1, DType::kF32));
  if (out.shape != x.shape || weight.shape[0] != x.shape[rank - 1]) {
    return invalid_argument("x is {}, out {} and weight {}, expected equal shapes and a weight of the last dim",
                            describe(x), describe(out), describe(weight));
  }
  const auto head_stride = [](const TensorView& view) { return view.rank == 3 ? view.strides[1] : 0; };
  abi::NormArgs args{};
  args.x = x.data;
  args.out = out.data;
  args.weight = static_cast<const float*>(weight.data);
  args.x_row_stride = x.strides[0];
  args.x_head_stride = head_stride(x);
  args.out_row_stride = out.strides[0];
  args.out_head_stride = head_stride(out);
  if (residual.data != nullptr) {
    FOVEA_RETURN_IF_ERROR(check("residual", residual, rank));
    if (residual.shape != x.shape) {
      return invalid_argument("residual is {}, expected the shape of {}", describe(residual), describe(x));
    }
    args.residual = residual.data;
    args.residual_row_stride = residual.strides[0];
    args.residual_head_stride = head_stride(residual);
  }
  args.heads = rank == 3 ? static_cast<std::uint32_t>(x.shape[1]) : 1;
  args.dim = static_cast<std::uint32_t>(x.shape[rank - 1]);
  args.weight_offset = weight_offset;
  args.eps = eps;
  return ops_.rms_norm(args, dtype_, x.shape[0]);
}

Status CudaDevice::gated_activation(Activation activation, const TensorView& gate_up, const TensorView& out) {
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_RETURN_IF_ERROR(check("gate_up", gate_up, 2));
  FOVEA_RETURN_IF_ERROR(check("out", out, 2));
  if (gate_up.shape[0] != out.shape[0] || gate_up.shape[1] != 2 * out.shape[1]) {
    return invalid_argument("gate_up is {} and out {}, expected [rows, 2 width] and [rows, width]", describe(gate_up),
                            describe(out));
  }
  abi::GateArgs args{};
  args.gate_up = gate_up.data;
  args.out = out.data;
  args.gate_up_stride = gate_up.strides[0];
  args.out_stride = out.strides[0];
  args.rows = static_cast<std::uint32_t>(out.shape[0]);
  args.width = static_cast<std::uint32_t>(out.shape[1]);
  args.kind = static_cast<abi::GateKind>(activation);
  static_assert(static_cast<int>(abi::GateKind::kSilu) == static_cast<int>(Activation::kSilu) &&
                static_cast<int>(abi::GateKind::kGeluTanh) == static_cast<int>(Activation::kGeluTanh) &&
                static_cast<int>(abi::GateKind::kGelu) == static_cast<int>(Activation::kGelu));
  return ops_.gate(args, dtype_);
}

Status CudaDevice::add(const TensorView& x, const TensorView& y) {
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_RETURN_IF_ERROR(check("x", x, 2));
  FOVEA_RETURN_IF_ERROR(check("y", y, 2));
  if (x.shape != y.shape) return invalid_argument("y is {}, expected the shape of {}", describe(y), describe(x));
  return ops_.add({x.data, y.data, x.strides[0], y.strides[0], static_cast<std::uint32_t>(x.shape[0]),
                   static_cast<std::uint32_t>(x.shape[1]), 0.0f},
                  dtype_);
}

// Of logits, which are f32.
Status CudaDevice::softcap(const TensorView& x, float cap) {
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_RETURN_IF_ERROR(check("x", x, 2, DType::kF32));
  if (!(cap > 0.0f)) return invalid_argument("cap is {}, expected a positive number", cap);
  return ops_.softcap({x.data, nullptr, x.strides[0], 0, static_cast<std::uint32_t>(x.shape[0]),
                       static_cast<std::uint32_t>(x.shape[1]), cap},
                      DType::kF32);
}

Status CudaDevice::argmax(const TensorView& logits, const TensorView& best) {
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_RETURN_IF_ERROR(check("logits", logits, 2, DType::kF32));
  FOVEA_RETURN_IF_ERROR(check("best", best, 1, DType::kI32));
  const std::int64_t rows = logits.shape[0];
  if (best.shape[0] != rows) return invalid_argument("best is {} for logits {}", describe(best), describe(logits));
  const std::size_t bytes = static_cast<std::size_t>(rows) * sizeof(abi::ArgmaxRow);
  if (bytes > argmax_rows_.size_bytes()) {
    // Graphs have the address of the one before, of which nothing is asked between launches: it stays.
    FOVEA_ASSIGN_OR_RETURN(cuda::DeviceBuffer more,
                           cuda::DeviceBuffer::create(device_, std::max(bytes, kLeastArgmaxBytes), true));
    held_.push_back(std::make_shared<const cuda::DeviceBuffer>(std::exchange(argmax_rows_, std::move(more))));
  }
  abi::ArgmaxArgs args{};
  args.logits = static_cast<const float*>(logits.data);
  args.best = static_cast<std::int32_t*>(best.data);
  args.rows_state = argmax_rows_.as<abi::ArgmaxRow>();
  args.stride = logits.strides[0];
  args.width = static_cast<std::uint32_t>(logits.shape[1]);
  return ops_.argmax(args, static_cast<std::uint32_t>(rows));
}

Status CudaDevice::draw(const TensorView& logits, const abi::DrawRow* draws, const TensorView& best) {
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_RETURN_IF_ERROR(check("logits", logits, 2, DType::kF32));
  FOVEA_RETURN_IF_ERROR(check("best", best, 1, DType::kI32));
  if (best.shape[0] != logits.shape[0]) {
    return invalid_argument("best is {} for logits {}", describe(best), describe(logits));
  }
  abi::DrawArgs args{};
  args.logits = static_cast<const float*>(logits.data);
  args.draws = draws;
  args.best = static_cast<std::int32_t*>(best.data);
  args.stride = logits.strides[0];
  args.width = static_cast<std::uint32_t>(logits.shape[1]);
  return ops_.draw(args, static_cast<std::uint32_t>(logits.shape[0]));
}

}  // namespace

Result<std::unique_ptr<Device>> create_cuda_device(int index, const DeviceOptions& options) {
  if (options.half_dtype != DType::kBF16 && options.half_dtype != DType::kF16) {
    return unsupported("activations of {} on a CUDA device; expected bf16 or f16", dtype_name(options.half_dtype));
  }
  FOVEA_ASSIGN_OR_RETURN(cuda::Device device, cuda_device(index));
  if (device.info().major < 8) {
    return unsupported("{} is {}; kernels are made for sm_80 and later", device.info().name, device.info().arch());
  }
  FOVEA_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::create(device));
  FOVEA_ASSIGN_OR_RETURN(cuda::Matmul matmul, cuda::Matmul::create(device));
  std::unique_ptr<CudaRanks> ranks;
  if (options.group != nullptr) {
    FOVEA_ASSIGN_OR_RETURN(ranks, CudaRanks::create(device, stream.handle(), options.half_dtype, options.group));
  }
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(std::move(device), std::move(stream), std::move(matmul),
                                                              options.half_dtype, options.batch_invariant,
                                                              std::move(ranks)));
}

}  // namespace fovea
