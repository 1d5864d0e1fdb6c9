// Implementation of tokenizer.h: encoding, decoding and streams. Loading is in tokenizer_load.cc.
#include "engine/tokenizer/tokenizer.h"

#include "engine/tokenizer/tokenizer_impl.h"
#include "engine/tokenizer/unicode.h"

namespace fovea {

std::int32_t Tokenizer::Impl::token_to_id(std::string_view token) const {
  const auto found = added_ids.find(std::string(token));
  return found != added_ids.end() ? found->second : model.token_to_id(token);
}

std::string_view Tokenizer::Impl::id_to_token(std::int32_t id) const {
  const auto found = added.find(id);
  return found != added.end() ? std::string_view(found->second.text) : model.id_to_token(id);
}

bool Tokenizer::Impl::is_special(std::int32_t id) const {
  const auto found = added.find(id);
  return found != added.end() && found->second.special;
}

Status Tokenizer::Impl::encode_stretch(std::string_view text, bool at_origin, bool parse_special,
                                       std::vector<std::int32_t>& ids) const {
  std::string normalized(text);
  if (!normalizer.empty()) FOVEA_RETURN_IF_ERROR(normalizer.apply(normalized, at_origin));
  std::vector<TokenSpan> spans;
  if (normalized_finder.empty()) {
    spans.push_back({0, normalized.size(), -1});
  } else {
    spans = normalized_finder.find(normalized, parse_special);
  }
  PieceList list;
  for (const TokenSpan& span : spans) {
    if (span.id >= 0) {
      ids.push_back(span.id);
      continue;
    }
    if (span.begin == span.end) continue;
    if (spans.size() == 1) {
      list.buffer = std::move(normalized);  // NOLINT(bugprone-use-after-move): the only span, so the only turn
    } else {
      list.buffer.assign(normalized, span.begin, span.end - span.begin);
    }
    list.pieces.assign(1, {0, static_cast<std::uint32_t>(list.buffer.size()), at_origin && span.begin == 0});
    FOVEA_RETURN_IF_ERROR(pre_tokenizer.apply(list));
    for (const PieceList::Piece& piece : list.pieces) FOVEA_RETURN_IF_ERROR(model.encode(list.text(piece), ids));
  }
  return ok_status();
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return out_of_range("text of {} bytes, expected at most {}", text.size(), kMaxTextBytes);
  }
  std::string repaired;
  if (!unicode::is_valid(text)) {
    unicode::append_lossy(repaired, text);
    text = repaired;
  }
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (options.add_special_tokens) ids = impl_->prefix;
  for (const TokenSpan& span : impl_->raw_finder.find(text, options.parse_special)) {
    if (span.id >= 0) {
      ids.push_back(span.id);
    } else {
      FOVEA_RETURN_IF_ERROR(impl_->encode_stretch(text.substr(span.begin, span.end - span.begin), span.begin == 0,
                                                  options.parse_special, ids));
    }
  }
  if (options.add_special_tokens) ids.insert(ids.end(), impl_->suffix.begin(), impl_->suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  StreamDecoder stream(*this, skip_special);
  std::string text;
  for (const std::int32_t id : ids) text.append(stream.append(id));
  return text.append(stream.finish());
}

std::string Tokenizer::token_bytes(std::int32_t id) const {
  const auto found = impl_->added.find(id);
  if (found != impl_->added.end()) return found->second.content;
  return impl_->decoder.token_bytes(impl_->model.id_to_token(id));
}

std::string_view Tokenizer::id_to_token(std::int32_t id) const { return impl_->id_to_token(id); }
std::int32_t Tokenizer::token_to_id(std::string_view token) const { return impl_->token_to_id(token); }
bool Tokenizer::is_special(std::int32_t id) const { return impl_->is_special(id); }
std::int32_t Tokenizer::vocab_size() const { return impl_->vocab_size; }
std::int32_t Tokenizer::bos_id() const { return impl_->bos_id; }
std::int32_t Tokenizer::eos_id() const { return impl_->eos_id; }
std::int32_t Tokenizer::pad_id() const { return impl_->pad_id; }
const TokenizerConfig& Tokenizer::config() const { return impl_->config; }

const std::string* Tokenizer::chat_template(std::string_view name) const {
  const auto& templates = impl_->config.chat_templates;
  for (const auto& [known, source] : templates) {
    if (known == (name.empty() ? std::string_view("default") : name)) return &source;
  }
  return name.empty() && templates.size() == 1 ? &templates[0].second : nullptr;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : impl_(tokenizer.impl_), run_(impl_->decoder.start()), skip_special_(skip_special) {}

std::string StreamDecoder::append(std::int32_t id) {
  std::string out;
  const auto found = impl_->added.find(id);
  if (found != impl_->added.end()) {
    if (!(skip_special_ && found->second.special)) impl_->decoder.push(run_, found->second.text, out);
    return out;
  }
  if (impl_->model.has_id(id)) impl_->decoder.push(run_, impl_->model.id_to_token(id), out);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  impl_->decoder.finish(run_, out);
  run_ = impl_->decoder.start();
  return out;
}

}  // namespace fovea
