// Implementation of decoder.h.
#include "engine/tokenizer/decoder.h"

#include <algorithm>

#include "base/quote.h"
#include "engine/tokenizer/json_util.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/unicode.h"

namespace fovea {
namespace {

// The byte that a token such as <0x0A> stands for, or -1.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

bool is_one_char(std::string_view text) { return !text.empty() && unicode::lead_length(text[0]) == text.size(); }

}  // namespace

Result<Decoder> Decoder::from_json(const nlohmann::json& spec) {
  Decoder made;
  if (spec.is_null()) {
    made.steps_.push_back({Kind::kJoin, " ", std::nullopt});
    return made;
  }
  FOVEA_RETURN_IF_ERROR(made.add(spec, 0));
  return made;
}

Status Decoder::add(const nlohmann::json& spec, int depth) {
  FOVEA_ASSIGN_OR_RETURN(const JsonReader json, json_util::typed_part(spec, "decoder"));
  FOVEA_ASSIGN_OR_RETURN(const std::string type, json.string("type"));
  const std::string& where = json.where();
  if (type == "Sequence") {
    FOVEA_ASSIGN_OR_RETURN(const auto* parts, json_util::sequence_parts(json, "decoders", depth));
    for (const nlohmann::json& part : *parts) FOVEA_RETURN_IF_ERROR(add(part, depth + 1));
    return ok_status();
  }
  Step step;
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    FOVEA_ASSIGN_OR_RETURN(step.text, json.string_or("replacement", "\xE2\x96\x81"));
    if (!is_one_char(step.text)) return invalid_argument("{}: 'replacement' must be one character", where);
    FOVEA_ASSIGN_OR_RETURN(const bool legacy, json.boolean_or("add_prefix_space", true));
    FOVEA_ASSIGN_OR_RETURN(const std::string scheme, json.string_or("prepend_scheme", legacy ? "always" : "never"));
    step.drop_first = scheme != "never";
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    const nlohmann::json& pattern = json_util::field(spec, "pattern");
    FOVEA_ASSIGN_OR_RETURN(step.pattern, pattern_from_json(pattern, where));
    const nlohmann::json& literal = json_util::field(pattern, "String");
    step.single_char = literal.is_string() && is_one_char(literal.get_ref<const std::string&>());
    FOVEA_ASSIGN_OR_RETURN(step.text, json.string("content"));
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    FOVEA_ASSIGN_OR_RETURN(step.text, json.string("content"));
    if (!is_one_char(step.text)) return invalid_argument("{}: 'content' must be one character", where);
    FOVEA_ASSIGN_OR_RETURN(const std::int64_t start, json.integer("start", 0, 1024));
    FOVEA_ASSIGN_OR_RETURN(const std::int64_t stop, json.integer("stop", 0, 1024));
    step.start = static_cast<int>(start);
    step.stop = static_cast<int>(stop);
  } else {
    return unsupported(
        "decoder type '{}', expected ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip or Sequence",
        shorten(type));
  }
  steps_.push_back(std::move(step));
  return ok_status();
}

Decoder::Run Decoder::start() const {
  Run run;
  run.steps_.resize(steps_.size());
  return run;
}

void Decoder::push(Run& run, std::string_view token, std::string& out) const { feed(run, 0, {token, true, true}, out); }

void Decoder::finish(Run& run, std::string& out) const { finish_from(run, 0, out); }

void Decoder::feed(Run& run, std::size_t at, Fragment fragment, std::string& out) const {
  if (at == steps_.size()) {
    out.append(fragment.text);
    return;
  }
  const Step& step = steps_[at];
  Run::Step& state = run.steps_[at];
  const bool needs_whole = step.kind == Kind::kByteLevel || step.kind == Kind::kByteFallback ||
                           (step.kind == Kind::kReplace && !step.single_char);
  std::string whole;
  if (needs_whole && !(fragment.begins && fragment.ends)) {
    // Only below a Fuse: this step must see its token in one piece.
    std::string& gathered = run.steps_[at].held;
    gathered.append(fragment.text);
    if (!fragment.ends) return;
    whole = std::move(gathered);
    gathered.clear();
    fragment = {whole, true, true};
  }
  switch (step.kind) {
    case Kind::kFuse:
      feed(run, at + 1, {fragment.text, !state.open, false}, out);
      state.open = true;
      break;
    case Kind::kJoin:
      if (fragment.begins && state.tokens++ > 0) out.append(step.text);
      feed(run, at + 1, fragment, out);
      break;
    case Kind::kByteLevel:
      if (!unicode::append_bytes_of_chars(state.held, fragment.text)) state.held.append(fragment.text);
      feed_bytes(run, at, out);
      break;
    case Kind::kByteFallback: {
      const int byte = fallback_byte(fragment.text);
      if (byte >= 0) {
        state.held.push_back(static_cast<char>(byte));
        if (state.open || state.held.size() > kMaxHeldBytes) flush_byte_run(run, at, false, out);
      } else {
        flush_byte_run(run, at, true, out);
        feed(run, at + 1, fragment, out);
      }
      break;
    }
    case Kind::kReplace: {
      const auto replaced = step.pattern->replace_all(fragment.text, step.text);
      feed(run, at + 1, {replaced.ok() ? std::string_view(*replaced) : fragment.text, fragment.begins, fragment.ends},
           out);
      break;
    }
    case Kind::kMetaspace: feed_metaspace(run, at, fragment, out); break;
    case Kind::kStrip: feed_strip(run, at, fragment, out); break;
  }
}

