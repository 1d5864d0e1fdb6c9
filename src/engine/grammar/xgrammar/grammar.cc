// Grammars by xgrammar. Its exceptions become Status, its warnings (it ignored something) refuse the grammar.
//
// Compiled grammars are held and released here alone, never by xgrammar's own cache: it is compiled without sanitizers
// in every build, and ThreadSanitizer would not see it count references.
#include "engine/grammar/grammar.h"

#include <dlpack/dlpack.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "base/quote.h"
#include "base/status.h"
#include "engine/grammar/json_schema.h"
#include "engine/grammar/repetition.h"
#include "engine/grammar/xgrammar/json_strings.h"

namespace fovea {
namespace {

constexpr std::size_t kMaxSpecBytes = 64u << 10;  // of what is no JSON
constexpr std::size_t kCacheBytes = 128u << 20;   // of compiled grammars
constexpr std::size_t kMaxCachedGrammars = 64;

thread_local std::string first_warning;  // of the compilation in this thread

// "... Check failed: (condition) is false: what a user can use" -> the end of it, on one line.
std::string readable(std::string message) {
  const std::string_view marker = ") is false: ";
  if (const std::size_t at = message.find(marker); at != std::string::npos) message.erase(0, at + marker.size());
  while (!message.empty() && (message.back() == '\n' || message.back() == ' ')) message.pop_back();
  std::replace(message.begin(), message.end(), '\n', ' ');
  return shorten(message);
}

Status check_schemas_of_tag(const Json& format) {
  if (format.is_array()) {
    for (const Json& item : format) FOVEA_RETURN_IF_ERROR(check_schemas_of_tag(item));
  }
  if (!format.is_object()) return ok_status();
  for (const auto& [key, value] : format.items()) {
    FOVEA_RETURN_IF_ERROR(key == "json_schema" ? check_json_schema(value.dump()) : check_schemas_of_tag(value));
  }
  return ok_status();
}

// Each JSON schema of a structural tag. Arguments in markup are text, not JSON.
void change_schemas_of_tag(nlohmann::ordered_json* format) {
  if (format->is_array()) {
    for (nlohmann::ordered_json& item : *format) change_schemas_of_tag(&item);
  }
  if (!format->is_object() || format->value("type", "") == "qwen_xml_parameter") return;
  for (auto& [key, value] : format->items()) {
    key == "json_schema" ? write_bounds_as_patterns(&value) : change_schemas_of_tag(&value);
  }
}

// What xgrammar is given in place of a schema or a tag.
std::string schema_of(const GrammarSpec& spec) {
  auto json = nlohmann::ordered_json::parse(spec.text);  // it was parsed before, within limits
  if (const Status status = check_patterns(json); !status.ok()) throw std::invalid_argument(status.message());
  spec.kind == GrammarKind::kJsonSchema ? write_bounds_as_patterns(&json) : change_schemas_of_tag(&json);
  return json.dump();
}

Status check_spec(const GrammarSpec& spec) {
  if (spec.kind == GrammarKind::kJsonSchema) return check_json_schema(spec.text);
  if (spec.kind == GrammarKind::kStructuralTag) {
    FOVEA_ASSIGN_OR_RETURN(const Json tag, parse_json(spec.text, "the structural tag"));
    return check_schemas_of_tag(tag);
  }
  if (spec.text.empty()) return invalid_argument("the grammar is empty");
  if (spec.text.size() > kMaxSpecBytes) {
    return invalid_argument("the grammar has {} bytes, at most {} are allowed", spec.text.size(), kMaxSpecBytes);
  }
  return check_repetitions(spec.text, spec.kind == GrammarKind::kEbnf);
}

}  // namespace

struct Grammar::Compiled {
  xgrammar::CompiledGrammar grammar;
  bool stops_by_token;  // the vocabulary has a token that ends answers
};

Grammar::Grammar(std::unique_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
Grammar::~Grammar() = default;

struct GrammarCompiler::Impl {
  struct Cached {
    GrammarSpec spec;
    std::shared_ptr<const Grammar> grammar;
    std::size_t bytes = 0;
  };

  std::mutex compiling;  // one at a time: requests must not take the machine from those that run
  Vocabulary vocabulary;
  std::vector<std::int32_t> stop_tokens;
  std::optional<xgrammar::GrammarCompiler> compiler;  // made by the first compilation

  std::mutex mutex;         // guards the rest
  std::list<Cached> cache;  // latest use first

  std::shared_ptr<const Grammar> find(const GrammarSpec& spec) {
    const std::scoped_lock lock(mutex);
    const auto found = std::find_if(cache.begin(), cache.end(), [&](const Cached& entry) {
      return entry.spec.kind == spec.kind && entry.spec.text == spec.text;
    });
    if (found == cache.end()) return nullptr;
    cache.splice(cache.begin(), cache, found);
    return found->grammar;
  }

  void keep(Cached entry) {
    std::list<Cached> dropped;  // released after the lock
    const std::scoped_lock lock(mutex);
    cache.push_front(std::move(entry));
    std::size_t bytes = 0, count = 0;
    auto it = cache.begin();
    for (; it != cache.end(); ++it) {
      bytes += it->bytes;
      if (++count > 1 && (bytes > kCacheBytes || count > kMaxCachedGrammars)) break;
    }
    dropped.splice(dropped.begin(), cache, it, cache.end());
  }

  xgrammar::CompiledGrammar run(const GrammarSpec& spec) {
    if (!compiler) {
      const std::vector<std::string> tokens = vocabulary();
      const auto size = static_cast<int>(tokens.size());
      const xgrammar::TokenizerInfo info(tokens, xgrammar::VocabType::RAW, size, stop_tokens);
      compiler.emplace(info, /*max_threads=*/1, /*cache_enabled=*/false);
    }
    switch (spec.kind) {
      // Whitespace as json.dumps() writes it: free whitespace has no end, and models lose themselves in it.
      case GrammarKind::kJsonSchema: return compiler->CompileJSONSchema(schema_of(spec), /*any_whitespace=*/false);
      case GrammarKind::kRegex: return compiler->CompileRegex(spec.text);
      case GrammarKind::kEbnf: return compiler->CompileGrammar(spec.text, "root");
      case GrammarKind::kStructuralTag: return compiler->CompileStructuralTag(schema_of(spec));
    }
    throw std::runtime_error("unknown kind of grammar");
  }
};

GrammarCompiler::GrammarCompiler(Vocabulary vocabulary, std::vector<std::int32_t> stop_tokens)
    : impl_(std::make_unique<Impl>()) {
  impl_->vocabulary = std::move(vocabulary);
  impl_->stop_tokens = std::move(stop_tokens);
}
GrammarCompiler::~GrammarCompiler() = default;

Result<std::shared_ptr<const Grammar>> GrammarCompiler::compile(const GrammarSpec& spec) {
  if (auto known = impl_->find(spec)) return known;
  FOVEA_RETURN_IF_ERROR(check_spec(spec));
  const std::scoped_lock lock(impl_->compiling);
  if (auto known = impl_->find(spec)) return known;  // compiled while this one waited
  try {
    first_warning.clear();
    auto compiled =
        std::make_unique<Grammar::Compiled>(Grammar::Compiled{impl_->run(spec), !impl_->stop_tokens.empty()});
    if (!first_warning.empty()) return invalid_argument("the grammar cannot be kept to: {}", readable(first_warning));
    const std::size_t bytes = compiled->grammar.MemorySizeBytes();
    auto grammar = std::make_shared<const Grammar>(std::move(compiled));
    impl_->keep({spec, grammar, bytes});
    return grammar;
  } catch (const std::bad_alloc&) {
    return resource_exhausted("out of memory while a grammar was compiled");
  } catch (const std::exception& error) {
    return invalid_argument("the grammar is wrong: {}", readable(error.what()));
  }
}

struct GrammarMatcher::Impl {
  std::shared_ptr<const Grammar> grammar;  // outlives the matcher
  xgrammar::GrammarMatcher matcher;
  std::vector<std::int32_t> mask;
  bool filled = false;
  bool needed = false;  // the mask forbids something
};

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar) {
  const Grammar::Compiled& compiled = grammar->compiled();
  const int words = xgrammar::GetBitmaskSize(compiled.grammar.GetTokenizerInfo().GetVocabSize());
  impl_ = std::make_unique<Impl>(
      Impl{std::move(grammar), xgrammar::GrammarMatcher(compiled.grammar, std::nullopt, !compiled.stops_by_token),
           std::vector<std::int32_t>(static_cast<std::size_t>(words))});
}
GrammarMatcher::~GrammarMatcher() = default;

Result<std::span<const std::int32_t>> GrammarMatcher::allowed() {
  Impl& impl = *impl_;
  if (!impl.filled) {
    try {
      std::int64_t shape[] = {static_cast<std::int64_t>(impl.mask.size())};
      DLTensor tensor{impl.mask.data(), {kDLCPU, 0}, 1, {kDLInt, 32, 1}, shape, nullptr, 0};
      impl.needed = impl.matcher.FillNextTokenBitmask(&tensor);
      impl.filled = true;
    } catch (const std::exception& error) {
      return internal_error("the grammar failed: {}", readable(error.what()));
    }
  }
  return impl.needed ? std::span<const std::int32_t>(impl.mask) : std::span<const std::int32_t>();
}

Status GrammarMatcher::accept(std::int32_t token) {
  impl_->filled = false;
  try {
    if (impl_->matcher.AcceptToken(token)) return ok_status();
  } catch (const std::exception& error) {
    return internal_error("the grammar failed: {}", readable(error.what()));
  }
  return internal_error("token {} was sampled, which the grammar does not allow", token);
}

bool GrammarMatcher::finished() const { return impl_->matcher.IsTerminated(); }

}  // namespace fovea

// xgrammar declares these and leaves them to whoever compiles it (XGRAMMAR_LOG_CUSTOMIZE).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning && fovea::first_warning.empty()) fovea::first_warning = message;
}

}  // namespace xgrammar
