// What the door asks of whoever generates text: requests, what comes back, and the errors that a caller sees.
// The engine implements Service; web/api.h binds it to paths.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/metrics.h"
#include "base/result.h"

namespace weft::web {

// As the OpenAI API words an error, beside its status of HTTP.
struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string param{};  // the field at fault: "stop[2]"; empty: none
  std::string code{};   // "model_not_found"; empty: none
  std::string message{};
  uint32_t retry_after = 0;  // seconds; 0: not said
  bool operator==(const ApiError&) const = default;
};
// The code of an error that says: prompt, or prompt and max_tokens, are longer than there is room for.
inline constexpr const char* kContextLengthExceeded = "context_length_exceeded";
template <typename T>
using ApiResult = tl::expected<T, ApiError>;

// An error of ours as a caller sees it: its code decides the status.
ApiError to_api_error(const Error& error);
// 404 with the names that there are.
ApiError unknown_model(const std::string& model, const std::vector<std::string>& known);

struct ChatMessage {
  enum class Role : uint8_t { System, User, Assistant };
  Role role = Role::User;
  std::string content{};
  bool operator==(const ChatMessage&) const = default;
};
// Text, token ids, or a conversation.
using Prompt = std::variant<std::string, std::vector<uint32_t>, std::vector<ChatMessage>>;

enum class ApiKind : uint8_t { Completion, Chat };

// By what a caller names a request that it may ask again: with the same key, of the same caller, it is the
// same request, and its answer is told from the beginning. 409 (on_error) where something else is asked.
struct Once {
  std::string caller{};  // the token that was shown
  std::string key{};     // of Idempotency-Key
  std::string asked{};   // all of it, as it came
  bool operator==(const Once&) const = default;
};

struct GenerateRequest {
  ApiKind kind = ApiKind::Completion;
  std::string model{};
  Prompt prompt{};
  std::optional<uint32_t> max_tokens{};  // at least 1; nothing: until the context is full
  double temperature = 1;                // 0 to 2; 0 takes the likeliest
  double top_p = 1;                      // above 0, at most 1
  uint32_t top_k = 0;                    // 0: all
  std::optional<int64_t> seed{};         // nothing: the service draws one
  std::vector<std::string> stop{};       // at most 4, none empty
  bool is_stream = false, includes_usage = false;
  std::optional<Once> once{};
  std::optional<uint32_t> logprobs{};  // so many alternatives beside the token; at most 20; nothing: none
  bool operator==(const GenerateRequest&) const = default;
};

// What is the same in all of a request's answer. With it, and the pieces, its events can be written again.
struct Generation {
  // Of letters, digits, '-' and '_', at most 64; ids of events are ID-N. Whoever knows it may read the answer
  // (/v1/streams/ID), so it is drawn at random.
  std::string id{};
  int64_t created = 0;  // seconds since 1970
  std::string model{}, system_fingerprint{};
  ApiKind kind = ApiKind::Completion;
  bool includes_usage = false;  // in a stream
};

struct TokenLogprob {
  std::string token{};  // its bytes, which may be a part of a character
  double logprob = 0;   // natural; minus infinity is written as -9999
  std::vector<TokenLogprob> top{};
};
// What one or more tokens add to the text: whole characters.
struct Piece {
  std::string text{};
  std::vector<TokenLogprob> logprobs{};  // of its tokens, where they were asked for
};

enum class FinishReason : uint8_t { Stop, Length };
struct Usage {
  uint64_t prompt_tokens = 0, completion_tokens = 0;
};
struct GenerationEnd {
  FinishReason reason = FinishReason::Stop;
  Usage usage{};
  std::string system_fingerprint{};  // empty: as at the beginning
};

// Where an answer goes. Calls come one at a time, from any thread, and return at once: on_start, then pieces,
// then on_end; or on_error at any point, which is the end. An error before on_start has a status of its own.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void on_start(const Generation& generation) = 0;
  // False: nobody listens any more; the rest may be spared.
  virtual bool on_piece(const Piece& piece) = 0;
  virtual void on_end(const GenerationEnd& end) = 0;
  virtual void on_error(const ApiError& error) = 0;
};

// A request that is under way. Destroying it does not end it.
class OpenRequest {
 public:
  virtual ~OpenRequest() = default;
  // The caller has gone. Any thread, any number of times, before and after the end. Of a stream, or under a
  // key, the service may go on for a while, so that it can be resumed.
  virtual void cancel() = 0;
};

struct ModelInfo {
  std::string id{};
  int64_t created = 0;  // seconds since 1970
};
struct Health {
  bool is_well = false;
  std::string what{};  // a line for people: what lacks, or when a token came last
};

// Any thread; nothing here waits. Requests are within the bounds that GenerateRequest gives.
class Service {
 public:
  virtual ~Service() = default;
  virtual std::vector<ModelInfo> models() const = 0;  // that can answer now
  // What is told of a model that is not among them; nothing: nobody knows it.
  virtual std::optional<ApiError> why_absent(const std::string& /*model*/) const { return {}; }
  // The sink may be called before this returns, and is let go of after its end.
  virtual std::shared_ptr<OpenRequest> start(GenerateRequest request, std::shared_ptr<Sink> sink) = 0;
  // All of an answer from its beginning, of a stream that is running or ended a short time ago. NotFound
  // (404) by on_error.
  virtual std::shared_ptr<OpenRequest> resume(const std::string& id, std::shared_ptr<Sink> sink) = 0;
  virtual Health health() const = 0;
  virtual Metrics metrics() const = 0;
};

}  // namespace weft::web
