// Variants as text, and the layout of their parameters.
#include "jit/variant_spec.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "abi/attention_args.h"
#include "base/file.h"
#include "base/quote.h"
#include "base/status.h"

namespace fovea::jit {
namespace {

constexpr std::uint64_t kMaxSourceBytes = std::uint64_t{1} << 20;
constexpr std::string_view kShippedParams[] = {"sm_scale",     "softcap",      "sinks",
                                               "alibi_slopes", "sigmoid_bias", "products"};

std::size_t size_of(VariantParamType type) {
  return type == VariantParamType::kFloat || type == VariantParamType::kInt ? 4 : 8;
}

const char* cpp_type(VariantParamType type) {
  switch (type) {
    case VariantParamType::kFloat: return "float";
    case VariantParamType::kInt: return "int";
    case VariantParamType::kFloatTensor: return "const float*";
    case VariantParamType::kIntTensor: return "const int*";
  }
  return "?";
}

// Offsets of the parameters behind AttentionParams, as the compilers lay them out; the last element is the total size.
std::vector<std::size_t> layout(const std::vector<VariantParam>& params) {
  std::vector<std::size_t> offsets;
  std::size_t end = sizeof(AttentionParams);
  std::size_t alignment = alignof(AttentionParams);
  for (const VariantParam& param : params) {
    const std::size_t size = size_of(param.type);
    offsets.push_back((end + size - 1) / size * size);
    end = offsets.back() + size;
    alignment = std::max(alignment, size);
  }
  offsets.push_back((end + alignment - 1) / alignment * alignment);
  return offsets;
}

bool is_identifier(std::string_view text) {
  return !text.empty() && !std::isdigit(static_cast<unsigned char>(text[0])) &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

// A file name as it may stand in a #line directive.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') continue;
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

VariantSpec shipped_variant(VariantId id) {
  VariantSpec spec;
  switch (id) {
    case VariantId::kPlain: spec.name = "Plain"; break;
    case VariantId::kSoftcap: spec.name = "Softcap"; break;
    case VariantId::kSinks: spec.name = "Sinks"; break;
    case VariantId::kSoftcapSinks: spec.name = "SoftcapSinks"; break;
    case VariantId::kAlibi: spec.name = "Alibi"; break;
    case VariantId::kSigmoid: spec.name = "Sigmoid"; break;
  }
  return spec;
}

namespace {

bool may_have(const VariantSpec& spec, std::initializer_list<std::string_view> hooks) {
  const std::string& text = spec.source;
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (const std::string_view hook : hooks) {
    for (std::size_t at = text.find(hook); at != std::string::npos; at = text.find(hook, at + 1)) {
      std::size_t end = at + hook.size();
      while (end < text.size() && text[end] == ' ') ++end;
      if ((at == 0 || !is_word(text[at - 1])) && end < text.size() && text[end] == '(') return true;
    }
  }
  return false;
}

}  // namespace

bool may_transform_kv(const VariantSpec& spec) { return may_have(spec, {"key", "value"}); }
bool may_transform_q(const VariantSpec& spec) { return may_have(spec, {"query"}); }

std::string variant_type(const VariantSpec& spec, std::string_view target) {
  if (spec.source.empty()) return fmt::format("fovea::variant{}::{}", target, spec.name);
  return fmt::format("fovea::variant{}::user::FoveaVariant", target);
}

std::string variant_source(const VariantSpec& spec, std::string_view target, std::string_view math) {
  if (spec.source.empty()) return "";
  std::string fields;
  for (const VariantParam& param : spec.params) fields += fmt::format("  {} {};\n", cpp_type(param.type), param.name);
  const std::string file = quoted(spec.file.empty() ? "variant " + spec.name : spec.file);
  // FoveaVariant adds what the user need not write: which parameters, and which hooks there are.
  return fmt::format(R"(namespace fovea::variant{target}::user {{
struct Params : AttentionParams {{
{fields}}};
static_assert(sizeof(Params) == {size}, "the host lays out the parameters differently");
#line 1 {file}
{source}
#line 1 "around the variant"
struct FoveaVariant : {name} {{
  using Params = user::Params;
  static constexpr bool kHasLogit = {name}::kHasLogit ||
                                    !same_hook(&{name}::template logit<{math}>, &Plain::template logit<{math}>);
  static constexpr bool kHasVisible = {name}::kHasVisible ||
                                      !same_hook(&{name}::template visible<{math}>, &Plain::template visible<{math}>);
  static constexpr bool kHasQuery = {name}::kHasQuery || !same_hook(&{name}::query, &Plain::query);
  static constexpr bool kHasKey = {name}::kHasKey || !same_hook(&{name}::key, &Plain::key);
  static constexpr bool kHasValue = {name}::kHasValue || !same_hook(&{name}::value, &Plain::value);
  static constexpr bool kHasExtraLogit = {name}::kHasExtraLogit ||
                                         !same_hook(&{name}::extra_logit, &Plain::extra_logit);
  static constexpr bool kHasOutput = {name}::kHasOutput || !same_hook(&{name}::output, &Plain::output);
}};
}}  // namespace fovea::variant{target}::user
)",
                     fmt::arg("target", target), fmt::arg("fields", fields),
                     fmt::arg("size", layout(spec.params).back()), fmt::arg("file", file),
                     fmt::arg("source", spec.source), fmt::arg("name", spec.name), fmt::arg("math", math));
}

