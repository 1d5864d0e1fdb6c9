// Steps to words and back.
#include "engine/ranks/step_record.h"

#include <bit>

#include "base/status.h"

namespace fovea {
namespace {

enum Kind : std::int32_t { kStop, kStep };

void put64(std::vector<std::int32_t>& words, std::uint64_t value) {
  words.push_back(static_cast<std::int32_t>(static_cast<std::uint32_t>(value)));
  words.push_back(static_cast<std::int32_t>(static_cast<std::uint32_t>(value >> 32)));
}

Status wrong(const char* what) { return data_loss("a step from rank 0 has {} that cannot be", what); }

}  // namespace

std::vector<std::int32_t> StepWriter::stop() { return {kStop}; }

std::vector<std::int32_t>& StepWriter::write(const Step& step) {
  words_.assign({kStep, static_cast<std::int32_t>(step.copies.size()), static_cast<std::int32_t>(step.items.size()),
                 step.num_tokens});
  for (const PageCopy& copy : step.copies) {
    words_.insert(words_.end(), {static_cast<std::int32_t>(copy.group), copy.from, copy.to});
  }
  for (const StepItem& item : step.items) write_item(item);
  return words_;
}

void StepWriter::write_item(const StepItem& item) {
  const Sequence& sequence = *item.sequence;
  words_.insert(words_.end(),
                {sequence.slot, item.begin, item.count, item.drafts, item.score_begin, item.scores, sequence.length(),
                 sequence.prompt_length, (item.sample ? 1 : 0) + (sequence.greedy ? 2 : 0),
                 std::bit_cast<std::int32_t>(sequence.draw.temperature),
                 std::bit_cast<std::int32_t>(sequence.draw.top_p), std::bit_cast<std::int32_t>(sequence.draw.min_p)});
  put64(words_, sequence.draw.seed);
  put64(words_, sequence.id);
  const auto first = sequence.tokens.begin() + item.begin;
  words_.insert(words_.end(), first, first + item.count - item.drafts);
  for (std::int32_t i = 0; i < item.drafts; ++i) words_.push_back(sequence.draft[static_cast<std::size_t>(i)].token);
  for (std::int32_t group = 0; group < rows_.num_groups(); ++group) write_list(sequence.slot, group);
}

void StepWriter::write_list(std::int32_t slot, std::int32_t group) {
  Sent& sent = sent_[static_cast<std::size_t>(slot) * static_cast<std::size_t>(rows_.num_groups()) +
                     static_cast<std::size_t>(group)];
  const std::uint64_t version = rows_.version(slot, group);
  const std::int32_t length = rows_.length(slot, group);
  const std::int32_t begin = sent.version == version && sent.length >= 0 ? sent.length : 0;
  put64(words_, version);
  words_.insert(words_.end(), {begin, length});
  const auto row = rows_.row(slot, group);
  words_.insert(words_.end(), row.begin() + begin, row.begin() + length);
  sent = {version, length};
}

std::uint64_t StepReader::next64() {
  const auto low = static_cast<std::uint32_t>(next());
  return low | static_cast<std::uint64_t>(static_cast<std::uint32_t>(next())) << 32;
}

float StepReader::next_float() { return std::bit_cast<float>(next()); }

Result<std::span<const std::int32_t>> StepReader::next_span(std::int32_t count) {
  if (count < 0 || static_cast<std::size_t>(count) > words_.size() - at_) return wrong("a length");
  at_ += static_cast<std::size_t>(count);
  return words_.subspan(at_ - static_cast<std::size_t>(count), static_cast<std::size_t>(count));
}

Result<const Step*> StepReader::read(std::span<const std::int32_t> words) {
  words_ = words;
  at_ = 0;
  short_ = false;
  step_.copies.clear();
  step_.items.clear();
  const std::int32_t kind = next();
  if (kind == kStop && !short_) return nullptr;
  if (kind != kStep) return wrong("a kind");
  const std::int32_t copies = next(), items = next();
  step_.num_tokens = next();
  for (std::int32_t i = 0; i < copies && !short_; ++i) {
    const std::int32_t group = next(), from = next(), to = next();
    if (group < 0 || group >= rows_.num_groups()) return wrong("a KV group");
    step_.copies.push_back({static_cast<std::size_t>(group), from, to});
  }
  for (std::int32_t i = 0; i < items && !short_; ++i) FOVEA_RETURN_IF_ERROR(read_item());
  if (short_ || at_ != words_.size()) return wrong("a length");
  return &step_;
}

Status StepReader::read_item() {
  const std::int32_t slot = next();
  if (slot < 0 || slot >= rows_.num_slots()) return wrong("a slot");
  Sequence& sequence = sequences_[static_cast<std::size_t>(slot)];
  sequence.slot = slot;
  StepItem item;
  item.sequence = &sequence;
  item.begin = next();
  item.count = next();
  item.drafts = next();
  item.score_begin = next();
  item.scores = next();
  const std::int32_t length = next();
  sequence.prompt_length = next();
  const std::int32_t flags = next();
  item.sample = (flags & 1) != 0;
  sequence.greedy = (flags & 2) != 0;
  sequence.draw.temperature = next_float();
  sequence.draw.top_p = next_float();
  sequence.draw.min_p = next_float();
  sequence.draw.seed = next64();
  sequence.id = next64();
  const std::int32_t own = item.count - item.drafts;
  if (item.begin < 0 || item.drafts < 0 || own < 0 || length < 0 || item.begin > length - own) return wrong("a range");
  sequence.tokens.resize(static_cast<std::size_t>(length));
  FOVEA_ASSIGN_OR_RETURN(const auto tokens, next_span(own));
  std::copy(tokens.begin(), tokens.end(), sequence.tokens.begin() + item.begin);
  FOVEA_ASSIGN_OR_RETURN(const auto drafts, next_span(item.drafts));
  sequence.draft = chain_of(drafts);  // several ranks verify no trees
  for (std::int32_t group = 0; group < rows_.num_groups(); ++group) FOVEA_RETURN_IF_ERROR(read_list(slot, group));
  step_.items.push_back(item);
  return ok_status();
}

Status StepReader::read_list(std::int32_t slot, std::int32_t group) {
  const std::uint64_t version = next64();
  const std::int32_t begin = next(), end = next();
  if (begin < 0 || end < begin || end > rows_.stride()) return wrong("a page list");
  FOVEA_ASSIGN_OR_RETURN(const auto pages, next_span(end - begin));
  rows_.mirror(slot, group, version, begin, pages);
  return ok_status();
}

}  // namespace fovea
