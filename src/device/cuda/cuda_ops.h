// Launches of the kernels between a model's matrix products (kernels/model). Owned by the CUDA device, which has
// checked shapes and types; picks the widest accesses that addresses and strides allow.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "abi/fp8_args.h"
#include "abi/op_args.h"
#include "abi/token_moves.h"
#include "cuda/device.h"
#include "cuda/module.h"
#include "fovea/dtype.h"
#include "fovea/status.h"
#include "jit/kernel_source.h"

namespace fovea {

// The kernels that a model of these sizes launches where everything is aligned as allocators leave it: what `fovea
// warmup` compiles. Needs no GPU.
Result<std::vector<jit::KernelSource>> op_kernels(const std::string& arch, DType dtype, std::int64_t hidden_size,
                                                  int head_dim, int rotary_dim);

class CudaOps {
 public:
  CudaOps(cuda::Device device, cuda::StreamHandle stream) : device_(std::move(device)), stream_(stream) {}

  // dtype: of x, residual and out.
  Status rms_norm(const abi::NormArgs& args, DType dtype, std::int64_t rows);
  Status embed(const abi::EmbedArgs& args, DType dtype);
  Status gate(const abi::GateArgs& args, DType dtype);
  Status add(const abi::PairArgs& args, DType dtype);
  Status softcap(const abi::PairArgs& args, DType dtype);
  // dtype: of what is not e4m3.
  Status fp8_rows(const abi::Fp8RowsArgs& args, DType dtype);
  Status fp8_expand(const abi::Fp8ExpandArgs& args, DType dtype);
  Status fp8_finish(const abi::Fp8FinishArgs& args, DType dtype);
  Status argmax(abi::ArgmaxArgs args, std::uint32_t rows);
  Status draw(abi::DrawArgs args, std::uint32_t rows);
  Status move_tokens(abi::MoveTokensArgs args);
  // One launch for every kMostRopeTargets targets; args.does_q and the targets in it are set here.
  Status rope_append(abi::RopeAppendArgs args, DType dtype, int head_dim, std::span<const abi::RopeTarget> targets);

 private:
  enum class Kind : std::uint8_t {
    kNorm,
    kEmbed,
    kGate,
    kAdd,
    kSoftcap,
    kArgmax,
    kDraw,
    kRopeAppend,
    kFp8Rows,
    kFp8Expand,
    kFp8Finish,
    kMoveTokens
  };
  // Loaded when first asked for. extra: runs of a norm, head_dim of rope_append.
  Result<const cuda::Function*> kernel(Kind kind, DType dtype, std::uint32_t vec, std::uint32_t extra);
  // ctas: 64 bits, checked.
  Status launch(const cuda::Function& function, void* args, std::uint64_t ctas, std::uint32_t threads);
  Status launch_rows(Kind kind, DType dtype, std::uint32_t vec, void* args, std::uint32_t rows, std::uint32_t width);

  cuda::Device device_;
  cuda::StreamHandle stream_;
  std::map<std::tuple<Kind, DType, std::uint32_t, std::uint32_t>, cuda::Function> kernels_;
};

}  // namespace fovea
