// A client of the OpenAI API on the caller's thread: the names of models, and answers piece by piece as they
// come. It drives the loop that it is given while it waits, so what else belongs to that loop goes on:
// signals, above all. Every wait has a deadline. What a service sends is bounded, whoever it is.
//
// A stream that breaks in the middle goes on: GET /v1/streams/REQUEST with Last-Event-ID asks for what lies
// behind the last event that came, so no piece is lost and none comes twice. A service whose events have no
// ids is not asked again.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "net/loop.h"
#include "web/service.h"
#include "web/url.h"

namespace weft::web {

struct ClientLimits {
  Duration connect_deadline = std::chrono::seconds(10);
  Duration head_deadline = std::chrono::minutes(5);      // a request may wait for others
  Duration silence_deadline = std::chrono::seconds(60);  // within an answer; weft says something each 15 s
  Duration whole_deadline = std::chrono::seconds(30);    // for an answer that is no stream
  // After a break: the first wait, which doubles up to the longest, and how long it is tried.
  Duration retry_first = std::chrono::milliseconds(100), retry_longest = std::chrono::seconds(5);
  Duration retry_for = std::chrono::seconds(60);
  size_t body_bytes_max = 4 << 20;   // of an answer that is no stream
  size_t event_bytes_max = 1 << 20;  // of one event
};

struct ClientOptions {
  Url url{};              // "http://127.0.0.1:7781/v1"
  std::string key{};      // sent as `Authorization: Bearer`; empty: none
  std::string ca_file{};  // PEM, whom to trust with https; empty: whom the system trusts
  ClientLimits limits{};
};

struct AnswerEnd {
  std::string reason{};              // "stop", "length"; empty: the service did not say
  std::string system_fingerprint{};  // of the last chunk that had one
  Usage usage{};                     // zero where it was not asked for
  size_t breaks = 0;                 // of the connection, each mended
};

class Client {
 public:
  // Errors: NotFound and InvalidArgument for the file of certificates; InvalidArgument for a key that cannot
  // stand in a header.
  static Result<std::unique_ptr<Client>> make(net::Loop& loop, ClientOptions options);
  virtual ~Client() = default;

  // Errors of what follows: Unavailable (cannot connect, the connection broke), Timeout, Corrupted (no answer
  // of this API), ResourceExhausted (longer than it may be), Cancelled, and what the service itself says:
  // error_of_answer() in openai_client.h.
  virtual Result<std::vector<std::string>> models() = 0;
  // `request` is made a stream. `on_text` is told each piece that is not empty; it may cancel().
  virtual Result<AnswerEnd> generate(GenerateRequest request,
                                     const std::function<void(const std::string& text)>& on_text) = 0;
  // Ends what is under way with Cancelled, and nothing that comes later. On the loop's thread: from what the
  // loop calls.
  virtual void cancel() = 0;
};

}  // namespace weft::web
