#include <cmath>

#include "base/check.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"
#include "web/openai.h"

namespace weft::fuzz {

namespace {

void check_request(const web::GenerateRequest& request) {
  WEFT_CHECK(!request.max_tokens || *request.max_tokens > 0);
  WEFT_CHECK(request.temperature >= 0 && request.temperature <= 2);
  WEFT_CHECK(request.top_p > 0 && request.top_p <= 1);
  WEFT_CHECK(request.stop.size() <= 4);
  for (const std::string& stop : request.stop) WEFT_CHECK(!stop.empty());
  WEFT_CHECK(!request.logprobs || *request.logprobs <= 20);
  WEFT_CHECK(!request.includes_usage || request.is_stream);
  if (const auto* messages = std::get_if<std::vector<web::ChatMessage>>(&request.prompt))
    WEFT_CHECK(request.kind == web::ApiKind::Chat && !messages->empty());
  if (const auto* tokens = std::get_if<std::vector<uint32_t>>(&request.prompt)) WEFT_CHECK(!tokens->empty());
}

}  // namespace

// Whether it is a chat, and the body.
void openai(std::span<const std::byte> bytes) {
  Input input(bytes);
  const bool is_chat = input.byte() % 2 == 1;
  const std::string_view body = as_text(input.rest());
  const auto request = is_chat ? web::parse_chat(body) : web::parse_completion(body);
  if (request) return check_request(*request);
  WEFT_CHECK(request.error().status == 400 && !request.error().message.empty());
  WEFT_CHECK(!web::render_error(request.error()).empty());
}

}  // namespace weft::fuzz
