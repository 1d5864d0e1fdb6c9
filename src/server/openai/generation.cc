#include "server/openai/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <utility>

namespace fovea::server {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Joins text to text and arguments to arguments.
void add_piece(std::vector<ToolDelta>* pieces, ToolDelta piece) {
  ToolDelta* last = pieces->empty() ? nullptr : &pieces->back();
  if (last == nullptr || last->call != piece.call || last->reasoning != piece.reasoning || !last->name.empty() ||
      !piece.name.empty()) {
    pieces->push_back(std::move(piece));
    return;
  }
  last->content += piece.content;
  last->arguments += piece.arguments;
}

std::int64_t count_characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

ApiError api_error(const Status& status, std::string param) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported: return {400, status.message(), std::move(param), ""};
    case StatusCode::kOutOfRange: return {400, status.message(), std::move(param), "context_length_exceeded"};
    case StatusCode::kNotFound: return {404, status.message(), "", ""};
    case StatusCode::kResourceExhausted: return {429, status.message(), "", "overloaded"};
    case StatusCode::kUnavailable:
    case StatusCode::kCancelled: return {503, status.message(), "", "unavailable"};
    default: return {500, status.message(), "", ""};
  }
}

GenerateRequest request_for(const GenerationParams& params, std::vector<std::int32_t> prompt) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.sampling = params.sampling;
  // Ranking needs the logprobs of the chosen tokens.
  if (params.best_of > params.n) request.sampling.logprobs = std::max(request.sampling.logprobs, 0);
  request.n = params.best_of;
  request.prompt_logprobs = params.prompt_logprobs;
  request.prompt_only = params.prompt_only;
  if (params.prompt_only) request.prompt_logprobs = std::max(request.prompt_logprobs, 0);
  request.cache_salt = params.cache_salt;
  request.sparse = params.sparse;
  request.kv_budget = params.kv_budget;
  request.sparse_prompt_tokens = params.sparse_prompt_tokens;
  request.priority = params.priority;
  request.grammar = params.compiled;
  return request;
}

Generation::Generation(Engine& engine, ServerMetrics& metrics, GenerationSpec spec, std::shared_ptr<Exchange> exchange,
                       DoneCallback done)
    : engine_(engine),
      metrics_(metrics),
      spec_(std::move(spec)),
      exchange_(std::move(exchange)),
      done_(std::move(done)),
      created_(static_cast<std::int64_t>(std::time(nullptr))),
      writer_(spec_.kind, spec_.id, created_, spec_.model, spec_.params.include_usage) {
  const std::size_t per_prompt = static_cast<std::size_t>(spec_.params.best_of);
  choices_.resize(spec_.requests.size() * per_prompt);
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    choice.prompt = static_cast<std::int32_t>(i / per_prompt);
    if (spec_.params.sampling.logprobs >= 0) {
      choice.logprobs.emplace(engine_, spec_.kind);
      if (!spec_.echo.empty() && !spec_.scored_echo)
        choice.logprobs->set_text_offset(count_characters(spec_.echo[choice.prompt]));
    }
    if (spec_.tool_format != nullptr || spec_.reasoning != nullptr) {
      choice.parser.emplace(spec_.tool_format, spec_.tools.tools, spec_.reasoning, spec_.reasoning_open);
    }
  }
  left_ = choices_.size();
  for (const GenerateRequest& request : spec_.requests) {
    scores_.push_back({request.prompt.front(), {}, {}, {}});
    if (spec_.params.return_token_ids) prompts_.push_back(request.prompt);
  }
}

