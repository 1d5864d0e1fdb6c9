// Grows by pieces.
#include "engine/store/host_pages.h"

#include <algorithm>

#include "base/log.h"

namespace fovea {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{32} << 20;

}  // namespace

bool HostPages::grow(std::size_t group) {
  const std::int64_t page = page_bytes_[group];
  // Small budgets go by small pieces, so that no group takes all.
  const std::int64_t piece = std::min({kPieceBytes, budget_bytes_ / 8, budget_bytes_ - bytes_taken_});
  const std::int64_t pages = std::max<std::int64_t>(piece / page, 1);
  if (bytes_taken_ + pages * page > budget_bytes_) return false;
  Result<std::shared_ptr<void>> memory = device_.allocate_host(static_cast<std::size_t>(pages * page));
  if (!memory.ok()) {
    log_warning("KV pages get {} bytes of the host's memory instead of {}: {}", bytes_taken_, budget_bytes_,
                memory.status().message());
    budget_bytes_ = bytes_taken_;
    return false;
  }
  auto* slot = static_cast<std::byte*>(memory->get());
  for (std::int64_t i = 0; i < pages; ++i) free_[group].push_back(slot + i * page);
  bytes_taken_ += pages * page;
  pieces_.push_back(std::move(*memory));
  return true;
}

std::byte* HostPages::take(std::size_t group) {
  if (free_[group].empty() && !grow(group)) return nullptr;
  std::byte* slot = free_[group].back();
  free_[group].pop_back();
  bytes_in_use_ += page_bytes_[group];
  return slot;
}

void HostPages::give_back(std::size_t group, std::byte* slot) {
  free_[group].push_back(slot);
  bytes_in_use_ -= page_bytes_[group];
}

}  // namespace fovea
