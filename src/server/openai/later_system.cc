#include "server/openai/later_system.h"

#include <string>
#include <utility>

namespace fovea::server {

bool fold_later_system(std::vector<ChatMessage>* messages) {
  std::vector<ChatMessage> out;
  std::string pending;
  for (ChatMessage& message : *messages) {
    if (message.role == "system" && !out.empty()) {
      pending += "<system>\n" + message.content + "\n</system>\n\n";
      continue;
    }
    if (message.role == "user" && !pending.empty()) message.content = std::exchange(pending, {}) + message.content;
    if (message.role == "assistant" && !pending.empty()) out.push_back({"user", std::exchange(pending, {})});
    const bool joins = message.role == "user" && !out.empty() && out.back().role == "user";
    if (joins) {
      out.back().content += "\n\n" + message.content;
    } else {
      out.push_back(std::move(message));
    }
  }
  if (!pending.empty()) out.push_back({"user", std::move(pending)});
  const bool folded = out.size() != messages->size();
  *messages = std::move(out);
  return folded;
}

}  // namespace fovea::server
