// Bytes of a stream become server-sent events
// (https://html.spec.whatwg.org/multipage/server-sent-events.html), within bounds. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::web {

struct ServerEvent {
  std::string id{};    // that of an earlier event, where this one has none
  std::string type{};  // empty: "message"
  std::string data{};  // its lines, with '\n' between them
  bool operator==(const ServerEvent&) const = default;
};

class EventParser {
 public:
  static constexpr size_t kEventMax = 1 << 20;  // bytes
  explicit EventParser(size_t event_max = kEventMax) : event_max_(event_max) {}

  // Events that end within `bytes` are put behind `into`. However the bytes are cut, the events are the same.
  // ResourceExhausted: an event is longer than it may be; nothing can be read behind it.
  Status feed(std::string_view bytes, std::vector<ServerEvent>& into);

 private:
  void take_line(std::vector<ServerEvent>& into);
  void take_field(std::string_view name, std::string_view value);

  const size_t event_max_;
  std::string line_;
  ServerEvent event_;
  bool has_data_ = false, is_first_line_ = true;
  bool is_behind_return_ = false;  // a '\n' that comes now belongs to the '\r' before it
};

}  // namespace weft::web
