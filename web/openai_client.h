// The other side of openai.h: requests written, answers read. Pure, and within bounds: a service may be
// anybody's.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "web/service.h"

namespace weft::web {

// "/completions" or "/chat/completions", behind a service's URL.
std::string_view path_of(ApiKind kind);
std::string render_request(const GenerateRequest& request);

// Names, at most 4096. Corrupted: it is no list of models.
Result<std::vector<std::string>> parse_models(std::string_view body);

// One event of a stream that is not "[DONE]".
struct AnswerChunk {
  std::string text{};
  std::string reason{};  // "stop", "length"; empty: it goes on
  std::string system_fingerprint{};
  std::optional<Usage> usage{};
};
// Errors: Corrupted for what is no chunk; that of an error which the service tells in the stream.
Result<AnswerChunk> parse_chunk(std::string_view data);

// An answer with an error's status, in the service's own words. The codes are those of to_api_error the other
// way round; OutOfRange stands for a conversation that is longer than the context.
Error error_of_answer(int status, std::string_view body, std::string_view retry_after);

// ID-N of an event apart: its stream, and its number. Nothing: it is not of that form.
struct EventId {
  std::string stream;
  uint64_t number = 0;
};
std::optional<EventId> parse_event_id(std::string_view id);

}  // namespace weft::web
