// Makes, waits for and records streams and events.
#include "cuda/stream.h"

#include "base/status.h"
#include "cuda/driver_api.h"

namespace fovea::cuda {
namespace {

constexpr unsigned kNonBlocking = 1;    // CU_STREAM_NON_BLOCKING
constexpr unsigned kDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING

}  // namespace

void destroy_stream(const Driver& driver, void* stream) { driver.api().stream_destroy(stream); }
void destroy_event(const Driver& driver, void* event) { driver.api().event_destroy(event); }

Result<Stream> Stream::create(const Device& device) {
  const ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  CuStream made = nullptr;
  FOVEA_RETURN_IF_ERROR(
      device.driver().status(device.driver().api().stream_create(&made, kNonBlocking), "cuStreamCreate"));
  Stream stream;
  stream.handle_ = {device, made};
  return stream;
}

Status Stream::synchronize() const {
  const Driver& driver = handle_.device().driver();
  return driver.status(driver.api().stream_synchronize(handle_.get()), "cuStreamSynchronize");
}

Result<Event> Event::create(const Device& device, bool timing) {
  const ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  CuEvent made = nullptr;
  FOVEA_RETURN_IF_ERROR(
      device.driver().status(device.driver().api().event_create(&made, timing ? 0 : kDisableTiming), "cuEventCreate"));
  Event event;
  event.handle_ = {device, made};
  return event;
}

Status Event::record(StreamHandle stream) const {
  const Driver& driver = handle_.device().driver();
  return driver.status(driver.api().event_record(handle_.get(), stream), "cuEventRecord");
}

Status Event::synchronize() const {
  const Driver& driver = handle_.device().driver();
  return driver.status(driver.api().event_synchronize(handle_.get()), "cuEventSynchronize");
}

Result<float> Event::elapsed_ms(const Event& end) const {
  const Driver& driver = handle_.device().driver();
  float milliseconds = 0.0f;
  FOVEA_RETURN_IF_ERROR(driver.status(driver.api().event_elapsed_time(&milliseconds, handle_.get(), end.handle_.get()),
                                      "cuEventElapsedTime"));
  return milliseconds;
}

Status synchronize(const Device& device, StreamHandle stream) {
  return device.driver().status(device.driver().api().stream_synchronize(stream), "cuStreamSynchronize");
}

Result<bool> is_capturing(const Device& device, StreamHandle stream) {
  int status = 0;
  FOVEA_RETURN_IF_ERROR(
      device.driver().status(device.driver().api().stream_is_capturing(stream, &status), "cuStreamIsCapturing"));
  return status != 0;
}

}  // namespace fovea::cuda
