#include "base/check.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"
#include "web/event_parser.h"
#include "web/openai_client.h"
#include "web/response_parser.h"
#include "web/url.h"

namespace weft::fuzz {

namespace {

void check_url(std::string_view text) {
  const auto url = web::parse_url(text);
  WEFT_CHECK(url || !url.error().message.empty());
  if (!url) return;
  WEFT_CHECK(url->endpoint.port != 0 && (url->path.empty() || url->path.starts_with('/')));
  WEFT_CHECK(web::parse_url(to_string(*url)) == *url);
}

void check_event(const web::ServerEvent& event) {
  (void)web::parse_chunk(event.data);
  if (const auto id = web::parse_event_id(event.id))
    WEFT_CHECK(id->number > 0 && !id->stream.empty() &&
               id->stream.find_first_of("/\r\n ") == std::string::npos);
}

}  // namespace

// How many bytes come at a time, and the bytes of a connection. They are tried as a URL, too.
void answers(std::span<const std::byte> bytes) {
  using State = web::ResponseParser::State;
  constexpr size_t kEventMax = 4096;
  Input input(bytes);
  const size_t piece = size_t{1} + input.byte();
  check_url(as_text(Input(input).rest()));
  web::ResponseParser parser({.head_bytes_max = 1024, .header_count_max = 8});
  web::EventParser events(kEventMax);
  std::string whole;
  bool is_readable = true;
  while (!input.empty() && parser.state() != State::Refused) {
    parser.feed(as_text(input.take(piece)));
    const std::string body = parser.take_body();
    std::vector<web::ServerEvent> told;
    is_readable = is_readable && events.feed(body, told).has_value();
    for (const web::ServerEvent& event : told) {
      WEFT_CHECK(event.data.size() <= kEventMax + 1);
      check_event(event);
    }
    whole += body;
  }
  parser.end();
  if (parser.state() == State::Refused) {
    WEFT_CHECK(!parser.fault().empty());
    return;
  }
  (void)web::parse_models(whole);
  WEFT_CHECK(!web::error_of_answer(parser.status(), whole, parser.header("retry-after").value_or(""))
                  .message.empty());
}

}  // namespace weft::fuzz
