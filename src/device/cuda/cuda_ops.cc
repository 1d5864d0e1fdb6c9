// Kernels, accesses and grids of the operators.
#include "device/cuda/cuda_ops.h"

#include <algorithm>
#include <bit>
#include <initializer_list>

#include "abi/access.h"
#include "attention/cuda_kernels.h"
#include "base/status.h"
#include "jit/cache_spec.h"
#include "jit/kv_dtype.h"
#include "jit/op_spec.h"

namespace fovea {
namespace {

std::uint32_t element_bytes(DType dtype) { return static_cast<std::uint32_t>(dtype_bits(dtype) / 8); }

struct Rows {
  const void* data;  // null: left out
  long long stride;
  long long other_stride = 0;
  std::uint32_t bytes;  // an element
};

// Elements an access, of 16 bytes at most, that fits the width and all rows.
std::uint32_t widest(std::uint32_t width, DType dtype, std::initializer_list<Rows> all) {
  std::uint32_t vec = 16 / element_bytes(dtype);
  for (const Rows& rows : all) {
    if (rows.data != nullptr)
      vec = std::min(vec, abi::aligned_run(rows.data, rows.stride, rows.other_stride, rows.bytes));
  }
  while (vec > 1 && width % vec != 0) vec /= 2;
  return vec;
}

// Accesses a thread of a norm over so many.
std::uint32_t norm_runs(std::uint32_t all_runs) {
  const std::uint32_t threads = abi::norm_threads(all_runs);
  return std::bit_ceil((all_runs + threads - 1) / threads);
}

}  // namespace

Result<std::vector<jit::KernelSource>> op_kernels(const std::string& arch, DType dtype, std::int64_t hidden_size,
                                                  int head_dim, int rotary_dim) {
  const auto type = static_cast<abi::KvDType>(dtype);
  const auto hidden = static_cast<std::uint32_t>(hidden_size);
  const std::uint32_t vec = widest(hidden, dtype, {});
  std::vector<jit::KernelSource> all;
  for (Result<jit::KernelSource> source :
       {jit::norm_source(arch, type, vec, norm_runs(hidden / vec)), jit::elementwise_source(arch, type, vec),
        jit::elementwise_source(arch, abi::KvDType::kF32, 4), jit::argmax_source(arch, 4), jit::draw_source(arch, 4),
        jit::rope_append_source(arch, type, head_dim, jit::rope_vec(head_dim, rotary_dim)),
        jit::move_tokens_source(arch)}) {
    if (!source.ok()) return source.status();
    all.push_back(*std::move(source));
  }
  return all;
}

Result<const cuda::Function*> CudaOps::kernel(Kind kind, DType dtype, std::uint32_t vec, std::uint32_t extra) {
  const auto key = std::tuple(kind, dtype, vec, extra);
  if (const auto known = kernels_.find(key); known != kernels_.end()) return &known->second;
  const std::string arch = device_.info().arch();
  const auto type = jit::kv_dtype_of(dtype);
  const char* entry = "";
  Result<jit::KernelSource> source = jit::KernelSource();
  switch (kind) {
    case Kind::kNorm:
      entry = "fovea_rms_norm";
      source = jit::norm_source(arch, type, vec, extra);
      break;
    case Kind::kRopeAppend:
      entry = "fovea_rope_append";
      source = jit::rope_append_source(arch, type, static_cast<int>(extra), vec);
      break;
    case Kind::kArgmax:
      entry = "fovea_argmax";
      source = jit::argmax_source(arch, vec);
      break;
    case Kind::kDraw:
      entry = "fovea_draw";
      source = jit::draw_source(arch, vec);
      break;
    case Kind::kMoveTokens:
      entry = "fovea_move_tokens";
      source = jit::move_tokens_source(arch);
      break;
    case Kind::kFp8Rows:
    case Kind::kFp8Expand:
    case Kind::kFp8Finish:
      entry = kind == Kind::kFp8Rows     ? "fovea_fp8_rows"
              : kind == Kind::kFp8Expand ? "fovea_fp8_expand"
                                         : "fovea_fp8_finish";
      source = jit::fp8_rows_source(arch, type, vec);
      break;
    case Kind::kEmbed: entry = "fovea_embed"; break;
    case Kind::kGate: entry = "fovea_gate"; break;
    case Kind::kAdd: entry = "fovea_add"; break;
    case Kind::kSoftcap: entry = "fovea_softcap"; break;
  }
  if (source.ok() && source->text.empty()) source = jit::elementwise_source(arch, type, vec);
  if (!source.ok()) return source.status();
  FOVEA_ASSIGN_OR_RETURN(cuda::Function function, cuda_kernel(device_, *source, entry));
  return &kernels_.emplace(key, std::move(function)).first->second;
}

Status CudaOps::launch(const cuda::Function& function, void* args, std::uint64_t ctas, std::uint32_t threads) {
  if (ctas == 0) return ok_status();
  if (ctas > INT32_MAX) return out_of_range("{} CTAs in one launch, at most 2^31", ctas);
  cuda::LaunchConfig config;
  config.grid[0] = static_cast<std::uint32_t>(ctas);
  config.block[0] = threads;
  config.stream = stream_;
  config.programmatic_serialization = device_.info().major >= 9;  // every kernel here waits for its inputs itself
  void* const parameters[] = {args};
  return cuda::launch(function, config, parameters);
}

Status CudaOps::launch_rows(Kind kind, DType dtype, std::uint32_t vec, void* args, std::uint32_t rows,
                            std::uint32_t width) {
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function* const function, kernel(kind, dtype, vec, 0));
  const std::uint64_t threads = std::uint64_t{rows} * (width / vec);
  return launch(*function, args, (threads + abi::kOpThreads - 1) / abi::kOpThreads, abi::kOpThreads);
}

