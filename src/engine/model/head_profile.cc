// Reading and checking of head profiles.
#include "engine/model/head_profile.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "base/quote.h"
#include "base/status.h"

namespace fovea {
namespace {

constexpr std::uint64_t kMaxBytes = 4u << 20;
constexpr std::int64_t kMaxTokens = 1 << 24;
constexpr std::int64_t kMaxHeads = 1 << 10;  // and layers

std::int32_t whole_sinks(std::int64_t tokens) {
  const std::int64_t multiple = HeadProfile::kSinkMultiple;
  return static_cast<std::int32_t>((tokens + multiple - 1) / multiple * multiple);
}

Result<ModelHead> read_head(const Json& pair, std::size_t index, std::string_view where) {
  const auto in_range = [](const Json& value) {
    return value.is_number_integer() && value.get<std::int64_t>() >= 0 && value.get<std::int64_t>() < kMaxHeads;
  };
  if (!pair.is_array() || pair.size() != 2 || !in_range(pair[0]) || !in_range(pair[1])) {
    return invalid_argument("{}: streaming[{}] is {}, expected [layer, kv_head], both 0 to {}", where, index,
                            shorten(pair.dump()), kMaxHeads - 1);
  }
  return ModelHead{pair[0].get<std::int32_t>(), pair[1].get<std::int32_t>()};
}

// The table of DuoAttention: a line a layer, a number a KV head, with tabs or blanks between.
Result<std::vector<std::vector<double>>> read_table(const std::string& path) {
  FOVEA_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxBytes));
  const std::string where = shorten(path);
  std::vector<std::vector<double>> rows;
  std::size_t line = 0;
  for (std::size_t at = 0; at < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::vector<double> row;
    for (const char* p = text.data() + at; p < text.data() + end;) {
      if (*p == ' ' || *p == '\t' || *p == '\r') {
        ++p;
        continue;
      }
      double value = 0.0;
      const auto [next, error] = std::from_chars(p, text.data() + end, value);
      if (error != std::errc() || !std::isfinite(value)) {
        return invalid_argument("{}: line {} has no number at column {}", where, line + 1, p - (text.data() + at) + 1);
      }
      row.push_back(value);
      p = next;
    }
    at = end + 1;
    if (row.empty()) continue;
    if (!rows.empty() && row.size() != rows.front().size()) {
      return invalid_argument("{}: line {} has {} heads, those before it {}", where, line + 1, row.size(),
                              rows.front().size());
    }
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return invalid_argument("{}: no heads; expected a line a layer, a number a KV head", where);
  return rows;
}

Result<HeadProfile> load_duo_folder(const std::string& folder, double share) {
  const std::filesystem::path path(folder);
  const std::string config_path = path / "config.json";
  FOVEA_ASSIGN_OR_RETURN(const Json document, read_json_file(config_path, {.max_bytes = kMaxBytes}));
  FOVEA_ASSIGN_OR_RETURN(const JsonReader config, JsonReader::create(document, shorten(config_path)));
  HeadProfile profile;
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t sinks, config.integer("sink_size", 0, kMaxTokens));
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t recent, config.integer("recent_size", 1, kMaxTokens));
  profile.sink_tokens = whole_sinks(sinks);
  profile.local_tokens = static_cast<std::int32_t>(recent);
  FOVEA_ASSIGN_OR_RETURN(const auto table, read_table(path / "full_attention_heads.tsv"));
  profile.num_layers = static_cast<std::int32_t>(table.size());
  profile.num_kv_heads = static_cast<std::int32_t>(table.front().size());
  std::vector<std::pair<double, ModelHead>> heads;
  for (std::size_t layer = 0; layer < table.size(); ++layer) {
    for (std::size_t head = 0; head < table[layer].size(); ++head) {
      heads.push_back({std::clamp(table[layer][head], 0.0, 1.0),
                       {static_cast<std::int32_t>(layer), static_cast<std::int32_t>(head)}});
    }
  }
  std::sort(heads.begin(), heads.end());
  const auto below = static_cast<std::size_t>(std::ceil(share * static_cast<double>(heads.size() - 1)));
  heads.resize(share >= 1.0 ? heads.size() : below);
  for (const auto& [value, head] : heads) profile.streaming.push_back(head);
  std::sort(profile.streaming.begin(), profile.streaming.end());
  return profile;
}

}  // namespace

bool HeadProfile::streams(std::int32_t layer, std::int32_t kv_head) const {
  return std::binary_search(streaming.begin(), streaming.end(), ModelHead{layer, kv_head});
}