void Generation::start() {
  const auto self = shared_from_this();
  // Not an owning pointer: the exchange would keep this and this the exchange.
  exchange_->on_gone([weak = weak_from_this()] {
    if (const auto generation = weak.lock()) {
      generation->metrics_.disconnects.add();
      generation->cancel_all();
      generation->report_done(499);
    }
  });
  if (spec_.answer && spec_.params.stream) {
    const std::scoped_lock lock(mutex_);
    spec_.answer->begin(&early_);
  }
  submit_seconds_.store(seconds_since(spec_.arrival));
  for (std::size_t prompt = 0; prompt < spec_.requests.size(); ++prompt) {
    Result<RequestId> id =
        engine_.submit(std::move(spec_.requests[prompt]),
                       [self, prompt](const GenerationEvent& event) { self->on_event(prompt, event); });
    if (!id.ok()) {
      {
        const std::scoped_lock lock(mutex_);
        if (!ended_) fail_locked(id.status());
      }
      cancel_all();
      return;
    }
    bool cancel_now = false;
    {
      const std::scoped_lock lock(ids_mutex_);
      ids_.push_back(*id);
      cancel_now = cancelled_;
    }
    if (cancel_now) engine_.cancel(*id);
  }
  const std::scoped_lock lock(mutex_);
  admitted_ = true;
  if (!spec_.params.stream) {
    if (left_ == 0) end_locked();
    return;
  }
  if (ended_) return;
  exchange_->start_stream(spec_.answer ? spec_.answer->keep_alive() : std::string_view());
  if (!early_.empty()) exchange_->write(early_);
  early_.clear();
  if (left_ == 0) end_locked();
}

void Generation::cancel_all() {
  std::vector<RequestId> ids;
  {
    const std::scoped_lock lock(ids_mutex_);
    cancelled_ = true;
    ids = ids_;
  }
  for (const RequestId id : ids) engine_.cancel(id);
}

void Generation::report_done(std::int32_t status, const Usage* usage) {
  DoneCallback done;
  {
    const std::scoped_lock lock(ids_mutex_);
    done.swap(done_);
  }
  if (!done) return;
  GenerationReport report;
  report.submit_seconds = submit_seconds_.load();
  const double queued = queue_seconds_.load();
  if (queued >= 0.0) report.admit_seconds = report.submit_seconds + queued;
  report.first_token_seconds = first_token_seconds_.load();
  if (usage != nullptr) {
    report.prompt_tokens = usage->prompt_tokens;
    report.cached_tokens = usage->cached_tokens;
    report.completion_tokens = usage->completion_tokens;
    report.finish = choices_.front().finish == FinishReason::kLength ? "length" : "stop";
  }
  report.chat = spec_.kind == ApiKind::kChat;
  report.model = spec_.model;
  report.answer_id = spec_.id;
  report.choices = spec_.params.n;
  report.max_tokens = spec_.params.sampling.max_tokens;
  report.temperature = spec_.params.sampling.temperature;
  report.top_p = spec_.params.sampling.top_p;
  done(status, report);
}

void Generation::emit_locked(std::string_view bytes) {
  if (!admitted_) {
    early_ += bytes;
  } else {
    exchange_->write(bytes);
  }
}

void Generation::observe(Choice& choice, const GenerationEvent& event) {
  if (event.tokens.empty()) return;
  const auto now = std::chrono::steady_clock::now();
  if (first_token_seconds_.load() < 0.0) {
    first_token_seconds_.store(std::chrono::duration<double>(now - spec_.arrival).count());
    metrics_.time_to_first_token.observe(first_token_seconds_.load());
  }
  if (choice.has_token) {
    metrics_.inter_token_latency.observe(std::chrono::duration<double>(now - choice.last_token).count());
  }
  choice.has_token = true;
  choice.last_token = now;
}