Status CudaOps::rms_norm(const abi::NormArgs& given, DType dtype, std::int64_t rows) {
  abi::NormArgs args = given;
  const std::uint32_t bytes = element_bytes(dtype);
  const std::uint32_t vec = widest(args.dim, dtype,
                                   {{args.x, args.x_row_stride, args.x_head_stride, bytes},
                                    {args.residual, args.residual_row_stride, args.residual_head_stride, bytes},
                                    {args.out, args.out_row_stride, args.out_head_stride, bytes},
                                    {args.weight, 0, 0, sizeof(float)}});
  const std::uint32_t all_runs = args.dim / vec;
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function* const function, kernel(Kind::kNorm, dtype, vec, norm_runs(all_runs)));
  return launch(*function, &args, static_cast<std::uint64_t>(rows) * args.heads, abi::norm_threads(all_runs));
}

Status CudaOps::embed(const abi::EmbedArgs& given, DType dtype) {
  abi::EmbedArgs args = given;
  const std::uint32_t bytes = element_bytes(dtype);
  const std::uint32_t vec =
      widest(args.width, dtype, {{args.table, args.table_stride, 0, bytes}, {args.out, args.out_stride, 0, bytes}});
  return launch_rows(Kind::kEmbed, dtype, vec, &args, args.rows, args.width);
}

Status CudaOps::gate(const abi::GateArgs& given, DType dtype) {
  abi::GateArgs args = given;
  const std::uint32_t bytes = element_bytes(dtype);
  // The second halves of rows start at `width`.
  const std::uint32_t vec =
      widest(args.width, dtype,
             {{args.gate_up, args.gate_up_stride, args.width, bytes}, {args.out, args.out_stride, 0, bytes}});
  return launch_rows(Kind::kGate, dtype, vec, &args, args.rows, args.width);
}

Status CudaOps::add(const abi::PairArgs& given, DType dtype) {
  abi::PairArgs args = given;
  const std::uint32_t bytes = element_bytes(dtype);
  const std::uint32_t vec =
      widest(args.width, dtype, {{args.x, args.x_stride, 0, bytes}, {args.y, args.y_stride, 0, bytes}});
  return launch_rows(Kind::kAdd, dtype, vec, &args, args.rows, args.width);
}

