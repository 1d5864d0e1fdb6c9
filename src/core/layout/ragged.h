// Ragged tensors: requests of different lengths end to end in one buffer, told apart by an index pointer array
// ("indptr", num_requests + 1 values from 0). Used by callers that hold batches in that form and by core/layout/paged.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/status.h"

namespace fovea {

// Starts at 0, never falls, ends at `total`. `name` stands in the message.
Status validate_indptr(std::span<const std::int32_t> indptr, std::int64_t total, const char* name = "indptr");

// Lengths of the requests; the indptr must be valid.
std::vector<std::int32_t> lengths_of(std::span<const std::int32_t> indptr);
// kInvalidArgument for negative lengths, kOutOfRange when the sum passes 2^31 - 1.
Result<std::vector<std::int32_t>> indptr_of(std::span<const std::int32_t> lengths);

// Copies rows of `row_bytes` from [num_requests, padded_rows] (the first lengths[i] rows of request i count) to ragged
// form, and back; rows that are padding are left alone.
Status padded_to_ragged(const void* padded, std::int64_t padded_rows, std::span<const std::int32_t> indptr,
                        std::size_t row_bytes, void* ragged);
Status ragged_to_padded(const void* ragged, std::span<const std::int32_t> indptr, std::size_t row_bytes,
                        std::int64_t padded_rows, void* padded);

}  // namespace fovea
