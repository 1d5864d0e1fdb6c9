// Where an answer stands in a grammar. Masks come from xgrammar; where they are too loose (repetition.h), a token that
// is sampled is checked byte by byte, and what does not fit leaves the mask, with all that begins as it does.
#include <dlpack/dlpack.h>

#include <algorithm>
#include <string_view>

#include "base/status.h"
#include "engine/grammar/xgrammar/compiled.h"
#include "engine/grammar/xgrammar/work.h"

namespace fovea {
namespace {

// From then on each token of the mask is checked.
constexpr int kMostRefusals = 16;

std::size_t common_length(std::string_view a, std::string_view b) {
  const std::size_t most = std::min(a.size(), b.size());
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin());
}

}  // namespace

struct GrammarMatcher::Impl {
  std::shared_ptr<const Grammar> grammar;  // outlives the matchers
  xgrammar::GrammarMatcher matcher;
  std::optional<xgrammar::GrammarMatcher> exact;
  std::vector<std::int32_t> mask;
  bool filled = false;
  bool needed = false;  // the mask forbids something
  int refusals = 0;     // since the latest token
  std::uint64_t work_left = kWorkAtOnce;
  std::size_t accepted = 0;  // tokens
  Status failure{};          // xgrammar threw, and cannot go on from where it was

  const GrammarTokens& tokens() const { return *grammar->compiled().tokens; }
  bool is_stop(std::int32_t token) const {
    return std::find(tokens().stops.begin(), tokens().stops.end(), token) != tokens().stops.end();
  }
  bool may_come(std::int32_t token) const {
    return ((mask[static_cast<std::size_t>(token / 32)] >> (token % 32)) & 1) != 0;
  }
  void forbid(std::int32_t token) {
    mask[static_cast<std::size_t>(token / 32)] &= ~static_cast<std::int32_t>(1u << (token % 32));
  }

  template <typename Work>
  Status run(const Work& work) {
    if (!failure.ok()) return failure;
    WorkBudget budget(work_left);
    try {
      work();
    } catch (const WorkExceeded&) {
      failure = invalid_argument(
          "the grammar takes too much work to follow at token {} of the answer, as there are ever more ways to read "
          "it; "
          "repetitions in one another, such as ([a-z]+)+, do that: write one of them",
          accepted + 1);
    } catch (const std::exception& error) {
      failure = internal_error("the grammar failed: {}", readable_grammar_error(error.what()));
    }
    work_left -= budget.spent();
    return failure;
  }

  // Drafts cost work, too, and may not end an answer that goes on without them: not of one that has little left.
  bool may_draft() const { return !matcher.IsTerminated() && work_left >= kWorkAtOnce / 2; }

  // How many of the text's bytes from `begin` on may come next; they are accepted.
  std::size_t accept_bytes(std::string_view text, std::size_t begin) {
    std::size_t at = begin;
    while (at < text.size() && exact->AcceptString(std::string(1, text[at]))) ++at;
    return at - begin;
  }
  void take_back(std::size_t bytes) {
    if (bytes > 0) exact->Rollback(static_cast<int>(bytes));
  }

  // The place in by_text behind all tokens that begin so.
  auto behind(std::string_view prefix) const {
    return std::partition_point(tokens().by_text.begin(), tokens().by_text.end(), [&](std::int32_t token) {
      return std::string_view(tokens().texts[static_cast<std::size_t>(token)]).substr(0, prefix.size()) <= prefix;
    });
  }
  void forbid_all(std::string_view prefix) {
    const auto& order = tokens().by_text;
    const auto end = behind(prefix);
    auto at = std::lower_bound(order.begin(), end, prefix, [&](std::int32_t token, std::string_view text) {
      return tokens().texts[static_cast<std::size_t>(token)] < text;
    });
    for (; at != end; ++at) forbid(*at);
  }

  void forbid_what_does_not_fit() {
    std::string path;  // accepted on trial
    const auto& order = tokens().by_text;
    for (auto at = order.begin(); at != order.end();) {
      const std::string_view text = tokens().texts[static_cast<std::size_t>(*at)];
      if (text.empty() || !may_come(*at)) {
        ++at;
        continue;
      }
      const std::size_t common = common_length(path, text);
      take_back(path.size() - common);
      path.assign(text.substr(0, common + accept_bytes(text, common)));
      if (path.size() == text.size()) {
        ++at;
        continue;
      }
      const std::string_view refused = text.substr(0, path.size() + 1);
      forbid_all(refused);
      at = behind(refused);
    }
    take_back(path.size());
    for (const std::int32_t stop : tokens().stops) {
      if (!exact->IsCompleted()) forbid(stop);
    }
  }