void Generation::on_event(std::size_t prompt, const GenerationEvent& event) {
  bool cancel = false;
  {
    const std::scoped_lock lock(mutex_);
    const std::size_t index = prompt * static_cast<std::size_t>(spec_.params.best_of) + event.choice;
    if (ended_ || event.choice < 0 || index >= choices_.size()) return;
    Choice& choice = choices_[index];
    if (choice.finish != FinishReason::kNone) return;
    observe(choice, event);
    if (choice.parser && choice.parser->reasons()) usage_.reasoning_tokens += std::ssize(event.tokens);
    if (!event.prompt_logprobs.empty()) {
      scores_[prompt].logprobs = event.prompt_logprobs;
      scores_[prompt].top = event.prompt_top_logprobs;
      scores_[prompt].ranks = event.prompt_ranks;
    }
    if (choice.logprobs) add_logprobs(choice, event);
    for (const TokenLogprob& entry : event.logprobs) choice.logprob_sum += entry.logprob;
    choice.logprob_count += static_cast<std::int64_t>(event.logprobs.size());
    choice.finish = event.finish;
    if (event.finish != FinishReason::kNone) {
      if (queue_seconds_.load() < 0.0) queue_seconds_.store(event.queue_seconds);
      if (event.choice == 0) {
        usage_.prompt_tokens += event.prompt_tokens;
        usage_.cached_tokens += event.cached_tokens;
      }
      usage_.completion_tokens += event.completion_tokens;
      usage_.draft_tokens += event.draft_tokens;
      usage_.accepted_tokens += event.accepted_tokens;
      --left_;
    }
    if (event.finish == FinishReason::kError || event.finish == FinishReason::kCancelled) {
      for (std::size_t i = 0; i < choices_.size() && spec_.params.stream; ++i) {
        if (choices_[i].num_unsent > 0) send(i, choices_[i]);
      }
      fail_locked(event.finish == FinishReason::kError
                      ? event.error
                      : Status(StatusCode::kCancelled, "the request was cancelled because the server shuts down"));
      cancel = left_ > 0;
    } else {
      gather(choice, event);
      if (is_due(choice)) send(index, choice);
      if (left_ == 0 && admitted_) end_locked();
    }
  }
  if (cancel) cancel_all();
}

void Generation::add_logprobs(Choice& choice, const GenerationEvent& event) {
  if (spec_.scored_echo && !choice.prompt_added) {
    choice.prompt_added = true;
    choice.logprobs->add_prompt(scores_[static_cast<std::size_t>(choice.prompt)], spec_.params.sampling.logprobs);
  }
  choice.logprobs->add(event);
  // Whoever scores counts on one element a token, of the one that ends the answer too.
  if (spec_.scored_echo && event.stop_token >= 0) choice.logprobs->add_stop(event);
}

void Generation::gather(Choice& choice, const GenerationEvent& event) {
  choice.num_unsent += std::ssize(event.tokens);
  if (spec_.params.return_token_ids) {
    choice.tokens.insert(choice.tokens.end(), event.tokens.begin(), event.tokens.end());
  }
  if (!event.stop_text.empty()) stop_text_ = event.stop_text;
  if (!choice.parser) {
    choice.text += event.text;
    return;
  }
  for (ToolDelta& piece : choice.parser->append(event.text, event.finish != FinishReason::kNone)) {
    if (spec_.tools.parallel || piece.call <= 0) add_piece(&choice.pieces, std::move(piece));
  }
}

bool Generation::is_due(const Choice& choice) const {
  if (!spec_.params.stream) return spec_.answer != nullptr;
  return !choice.started || choice.num_unsent >= spec_.stream_interval || choice.finish != FinishReason::kNone;
}

void Generation::send(std::size_t index, Choice& choice) {
  spec_.answer ? feed_answer(choice) : stream_choice(index, choice);
}

