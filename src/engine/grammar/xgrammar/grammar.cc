// Grammars compiled by xgrammar. Its exceptions become Status, its warnings (it ignored something) refuse the grammar.
//
// Compiled grammars are held and released here alone, never by xgrammar's own cache: it is compiled without sanitizers
// in every build, and ThreadSanitizer would not see it count references.
#include <algorithm>
#include <condition_variable>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

#include "base/quote.h"
#include "base/status.h"
#include "engine/grammar/json_schema.h"
#include "engine/grammar/regex_space.h"
#include "engine/grammar/repetition.h"
#include "engine/grammar/xgrammar/compiled.h"
#include "engine/grammar/xgrammar/json_strings.h"
#include "engine/grammar/xgrammar/work.h"

namespace fovea {
namespace {

constexpr std::size_t kMaxSpecBytes = 64u << 10;  // of what is no JSON
constexpr std::size_t kCacheBytes = 128u << 20;   // of compiled grammars
constexpr std::size_t kMaxCachedGrammars = 64;
constexpr std::size_t kSampleTokens = 4096;
constexpr std::size_t kMaxCost = 32u << 20;

thread_local std::string first_warning;  // of the compilation in this thread

Status check_schemas_of_tag(const Json& format) {
  if (format.is_array()) {
    for (const Json& item : format) FOVEA_RETURN_IF_ERROR(check_schemas_of_tag(item));
  }
  if (!format.is_object()) return ok_status();
  for (const auto& [key, value] : format.items()) {
    FOVEA_RETURN_IF_ERROR(key == "json_schema" ? check_json_schema(value.dump()) : check_schemas_of_tag(value));
    if ((key == "pattern" || key == "grammar") && value.is_string()) {
      FOVEA_RETURN_IF_ERROR(check_repetitions(value.get<std::string>(), key == "grammar"));
    }
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

// What xgrammar is given.
struct Source {
  GrammarKind kind;
  std::string text;
};

// A regular expression in EBNF, as what xgrammar makes an automaton of and not rules: an automaton is in the same state
// whichever way a text was read, rules keep each.
Source as_automaton(std::string_view regex) {
  std::string text = "root ::= Regex(\"";
  for (const char c : regex) {
    if (c == '"' || c == '\\') text += '\\';
    c == '\n' ? text += "\\n" : text += c;
  }
  return {GrammarKind::kEbnf, text + "\")"};
}

// `exact`, and in masks its place is taken by `loose`, if there is one, which costs less.
struct Texts {
  std::string exact, loose;
};

Texts texts_of(const GrammarSpec& spec) {
  Texts texts{spec.text, ""};
  if (spec.kind == GrammarKind::kRegex || spec.kind == GrammarKind::kEbnf) {
    if (spec.kind == GrammarKind::kRegex) texts.exact = with_written_spaces(spec.text);
    texts.loose = without_costly_counts(texts.exact, spec.kind == GrammarKind::kEbnf);
    if (texts.loose == texts.exact) texts.loose.clear();
    return texts;
  }
  auto json = nlohmann::ordered_json::parse(spec.text);  // it was parsed before, within limits
  write_spaces_of_patterns(&json);
  if (const Status status = check_patterns(json); !status.ok()) throw std::invalid_argument(status.message());
  auto loose = json;
  if (drop_costly_counts(&loose)) texts.loose = loose.dump();
  spec.kind == GrammarKind::kJsonSchema ? write_bounds_as_patterns(&json) : change_schemas_of_tag(&json);
  texts.exact = json.dump();
  return texts;
}

bool is_same(const GrammarSpec& a, const GrammarSpec& b) { return a.kind == b.kind && a.text == b.text; }

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

std::string readable_grammar_error(std::string message) {
  const std::string_view marker = ") is false: ";
  if (const std::size_t at = message.find(marker); at != std::string::npos) message.erase(0, at + marker.size());
  while (!message.empty() && (message.back() == '\n' || message.back() == ' ')) message.pop_back();
  std::replace(message.begin(), message.end(), '\n', ' ');
  // What it would do instead is not done here: the grammar is refused.
  if (const std::size_t at = message.find("; ignoring"); at != std::string::npos) message.erase(at);
  return shorten(message);
}

namespace {

// All single bytes, and of the tokens as many as there may be besides, evenly.
xgrammar::TokenizerInfo part_of(const std::vector<std::string>& tokens, std::size_t most) {
  std::vector<std::string> part;
  for (int byte = 0; byte < 256; ++byte) part.emplace_back(1, static_cast<char>(byte));
  const std::size_t step = most == 0 ? tokens.size() : (tokens.size() + most - 1) / most;
  for (std::size_t i = 0; i < tokens.size() && most > 0; i += step) part.push_back(tokens[i]);
  part.emplace_back();  // ends the answer
  const auto size = static_cast<int>(part.size());
  return {part, xgrammar::VocabType::RAW, size, std::vector<std::int32_t>{size - 1}};
}

}  // namespace

GrammarTokens::GrammarTokens(std::vector<std::string> all, const std::vector<std::int32_t>& stop_tokens)
    : texts(std::move(all)),
      stops(stop_tokens),
      by_text(texts.size()),
      info(texts, xgrammar::VocabType::RAW, static_cast<int>(texts.size()), stop_tokens),
      bytes(part_of(texts, 0)),
      sample(part_of(texts, kSampleTokens)) {
  std::iota(by_text.begin(), by_text.end(), 0);
  std::sort(by_text.begin(), by_text.end(), [this](std::int32_t a, std::int32_t b) { return texts[a] < texts[b]; });
}

Grammar::Grammar(std::unique_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
Grammar::~Grammar() = default;

struct GrammarCompiler::Impl {
  struct Cached {
    GrammarSpec spec;
    std::shared_ptr<const Grammar> grammar;
    std::size_t bytes = 0;
  };

  Vocabulary vocabulary;
  std::vector<std::int32_t> stop_tokens;
  std::once_flag asked;  // for the vocabulary
  std::shared_ptr<const GrammarTokens> tokens;

  std::mutex mutex;         // guards the rest
  std::list<Cached> cache;  // latest use first
  // Being compiled, each by the thread that asked first; the threads that ask for the same meanwhile wait.
  std::list<GrammarSpec> under_way;
  std::condition_variable compiled;

  // With the lock.
  std::shared_ptr<const Grammar> find(const GrammarSpec& spec) {
    const auto found =
        std::find_if(cache.begin(), cache.end(), [&](const Cached& entry) { return is_same(entry.spec, spec); });
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

  // Of that vocabulary. A compiler holds but what it is making: one each is what lets threads work at once.
  static xgrammar::CompiledGrammar run(const xgrammar::TokenizerInfo& info, const Source& source) {
    xgrammar::GrammarCompiler compiler(info, /*max_threads=*/1, /*cache_enabled=*/false);
    switch (source.kind) {
      // Whitespace as json.dumps() writes it: free whitespace has no end, and models lose themselves in it.
      case GrammarKind::kJsonSchema: return compiler.CompileJSONSchema(source.text, /*any_whitespace=*/false);
      case GrammarKind::kRegex: return compiler.CompileRegex(source.text);
      case GrammarKind::kEbnf: return compiler.CompileGrammar(source.text, "root");
      case GrammarKind::kStructuralTag: return compiler.CompileStructuralTag(source.text);
    }
    throw std::runtime_error("unknown kind of grammar");
  }

  // What the time to compile over all tokens grows with, 50 to 100 ms a MB here with 128k of them: the grammar's
  // states, and far more what tokens add to these.
  std::size_t cost_of(const Source& source) const {
    const std::size_t states = run(tokens->bytes, source).MemorySizeBytes();
    if (states > kMaxCost) return states;
    return states + 64 * (std::max(states, run(tokens->sample, source).MemorySizeBytes()) - states);
  }

  // The automaton of a regular expression, where rules may cost ever more and it does not cost too much itself.
  Source source_of(GrammarKind kind, const std::string& text) const {
    const Source rules{kind, text};
    if (kind != GrammarKind::kRegex || !repeats_groups(text)) return rules;
    (void)xgrammar::Grammar::FromRegex(text);  // what is wrong is said in its terms
    try {
      const WorkBudget budget(kWorkToCompile / 8);
      Source automaton = as_automaton(text);
      return cost_of(automaton) > kMaxCost ? rules : automaton;
    } catch (const std::exception&) {
      return rules;
    }
  }

  // What takes too much work from the start is refused here, and matchers begin without.
  static Status check_first_mask(const std::shared_ptr<const Grammar>& grammar) {
    const WorkBudget budget(kWorkAtOnce);
    return GrammarMatcher(grammar).allowed().status();
  }

  Result<std::shared_ptr<const Grammar>> make(const GrammarSpec& spec) {
    FOVEA_RETURN_IF_ERROR(check_spec(spec));
    const WorkBudget budget(kWorkToCompile);
    try {
      std::call_once(asked, [this] { tokens = std::make_shared<const GrammarTokens>(vocabulary(), stop_tokens); });
      first_warning.clear();
      Texts texts = texts_of(spec);
      if (!texts.loose.empty() && stop_tokens.empty()) texts.loose.clear();  // the loose one would end too early
      // Over few tokens first: what is wrong is found at once, and so is what would take long.
      std::optional<xgrammar::CompiledGrammar> exact;
      if (!texts.loose.empty()) exact.emplace(run(tokens->bytes, source_of(spec.kind, texts.exact)));
      const Source source = source_of(spec.kind, texts.loose.empty() ? texts.exact : texts.loose);
      const std::size_t cost = cost_of(source);
      if (!first_warning.empty()) {
        return invalid_argument("the grammar cannot be kept to: {}", readable_grammar_error(first_warning));
      }
      if (cost > kMaxCost) {
        return invalid_argument(
            "the grammar would take too long to compile: its cost is {} KB, at most {} are allowed; fewer "
            "alternatives, "
            "and fewer places where anything may stand, make it smaller",
            cost >> 10, kMaxCost >> 10);
      }
      auto grammar = std::make_shared<const Grammar>(
          std::make_unique<Grammar::Compiled>(Grammar::Compiled{run(tokens->info, source), std::move(exact), tokens}));
      FOVEA_RETURN_IF_ERROR(check_first_mask(grammar));
      return std::shared_ptr<const Grammar>(std::move(grammar));
    } catch (const WorkExceeded&) {
      return invalid_argument(
          "the grammar would take too long to compile; fewer things that may be left out or repeated behind one "
          "another "
          "make that shorter");
    } catch (const std::bad_alloc&) {
      return resource_exhausted("out of memory while a grammar was compiled");
    } catch (const std::exception& error) {
      return invalid_argument("the grammar is wrong: {}", readable_grammar_error(error.what()));
    }
  }
};

GrammarCompiler::GrammarCompiler(Vocabulary vocabulary, std::vector<std::int32_t> stop_tokens)
    : impl_(std::make_unique<Impl>()) {
  impl_->vocabulary = std::move(vocabulary);
  impl_->stop_tokens = std::move(stop_tokens);
}
GrammarCompiler::~GrammarCompiler() = default;

Result<std::shared_ptr<const Grammar>> GrammarCompiler::compile(const GrammarSpec& spec) {
  Impl& impl = *impl_;
  const auto is_this = [&](const GrammarSpec& other) { return is_same(other, spec); };
  {
    std::unique_lock lock(impl.mutex);
    impl.compiled.wait(lock, [&] { return std::none_of(impl.under_way.begin(), impl.under_way.end(), is_this); });
    if (auto known = impl.find(spec)) return known;
    impl.under_way.push_back(spec);
  }
  auto made = impl.make(spec);
  if (made.ok()) impl.keep({spec, *made, (*made)->compiled().grammar.MemorySizeBytes()});
  {
    const std::scoped_lock lock(impl.mutex);
    impl.under_way.erase(std::find_if(impl.under_way.begin(), impl.under_way.end(), is_this));
  }
  impl.compiled.notify_all();
  return made;
}

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
