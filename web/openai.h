// The bodies of the OpenAI API (https://platform.openai.com/docs/api-reference): requests read, answers
// written. Pure. What is known and not implemented, or not known, is refused with the field's name: nobody
// gets another answer than the one that was asked for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "web/service.h"

namespace weft::web {

// Of /v1/completions and /v1/chat/completions. Errors: 400, with `param` as the field.
ApiResult<GenerateRequest> parse_completion(std::string_view body);
ApiResult<GenerateRequest> parse_chat(std::string_view body);

std::string render_error(const ApiError& error);  // {"error": {...}}
std::string render_models(const std::vector<ModelInfo>& models);
std::string render_model(const ModelInfo& model);

// ID-N of an event: how many events of that stream somebody has seen. Nothing: it is none of this stream.
std::optional<uint64_t> events_seen(std::string_view event_id, std::string_view generation_id);

// An answer as one object. It holds the text until the end.
class ObjectWriter {
 public:
  explicit ObjectWriter(Generation generation) : generation_(std::move(generation)) {}
  void add(const Piece& piece);
  std::string finish(const GenerationEnd& end) const;
  size_t size() const { return text_.size(); }  // bytes of text

 private:
  Generation generation_;
  std::string text_;
  std::vector<TokenLogprob> logprobs_;
};

// An answer as server-sent events, numbered from 1 as ID-N. The same answer is the same events, however often
// it is written; the first `seen` are left out, so a call may give nothing. Nothing follows finish() or
// fail().
class EventWriter {
 public:
  explicit EventWriter(Generation generation, uint64_t seen = 0)
      : generation_(std::move(generation)), seen_(seen) {}
  std::string begin();
  std::string piece(const Piece& piece);
  std::string finish(const GenerationEnd& end);  // the reason, usage where it was asked for, [DONE]
  std::string fail(const ApiError& error);

 private:
  std::string event(const std::string& data);

  Generation generation_;
  uint64_t seen_ = 0, count_ = 0;
  uint64_t text_offset_ = 0;  // characters of the text before the next piece
};

}  // namespace weft::web
