// Sets up NCCL and the memory between GPUs through the group, and enqueues exchanges.
#include "device/cuda/cuda_ranks.h"

#include <algorithm>
#include <cstring>

#include "attention/cuda_kernels.h"
#include "base/half.h"
#include "base/log.h"
#include "base/status.h"
#include "jit/kv_dtype.h"
#include "jit/op_spec.h"

namespace fovea {
namespace {

cuda::NcclType nccl_type(DType dtype) {
  return dtype == DType::kF32   ? cuda::NcclType::kF32
         : dtype == DType::kF16 ? cuda::NcclType::kF16
                                : cuda::NcclType::kBF16;
}

std::uint64_t bytes_of(std::int64_t elements, DType dtype) {
  return static_cast<std::uint64_t>(elements) * static_cast<std::uint64_t>(dtype_bits(dtype)) / 8;
}

}  // namespace

Result<std::unique_ptr<CudaRanks>> CudaRanks::create(const cuda::Device& device, cuda::StreamHandle stream, DType dtype,
                                                     std::shared_ptr<ProcessGroup> group) {
  const cuda::ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  auto ranks = std::unique_ptr<CudaRanks>(new CudaRanks(device, stream, dtype, std::move(group)));
  FOVEA_RETURN_IF_ERROR(ranks->connect());
  FOVEA_RETURN_IF_ERROR(ranks->reach_peers());
  return ranks;
}

CudaRanks::~CudaRanks() {
  const cuda::ScopedContext context(device_);
  const std::lock_guard lock(shared_->mutex);
  // What waits for ranks that are gone would wait for ever.
  if (shared_->comm != nullptr && !group_->status().ok()) shared_->comm->abort();
  shared_->comm.reset();
  for (void* const peer : opened_) cuda::close_shared(device_, peer);
}

Status CudaRanks::connect() {
  std::vector<std::int32_t> words;
  if (group_->rank() == 0) {
    FOVEA_ASSIGN_OR_RETURN(const cuda::NcclId made, cuda::NcclComm::make_id());
    words.assign(made.begin(), made.end());
  }
  FOVEA_RETURN_IF_ERROR(group_->broadcast(words));
  cuda::NcclId id{};
  if (words.size() != id.size()) return data_loss("NCCL's id has {} words, expected {}", words.size(), id.size());
  std::copy(words.begin(), words.end(), id.begin());
  FOVEA_ASSIGN_OR_RETURN(shared_->comm, cuda::NcclComm::create(id, group_->rank(), group_->size()));
  group_->on_end([shared = shared_](const Status&) {
    const std::lock_guard lock(shared->mutex);
    if (shared->comm != nullptr) shared->comm->abort();
  });
  return ok_status();
}

Status CudaRanks::reach_peers() {
  const int size = group_->size();
  struct Offer {
    cuda::SharedMemory memory;
    std::int32_t there = 0;
  };
  Offer mine;
  Status why;
  if (size > static_cast<int>(abi::kMostPeers)) {
    why = unsupported("more than {} GPUs", abi::kMostPeers);
  } else {
    auto source = jit::all_reduce_source(device_.info().arch(), jit::kv_dtype_of(dtype_));
    auto function =
        source.ok() ? cuda_kernel(device_, *source, "fovea_all_reduce") : Result<cuda::Function>(source.status());
    auto region = cuda::DeviceBuffer::create(device_, sizeof(abi::ReduceRegion), true);
    auto shared = region.ok() ? cuda::share(device_, region->data()) : Result<cuda::SharedMemory>(region.status());
    why = !function.ok() ? function.status() : shared.status();
    if (why.ok()) {
      reduce_ = std::move(*function);
      region_ = std::move(*region);
      mine = {*shared, 1};
    }
  }
  std::vector<Offer> all(static_cast<std::size_t>(size));
  FOVEA_RETURN_IF_ERROR(group_->all_gather(&mine, sizeof mine, all.data()));
  args_.rank = static_cast<std::uint32_t>(group_->rank());
  args_.size = static_cast<std::uint32_t>(size);
  const bool offered = std::all_of(all.begin(), all.end(), [](const Offer& offer) { return offer.there != 0; });
  for (int rank = 0; rank < size && offered && why.ok(); ++rank) {
    void* at = region_.data();
    if (rank != group_->rank()) {
      auto opened = cuda::open_shared(device_, all[static_cast<std::size_t>(rank)].memory);
      why = opened.status();
      if (!opened.ok()) break;
      opened_.push_back(*opened);
      at = *opened;
    }
    args_.regions[rank] = static_cast<abi::ReduceRegion*>(at);
  }
  const auto everywhere = [&](bool here) -> Result<bool> {
    const std::int32_t yes = here ? 1 : 0;
    std::vector<std::int32_t> answers(static_cast<std::size_t>(size));
    FOVEA_RETURN_IF_ERROR(group_->all_gather(&yes, sizeof yes, answers.data()));
    return std::all_of(answers.begin(), answers.end(), [](std::int32_t answer) { return answer != 0; });
  };
  FOVEA_ASSIGN_OR_RETURN(const bool reached, everywhere(offered && why.ok()));
  if (reached) {
    // Memory that is said to be reached and is not has been seen.
    FOVEA_ASSIGN_OR_RETURN(const bool right, peers_add_up());
    FOVEA_ASSIGN_OR_RETURN(reaches_peers_, everywhere(right));
    if (!right) why = internal_error("sums through it are wrong");
  }
  if (!reaches_peers_) {
    log_warning("GPUs do not reach each other's memory, so small sums take NCCL's time: {}",
                why.ok() ? "another rank says why" : why.message());
  }
  return ok_status();
}

Result<bool> CudaRanks::peers_add_up() {
  // More than one CTA, and each half of the region.
  constexpr std::int64_t kElements = 8192;
  const std::size_t bytes = static_cast<std::size_t>(bytes_of(kElements, dtype_));
  FOVEA_ASSIGN_OR_RETURN(const cuda::DeviceBuffer x, cuda::DeviceBuffer::create(device_, bytes));
  FOVEA_ASSIGN_OR_RETURN(const cuda::PinnedBuffer host, cuda::PinnedBuffer::create(device_, bytes));
  auto* const values = reinterpret_cast<std::uint16_t*>(host.data());
  const auto encode = [&](int number) {
    const auto f = static_cast<float>(number);
    return dtype_ == DType::kF16 ? float_to_f16(f) : float_to_bf16(f);
  };
  bool right = true;
  for (int round = 0; round < 4; ++round) {
    const auto value = [round](std::int64_t i, int rank) { return static_cast<int>((i + round) % 7) + rank; };
    for (std::int64_t i = 0; i < kElements; ++i) values[i] = encode(value(i, group_->rank()));
    FOVEA_RETURN_IF_ERROR(cuda::copy_to_device(device_, x.data(), host.data(), bytes, stream_));
    FOVEA_RETURN_IF_ERROR(launch_reduce(x.data(), kElements));
    FOVEA_RETURN_IF_ERROR(cuda::copy_to_host(device_, host.data(), x.data(), bytes, stream_));
    FOVEA_RETURN_IF_ERROR(cuda::synchronize(device_, stream_));
    for (std::int64_t i = 0; i < kElements; ++i) {
      int sum = 0;
      for (int rank = 0; rank < group_->size(); ++rank) sum += value(i, rank);
      right = right && values[i] == encode(sum);
    }
  }
  return right;
}

Status CudaRanks::launch_reduce(void* x, std::int64_t elements) {
  abi::AllReduceArgs args = args_;
  args.x = x;
  args.elements = static_cast<std::uint64_t>(elements);
  cuda::LaunchConfig config;
  config.grid[0] =
      static_cast<std::uint32_t>((bytes_of(elements, dtype_) + abi::kReduceCtaBytes - 1) / abi::kReduceCtaBytes);
  config.block[0] = abi::kReduceThreads;
  config.stream = stream_;
  config.programmatic_serialization = device_.info().major >= 9;
  void* const parameters[] = {&args};
  return cuda::launch(reduce_, config, parameters);
}

Status CudaRanks::all_reduce(void* x, std::int64_t elements) {
  static_assert(kPeerBytes <= std::uint64_t{abi::kMostReduceCtas} * abi::kReduceCtaBytes);
  const std::uint64_t bytes = bytes_of(elements, dtype_);
  const bool whole = bytes % 16 == 0 && reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
  if (reaches_peers_ && whole && bytes <= kPeerBytes) return launch_reduce(x, elements);
  return shared_->comm->all_reduce(x, static_cast<std::size_t>(elements), nccl_type(dtype_), stream_);
}

Status CudaRanks::all_gather(float* rows, std::int64_t num_rows, std::int64_t row_stride, std::int64_t width,
                             std::int64_t step) {
  if (num_rows == 0) return ok_status();
  const auto size = static_cast<std::size_t>(group_->size());
  const std::size_t part = static_cast<std::size_t>(num_rows * step);
  const std::size_t bytes = (size + 1) * part * sizeof(float);
  if (gathered_.empty() || gathered_.back().size_bytes() < bytes) {
    FOVEA_ASSIGN_OR_RETURN(cuda::DeviceBuffer more, cuda::DeviceBuffer::create(device_, bytes + bytes / 2));
    gathered_.push_back(std::move(more));
  }
  auto* const send = gathered_.back().as<float>();
  float* const all = send + part;
  const auto columns = [&](int rank) {
    const std::int64_t begin = std::min(rank * step, width);
    return std::pair{begin, std::min(step, width - begin)};
  };
  const auto copy = [&](float* to, std::int64_t to_stride, const float* from, std::int64_t from_stride,
                        std::int64_t count) {
    return cuda::copy_rows_on_device(device_, to, static_cast<std::size_t>(to_stride) * sizeof(float), from,
                                     static_cast<std::size_t>(from_stride) * sizeof(float),
                                     static_cast<std::size_t>(count) * sizeof(float),
                                     static_cast<std::size_t>(num_rows), stream_);
  };
  const auto [mine, my_count] = columns(group_->rank());
  FOVEA_RETURN_IF_ERROR(copy(send, step, rows + mine, row_stride, my_count));
  FOVEA_RETURN_IF_ERROR(shared_->comm->all_gather(send, all, part, cuda::NcclType::kF32, stream_));
  for (int rank = 0; rank < group_->size(); ++rank) {
    if (rank == group_->rank()) continue;
    const auto [begin, count] = columns(rank);
    FOVEA_RETURN_IF_ERROR(copy(rows + begin, row_stride, all + static_cast<std::size_t>(rank) * part, step, count));
  }
  return ok_status();
}

std::string CudaRanks::description() const {
  return fmt::format("NCCL {}{}", shared_->comm->version(),
                     reaches_peers_ ? fmt::format(", peer memory up to {} KiB", kPeerBytes >> 10) : "");
}

}  // namespace fovea
