// Status and Result<T>: how every public call of Fovea reports failure. No exceptions cross the public boundary.
// A message says what was wrong, what was expected and, where it helps, what to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace fovea {

enum class StatusCode : std::uint8_t {
  kOk = 0,
  kInvalidArgument,    // the caller passed something malformed
  kNotFound,           // a file, model or name does not exist
  kUnsupported,        // understood, but this build, machine or backend cannot do it
  kOutOfRange,         // beyond a declared maximum (context length, capacity)
  kResourceExhausted,  // memory, pages or queue space ran out
  kUnavailable,        // not now (shutting down, loading)
  kCancelled,          // the caller gave up
  kDataLoss,           // a file is truncated or corrupt
  kInternal,           // a bug in Fovea
};

// "invalid argument", "not found", ...
std::string_view status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // "invalid argument: page size is 0, expected 1..256"
  std::string to_string() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status ok_status() { return {}; }

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit by design; must not be ok

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace fovea