  // Whether the token, which the mask allows, fits; it is accepted by `exact` then, and leaves the mask if not.
  bool fits(std::int32_t token) {
    if (is_stop(token)) {
      if (exact->IsCompleted()) return true;
      for (const std::int32_t stop : tokens().stops) forbid(stop);
    } else {
      const std::string_view text = tokens().texts[static_cast<std::size_t>(token)];
      const std::size_t fit = accept_bytes(text, 0);
      if (fit == text.size()) return true;
      take_back(fit);
      forbid_all(text.substr(0, fit + 1));
    }
    if (++refusals == kMostRefusals) forbid_what_does_not_fit();
    return false;
  }
};

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar) {
  const Grammar::Compiled& compiled = grammar->compiled();
  const int words = xgrammar::GetBitmaskSize(compiled.grammar.GetTokenizerInfo().GetVocabSize());
  std::optional<xgrammar::GrammarMatcher> exact;
  if (compiled.exact.has_value()) exact.emplace(*compiled.exact);
  impl_ = std::make_unique<Impl>(
      Impl{std::move(grammar), xgrammar::GrammarMatcher(compiled.grammar, std::nullopt, compiled.tokens->stops.empty()),
           std::move(exact), std::vector<std::int32_t>(static_cast<std::size_t>(words))});
}
GrammarMatcher::~GrammarMatcher() = default;

Result<std::span<const std::int32_t>> GrammarMatcher::allowed() {
  Impl& impl = *impl_;
  if (!impl.filled) {
    FOVEA_RETURN_IF_ERROR(impl.run([&] {
      std::int64_t shape[] = {static_cast<std::int64_t>(impl.mask.size())};
      DLTensor tensor{impl.mask.data(), {kDLCPU, 0}, 1, {kDLInt, 32, 1}, shape, nullptr, 0};
      impl.needed = impl.matcher.FillNextTokenBitmask(&tensor);
      impl.filled = true;
    }));
  }
  // Sampling needs something to take.
  if (impl.needed && std::all_of(impl.mask.begin(), impl.mask.end(), [](std::int32_t word) { return word == 0; })) {
    return impl.accepted == 0 ? invalid_argument("the grammar matches no text that tokens of this model can write")
                              : invalid_argument(
                                    "behind token {} of the answer its grammar lets nothing follow, and "
                                    "does not end: it has a rule that matches no text",
                                    impl.accepted);
  }
  return impl.needed ? std::span<const std::int32_t>(impl.mask) : std::span<const std::int32_t>();
}

Result<bool> GrammarMatcher::accept(std::int32_t token) {
  Impl& impl = *impl_;
  FOVEA_RETURN_IF_ERROR(allowed().status());
  bool fits = true, accepted = false;
  FOVEA_RETURN_IF_ERROR(impl.run([&] {
    if (impl.exact.has_value() && (!impl.needed || impl.may_come(token))) {
      if (!std::exchange(impl.needed, true)) std::fill(impl.mask.begin(), impl.mask.end(), -1);
      fits = impl.fits(token);
      if (!fits) return;
    }
    impl.refusals = 0;
    impl.filled = false;
    accepted = impl.matcher.AcceptToken(token);
  }));
  if (!fits) return false;
  if (!accepted) return internal_error("token {} was sampled, which the grammar does not allow", token);
  ++impl.accepted;
  impl.work_left = std::min(impl.work_left + kWorkPerToken, kWorkAtOnce);
  return true;
}

std::string GrammarMatcher::forced() {
  std::string text;
  if (impl_->may_draft()) (void)impl_->run([&] { text = impl_->matcher.FindJumpForwardString(); });
  return text;
}

std::size_t GrammarMatcher::fitting(std::span<const std::int32_t> tokens) {
  std::size_t count = 0;
  if (!impl_->may_draft()) return 0;
  const Status done = impl_->run([&] {
    xgrammar::GrammarMatcher& matcher = impl_->matcher;
    while (count < tokens.size() && !matcher.IsTerminated() && matcher.AcceptToken(tokens[count])) ++count;
    matcher.Rollback(static_cast<int>(count));
  });
  return done.ok() ? count : 0;
}

bool GrammarMatcher::finished() const { return impl_->matcher.IsTerminated(); }

}  // namespace fovea
