// fovea_key_codes: the codes of new keys (abi/page_stats.h, kCodes) into the statistics of their pages. Launched by
// select/ through jit/ beside append; a token's codes depend on its key alone, so nothing of a page needs resetting.
// The engine's append writes the same codes by itself (kernels/model/rope_append.cuh).
//
//   Grid: codes_ctas() of kCodesThreads threads; a thread writes the byte of two codes of one row and KV head.
//
// Compiled for FOVEA_Q_DTYPE, the type of the keys.
#pragma once

#include "abi/select_args.h"
#include "kernels/ptx/vec.cuh"

namespace fovea::kernels {

// Code i of a key of which x is the element in its channel.
__forceinline__ uint32_t code_of_key(float x, const abi::KeyCode& code, uint32_t i) {
  const float offset = product(abi::key_element(x) - code.mean[i], 1.0f / code.step[i]);
  return abi::key_code(offset + 8.0f);
}
// Where the byte of codes 2 * byte and 2 * byte + 1 of a token of a page stands.
__forceinline__ uint8_t* place_of_codes(const abi::PageStatsView& stats, long long page, int32_t token, uint32_t head,
                                        uint32_t byte) {
  return static_cast<uint8_t*>(stats.data) + page * stats.page_stride + head * stats.head_stride +
         token / abi::kSubPageTokens * static_cast<long long>(abi::kCodeRecordBytes) +
         abi::code_place(byte, static_cast<uint32_t>(token) % abi::kSubPageTokens);
}

template <KvDType kIn>
struct KeyCodes {
  static __forceinline__ uint32_t code_of(const abi::CodesArgs& args, long long element, const abi::KeyCode& code,
                                          uint32_t i) {
    float x[1];
    unpack(load<kIn, 1>(args.rows.k, element + code.channel[i]), x);
    return code_of_key(x[0], code, i);
  }

  // What thread `thread` of the launch does.
  static __forceinline__ void run(const abi::CodesArgs& args, uint32_t thread) {
    constexpr uint32_t kBytes = abi::kCodeChannels / 2;
    const uint32_t byte = thread % kBytes;
    const uint32_t head = thread / kBytes % args.rows.num_kv_heads;
    const uint32_t row = thread / kBytes / args.rows.num_kv_heads;
    if (row >= args.rows.rows) return;
    const abi::AppendSlot slot = abi::append_slot(args.rows, row);
    if (slot.target != abi::AppendTarget::kWrite) return;
    const long long element = row * args.rows.k_row_stride + head * args.rows.k_head_stride;
    const abi::KeyCode& code = args.stats.codes[head];
    const uint32_t codes = code_of(args, element, code, 2 * byte) | code_of(args, element, code, 2 * byte + 1) << 4;
    const int32_t page_tokens = args.rows.pool.page_tokens;
    const long long page = slot.element / page_tokens;
    const int32_t token = static_cast<int32_t>(slot.element - page * page_tokens);
    *place_of_codes(args.stats, page, token, head, byte) = static_cast<uint8_t>(codes);
  }
};

}  // namespace fovea::kernels

#if defined(__CUDACC_RTC__) && defined(FOVEA_KEY_CODES)
extern "C" __global__ void __launch_bounds__(fovea::abi::kCodesThreads)
    fovea_key_codes(const __grid_constant__ fovea::abi::CodesArgs args) {
  fovea::kernels::wait_for_inputs();
  fovea::kernels::KeyCodes<static_cast<fovea::abi::KvDType>(FOVEA_Q_DTYPE)>::run(args,
                                                                                 blockIdx.x * blockDim.x + threadIdx.x);
}
#endif
