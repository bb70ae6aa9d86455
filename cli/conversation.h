// What was said so far, as turns: a message and its answer. Pure.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "web/service.h"

namespace weft::cli {

class Conversation {
 public:
  // `system`: what stands before all turns; empty: nothing.
  explicit Conversation(std::string system) : system_(std::move(system)) {}

  void say(std::string text) { turns_.push_back({std::move(text), {}}); }
  void answer(std::string text) { turns_.back().answer = std::move(text); }  // REQUIRES: say()
  // Leaves the oldest turn out. False: there is only the last one.
  bool drop_oldest();
  void begin_anew() { turns_.clear(); }

  std::vector<web::ChatMessage> messages() const;
  size_t turns() const { return turns_.size(); }

 private:
  struct Turn {
    std::string message;
    std::optional<std::string> answer;
  };
  std::string system_;
  std::deque<Turn> turns_;
};

}  // namespace weft::cli