void Generation::stream_choice(std::size_t index, Choice& choice) {
  const bool ids = spec_.params.return_token_ids;
  const bool has_logprobs = choice.logprobs && !choice.logprobs->empty();
  const bool ends = choice.finish == FinishReason::kStop || choice.finish == FinishReason::kLength;
  // Nothing, where text is held back until it is known what it is.
  if (choice.text.empty() && choice.pieces.empty() && !has_logprobs && choice.tokens.empty() && !ends) return;
  std::string text, logprobs;
  Delta delta;
  delta.index = static_cast<std::int32_t>(index);
  delta.first = !choice.started;
  delta.text = choice.text;
  if (!choice.started && !spec_.echo.empty()) delta.text = text = spec_.echo[choice.prompt] + choice.text;
  if (has_logprobs) {
    choice.logprobs->append_json(&logprobs);
    delta.logprobs_json = logprobs;
  }
  if (ends) delta.finish = choice.finish;
  if (ids) {
    delta.token_ids = &choice.tokens;
    // Of a chat, which has one prompt, with the first chunk of all.
    if (!choice.started && (spec_.kind == ApiKind::kCompletion || !std::exchange(told_prompt_, true))) {
      delta.prompt_ids = &prompts_[static_cast<std::size_t>(choice.prompt)];
    }
  }
  chunk_.clear();
  if (choice.parser) {
    stream_pieces(delta, choice, &chunk_);
  } else {
    writer_.append_delta(&chunk_, delta);
  }
  choice.started = true;
  choice.text.clear();
  choice.pieces.clear();
  choice.tokens.clear();
  choice.num_unsent = 0;
  emit_locked(chunk_);
}

void Generation::feed_answer(Choice& choice) {
  std::string bytes;
  if (choice.logprobs) choice.logprobs->append_entries(&logprobs_);
  spec_.answer->tokens(choice.num_unsent);
  if (!choice.text.empty()) spec_.answer->text(choice.text, std::exchange(logprobs_, {}), &bytes);
  for (const ToolDelta& piece : choice.pieces) {
    if (piece.call >= 0) {
      spec_.answer->call(tool_call(0, piece), &bytes);
      logprobs_.clear();  // calls have none
    } else if (piece.reasoning) {
      spec_.answer->reasoning(piece.content, &bytes);
      logprobs_.clear();
    } else {
      spec_.answer->text(piece.content, std::exchange(logprobs_, {}), &bytes);
    }
  }
  choice.text.clear();
  choice.pieces.clear();
  choice.num_unsent = 0;
  if (!spec_.params.stream || bytes.empty()) return;
  choice.started = true;
  emit_locked(bytes);
}

void Generation::stream_pieces(const Delta& delta, Choice& choice, std::string* bytes) {
  const std::vector<ToolDelta>& pieces = choice.pieces;
  Delta one = delta;
  one.text = {};
  one.called = choice.parser->num_calls() > 0;
  if (pieces.empty()) return writer_.append_delta(bytes, one);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const ToolCall call = tool_call(static_cast<std::size_t>(delta.index), pieces[i]);
    one.first = !choice.started;
    one.text = pieces[i].reasoning ? std::string_view() : pieces[i].content;
    one.reasoning = pieces[i].reasoning ? pieces[i].content : std::string_view();
    one.call = pieces[i].call >= 0 ? &call : nullptr;
    one.call_index = pieces[i].call;
    one.finish = i + 1 == pieces.size() ? delta.finish : FinishReason::kNone;
    choice.started = true;
    writer_.append_delta(bytes, one);
    one.logprobs_json = "null";  // they go with the first
    one.token_ids = one.prompt_ids = nullptr;
  }
}

ToolCall Generation::tool_call(std::size_t index, const ToolDelta& piece) const {
  ToolCall call{"", piece.name, piece.arguments, piece.custom};
  if (piece.name.empty()) return call;
  std::uint64_t hash = std::hash<std::string>()(fmt::format("{}/{}/{}", spec_.id, index, piece.call));
  if (!spec_.tool_format->short_ids) {
    call.id = fmt::format("call_{:016x}", hash);
    return call;
  }
  for (int i = 0; i < 9; ++i, hash /= 36) call.id += "0123456789abcdefghijklmnopqrstuvwxyz"[hash % 36];
  return call;
}

void Generation::finish_pieces(std::size_t index, Choice& choice, FinishedChoice* out) {
  out->text.clear();
  for (const ToolDelta& piece : choice.pieces) {
    if (piece.call < 0) {
      (piece.reasoning ? out->reasoning : out->text) += piece.content;
    } else if (!piece.name.empty()) {
      out->calls.push_back(tool_call(index, piece));
    } else {
      out->calls.back().arguments += piece.arguments;
    }
  }
}

