// Makes each value once, whoever asks first: threads that want the same value wait for it, others do not. Used by the
// compilers of this folder.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "fovea/status.h"

namespace fovea::jit {

// Value: a pointer-like type, null until it is made.
template <typename Value>
class OnceMap {
 public:
  // make: Result<Value>(); called by one thread at a time for a key. What failed is tried again by the next call.
  template <typename Make>
  Result<Value> get(const std::string& key, Make&& make) {
    std::shared_ptr<Slot> slot;
    {
      const std::lock_guard lock(mutex_);
      std::shared_ptr<Slot>& place = slots_[key];
      if (place == nullptr) place = std::make_shared<Slot>();
      slot = place;
    }
    const std::lock_guard lock(slot->mutex);
    if (slot->value == nullptr) {
      Result<Value> made = make();
      if (!made.ok()) return made.status();
      slot->value = *std::move(made);
    }
    return slot->value;
  }

  // Keys that were asked for.
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return slots_.size();
  }

 private:
  struct Slot {
    std::mutex mutex;
    Value value = nullptr;
  };
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<Slot>> slots_;
};

}  // namespace fovea::jit