Status CudaOps::softcap(const abi::PairArgs& given, DType dtype) {
  abi::PairArgs args = given;
  const std::uint32_t vec = widest(args.width, dtype, {{args.x, args.x_stride, 0, element_bytes(dtype)}});
  return launch_rows(Kind::kSoftcap, dtype, vec, &args, args.rows, args.width);
}

Status CudaOps::fp8_rows(const abi::Fp8RowsArgs& given, DType dtype) {
  abi::Fp8RowsArgs args = given;
  const std::uint32_t vec =
      widest(args.width, dtype, {{args.from, args.stride, 0, element_bytes(dtype)}, {args.codes, args.width, 0, 1}});
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function* const function, kernel(Kind::kFp8Rows, dtype, vec, 0));
  return launch(*function, &args, args.rows, abi::kOpThreads);
}

Status CudaOps::fp8_expand(const abi::Fp8ExpandArgs& given, DType dtype) {
  abi::Fp8ExpandArgs args = given;
  const std::uint32_t vec =
      widest(args.width, dtype, {{args.codes, args.width, 0, 1}, {args.to, args.width, 0, element_bytes(dtype)}});
  return launch_rows(Kind::kFp8Expand, dtype, vec, &args, args.rows, args.width);
}

Status CudaOps::fp8_finish(const abi::Fp8FinishArgs& given, DType dtype) {
  abi::Fp8FinishArgs args = given;
  const std::uint32_t bytes = element_bytes(dtype);
  const std::uint32_t vec =
      widest(args.width, dtype,
             {{args.y, args.stride, 0, bytes}, {args.column_scales, 0, 0, sizeof(float)}, {args.bias, 0, 0, bytes}});
  return launch_rows(Kind::kFp8Finish, dtype, vec, &args, args.rows, args.width);
}

Status CudaOps::argmax(abi::ArgmaxArgs args, std::uint32_t rows) {
  const std::uint32_t vec = widest(args.width, DType::kF32, {{args.logits, args.stride, 0, sizeof(float)}});
  args.parts = abi::argmax_parts(args.width);
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function* const function, kernel(Kind::kArgmax, DType::kF32, vec, 0));
  return launch(*function, &args, std::uint64_t{rows} * args.parts, abi::kOpThreads);
}

Status CudaOps::draw(abi::DrawArgs args, std::uint32_t rows) {
  const std::uint32_t vec = widest(args.width, DType::kF32, {{args.logits, args.stride, 0, sizeof(float)}});
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function* const function, kernel(Kind::kDraw, DType::kF32, vec, 0));
  return launch(*function, &args, rows, abi::kDrawThreads);
}

Status CudaOps::move_tokens(abi::MoveTokensArgs args) {
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function* const function, kernel(Kind::kMoveTokens, DType::kF32, 0, 0));
  return launch(*function, &args, args.num_planes, abi::kMoveThreads);
}

Status CudaOps::rope_append(abi::RopeAppendArgs args, DType dtype, int head_dim,
                            std::span<const abi::RopeTarget> targets) {
  const std::uint32_t vec = jit::rope_vec(head_dim, static_cast<int>(args.rotary_dim));
  if (vec == 0) {
    return unsupported("heads of {} elements of which {} rotate; a CUDA device takes even numbers, and heads up to 256",
                       head_dim, args.rotary_dim);
  }
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function* const function,
                         kernel(Kind::kRopeAppend, dtype, vec, static_cast<std::uint32_t>(head_dim)));
  args.does_q = 1;
  do {
    args.num_targets = static_cast<std::uint32_t>(std::min<std::size_t>(targets.size(), abi::kMostRopeTargets));
    std::copy_n(targets.begin(), args.num_targets, args.targets);
    targets = targets.subspan(args.num_targets);
    args.warps_a_row = abi::rope_warps_a_row(args);
    const std::uint64_t warps = std::uint64_t{args.rows} * args.warps_a_row;
    FOVEA_RETURN_IF_ERROR(
        launch(*function, &args, (warps + abi::kRopeWarps - 1) / abi::kRopeWarps, abi::kRopeWarps * 32));
    args.does_q = 0;
  } while (!targets.empty());
  return ok_status();
}

}  // namespace fovea
