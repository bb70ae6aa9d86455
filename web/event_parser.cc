#include "web/event_parser.h"

#include <algorithm>

namespace weft::web {

void EventParser::take_field(std::string_view name, std::string_view value) {
  if (name == "data") {
    if (has_data_) event_.data += '\n';
    event_.data += value;
    has_data_ = true;
  } else if (name == "id") {
    if (value.find('\0') == value.npos) event_.id = value;
  } else if (name == "event") {
    event_.type = value;
  }
}

void EventParser::take_line(std::vector<ServerEvent>& into) {
  std::string_view line = line_;
  if (std::exchange(is_first_line_, false) && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
  if (line.empty()) {
    // Only what has data is an event; its id stays for those behind it.
    if (has_data_) into.push_back(event_);
    event_.data.clear();
    event_.type.clear();
    has_data_ = false;
    return;
  }
  const size_t colon = line.find(':');
  if (colon == 0) return;  // a comment
  std::string_view value = colon == line.npos ? std::string_view() : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  take_field(line.substr(0, colon), value);
}

Status EventParser::feed(std::string_view bytes, std::vector<ServerEvent>& into) {
  while (!bytes.empty()) {
    if (std::exchange(is_behind_return_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    if (line_.size() + event_.data.size() + end > event_max_)
      return fail(ErrorCode::ResourceExhausted,
                  "the service sends an event of more than " + std::to_string(event_max_) + " bytes");
    line_ += bytes.substr(0, end);
    if (end == bytes.size()) break;
    is_behind_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    take_line(into);
    line_.clear();
  }
  return {};
}

}  // namespace weft::web
