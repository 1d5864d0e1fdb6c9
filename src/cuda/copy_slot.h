// Page-locked memory of a copy that goes on while its caller does not wait. Whoever copies holds a few, uses one after
// the other, and before it touches a slot's memory again waits for the copy that used it last.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "cuda/memory.h"
#include "cuda/stream.h"

namespace fovea::cuda {

struct CopySlot {
  PinnedBuffer memory;
  Event copied;

  static Result<CopySlot> create(const Device& device, std::size_t bytes) {
    CopySlot slot;
    FOVEA_ASSIGN_OR_RETURN(slot.memory, PinnedBuffer::create(device, bytes));
    FOVEA_ASSIGN_OR_RETURN(slot.copied, Event::create(device));
    return slot;
  }
};

}  // namespace fovea::cuda
