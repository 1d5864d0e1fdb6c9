// What stands behind fovea::PageSelector (fovea/page_selector.h): one implementation a device kind. Made by
// PageSelector::create; arguments are checked (page_selector.cc).
#pragma once

#include <memory>

#include "abi/page_stats.h"
#include "attention/attention_checks.h"
#include "core/select/policy.h"
#include "fovea/page_selector.h"

namespace fovea {

class PageSelector::Impl {
 public:
  Impl(PageSelectorOptions options, const SelectPolicy& policy, DevicePlace place);
  virtual ~Impl() = default;

  // kv is a pool of the object's pages where the policy reads it.
  virtual Status append(std::int32_t layer, const TensorView& k, const AppendPlaces& places,
                        const abi::KvPoolView& pool, Stream stream) = 0;
  virtual Status select(std::int32_t layer, const TensorView& q, const SelectStep& step, Stream stream) = 0;
  virtual Status forget(std::int32_t begin, std::int32_t end, Stream stream) = 0;
  virtual Status copy(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual std::size_t workspace_bytes() const = 0;

  const PageSelectorOptions& options() const { return options_; }
  const SelectPolicy& policy() const { return policy_; }
  DevicePlace place() const { return place_; }
  // Of a layer; data is null before memory is there.
  abi::PageStatsView stats(std::int32_t layer) const;
  std::size_t layer_bytes() const { return static_cast<std::size_t>(stats_.page_stride) * stats_.num_pages; }
  std::size_t statistics_bytes() const { return layer_bytes() * options_.num_layers; }

 protected:
  std::int32_t budget_pages() const { return options_.budget_tokens / kSelectPageTokens; }
  // Of layer 0, without codes before they are where the device reads them: those of layer l num_kv_heads * l further.
  abi::PageStatsView stats_{};
  PageSelectorOptions options_;  // sm_scale is set

 private:
  const SelectPolicy& policy_;
  DevicePlace place_;
};

Result<std::unique_ptr<PageSelector::Impl>> create_cpu_page_selector(const PageSelectorOptions& options,
                                                                     const SelectPolicy& policy);
Result<std::unique_ptr<PageSelector::Impl>> create_cuda_page_selector(const PageSelectorOptions& options,
                                                                      const SelectPolicy& policy, DevicePlace place);

// The codes of all layers as selectors read them.
std::vector<abi::KeyCode> abi_codes(const std::vector<KeyCode>& codes);

}  // namespace fovea
