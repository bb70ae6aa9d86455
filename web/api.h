// The paths of the door, bound to a Service:
//
//   GET  /v1/models, /v1/models/NAME             those that can answer
//   POST /v1/completions, /v1/chat/completions      whole, or as server-sent events
//   GET  /v1/streams/REQUEST                        a stream again, behind the event of Last-Event-ID
//   GET  /health                                    200 or 503
//   GET  /metrics                                   Prometheus' text: the service's, and the server's own
//
// Errors are bodies in OpenAI's format. A request with an `Origin` comes from a page in a browser, and is
// refused unless that page is known: else any page could ask a port of its reader's own machine.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "web/server.h"
#include "web/service.h"

namespace weft::web {

enum class Access : uint8_t { Generate, Health, Metrics };  // models belong to Generate
enum class Verdict : uint8_t {
  Allowed,
  Unknown,    // 401: no token, or none that is known
  Forbidden,  // 403: a token of another role
  Unsure,     // 503: it cannot be said now
};

struct ApiOptions {
  // Judges the token of `Authorization: Bearer`; empty where none was sent. Called on the server's thread,
  // before a body is read; it does not wait. Nothing: everybody may do everything.
  std::function<Verdict(std::string_view token, Access access)> authorize{};
  std::vector<std::string> origins{};  // "https://chat.example.org"
  size_t whole_text_max = 16 << 20;    // bytes of an answer that is collected before it is sent
};

std::shared_ptr<Handler> make_api(std::shared_ptr<Service> service, ApiOptions options = {});

}  // namespace weft::web
