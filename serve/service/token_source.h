// Where the tokens of a TextService come from: an engine on this machine, or the entry of a ring of others.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "base/metrics.h"
#include "base/result.h"
#include "base/units.h"
#include "serve/engine.h"

namespace weft::serve {

// Any thread. Listeners are told on a thread of the source's own.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual int64_t context() const = 0;     // positions of a sequence, at most
  virtual int64_t vocabulary() const = 0;  // tokens that there are

  // Told a request's number, once, before its listener hears of it. False: nobody wants it any more.
  using Begun = std::function<bool(uint64_t id)>;
  // A request that is not taken ends with Failed and an error, as of Engine::add().
  virtual void add(Request request, Listener listener, Begun begun = {}) = 0;
  virtual void cancel(uint64_t id) = 0;

  // When a token, or a pass of a prompt, was last made; and since when something has been to do that nothing
  // has come of.
  struct Pulse {
    Instant last_pass{};
    std::optional<Instant> waiting_since{};
    Status last_status{};
  };
  virtual Pulse pulse() const = 0;
  virtual Metrics metrics() const = 0;  // weft_serve_... (docs/SERVE.md)
};

Instant steady_now();

// What every source counts of requests, by its own labels: how long tokens take, and how requests end.
void declare_request_metrics(Metrics& metrics);
std::string_view to_string(Finish finish);

}  // namespace weft::serve