void Generation::end_locked() {
  if (ended_) return;
  ended_ = true;
  metrics_.request_latency.observe(seconds_since(spec_.arrival));
  metrics_.prompt_tokens.observe(static_cast<double>(usage_.prompt_tokens));
  metrics_.completion_tokens.observe(static_cast<double>(usage_.completion_tokens));
  report_done(200, &usage_);  // before the client sees the end, and asks again
  if (spec_.answer) {
    std::string bytes;
    spec_.answer->end({choices_.front().finish, usage_, stop_text_}, &bytes);
    if (spec_.params.stream) {
      exchange_->write(bytes);
      exchange_->finish();
    } else {
      HttpResponse response;
      response.body = spec_.answer->whole();
      exchange_->respond(std::move(response));
    }
    return;
  }
  if (spec_.params.stream) {
    std::string bytes;
    if (spec_.params.include_usage) writer_.append_usage_chunk(&bytes, usage_);
    ChunkWriter::append_done(&bytes);
    exchange_->write(bytes);
    exchange_->finish();
  } else {
    answer_whole_locked();
  }
}

void Generation::answer_whole_locked() {
  const std::size_t per_prompt = static_cast<std::size_t>(spec_.params.best_of);
  const std::size_t keep = static_cast<std::size_t>(spec_.params.n);
  std::vector<FinishedChoice> out;
  for (std::size_t first = 0; first < choices_.size(); first += per_prompt) {
    std::vector<Choice*> ranked;
    for (std::size_t i = 0; i < per_prompt; ++i) ranked.push_back(&choices_[first + i]);
    if (keep < per_prompt) {
      const auto mean = [](const Choice* c) {
        return c->logprob_count > 0 ? c->logprob_sum / static_cast<double>(c->logprob_count) : -1e30;
      };
      std::stable_sort(ranked.begin(), ranked.end(), [&](Choice* a, Choice* b) { return mean(a) > mean(b); });
    }
    for (std::size_t i = 0; i < keep; ++i) {
      Choice& choice = *ranked[i];
      FinishedChoice finished;
      finished.index = static_cast<std::int32_t>(out.size());
      finished.text = (spec_.echo.empty() ? "" : spec_.echo[choice.prompt]) + choice.text;
      if (choice.parser) finish_pieces(out.size(), choice, &finished);
      if (choice.logprobs) {
        finished.logprobs_json.clear();
        choice.logprobs->append_json(&finished.logprobs_json);
      }
      if (spec_.params.prompt_logprobs >= 0) {
        finished.prompt_logprobs_json = prompt_logprobs_json(engine_, scores_[static_cast<std::size_t>(choice.prompt)],
                                                             spec_.params.prompt_logprobs);
      }
      finished.finish = choice.finish;
      if (spec_.params.return_token_ids) {
        finished.token_ids = &choice.tokens;
        finished.prompt_ids = &prompts_[static_cast<std::size_t>(choice.prompt)];
      }
      out.push_back(std::move(finished));
    }
  }
  HttpResponse response;
  response.body = whole_answer(spec_.kind, spec_.id, created_, spec_.model, out, usage_);
  exchange_->respond(std::move(response));
}

void Generation::fail_locked(const Status& status) {
  ended_ = true;
  const ApiError error = api_error(status);
  report_done(error.status);
  if (spec_.params.stream && admitted_) {
    std::string bytes;
    if (spec_.answer) {
      spec_.answer->fail(error, &bytes);
    } else {
      ChunkWriter::append_error(&bytes, error.message,
                                error.status == 503 ? "service_unavailable_error" : "server_error");
    }
    exchange_->write(bytes);
    exchange_->finish();
  } else {
    exchange_->respond(spec_.answer ? spec_.answer->refusal(error)
                                    : error_response(error.status, error.message, error.param, error.code));
  }
}

}  // namespace fovea::server
