#include "client/api_client.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/status.h"

namespace fovea::app {
namespace {

using nlohmann::json;

// The message of an error answer, or its body where it has no such shape.
std::string error_text(const std::string& body) {
  const json parsed = json::parse(body, nullptr, false);
  if (parsed.is_object() && parsed.contains("error") && parsed["error"].is_object() &&
      parsed["error"].contains("message") && parsed["error"]["message"].is_string()) {
    return parsed["error"]["message"].get<std::string>();
  }
  return body.substr(0, 200);
}

Status answer_error(const server::HttpResponse& response) {
  return make_status(StatusCode::kUnavailable, "the server answered {}: {}", response.status,
                     error_text(response.body));
}

void read_usage(const json& chunk, ApiAnswer* answer) {
  const auto usage = chunk.find("usage");
  if (usage == chunk.end() || !usage->is_object()) return;
  answer->prompt_tokens = usage->value("prompt_tokens", std::int64_t{0});
  answer->completion_tokens = usage->value("completion_tokens", std::int64_t{0});
  const auto details = usage->find("prompt_tokens_details");
  if (details != usage->end() && details->is_object()) {
    answer->cached_tokens = details->value("cached_tokens", std::int64_t{0});
  }
}

}  // namespace

double ApiAnswer::seconds_per_token() const {
  if (completion_tokens < 2 || chunk_s.size() < 2) return 0.0;
  return (chunk_s.back() - chunk_s.front()) / static_cast<double>(completion_tokens - 1);
}

Result<ApiAnswer> stream_request(server::HttpClient& client, const std::string& path, const std::string& body,
                                 const std::function<void(std::string_view)>& on_text) {
  ApiAnswer answer;
  Status error;
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const auto on_event = [&](std::string_view data) {
    if (data == "[DONE]") return true;
    const json chunk = json::parse(data, nullptr, false);
    if (!chunk.is_object()) {
      error = data_loss("the stream holds no JSON: {}", data.substr(0, 100));
      return false;
    }
    if (chunk.contains("error")) {
      error = Status(StatusCode::kInternal, error_text(std::string(data)));
      return false;
    }
    read_usage(chunk, &answer);
    const auto choices = chunk.find("choices");
    if (choices == chunk.end() || !choices->is_array() || choices->empty()) return true;
    const json& choice = (*choices)[0];
    std::string text;
    if (choice.contains("delta") && choice["delta"].is_object()) {
      const json& content = choice["delta"].value("content", json());
      if (content.is_string()) text = content.get<std::string>();
    } else if (choice.contains("text") && choice["text"].is_string()) {
      text = choice["text"].get<std::string>();
    }
    if (choice.contains("finish_reason") && choice["finish_reason"].is_string()) {
      answer.finish_reason = choice["finish_reason"].get<std::string>();
    }
    if (!text.empty()) {
      answer.chunk_s.push_back(elapsed());
      const auto index = choice.find("index");
      answer.chunk_choice.push_back(index != choice.end() && index->is_number_integer() ? index->get<std::int32_t>()
                                                                                        : 0);
    }
    answer.text += text;
    if (on_text && !text.empty()) on_text(text);
    return true;
  };
  server::HttpResponse other;
  FOVEA_RETURN_IF_ERROR(client.post_stream(path, body, on_event, &other));
  if (!error.ok()) return error;
  if (other.status != 200) return answer_error(other);
  answer.total_s = elapsed();
  return answer;
}

Result<std::string> get_body(const server::Url& address, const std::string& path) {
  FOVEA_ASSIGN_OR_RETURN(auto client, server::HttpClient::connect(address));
  FOVEA_ASSIGN_OR_RETURN(server::HttpResponse response, client->get(path));
  if (response.status != 200) return answer_error(response);
  return std::move(response.body);
}

Result<std::string> post_body(const server::Url& address, const std::string& path, const std::string& body) {
  FOVEA_ASSIGN_OR_RETURN(auto client, server::HttpClient::connect(address));
  FOVEA_ASSIGN_OR_RETURN(server::HttpResponse response, client->post(path, body));
  if (response.status != 200) return answer_error(response);
  return std::move(response.body);
}

}  // namespace fovea::app
