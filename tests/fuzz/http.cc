#include "base/check.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"
#include "web/request_parser.h"

namespace weft::fuzz {

// How many bytes come at a time, and the bytes of a connection: requests behind each other.
void http(std::span<const std::byte> bytes) {
  using State = web::RequestParser::State;
  Input input(bytes);
  const size_t piece = size_t{1} + input.byte();
  const web::RequestLimits limits{.head_bytes_max = 1024, .header_count_max = 8, .body_bytes_max = 4096};
  web::RequestParser parser(limits);
  std::string waiting;
  while (!input.empty()) {
    waiting += as_text(input.take(piece));
    for (;;) {
      const State before = parser.state();
      waiting.erase(0, parser.feed(waiting));
      WEFT_CHECK(parser.state() == State::Complete || waiting.size() <= limits.head_bytes_max + piece);
      if (parser.state() == State::Refused) {
        WEFT_CHECK(parser.refusal().status >= 400 && !parser.refusal().message.empty());
        return;
      }
      if (parser.state() == State::Complete) {
        const web::Request request = parser.take();
        WEFT_CHECK(request.path.starts_with('/') && request.headers.size() <= limits.header_count_max);
        WEFT_CHECK(request.body.size() <= limits.body_bytes_max);
        parser = web::RequestParser(limits);
      } else if (parser.state() == before) {
        break;
      }
      if (waiting.empty()) break;
    }
  }
}

}  // namespace weft::fuzz
