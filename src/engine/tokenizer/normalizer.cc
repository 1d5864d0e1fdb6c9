// Implementation of normalizer.h.
#include "engine/tokenizer/normalizer.h"

#include "base/quote.h"
#include "engine/tokenizer/json_util.h"

namespace fovea {

Result<Regex> pattern_from_json(const nlohmann::json& spec, std::string_view where) {
  if (spec.is_string()) return Regex::literal(spec.get_ref<const std::string&>());
  const nlohmann::json& text = json_util::field(spec, "String");
  if (text.is_string()) return Regex::literal(text.get_ref<const std::string&>());
  const nlohmann::json& regex = json_util::field(spec, "Regex");
  if (regex.is_string()) return Regex::compile(regex.get_ref<const std::string&>());
  return invalid_argument("{}: 'pattern' must be {{\"String\": text}} or {{\"Regex\": expression}}", where);
}

Result<Normalizer> Normalizer::from_json(const nlohmann::json& spec) {
  Normalizer made;
  if (!spec.is_null()) FOVEA_RETURN_IF_ERROR(made.add(spec, 0));
  return made;
}

Status Normalizer::add(const nlohmann::json& spec, int depth) {
  FOVEA_ASSIGN_OR_RETURN(const JsonReader json, json_util::typed_part(spec, "normalizer"));
  FOVEA_ASSIGN_OR_RETURN(const std::string type, json.string("type"));
  const std::string& where = json.where();
  if (type == "Sequence") {
    FOVEA_ASSIGN_OR_RETURN(const auto* parts, json_util::sequence_parts(json, "normalizers", depth));
    for (const nlohmann::json& part : *parts) FOVEA_RETURN_IF_ERROR(add(part, depth + 1));
    return ok_status();
  }
  Step step;
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.kind = Kind::kForm;
    step.form = type == "NFC"    ? unicode::NormalForm::kNfc
                : type == "NFD"  ? unicode::NormalForm::kNfd
                : type == "NFKC" ? unicode::NormalForm::kNfkc
                                 : unicode::NormalForm::kNfkd;
  } else if (type == "Lowercase") {
    step.kind = Kind::kLowercase;
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    FOVEA_ASSIGN_OR_RETURN(step.left, json.boolean_or("strip_left", true));
    FOVEA_ASSIGN_OR_RETURN(step.right, json.boolean_or("strip_right", true));
  } else if (type == "StripAccents") {
    step.kind = Kind::kStripAccents;
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    FOVEA_ASSIGN_OR_RETURN(step.content, json.string("prepend"));
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    FOVEA_ASSIGN_OR_RETURN(step.content, json.string("content"));
    FOVEA_ASSIGN_OR_RETURN(step.pattern, pattern_from_json(json_util::field(spec, "pattern"), where));
  } else if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else {
    return unsupported(
        "normalizer type '{}', expected NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, "
        "ByteLevel or Sequence",
        shorten(type));
  }
  steps_.push_back(std::move(step));
  return ok_status();
}

namespace {

// A hostile file can make text grow at every step (Prepend, Replace, normal forms); this bounds the product.
constexpr std::size_t kMaxGrowth = 64;
constexpr std::size_t kGrowthFloor = 1 << 20;

void strip(std::string& text, bool left, bool right, bool& at_origin) {
  std::size_t begin = 0, end = text.size();
  while (left && begin < end) {
    const auto next = unicode::decode(text, begin);
    if (!unicode::is_whitespace(next.code)) break;
    begin += next.length;
    at_origin = false;
  }
  while (right && end > begin) {
    std::size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    if (!unicode::is_whitespace(unicode::decode(text, last).code)) break;
    end = last;
  }
  text = text.substr(begin, end - begin);
}

template <typename Function>
void map_chars(std::string& text, Function&& function) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const auto next = unicode::decode(text, at);
    function(out, next.code);
    at += next.length;
  }
  text = std::move(out);
}

}  // namespace

Status Normalizer::apply(std::string& text, bool& at_origin) const {
  const std::size_t most = std::max(text.size(), kGrowthFloor) * kMaxGrowth;
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kForm: text = unicode::normalize(text, step.form); break;
      case Kind::kLowercase:
        map_chars(text, [](std::string& out, char32_t code) { unicode::append_lower(out, code); });
        break;
      case Kind::kStrip: strip(text, step.left, step.right, at_origin); break;
      case Kind::kStripAccents:
        map_chars(text, [](std::string& out, char32_t code) {
          if (!unicode::is_mark(code)) unicode::append(out, code);
        });
        break;
      case Kind::kPrepend:
        if (!text.empty()) text.insert(0, step.content);
        break;
      case Kind::kReplace: {
        FOVEA_ASSIGN_OR_RETURN(text, step.pattern->replace_all(text, step.content));
        break;
      }
      case Kind::kByteLevel: {
        const unicode::ByteChars& table = unicode::byte_chars();
        std::string out;
        out.reserve(text.size() * 2);
        for (const char c : text) {
          const auto byte = static_cast<unsigned char>(c);
          out.append(table.utf8[byte].data(), table.length[byte]);
        }
        text = std::move(out);
        break;
      }
    }
    if (text.size() > most) {
      return resource_exhausted("the normalizer makes {} bytes of text, expected at most {}", text.size(), most);
    }
  }
  return ok_status();
}

}  // namespace fovea