Result<VariantArgs> VariantArgs::create(const VariantSpec& spec) {
  FOVEA_RETURN_IF_ERROR(check_variant(spec));
  const std::vector<std::size_t> offsets = layout(spec.params);
  VariantArgs args;
  args.size_bytes_ = offsets.back();
  args.bytes_.assign((offsets.back() + 7) / 8, 0);
  new (args.bytes_.data()) AttentionParams();
  for (std::size_t i = 0; i < spec.params.size(); ++i) args.fields_.push_back({spec.params[i], offsets[i], false});
  return args;
}

Status VariantArgs::store(std::string_view name, VariantParamType type, const void* value, std::size_t size_bytes) {
  std::string names;
  for (Field& field : fields_) {
    names += (names.empty() ? "" : ", ") + field.param.name;
    if (field.param.name != name) continue;
    if (field.param.type != type) {
      return invalid_argument("parameter {} is {}, expected {}", quote(name), cpp_type(type),
                              cpp_type(field.param.type));
    }
    std::memcpy(reinterpret_cast<std::byte*>(bytes_.data()) + field.offset, value, size_bytes);
    field.is_set = true;
    return ok_status();
  }
  return not_found("the variant has no parameter {}; it has {}", quote(name), names.empty() ? "none" : names);
}

Status VariantArgs::set(std::string_view name, double value) {
  const auto x = static_cast<float>(value);
  return store(name, VariantParamType::kFloat, &x, sizeof(x));
}

Status VariantArgs::set(std::string_view name, int value) {
  for (const Field& field : fields_) {
    if (field.param.name == name && field.param.type == VariantParamType::kFloat) {
      return set(name, static_cast<double>(value));
    }
  }
  return store(name, VariantParamType::kInt, &value, sizeof(value));
}

Status VariantArgs::set(std::string_view name, const float* tensor) {
  return store(name, VariantParamType::kFloatTensor, &tensor, sizeof(tensor));
}

Status VariantArgs::set(std::string_view name, const std::int32_t* tensor) {
  return store(name, VariantParamType::kIntTensor, &tensor, sizeof(tensor));
}

Status VariantArgs::check() const {
  std::string missing;
  for (const Field& field : fields_) {
    if (!field.is_set) missing += (missing.empty() ? "" : ", ") + field.param.name;
  }
  if (missing.empty()) return ok_status();
  return invalid_argument("parameters of the variant were never set: {}", missing);
}

}  // namespace fovea::jit

namespace fovea {

Result<VariantSpec> read_variant(const std::string& path, const std::string& name, std::vector<VariantParam> params) {
  VariantSpec spec;
  spec.name = name;
  FOVEA_ASSIGN_OR_RETURN(spec.source, read_file(path, jit::kMaxSourceBytes));
  spec.file = path;
  spec.params = std::move(params);
  return spec;
}

Status check_variant(const VariantSpec& spec) {
  if (!jit::is_identifier(spec.name)) {
    return invalid_argument("the variant's name is {}, expected the C++ name of its struct", quote(spec.name));
  }
  if (spec.source.empty() && !spec.params.empty()) {
    return invalid_argument("variant {} has parameters but no source that reads them", quote(spec.name));
  }
  if (spec.source.size() > jit::kMaxSourceBytes) {
    return out_of_range("the source of variant {} has {} bytes, expected at most {}", quote(spec.name),
                        spec.source.size(), jit::kMaxSourceBytes);
  }
  for (std::size_t i = 0; i < spec.params.size(); ++i) {
    const std::string& name = spec.params[i].name;
    if (!jit::is_identifier(name)) {
      return invalid_argument("parameter {} of variant {} is named {}, expected a C++ identifier", i, quote(spec.name),
                              quote(name));
    }
    if (std::find(std::begin(jit::kShippedParams), std::end(jit::kShippedParams), name) !=
        std::end(jit::kShippedParams)) {
      return invalid_argument("parameter {} of variant {} has the name of one that every variant has; choose another",
                              quote(name), quote(spec.name));
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (spec.params[j].name == name) {
        return invalid_argument("variant {} has two parameters named {}", quote(spec.name), quote(name));
      }
    }
  }
  if (const std::size_t bytes = jit::layout(spec.params).back(); bytes > abi::kVariantParamBytes) {
    return out_of_range("the parameters of variant {} take {} bytes, expected at most {}: put scalars into a tensor",
                        quote(spec.name), bytes, abi::kVariantParamBytes);
  }
  return ok_status();
}

}  // namespace fovea