Result<HeadProfile> parse_head_profile(std::string_view json, std::string_view where) {
  FOVEA_ASSIGN_OR_RETURN(const Json document, parse_json(json, where, {.max_bytes = kMaxBytes}));
  FOVEA_ASSIGN_OR_RETURN(const JsonReader reader, JsonReader::create(document, std::string(where)));
  FOVEA_RETURN_IF_ERROR(
      reader.only({"model", "layers", "kv_heads", "sink_tokens", "local_tokens", "prefill_local_tokens", "streaming"}));
  HeadProfile profile;
  FOVEA_ASSIGN_OR_RETURN(profile.model, reader.string_or("model", ""));
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t layers, reader.integer_or("layers", 0, 0, kMaxHeads));
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t kv_heads, reader.integer_or("kv_heads", 0, 0, kMaxHeads));
  profile.num_layers = static_cast<std::int32_t>(layers);
  profile.num_kv_heads = static_cast<std::int32_t>(kv_heads);
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t sinks, reader.integer("sink_tokens", 0, kMaxTokens));
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t local, reader.integer("local_tokens", 1, kMaxTokens));
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t prefill, reader.integer_or("prefill_local_tokens", 0, 0, kMaxTokens));
  if (prefill != 0 && prefill < local) {
    return invalid_argument("{} is {}, expected at least local_tokens ({}), or 0", reader.path("prefill_local_tokens"),
                            prefill, local);
  }
  profile.sink_tokens = whole_sinks(sinks);
  profile.local_tokens = static_cast<std::int32_t>(local);
  profile.prefill_local_tokens = prefill == local ? 0 : static_cast<std::int32_t>(prefill);
  const Json* heads = reader.find("streaming");
  if (heads == nullptr || !heads->is_array()) {
    return invalid_argument("{}: expected an array of [layer, kv_head]", reader.path("streaming"));
  }
  for (std::size_t i = 0; i < heads->size(); ++i) {
    FOVEA_ASSIGN_OR_RETURN(const ModelHead head, read_head((*heads)[i], i, where));
    profile.streaming.push_back(head);
  }
  std::sort(profile.streaming.begin(), profile.streaming.end());
  const auto twice = std::adjacent_find(profile.streaming.begin(), profile.streaming.end());
  if (twice != profile.streaming.end()) {
    return invalid_argument("{}: [{}, {}] stands there twice", reader.path("streaming"), twice->layer, twice->kv_head);
  }
  return profile;
}

std::string to_json(const HeadProfile& profile) {
  std::string heads;
  for (const ModelHead& head : profile.streaming) {
    heads += fmt::format("{}[{}, {}]", heads.empty() ? "" : ", ", head.layer, head.kv_head);
  }
  const std::string prefill = profile.prefill_local_tokens == 0
                                  ? ""
                                  : fmt::format("\n  \"prefill_local_tokens\": {},", profile.prefill_local_tokens);
  std::string shape;
  if (profile.num_layers > 0) shape += fmt::format("\n  \"layers\": {},", profile.num_layers);
  if (profile.num_kv_heads > 0) shape += fmt::format("\n  \"kv_heads\": {},", profile.num_kv_heads);
  return fmt::format(
      "{{\n  \"model\": {},{}\n  \"sink_tokens\": {},\n  \"local_tokens\": {},{}\n  \"streaming\": [{}]\n}}\n",
      Json(profile.model).dump(), shape, profile.sink_tokens, profile.local_tokens, prefill, heads);
}

Result<HeadProfile> load_head_profile(const std::string& spec) {
  if (spec.starts_with('{')) return parse_head_profile(spec, "head profile");
  std::error_code error;
  const std::size_t at = spec.rfind('@');
  const std::string folder = spec.substr(0, at);
  if (std::filesystem::is_directory(folder, error)) {
    double share = 0.5;
    if (at != std::string::npos) {
      const char* end = spec.data() + spec.size();
      const auto [next, wrong] = std::from_chars(spec.data() + at + 1, end, share);
      if (wrong != std::errc() || next != end || !(share >= 0.0 && share <= 1.0)) {
        return invalid_argument("{} ends in no share of heads; expected FOLDER@0.5, with 0 to 1 behind the @",
                                quote(spec));
      }
    }
    return load_duo_folder(folder, share);
  }
  FOVEA_ASSIGN_OR_RETURN(const std::string text, read_file(spec, kMaxBytes));
  return parse_head_profile(text, shorten(spec));
}

Status check_head_profile(const HeadProfile& profile, const ModelConfig& config) {
  if ((profile.num_layers > 0 && profile.num_layers != config.num_layers) ||
      (profile.num_kv_heads > 0 && profile.num_kv_heads != config.num_kv_heads)) {
    return out_of_range("the head profile is of a model of {} layers of {} KV heads; this one has {} layers of {}",
                        profile.num_layers, profile.num_kv_heads, config.num_layers, config.num_kv_heads);
  }
  for (const ModelHead& head : profile.streaming) {
    if (head.layer >= config.num_layers || head.kv_head >= config.num_kv_heads) {
      return out_of_range("the head profile names layer {}, KV head {}; the model has {} layers of {} KV heads",
                          head.layer, head.kv_head, config.num_layers, config.num_kv_heads);
    }
    const std::int32_t window = config.layer_window[static_cast<std::size_t>(head.layer)];
    if (window > 0) {
      return unsupported(
          "the head profile names layer {}, which has a sliding window of {} tokens; its heads cannot "
          "stream",
          head.layer, window);
    }
  }
  return ok_status();
}

}  // namespace fovea
