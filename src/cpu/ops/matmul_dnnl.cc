// oneDNN's matmul, one thread a call: the distribution's oneDNN brings OpenMP threads of its own, which must not run
// beside ours. So each worker of the pool multiplies rows of its own, and OpenMP is told that it has one thread.
#include "cpu/ops/matmul_dnnl.h"

#if defined(FOVEA_ONEDNN)

#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>

// Of the OpenMP runtime that oneDNN links; declared here because compilers other than GCC do not find its header.
extern "C" {
int omp_get_max_threads(void);
void omp_set_num_threads(int num_threads);
}

namespace fovea::cpu {
namespace {

// OpenMP's thread count belongs to the calling thread, which may be the user's: put it back.
class OneOmpThread {
 public:
  OneOmpThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneOmpThread() { omp_set_num_threads(before_); }
  OneOmpThread(const OneOmpThread&) = delete;
  OneOmpThread& operator=(const OneOmpThread&) = delete;

 private:
  int before_;
};

dnnl::engine& engine() {
  static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

}  // namespace

struct DnnlProduct::Impl {
  struct Part {
    dnnl::memory weights;
    std::int64_t first = 0;  // column of y
    dnnl::matmul::primitive_desc description;
    dnnl::matmul primitive;
  };
  std::vector<Part> parts;
  std::vector<dnnl::stream> streams;       // by thread
  std::vector<AlignedBuffer> scratchpads;  // by thread, as large as any primitive asks for
  std::int64_t out_features = 0;
};

DnnlProduct::DnnlProduct(std::unique_ptr<Impl> impl, std::int64_t y_stride)
    : impl_(std::move(impl)), y_stride_(y_stride) {}
DnnlProduct::~DnnlProduct() = default;

std::unique_ptr<DnnlProduct> DnnlProduct::create(std::span<const TensorView> parts, std::int64_t y_stride,
                                                 int num_threads) {
  using dnnl::memory;
  const OneOmpThread one_thread;
  auto impl = std::make_unique<Impl>();
  std::size_t scratchpad_bytes = 0;
  try {
    for (const TensorView& view : parts) {
      const memory::dim n = view.shape[0];
      const memory::dim k = view.shape[1];
      Impl::Part& part = impl->parts.emplace_back();
      part.first = impl->out_features;
      impl->out_features += n;
      // [k, n] whose columns are the rows of the stored weight.
      const memory::desc weights({k, n}, memory::data_type::bf16, memory::dims{1, view.strides[0]});
      part.weights = memory(weights, engine(), view.data);
      dnnl::primitive_attr attr;
      attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
      const memory::desc x({kDnnlRows, k}, memory::data_type::bf16, memory::format_tag::ab);
      const memory::desc y({kDnnlRows, n}, memory::data_type::f32, memory::dims{y_stride, 1});
      part.description = {dnnl::matmul::desc(x, weights, y), attr, engine()};
      part.primitive = dnnl::matmul(part.description);
      scratchpad_bytes = std::max(scratchpad_bytes, part.description.scratchpad_desc().get_size());
    }
    for (int i = 0; i < num_threads; ++i) {
      impl->streams.emplace_back(engine());
      impl->scratchpads.emplace_back(std::max<std::size_t>(scratchpad_bytes, 64));
      if (impl->scratchpads.back().data() == nullptr) return nullptr;
    }
  } catch (const dnnl::error&) {
    return nullptr;
  }
  return std::unique_ptr<DnnlProduct>(new DnnlProduct(std::move(impl), y_stride));
}

void DnnlProduct::run(const std::uint16_t* x, const float* bias, float* y, int thread) const {
  const OneOmpThread one_thread;
  const auto at = static_cast<std::size_t>(thread);
  for (const Impl::Part& part : impl_->parts) {
    const dnnl::memory source(part.description.src_desc(), engine(), const_cast<std::uint16_t*>(x));
    const dnnl::memory target(part.description.dst_desc(), engine(), y + part.first);
    const dnnl::memory scratchpad(part.description.scratchpad_desc(), engine(), impl_->scratchpads[at].data());
    part.primitive.execute(impl_->streams[at], {{DNNL_ARG_SRC, source},
                                                {DNNL_ARG_WEIGHTS, part.weights},
                                                {DNNL_ARG_DST, target},
                                                {DNNL_ARG_SCRATCHPAD, scratchpad}});
  }
  impl_->streams[at].wait();
  if (bias == nullptr) return;
  for (std::int64_t row = 0; row < kDnnlRows; ++row) {
    for (std::int64_t i = 0; i < impl_->out_features; ++i) y[row * y_stride_ + i] += bias[i];
  }
}

}  // namespace fovea::cpu

#else  // a build without oneDNN multiplies everything with the project's own kernels

namespace fovea::cpu {

struct DnnlProduct::Impl {};

DnnlProduct::DnnlProduct(std::unique_ptr<Impl> impl, std::int64_t y_stride)
    : impl_(std::move(impl)), y_stride_(y_stride) {}
DnnlProduct::~DnnlProduct() = default;

std::unique_ptr<DnnlProduct> DnnlProduct::create(std::span<const TensorView>, std::int64_t, int) { return nullptr; }

void DnnlProduct::run(const std::uint16_t*, const float*, float*, int) const {}

}  // namespace fovea::cpu

#endif
