// Helpers around the public Status: builders with formatting, and the two propagation macros. Used by all of src/.
#pragma once

#include <fmt/format.h>

#include "fovea/status.h"

namespace fovea {

template <typename... Args>
Status make_status(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
Status invalid_argument(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kInvalidArgument, format, std::forward<Args>(args)...);
}
template <typename... Args>
Status not_found(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kNotFound, format, std::forward<Args>(args)...);
}
template <typename... Args>
Status unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kUnsupported, format, std::forward<Args>(args)...);
}
template <typename... Args>
Status out_of_range(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kOutOfRange, format, std::forward<Args>(args)...);
}
template <typename... Args>
Status resource_exhausted(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kResourceExhausted, format, std::forward<Args>(args)...);
}
template <typename... Args>
Status data_loss(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kDataLoss, format, std::forward<Args>(args)...);
}
template <typename... Args>
Status internal_error(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kInternal, format, std::forward<Args>(args)...);
}

}  // namespace fovea

#define FOVEA_CONCAT_INNER(a, b) a##b
#define FOVEA_CONCAT(a, b) FOVEA_CONCAT_INNER(a, b)

// Returns from the calling function when the expression's Status is not ok.
#define FOVEA_RETURN_IF_ERROR(expression)          \
  do {                                             \
    ::fovea::Status fovea_status_ = (expression);  \
    if (!fovea_status_.ok()) return fovea_status_; \
  } while (false)

// FOVEA_ASSIGN_OR_RETURN(auto x, f()): x = value of f(), or return its Status.
#define FOVEA_ASSIGN_OR_RETURN(declaration, expression) \
  FOVEA_ASSIGN_OR_RETURN_IMPL(FOVEA_CONCAT(fovea_result_, __LINE__), declaration, expression)
#define FOVEA_ASSIGN_OR_RETURN_IMPL(result, declaration, expression) \
  auto result = (expression);                                        \
  if (!result.ok()) return result.status();                          \
  declaration = std::move(*result)
