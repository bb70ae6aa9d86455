#include "cli/conversation.h"

namespace weft::cli {

bool Conversation::drop_oldest() {
  if (turns_.size() < 2) return false;
  turns_.pop_front();
  return true;
}

std::vector<web::ChatMessage> Conversation::messages() const {
  using Role = web::ChatMessage::Role;
  std::vector<web::ChatMessage> messages;
  if (!system_.empty()) messages.push_back({Role::System, system_});
  for (const Turn& turn : turns_) {
    messages.push_back({Role::User, turn.message});
    if (turn.answer) messages.push_back({Role::Assistant, *turn.answer});
  }
  return messages;
}

}  // namespace weft::cli