// Passes on the whole characters among the held bytes; the sequence is one token that never ends before finish().
void Decoder::feed_bytes(Run& run, std::size_t at, std::string& out) const {
  Run::Step& state = run.steps_[at];
  std::string text;
  std::size_t done = 0;
  while (done < state.held.size()) {
    const auto found = unicode::validate(std::string_view(state.held).substr(done));
    text.append(state.held, done, found.valid);
    done += found.valid;
    if (found.bad == 0 || found.incomplete) break;
    text.append(unicode::kReplacementUtf8);
    done += found.bad;
  }
  state.held.erase(0, done);
  if (text.empty()) return;
  feed(run, at + 1, {text, !state.open, false}, out);
  state.open = true;
}

// Passes on a run of byte tokens. Whole: the run has ended; it is one token if it is valid UTF-8, else one U+FFFD a
// byte. Not whole: the run is too long to hold, and its whole characters go on.
void Decoder::flush_byte_run(Run& run, std::size_t at, bool whole, std::string& out) const {
  Run::Step& state = run.steps_[at];
  if (state.held.empty() && !state.open) return;
  const std::string bytes = std::move(state.held);
  state.held.clear();
  const auto found = unicode::validate(bytes);
  if (!whole) {
    if (found.valid != 0 || found.bad == 0 || found.incomplete) {
      feed(run, at + 1, {std::string_view(bytes).substr(0, found.valid), !state.open, false}, out);
      state.open = true;
    }
    std::size_t done = found.valid;
    if (found.bad != 0 && !found.incomplete) {
      for (std::size_t i = 0; i < found.bad; ++i)
        feed(run, at + 1, {unicode::kReplacementUtf8, !state.open, false}, out);
      state.open = true;
      done += found.bad;
    }
    state.held = bytes.substr(done);
    return;
  }
  if (found.valid == bytes.size()) {
    feed(run, at + 1, {bytes, !state.open, true}, out);
  } else {
    if (state.open) feed(run, at + 1, {"", false, true}, out);
    for (std::size_t i = 0; i < bytes.size(); ++i) feed(run, at + 1, {unicode::kReplacementUtf8, true, true}, out);
  }
  state.open = false;
}

void Decoder::feed_metaspace(Run& run, std::size_t at, Fragment fragment, std::string& out) const {
  const Step& step = steps_[at];
  Run::Step& state = run.steps_[at];
  if (fragment.begins) ++state.tokens;
  const std::string_view with = step.drop_first && state.tokens <= 1 ? "" : " ";
  std::string text;
  for (std::size_t i = 0; i < fragment.text.size();) {
    if (fragment.text.substr(i).starts_with(step.text)) {
      text.append(with);
      i += step.text.size();
    } else {
      text.push_back(fragment.text[i++]);
    }
  }
  feed(run, at + 1, {text, fragment.begins, fragment.ends}, out);
}

void Decoder::feed_strip(Run& run, std::size_t at, Fragment fragment, std::string& out) const {
  const Step& step = steps_[at];
  Run::Step& state = run.steps_[at];
  if (fragment.begins) {
    state.start_left = step.start;
    state.held.clear();
  }
  std::string text;
  for (std::size_t i = 0; i < fragment.text.size();) {
    const std::size_t length = unicode::lead_length(fragment.text[i]);
    const std::string_view character = fragment.text.substr(i, length);
    i += length;
    if (character == step.text) {
      if (state.start_left > 0) {
        --state.start_left;
        continue;
      }
      // May turn out to be at the end: hold as many as could be cut there.
      state.held.append(character);
      if (state.held.size() > static_cast<std::size_t>(step.stop) * step.text.size()) {
        text.append(step.text);
        state.held.erase(0, step.text.size());
      }
      continue;
    }
    state.start_left = 0;
    text.append(state.held).append(character);
    state.held.clear();
  }
  if (fragment.ends) state.held.clear();
  feed(run, at + 1, {text, fragment.begins, fragment.ends}, out);
}

void Decoder::finish_from(Run& run, std::size_t at, std::string& out) const {
  if (at == steps_.size()) return;
  Run::Step& state = run.steps_[at];
  switch (steps_[at].kind) {
    case Kind::kByteLevel:
      if (!state.held.empty()) {
        state.held.clear();  // an incomplete character is one U+FFFD
        feed(run, at + 1, {unicode::kReplacementUtf8, !state.open, false}, out);
        state.open = true;
      }
      [[fallthrough]];
    case Kind::kFuse:
      feed(run, at + 1, {"", !state.open, true}, out);
      state.open = false;
      break;
    case Kind::kByteFallback: flush_byte_run(run, at, true, out); break;
    default: break;
  }
  finish_from(run, at + 1, out);
}

std::string Decoder::token_bytes(std::string_view token) const {
  std::string text(token);
  for (const Step& step : steps_) {
    if (step.kind == Kind::kByteLevel) {
      std::string bytes;
      return unicode::append_bytes_of_chars(bytes, text) ? bytes : text;
    }
    if (step.kind == Kind::kByteFallback) {
      const int byte = fallback_byte(text);
      if (byte >= 0) return std::string(1, static_cast<char>(byte));
    }
    if (step.kind == Kind::kReplace) {
      auto replaced = step.pattern->replace_all(text, step.text);
      if (replaced.ok()) text = std::move(*replaced);
    }
    if (step.kind == Kind::kMetaspace) {
      for (std::size_t i = text.find(step.text); i != std::string::npos; i = text.find(step.text, i + 1)) {
        text.replace(i, step.text.size(), " ");
      }
    }
  }
  return text;
}

}  // namespace fovea
