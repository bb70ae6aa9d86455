#include "serve/service/token_source.h"

#include <array>

namespace weft::serve {

Instant steady_now() { return Instant(std::chrono::steady_clock::now().time_since_epoch()); }

void declare_request_metrics(Metrics& metrics) {
  static constexpr std::array kSeconds{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                       0.2,   0.5,   1.0,   2.0,  5.0,  10.0, 30.0};
  metrics.declare_histogram("weft_serve_first_token_seconds", "From a request's arrival to its first token.",
                            kSeconds);
  metrics.declare_histogram("weft_serve_between_tokens_seconds", "From one token of a request to the next.",
                            kSeconds);
  metrics.declare_counter("weft_serve_tokens_total", "Tokens that were generated.");
  metrics.declare_counter("weft_serve_requests_total", "Requests that have ended, by how.");
  metrics.declare_gauge("weft_serve_requests_serving", "Requests that are being served.");
  metrics.declare_gauge("weft_serve_requests_waiting", "Requests that wait for memory or a place.");
}

std::string_view to_string(Finish finish) {
  switch (finish) {
    case Finish::Stop:
      return "stop";
    case Finish::Length:
      return "length";
    case Finish::Cancelled:
      return "cancelled";
    case Finish::Failed:
      return "failed";
  }
  return "failed";
}

}  // namespace weft::serve
